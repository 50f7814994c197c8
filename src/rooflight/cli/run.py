"""``rooflight run``: a script as it is, and at its end how far its step is from the speed of light."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from time import sleep, strftime, time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from rooflight.cli.endings import tell
from rooflight.cli.options import Output
from rooflight.cli.run_on import ElsewhereOptions, LaunchOn
from rooflight.records.options import Option
from rooflight.records.quantity import count_of

if TYPE_CHECKING:
    from rooflight.records.session import Session
    from rooflight.records.timeline import StepKind
    from rooflight.sources.capture.run.children import Watched
    from rooflight.sources.capture.run.watch import Watch

_KEPT_RUNS: Final = 20
_PATIENCE_S: Final = 30
_LAUNCH: Final = ("TORCHELASTIC_RUN_ID", "MASTER_PORT")
"""What tells a launch of torchrun from others, alike in all of its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Which steps of a script are looked at."""

    panel: ClassVar = "Step"
    steps: Annotated[int | None, Option("Steps to time. [default: all after the skipped]", "N", least=1)] = None
    skip: Annotated[int, Option("Steps that warm up, before one is recorded.", "N", least=0)] = 2
    step: Annotated[
        str | None,
        Option("What a step is: optimizer, backward, module:CLASS or function:FILE:NAME. [default: as found]", "KIND"),
    ] = None

    def chosen(self) -> tuple[StepKind | None, str]:
        """The kind of step, and the name of its module or function. Raises ValueError for another word."""
        if self.step is None:
            return None, ""
        from rooflight.records.timeline import StepKind

        word, _, name = self.step.replace(" ", ":", 1).partition(":")
        kinds = {str(kind): kind for kind in StepKind if kind is not StepKind.PHASE}
        needs_name = word in (StepKind.MODULE, StepKind.FUNCTION)
        if word not in kinds or needs_name != bool(name):
            raise ValueError(f"--step {self.step}: write optimizer, backward, module:CLASS or function:FILE:NAME")
        file, _, function = name.rpartition(":")
        if word == StepKind.FUNCTION and not (function and Path(file).is_file()):
            raise ValueError(f"--step {self.step}: write function:FILE:NAME, with a file that exists")
        return kinds[word], name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput(Output):
    """Where the report and the session go."""

    save: Annotated[Path | None, Option("Save the session to this file. [default: in the cache folder]", "FILE")] = None


def run(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT", help="Python file, or with -m a module; then its arguments.")
    ],
    *,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    step: StepOptions,
    elsewhere: ElsewhereOptions,
    output: RunOutput,
) -> Launch | LaunchOn:
    """Run a training or inference script as it is, and say how far its step is from the speed of light, what lies
    between steps, and where the time goes.

    The step is found by watching: it ends when Optimizer.step returns, or a backward pass without an optimizer, or a
    call of the model. One step is recorded, all others run undisturbed and are timed. The script's output, files,
    random numbers and exit code stay as they are; the report goes to standard error when it ends.

    With --on the script runs for GPUs that are not there, in a process of its own and until a step is recorded: the
    report says how long it would take on each, whether it fits, and what is exchanged.

    Options stand before SCRIPT; whatever follows it is the script's, and so is standard output: --json and others take
    a file.

    \b
      rooflight run train.py --epochs 1
      rooflight run --skip 5 --html report.html train.py --batch-size 64
      rooflight run -m torch.distributed.run --nproc-per-node 2 train.py
      rooflight run --step module:GPT generate.py
      rooflight run --on H100-SXM5-80GB,B200-SXM --gpus 8 train.py
    """
    target, *arguments = script
    outputs = output.open(save=output.save)
    if outputs.to_stdout:
        raise ValueError("standard output is the script's: give --json, --markdown, --csv, --html a file")
    only, named = step.chosen()
    if not module and Path(target).is_dir():
        raise ValueError(f"{target} is a folder: name the script in it, or a module with -m")
    if not module and not Path(target).is_file():
        raise FileNotFoundError(f"no script {target}")
    from rooflight.sources.capture.run.children import Watched

    name, kept = target if module else Path(target).name, _folder()
    watched = Watched(script=name, folder=str(kept / f"parts-{os.getpid()}"), skip=step.skip, steps=step.steps,
                      only=only, named=named)  # fmt: skip
    plain = re.sub(r"\W", "-", name.removesuffix(".py"))[:40]
    launch = "-".join(filter(None, map(os.environ.get, _LAUNCH)))
    run = re.sub(r"\W", "-", launch) or f"{strftime('%H%M%S')}-{os.getpid()}"
    unnamed = f"{plain}-{strftime('%Y%m%d')}-{run}.session"
    saved = Path.cwd() / output.save if output.save else kept / unnamed
    if elsewhere.on is not None:
        return LaunchOn(target=target, arguments=arguments, module=module, watched=watched, saved=saved,
                        elsewhere=elsewhere, outputs=outputs)  # fmt: skip
    elsewhere.refuse_without_on()
    return Launch(
        target=target, arguments=arguments, module=module, watched=watched, saved=saved, outputs=_words(output)
    )


def _words(output: Output) -> list[str]:
    files = {name: getattr(output, name) for name in ("json", "markdown", "csv", "html")}
    words = [word for name, file in files.items() if file for word in (f"--{name}", file)]
    return words + [word for each in output.render for word in ("--render", each)]


def _folder() -> Path:
    """Where sessions of runs are kept that have no name of their own: the newest ``_KEPT_RUNS``."""
    from rooflight.hardware.devices.calibrations import folder

    with suppress(OSError):
        runs = folder() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        if os.access(runs, os.W_OK):
            oldest_first = sorted(runs.glob("*.session"), key=lambda path: path.stat().st_mtime)
            for old in oldest_first[:-_KEPT_RUNS]:
                old.unlink(missing_ok=True)
            return runs
    return Path(tempfile.gettempdir())


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A script that is to run once the command line is done with. At its end the session is saved, and reported by a
    process of its own, which the script cannot disturb.
    """

    target: str
    arguments: list[str]
    module: bool
    watched: Watched
    saved: Path
    outputs: list[str]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    place: Path = field(default_factory=Path.cwd)
    begun: float = field(default_factory=time)

    def start(self) -> None:
        """Run the script in this process; whatever it raises is raised."""
        from rooflight.sources.capture.run.launch import start
        from rooflight.sources.capture.run.watch import Watch

        sys.excepthook = sys.__excepthook__  # typer has its own
        Watch(self.watched, self._ended).run(lambda: start(self.target, self.arguments, as_module=self.module))

    def _ended(self, watch: Watch) -> None:
        try:
            self._report(watch)
        except KeyboardInterrupt:
            watch.say(f"interrupted: {self.saved} has the session, if it was written")
        except Exception as error:  # the script's end is not ours to break
            watch.say(f"no report ({type(error).__name__}: {error})")
        if not self.watched.ended:
            rmtree(self.watched.folder, ignore_errors=True)

    def _report(self, watch: Watch) -> None:
        script, folder = self.watched.script, Path(self.watched.folder)
        if watch.finder is None or watch.broken:
            why = f"could not be watched ({watch.broken})" if watch.broken else "imported no torch"
            watch.say(f"{script} {why}: there is nothing to report")
            return
        from rooflight.sources.capture.run.children import with_parts
        from rooflight.sources.capture.run.outcome import session_of
        from rooflight.sources.traces.live import with_window

        others = watch.bystander.others() if watch.bystander is not None and "RANK" not in self.environment else None
        session = session_of(watch.finder, script, watch.exit_code, self.watched.steps, others, watch.sampler, folder)
        if watch.forks and session.run is not None and session.run.step is None:
            self.watched.end()
            children = count_of(watch.forks, "child", "children")
            watch.say(f"{script} forked {children}: what is still running reports when it ends")
        rank = self.environment.get("RANK", "0")
        first, *others = map(with_window, with_parts(session, folder))
        saved = [self._save(first, rank), *(self._save(other, other.environment["rank"]) for other in others)]
        if rank == "0":
            self._analyze(watch, [*saved, *self._other_ranks(watch)])

    def _other_ranks(self, watch: Watch) -> list[Path]:
        """What the other ranks of this machine save, where a launcher started ``rooflight run`` in each."""
        paths = [self._path(str(rank)) for rank in range(1, int(self.environment.get("LOCAL_WORLD_SIZE", "1")))]

        def late() -> list[Path]:
            return [path for path in paths if not path.exists() or path.stat().st_mtime < self.begun]

        for seconds, what in ((2, f"waiting up to {_PATIENCE_S} s for"), (_PATIENCE_S, "going on without")):
            end = time() + seconds
            while late() and time() < end:
                sleep(0.05)
            if late():
                watch.say(f"{what} {count_of(len(late()), 'rank')} of which no session is there yet")
        return [path for path in paths if path not in late()]

    def _path(self, rank: str) -> Path:
        return self.saved if rank == "0" else self.saved.with_stem(f"{self.saved.stem}.rank{rank}")

    def _save(self, session: Session, rank: str) -> Path:
        path = self._path(rank)
        try:
            return session.save(path)
        except OSError as error:  # the report is still worth having
            path = session.save(Path(tempfile.gettempdir()) / path.name)
            tell(f"{self.saved}: {error.strerror}: the session is in {path}")
            return path

    def _analyze(self, watch: Watch, paths: list[Path]) -> None:
        command = [sys.executable, "-P", "-m", "rooflight", "analyze", *map(str, paths), "--brief", *self.outputs]
        os.chdir(self.place)  # the outputs were named there
        if not os.isatty(watch.errors):  # in a pipe nobody waits for half a minute of calibrating
            command.append("--no-calibrate")
        streams: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        streams += [(os.POSIX_SPAWN_DUP2, watch.errors, to) for to in (1, 2)]
        child = os.posix_spawn(sys.executable, command, self.environment, file_actions=streams)
        try:
            os.waitpid(child, 0)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGTERM)
            raise
