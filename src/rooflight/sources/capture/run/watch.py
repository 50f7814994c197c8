"""Watches one process from before its script to its end, and its children."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rooflight.records.package import uncollected
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run.children import (
    ELASTIC,
    Watched,
    follow_launched,
    follow_spawned,
    write_part,
)
from rooflight.sources.capture.run.errors import reason_of
from rooflight.sources.capture.run.hooks import (
    WhenImported,
    before_exit,
    before_terminated,
    follow_programs,
    install,
)
from rooflight.sources.capture.run.launch import mark_function, start
from rooflight.sources.capture.run.sampler import Sampler

_STDERR: Final = 2


class Watch:
    """``ended`` is called once with what was found, when the process of the script ends."""

    def __init__(self, watched: Watched, ended: Callable[[Watch], None]) -> None:
        self.watched = watched
        self.exit_code: int | None = 0
        self.ear: Any = None
        self.finder: Any = None
        self.bystander: Any = None  # sees from then on what other programs take of the CPU
        self.sampler: Sampler | None = None
        self.forks, self.broken = 0, ""
        self.error = ""
        self.errors = _STDERR  # or a descriptor of it that the script does not know, closed in children
        with suppress(OSError):
            self.errors = os.dup(_STDERR)
        self._ended: Callable[[Watch], None] | None = ended
        self._whole, self._parent = ended, 0
        self._open_process = os.getpid()
        follow_programs()
        sys.meta_path.insert(0, WhenImported("torch", self._torch_is_there))
        sys.meta_path.insert(0, WhenImported(ELASTIC, lambda: follow_launched(watched)))
        if watched.only is StepKind.FUNCTION:
            file, _, name = watched.named.rpartition(":")
            mark_function(file, name, lambda: self.ear)
        atexit.register(self.end)
        before_exit(self._leaves)
        self._forget_signal = before_terminated(self._leaves)
        os.register_at_fork(after_in_parent=self._forks, after_in_child=self._forked)

    def _evaluates(self) -> bool:
        return self.finder is not None and self.finder.waits.evaluates_since > 0

    def _torch_is_there(self) -> None:
        with uncollected():
            from rooflight.hardware.machine.cpu_load import Bystander
            from rooflight.sources.capture.run.listening import Listening

        watched = self.watched
        try:
            self.bystander = Bystander()
            self.ear = Listening(skip=watched.skip, only=watched.only, named=watched.named)
            self.finder = self.ear.finder
            install(self.ear, Path(watched.folder))
            if self.sampler is not None:
                self.sampler.skip_compiling()
            follow_spawned(watched)
        except Exception as error:  # of a torch that has other names: the script is to run all the same
            self.broken = f"{type(error).__name__}: {error}"

    def run(self, script: Callable[[], None]) -> None:
        """Run the script, and take note of how it ends."""
        self.exit_code = 0
        sampler = self.sample()
        try:
            script()
        except SystemExit as stop:
            self.exit_code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            raise
        except KeyboardInterrupt:
            self.exit_code = -signal.SIGINT
            raise
        except BaseException as error:
            self.exit_code, self.error = 1, reason_of(error)
            raise
        finally:
            sampler.stop()

    def sample(self) -> Sampler:
        """Look from now on at which line the main thread is, unless that is done."""
        if self.sampler is None:
            self.sampler = Sampler(self._evaluates)
            self.sampler.start()
        return self.sampler

    def end(self) -> None:
        """The process ends: say what was found, once."""
        ended, self._ended = self._ended, None
        if ended is None or os.getpid() != self._open_process:
            return
        if self.sampler is not None:
            self.sampler.stop()
        daemon = self._parent and (self.watched.ended or os.getppid() != self._parent)
        if daemon and self.finder is not None and self.finder.has_trained:
            ended = self._whole  # who started it has reported already
        ended(self)

    def say(self, text: str) -> None:
        """On standard error as it was when the script began."""
        with suppress(OSError):
            os.write(self.errors, f"rooflight: {text}\n".encode())

    def _leaves(self, code: int) -> None:
        if self._ended is not None:
            self.exit_code = code
            self.end()

    def _forks(self) -> None:
        self.forks += 1

    def _forked(self) -> None:
        self._forget_signal()
        self._open_process, self._parent = os.getpid(), os.getppid()
        if self.errors != _STDERR:
            os.close(self.errors)
            self.errors = _STDERR
        if self._ended is not None:
            self._ended = _part
        self.sampler = None  # timers and threads stay with the parent
        if self.ear is not None:
            self.ear.starts_anew()


def spawned(facts: dict[str, Any]) -> Watch:
    """Watch this process, which multiprocessing spawned."""
    only = StepKind(facts["only"]) if facts["only"] else None
    watch = Watch(Watched(**{**facts, "only": only}), _part)
    watch.sample()
    return watch


def launched(facts: dict[str, Any]) -> None:
    """Watch this process, and run the script that torchrun named; ``sys.argv`` is that of ``python -c``."""
    as_module, (target, *arguments) = sys.argv[1] == "-m", sys.argv[2:]
    spawned(facts).run(lambda: start(target, arguments, as_module=as_module))


def _part(watch: Watch) -> None:
    write_part(watch.finder, watch.watched, watch.exit_code, watch.sampler)
