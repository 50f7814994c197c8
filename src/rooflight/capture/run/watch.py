"""Watches one process from before its script to its end, and its children."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rooflight.capture.run.hooks import WhenImported, before_exit, install
from rooflight.records.run import StepKind

PART: Final = "part-{}.session"
_IN_A_CHILD: Final = "from rooflight.capture.run.watch import follow; follow({!r}); "


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched: ``skip`` steps are for warming up, ``steps`` after them are timed, or all. ``only`` is the kind
    of step that the user chose, ``named`` its module or function. ``folder`` is where children put their parts.
    """

    script: str
    folder: str
    skip: int = 2
    steps: int | None = None
    only: StepKind | None = None
    named: str = ""


class Watch:
    """``ended`` is called once with what was found, when the process of the script ends."""

    def __init__(self, watched: Watched, ended: Callable[[Watch], None]) -> None:
        self.watched = watched
        self.exit_code: int | None = 0
        self.finder: Any = None
        self.is_child = False
        self.broken = ""
        self.errors = -1  # a descriptor of standard error that the script does not know, closed in children
        self._ended: Callable[[Watch], None] | None = ended
        self._open_process = os.getpid()
        sys.meta_path.insert(0, WhenImported("torch", self._torch_is_there))
        atexit.register(self.end)
        before_exit(self._leaves)
        os.register_at_fork(after_in_child=self._forked)

    def _torch_is_there(self) -> None:
        from rooflight.capture.run.finder import StepFinder

        watched = self.watched
        try:
            self.finder = StepFinder(skip=watched.skip, only=watched.only, named=watched.named)
            install(self.finder)
            _follow_spawned(watched)
        except Exception as error:  # of a torch that has other names: the script is to run all the same
            self.broken = f"{type(error).__name__}: {error}"

    def run(self, script: Callable[[], None]) -> None:
        """Run the script, and take note of how it ends."""
        self.exit_code = 0
        try:
            script()
        except SystemExit as stop:
            self.exit_code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            raise
        except KeyboardInterrupt:
            self.exit_code = -signal.SIGINT
            raise
        except BaseException:
            self.exit_code = 1
            raise

    def end(self) -> None:
        """The process ends: say what was found, once."""
        ended, self._ended = self._ended, None
        if ended is not None and os.getpid() == self._open_process:
            ended(self)

    def _leaves(self, code: int) -> None:
        if self._ended is not None:
            self.exit_code = code
            self.end()

    def _forked(self) -> None:
        self.is_child, self._open_process = True, os.getpid()
        if self.errors >= 0:
            with suppress(OSError):
                os.close(self.errors)
        if self._ended is not None:
            self._ended = _write_part
        if self.finder is not None:
            self.finder.starts_anew()


def follow(watched: dict[str, Any]) -> None:
    """Watch this process, a child that was spawned."""
    watched["only"] = StepKind(watched["only"]) if watched["only"] else None
    watch = Watch(Watched(**watched), _write_part)
    watch.is_child = True


def _write_part(watch: Watch) -> None:
    """Leave what a child found for its parent, if it trained."""
    from rooflight.capture.run.outcome import session_of

    finder, watched = watch.finder, watch.watched
    if finder is None or not finder.has_trained:
        return
    with suppress(Exception):  # the child's own work is done, and the parent says what it missed
        session = session_of(finder, watched.script, watch.exit_code, watched.steps)
        session.save(Path(watched.folder) / PART.format(os.getpid()))


def _follow_spawned(watched: Watched) -> None:
    """Children that multiprocessing spawns run a line of Python, which begins by watching them."""
    from multiprocessing import spawn

    command = spawn.get_command_line
    facts = {**asdict(watched), "only": str(watched.only or "")}
    first = _IN_A_CHILD.format(facts)

    def with_watching(*args: Any, **kwargs: Any) -> list[str]:
        words = list(command(*args, **kwargs))
        if "-c" in words:
            place = words.index("-c") + 1
            words[place] = first + words[place]
        return words

    spawn.get_command_line = with_watching
