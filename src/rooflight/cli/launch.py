"""A script that is to run once the command line is done with."""

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
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.files import cache_folder
from rooflight.records.package import uncollected
from rooflight.records.quantity import count_of

if TYPE_CHECKING:
    from rooflight.records.session import Session
    from rooflight.sources.capture.run.children import Watched
    from rooflight.sources.capture.run.watch import Watch

_KEPT_RUNS: Final = 20
_PATIENCE_S: Final = 30
_LAUNCH: Final = ("TORCHELASTIC_RUN_ID", "MASTER_PORT")
"""What tells a launch of torchrun from others, alike in all of its ranks."""


def prepared(target: str, *, module: bool = False, **which: Any) -> tuple[Watched, Path]:
    """What is watched of a script or module, and where its session goes; ``which`` steps, as ``Watched`` has them."""
    from rooflight.sources.capture.run.children import Watched

    name, kept = target if module else Path(target).name, _folder()
    plain = re.sub(r"\W", "-", name.removesuffix(".py"))[:40]
    launch = "-".join(filter(None, map(os.environ.get, _LAUNCH)))
    run = re.sub(r"\W", "-", launch) or f"{strftime('%H%M%S')}-{os.getpid()}"
    watched = Watched(script=name, folder=str(kept / f"parts-{os.getpid()}"), **which)
    return watched, kept / f"{plain}-{strftime('%Y%m%d')}-{run}.session"


def _folder() -> Path:
    """Where sessions of runs are kept that have no name of their own: the newest ``_KEPT_RUNS``."""
    with suppress(OSError):
        runs = cache_folder() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        if os.access(runs, os.W_OK):
            oldest_first = sorted(runs.glob("*.session"), key=lambda path: path.stat().st_mtime)
            for old in oldest_first[:-_KEPT_RUNS]:
                old.unlink(missing_ok=True)
            return runs
    return Path(tempfile.gettempdir())


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A script, and what it was started with. At its end the session is saved, and reported by a process of its own,
    which the script cannot disturb.
    """

    target: str
    arguments: list[str]
    watched: Watched
    saved: Path
    module: bool = False
    outputs: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    place: Path = field(default_factory=Path.cwd)
    begun: float = field(default_factory=time)

    def start(self) -> None:
        """Run the script in this process; whatever it raises is raised."""
        with uncollected():
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
        from rooflight.sources.capture.run.hooks import programs_begun

        script, folder = self.watched.script, Path(self.watched.folder)
        if watch.finder is None or watch.broken:
            why = f"could not be watched ({watch.broken})" if watch.broken else "imported no torch"
            watch.say(
                "; ".join(filter(None, (f"{script} {why}: there is nothing to report", watch.error, programs_begun())))
            )
            return
        from rooflight.sources.capture.run.children import with_parts
        from rooflight.sources.capture.run.outcome import session_of
        from rooflight.sources.traces.live import with_window

        others = watch.bystander.others() if watch.bystander is not None and "RANK" not in self.environment else None
        session = session_of(watch.finder, script, watch.exit_code, self.watched.steps, others, watch.sampler, folder,
                             watch.error)  # fmt: skip
        if watch.forks and session.run is not None and session.run.step is None:
            self.watched.end()
            children = count_of(watch.forks, "child", "children")
            watch.say(f"{script} forked {children}: what is still running reports when it ends")
        rank = self.environment.get("RANK", "0")
        first, *others = map(with_window, with_parts(session, folder))
        saved = [self._save(watch, first, rank)]
        saved += [self._save(watch, other, other.environment["rank"]) for other in others]
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

    def _save(self, watch: Watch, session: Session, rank: str) -> Path:
        path = self._path(rank)
        try:
            return session.save(path)
        except OSError as error:  # the report is still worth having
            path = session.save(Path(tempfile.gettempdir()) / path.name)
            watch.say(f"{self.saved}: {error.strerror}: the session is in {path}")
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
