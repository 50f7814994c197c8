"""``rooflight run``: a script as it is, and at its end how far its step is from the speed of light."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from time import strftime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from rooflight.cli.endings import tell
from rooflight.cli.options import Output
from rooflight.records.options import Option
from rooflight.records.quantity import count_of
from rooflight.records.timeline import StepKind

if TYPE_CHECKING:
    from rooflight.capture.run.watch import Watch
    from rooflight.records.session import Session

_KEPT_RUNS: Final = 20
_STDERR: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Which steps of a script are looked at."""

    panel: ClassVar = "Step"
    steps: Annotated[int | None, Option("Time so many steps. [default: all after the skipped]", "N", least=1)] = None
    skip: Annotated[int, Option("Steps for warming up before one is recorded.", "N", least=0)] = 2
    step: Annotated[
        str | None,
        Option("What a step is: optimizer, backward, module:CLASS or function:FILE:NAME. [default: as found]", "KIND"),
    ] = None

    def chosen(self) -> tuple[StepKind | None, str]:
        """The kind of step, and the name of its module or function. Raises ValueError for another word."""
        if self.step is None:
            return None, ""
        word, _, name = self.step.replace(" ", ":", 1).partition(":")
        kinds = {str(kind): kind for kind in StepKind}
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
    output: RunOutput,
) -> Launch:
    """Run a training or inference script as it is, and say how far its step is from the speed of light, what lies
    between steps, and where the time goes.

    The step is found by watching: it ends when Optimizer.step returns, or a backward pass without an optimizer, or a
    call of the model. One step is recorded, all others run undisturbed and are timed. The script's output, files,
    random numbers and exit code stay as they are; the report goes to standard error when it ends.

    Options stand before SCRIPT; whatever follows it is the script's.

    \b
      rooflight run train.py --epochs 1
      rooflight run --skip 5 --html report.html train.py --batch-size 64
      rooflight run -m torch.distributed.run --nproc-per-node 2 train.py
      rooflight run --step module:GPT generate.py
    """
    target, *arguments = script
    outputs = output.open(save=output.save)
    if outputs.to_stdout:
        raise ValueError("standard output is the script's: give --json, --markdown, --csv, --html a file")
    kind, named = step.chosen()
    if not module:
        if Path(target).is_dir():
            raise ValueError(f"{target} is a folder: name the script in it, or a module with -m")
        if not Path(target).is_file():
            raise FileNotFoundError(f"no script {target}")
    return Launch(target=target, arguments=arguments, module=module, skip=step.skip, steps=step.steps,
                  only=kind, named=named, save=output.save, outputs=_words(output))  # fmt: skip


def _words(output: Output) -> list[str]:
    files = {name: getattr(output, name) for name in ("json", "markdown", "csv", "html")}
    words = [word for name, file in files.items() if file for word in (f"--{name}", file)]
    for each in output.render:
        words += ["--render", each]
    return words


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A script that is to run once the command line is done with."""

    target: str
    arguments: list[str]
    module: bool
    skip: int
    steps: int | None
    only: StepKind | None
    named: str
    save: Path | None
    outputs: list[str]

    def start(self) -> None:
        """Run the script in this process; whatever it raises is raised."""
        from rooflight.capture.run.children import Watched
        from rooflight.capture.run.launch import start
        from rooflight.capture.run.watch import Watch

        name = self.target if self.module else Path(self.target).name
        environment, place = dict(os.environ), Path.cwd()
        kept = _folder()
        folder = kept / f"parts-{os.getpid()}"
        unnamed = kept / f"{_plain(name)}-{strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.session"
        saved = Path.cwd() / self.save if self.save else unnamed
        watched = Watched(script=name, folder=str(folder), skip=self.skip, steps=self.steps, only=self.only,
                          named=self.named)  # fmt: skip
        end = _End(saved, self.outputs, environment, place)
        sys.excepthook = sys.__excepthook__  # typer has its own
        watch = Watch(watched, end)
        with suppress(OSError):
            watch.errors = os.dup(_STDERR)
        watch.run(lambda: start(self.target, self.arguments, as_module=self.module))


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.removesuffix(".py"))[:40]


def _folder() -> Path:
    """Where sessions of runs are kept that have no name of their own: the newest ``_KEPT_RUNS``."""
    from rooflight.devices.calibrations import folder

    with suppress(OSError):
        runs = folder() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        if os.access(runs, os.W_OK):
            oldest_first = sorted(runs.glob("*.session"), key=lambda path: path.stat().st_mtime)
            for old in oldest_first[:-_KEPT_RUNS]:
                old.unlink(missing_ok=True)
            return runs
    return Path(tempfile.gettempdir())


@dataclass(frozen=True)
class _End:
    """The end of a run: save the session, and report it in a process of its own, which the script cannot disturb."""

    saved: Path
    outputs: list[str]
    environment: dict[str, str]
    place: Path

    def __call__(self, watch: Watch) -> None:
        try:
            self._report(watch)
        except KeyboardInterrupt:
            self._say(watch, f"interrupted: {self.saved} has the session, if it was written")
        except Exception as error:  # the script's end is not ours to break
            self._say(watch, f"no report ({type(error).__name__}: {error})")
        from rooflight.capture.run.children import ENDED

        if not (Path(watch.watched.folder) / ENDED).exists():
            rmtree(watch.watched.folder, ignore_errors=True)

    def _report(self, watch: Watch) -> None:
        if watch.finder is None or watch.broken:
            why = f"could not be watched ({watch.broken})" if watch.broken else "imported no torch"
            self._say(watch, f"{watch.watched.script} {why}: there is nothing to report")
            return
        from rooflight.capture.run.children import ENDED, with_parts
        from rooflight.capture.run.outcome import session_of

        watched = watch.watched
        session = session_of(watch.finder, watched.script, watch.exit_code, watched.steps)
        if watch.forks and session.run is not None and session.run.step is None:
            Path(watched.folder).mkdir(exist_ok=True)
            (Path(watched.folder) / ENDED).touch()
            children = count_of(watch.forks, "child", "children")
            text = f"{watched.script} forked {children}: what is still running reports when it ends"
            self._say(watch, text)
        session = with_parts(session, Path(watched.folder))
        rank = self.environment.get("RANK", "0")
        path = self.saved if rank == "0" else self.saved.with_name(f"{self.saved.stem}.rank{rank}{self.saved.suffix}")
        path = self._save(session, path)
        if rank == "0":
            self._analyze(watch, path)

    def _save(self, session: Session, path: Path) -> Path:
        """Save it; where that cannot be, to a temporary file, since the report is still worth having."""
        try:
            return session.save(path)
        except OSError as error:
            other = Path(tempfile.gettempdir()) / path.name
            if other == path:
                raise
            tell(f"{path}: {error.strerror}: the session is in {other}")
            return session.save(other)

    def _analyze(self, watch: Watch, path: Path) -> None:
        command = [sys.executable, "-P", "-m", "rooflight", "analyze", str(path), "--brief", *self.outputs]
        errors = watch.errors if watch.errors >= 0 else _STDERR
        os.chdir(self.place)  # the outputs were named there
        if not os.isatty(errors):  # in a pipe nobody waits for half a minute of calibrating
            command.append("--no-calibrate")
        streams: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        streams += [(os.POSIX_SPAWN_DUP2, errors, to) for to in (1, _STDERR)]
        child = os.posix_spawn(sys.executable, command, self.environment, file_actions=streams)
        try:
            os.waitpid(child, 0)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGTERM)
            raise

    def _say(self, watch: Watch, text: str) -> None:
        """On standard error as it was when the script began."""
        with suppress(OSError):
            os.write(watch.errors if watch.errors >= 0 else _STDERR, f"rooflight: {text}\n".encode())
