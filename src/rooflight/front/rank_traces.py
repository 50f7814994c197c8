"""Sessions of the ranks of one run from their traces: read in this process, in one per core, or on a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from rooflight.front.device import Progress
from rooflight.front.options import ReadOn
from rooflight.front.read_task import Answer, Asked
from rooflight.front.sources import is_session, read_session
from rooflight.records.archive import load
from rooflight.records.package import need
from rooflight.records.session import Session
from rooflight.sources.traces.file.discovery import (
    BY_NAME,
    RankFile,
    RankFiles,
    is_database,
    is_trace,
    ranks_in,
    ranks_of,
    traces_in,
)

_LARGE: Final = 200 << 20  # bytes of JSON that take longer than to import torch in more processes
_UNPACKED: Final = 12  # times the size of a gzip file
_RETRIES: Final = 2
_TASK: Final = ("-m", "rooflight.front.read_task")


@dataclass(frozen=True, slots=True)
class RankSessions:
    """The sessions of ranks, the names of their files, and notes for who reads the report."""

    sessions: tuple[Session, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def is_folder_of_traces(target: str) -> bool:
    """Whether a target is a folder, and not that of a model (with a config and no traces)."""
    folder = Path(target)
    return folder.is_dir() and (bool(traces_in(folder)) or not (folder / "config.json").is_file())


def only_trace_in(target: str) -> str | None:
    """The trace in a folder that has one, of a program that is not distributed; None for others.

    Raises ValueError as ``ranks_in`` does.
    """
    (file, *others) = ranks_in(Path(target)).files
    return str(file.path) if not others and file.rank is None else None


def read_ranks(targets: Sequence[str], model: str | None, on: ReadOn, progress: Progress) -> RankSessions:
    """The sessions of a run's ranks: of the traces in a folder, or of files, each a trace or a saved session.

    Raises ValueError for a path that is neither, traces that are damaged or do not belong together, and where no
    cluster answers; RuntimeError for a process or a task that dies.
    """
    is_folder = len(targets) == 1 and Path(targets[0]).is_dir()
    if is_folder:
        found = ranks_in(Path(targets[0]))
        run = Path(targets[0]).resolve().name
    else:
        for target in targets:
            if Path(target).is_dir() or not is_session(target):
                raise ValueError(
                    f"{target} is no saved session and no trace: several targets are those of one run, one per rank"
                )
        traces = [path for path in map(Path, targets) if is_trace(path) and not is_database(path)]
        found, run = RankFiles(tuple(ranks_of(traces))), traces[0].resolve().parent.name if traces else ""
    if found.files:
        need("torch", "reading a trace")
    read_here = zip(found.files, _sessions(found.files, model, on, progress), strict=True)
    read = {str(file.path): _as_rank(session, file, run) for file, session in read_here}
    paths = [str(file.path) for file in found.files] if is_folder else [str(Path(target)) for target in targets]
    sessions = [read[path] if path in read else read_session(path) for path in paths]
    notes = (*found.notes, BY_NAME) if any(file.by_name for file in found.files) else found.notes
    return RankSessions(tuple(sessions), tuple(Path(path).name for path in paths), notes)


def _as_rank(session: Session, file: RankFile, run: str) -> Session:
    numbers = {"rank": file.rank, "world_size": file.world_size}
    facts = {key: str(number) for key, number in numbers.items() if number is not None}
    return replace(session, environment={**session.environment, **facts, "target": run})


def _sessions(files: Sequence[RankFile], model: str | None, on: ReadOn, progress: Progress) -> list[Session]:
    if on.executor == "ray" and files:
        return _on_cluster(files, model, on.address or "auto", progress)
    sizes = [file.path.stat().st_size * (_UNPACKED if file.path.suffix == ".gz" else 1) for file in files]
    processes = min(len(files), on.processes or len(os.sched_getaffinity(0)))
    if processes > 1 and (sum(sizes) > _LARGE or on.processes):
        return _in_processes(files, model, processes, progress)
    return [_here(file, number, len(files), model, progress) for number, file in enumerate(files)]


def _here(file: RankFile, number: int, total: int, model: str | None, progress: Progress) -> Session:
    from rooflight.sources.traces.session import read_trace

    def tell(done: int, size: int) -> None:
        progress(f"reading {_label(file)}, {done / max(size, 1):.0%}, {number} of {total} read")

    return read_trace(file.path, model=model, progress=tell)


def _label(file: RankFile) -> str:
    return file.path.name if file.rank is None else f"rank {file.rank}"


def _in_processes(files: Sequence[RankFile], model: str | None, processes: int, progress: Progress) -> list[Session]:
    """Each process takes the next trace when it has read one. If one of them fails, all end."""
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in sorted(range(len(files)), key=lambda number: -files[number].path.stat().st_size):
        waiting.put(number)
    read: list[int] = []

    def serve(process: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            file = files[number]
            asked = Asked(path=str(file.path), out=str(place / str(number)), model=model)

            def tell(share: float, file: RankFile = file) -> None:
                progress(f"reading {_label(file)}, {share:.0%}, {len(read)} of {len(files)} read")

            _ask(process, asked, tell)
            read.append(number)
            progress(f"{_label(file)} is read, {len(read)} of {len(files)}")

    with TemporaryDirectory() as folder, ExitStack() as opened:
        place = Path(folder)
        started = [opened.enter_context(_process()) for _ in range(processes)]
        opened.callback(_end, started)
        pool = opened.enter_context(ThreadPoolExecutor(processes))
        opened.callback(_end, started)  # so that no thread waits for an answer
        served = [pool.submit(serve, process) for process in started]
        done, _ = wait(served, return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        return [load(place / str(number)) for number in range(len(files))]


def _process() -> subprocess.Popen[bytes]:
    command = [sys.executable, *_TASK]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # of what a process that died did not read
                process.stdin.close()


def _ask(process: subprocess.Popen[bytes], asked: Asked, tell: Callable[[float], None]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(asked) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the missing answer says so
    for line in process.stdout:
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise ValueError(answer.error)
        if answer.done:
            return
        tell(answer.share)
    raise RuntimeError(f"the process that read {asked.path} died, perhaps because memory ran out: read fewer at a time")


def _on_cluster(files: Sequence[RankFile], model: str | None, address: str, progress: Progress) -> list[Session]:
    """A task per trace. Nodes must see the files under the same names."""
    from rooflight.sampling.executor.ray import Task, answers, connect

    paths = [str(file.path.resolve()) for file in files]
    tasks = iter(
        Task(function=read_as_bytes, arguments=(path, model), retries=_RETRIES, about=number)
        for number, path in enumerate(paths)
    )
    found: dict[int, Session] = {}
    progress(f"reading {len(files)} traces as tasks")
    with TemporaryDirectory() as folder, closing(answers(connect(address), lambda: next(tasks, None))) as answered:
        for answer in answered:
            number = answer.task.about
            path = files[number].path
            if answer.error:
                raise RuntimeError(f"{path}: its task failed: {answer.error}")
            if answer.lost:
                raise RuntimeError(f"{path}: its node was lost ({answer.lost})")
            content, problem = answer.value
            if problem:
                raise ValueError(problem)
            file = Path(folder) / str(number)
            file.write_bytes(content)
            found[number] = load(file)
            file.unlink()
            progress(f"{_label(files[number])} is read, {len(found)} of {len(files)}")
    return [found[number] for number in range(len(files))]


def read_as_bytes(path: str, model: str | None) -> tuple[bytes, str]:
    """The task: the bytes of a saved session, or what is wrong with the trace."""
    from rooflight.sources.traces.session import read_trace

    if not Path(path).exists():
        return b"", f"{path} is not on a node of the cluster: put the traces where all nodes see them"
    with TemporaryDirectory() as folder:
        try:
            return read_trace(path, model=model).save(Path(folder) / "session").read_bytes(), ""
        except (ValueError, OSError) as error:
            return b"", str(error) or type(error).__name__
