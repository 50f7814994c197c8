"""Which files are traces, which traces of a folder are the ranks of one run, and of which rank each is.

A trace of a distributed program has its rank (``distributedInfo``), whatever its name. Where it does not, the name may:
as ``rank3…``, ``…-rank_3…`` or SGLang's ``…-TP-3…``. A folder may have traces of several runs, or of several steps of a
run: those are taken that belong together, and a note names the others.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rooflight.records.quantity import count_of
from rooflight.sources.traces.file.chunks import TraceChunks
from rooflight.sources.traces.file.kinds import GZIP, begin_of, foreign, is_rocm

BY_NAME: Final = (
    "Ranks, and how many there are, are from the names of the traces: the traces themselves do not have them."
)
_SUFFIXES: Final = (".json", ".gz")
_COMPRESSED: Final = (".json.gz", ".json.zst", ".json.xz", ".json.bz2", ".json.zip")  # the reader refuses the others
_SQLITE: Final = b"SQLite format 3\x00"
_LOOKED_AT: Final = 1 << 20
_MARKS: Final = (b'"traceEvents"', b'"deviceProperties"')


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def is_trace(path: Path) -> bool:
    """Whether the file has the begin of a trace of torch's profiler. Every ``.json.gz`` counts as one,
    since no other input of Rooflight has that name, so that a damaged one is reported as damaged. So does a SQLite
    database: Nsight Systems exports such.
    """
    if is_database(path) or is_rocm(path):
        return True
    if path.name.endswith(_COMPRESSED):
        return path.is_file()
    if path.suffix == ".py" or not path.is_file():
        return False
    begin = begin_of(path, _LOOKED_AT)
    if path.suffix in _SUFFIXES and (begin.startswith(GZIP) or any(mark in begin for mark in _MARKS)):
        return True
    mark = {b"{": _MARKS[0], b"[": b'"ph"'}.get(begin.lstrip()[:1])
    return mark is not None and mark in begin


_NAMED: Final = re.compile(r"(?<![a-zA-Z])rank[-_. ]?(\d+)(?!\d)", re.IGNORECASE)
_HASH: Final = re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{5,}\b")
_PARALLEL: Final = re.compile(r"-(TP|DP|PP|EP)-(\d+)(?!\d)")
_HANDLER: Final = re.compile(r"^(?P<worker>.+)\.(?P<when>\d{9,})\.pt\.trace\.json(?:\.gz)?$")
"""What ``torch.profiler.tensorboard_trace_handler`` calls files: a worker, and the time of a cycle of its schedule."""

_DIGITS: Final = re.compile(r"(\d+)")
_LISTED: Final = 3
_IN_FOLDERS: Final = (".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class RankFile:
    """A trace, its rank, and the number of ranks; None where neither the trace nor its name has it. ``by_name``: the
    name alone does; if no other trace has the number of ranks, it is that of the highest rank and 1.
    """

    path: Path
    rank: int | None
    world_size: int | None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The traces of one run, by rank, and notes of what was taken and what was not."""

    files: tuple[RankFile, ...]
    notes: tuple[str, ...] = ()


def traces_in(folder: Path) -> list[Path]:
    """The traces in a folder, or, if it has none itself, in folders inside it; links to folders are not followed."""
    for _, depth in ((0, 1), (1, 8)):
        named = (path for path in _files(folder, depth) if path.name.endswith(_IN_FOLDERS))
        found = [path for path in named if is_trace(path) and not foreign(path)]
        if found:
            return sorted(found, key=_natural)
    return []


def ranks_in(folder: Path) -> RankFiles:
    """The traces of one run in a folder.

    Raises ValueError for a folder without traces, for traces without ranks, and for one that is damaged.
    """
    paths = traces_in(folder)
    if not paths:
        raise ValueError(f"{folder} has no traces (files *.json or *.json.gz that torch.profiler exported)")
    files = ranks_of(paths)
    if len(files) == 1:
        return RankFiles(tuple(files))
    unknown = [file for file in files if file.rank is None]
    workers = {match["worker"] for file in files if (match := _HANDLER.match(file.path.name))}
    if unknown and len(unknown) == len(files) and len(workers) == 1 and all(map(_worker, files)):
        note = f"{folder} has {count_of(len(files), 'trace')} of one worker: {files[-1].path.name} was taken, the last."
        return RankFiles((files[-1],), (f"{note} Give the name of another one to read that.",))
    if unknown:
        listed = ", ".join(file.path.name for file in unknown[:_LISTED]) + (", …" if len(unknown) > _LISTED else "")
        raise ValueError(
            f"{folder} has {count_of(len(files), 'trace')}, of which {len(unknown)} have no rank ({listed}): give one "
            "trace, or those of the ranks of one run"
        )
    return _one_run(folder, files)


def ranks_of(paths: Sequence[Path]) -> list[RankFile]:
    """Each trace with its rank. Raises ValueError for one whose begin is damaged."""
    files = [_with_rank(path, TraceChunks(path).read_head().get("distributedInfo")) for path in paths]
    by_name = _by_name([file.path.name for file in files if file.rank is None])
    known = [*by_name.values(), *(file.rank for file in files if file.rank is not None)]
    size = max((file.world_size for file in files if file.world_size), default=max(known, default=0) + 1)
    return [
        RankFile(file.path, by_name[file.path.name], size, by_name=True) if file.path.name in by_name else file
        for file in files
    ]


def _with_rank(path: Path, info: Any) -> RankFile:
    rank, size = (info.get("rank"), info.get("world_size")) if isinstance(info, dict) else (None, None)
    if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size:
        return RankFile(path, rank, size)
    return RankFile(path, None, None)


def _by_name(names: Iterable[str]) -> dict[str, int]:
    """Ranks that names of files tell. Of SGLang's numbers tensor-parallel ranks vary first, then those of stages."""
    found = {name: int(match[1]) for name in names if (match := _NAMED.search(name))}
    axes = {name: dict(_PARALLEL.findall(name)) for name in names if name not in found}
    places = {
        name: tuple(int(each.get(axis, 0)) for axis in ("DP", "PP", "TP", "EP"))
        for name, each in axes.items()
        if "TP" in each
    }
    numbers = {place: number for number, place in enumerate(sorted(set(places.values())))}
    single = all(place[:2] == (0, 0) for place in numbers)
    return found | {name: place[2] if single else numbers[place] for name, place in places.items()}


def _one_run(folder: Path, files: Sequence[RankFile]) -> RankFiles:
    runs: dict[_Run, dict[int | None, RankFile]] = defaultdict(dict)
    for file, run in zip(files, _runs(files), strict=True):
        before = runs[run].get(file.rank)
        if before is None or _natural(_when(before)) < _natural(_when(file)):  # a worker that was started again
            runs[run][file.rank] = file
    order = sorted(runs, key=lambda run: (len(runs[run]), run))
    taken = tuple(sorted(runs[order[-1]].values(), key=lambda file: file.rank or 0))
    left_out = len(files) - len(taken)
    if not left_out:
        return RankFiles(taken)
    with_others = f" and those of {count_of(len(taken) - 1, 'other rank')}" if len(taken) > 1 else ""
    note = (
        f"{folder} has traces of several runs or steps: {taken[0].path.name}{with_others} were taken, "
        f"{count_of(left_out, 'other was', 'others were')} not. Give the files of a run to read another."
    )
    return RankFiles(taken, (note,))


_Run = tuple[tuple[tuple[int, str], ...], int]


def _runs(files: Sequence[RankFile]) -> list[_Run]:
    """The run of each file, a later one's greater: one run where the traces state ranks that all differ, else the
    file's name without rank and hash, or its worker's cycle.
    """
    stated = {(file.rank, file.world_size) for file in files if not file.by_name}
    if len(stated) == len(files) and len({size for _, size in stated}) == 1:
        return [((), 0)] * len(files)
    cycles, passed = Counter(map(_worker, files)), Counter[str]()
    found: dict[Path, _Run] = {}
    for file in sorted(files, key=lambda file: _natural(_when(file))):
        worker = _worker(file)
        passed[worker] += 1
        place = file.path.parent
        if not worker:
            place = Path(_HASH.sub("#", _PARALLEL.sub(r"-\1-#", _NAMED.sub("rank#", str(file.path)))))
        found[file.path] = _natural(place), passed[worker] - cycles[worker] if worker else 0
    return [found[file.path] for file in files]


def _worker(file: RankFile) -> str:
    match = _HANDLER.match(file.path.name)
    return "" if match is None else str(file.path.parent / match["worker"])


def _when(file: RankFile) -> str:
    match = _HANDLER.match(file.path.name)
    return file.path.name if match is None else match["when"]


def _files(folder: Path, depth: int) -> Iterable[Path]:
    for place, folders, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= depth - 1:
            folders.clear()
        yield from (Path(place) / name for name in names)


def _natural(path: Path | str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(str(path)))
