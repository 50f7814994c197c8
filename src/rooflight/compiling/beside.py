"""The worker process beside a program, and the jobs that it is given: graphs to compile, so that caches have them."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition
from typing import Final

_POSIX: Final = hasattr(os, "fork") and hasattr(signal, "SIGKILL")
_MODULE: Final = "rooflight.compiling.beside_child"
_IDLE_S: Final = 60.0
"""After so long without a job the process ends."""


_LAST_S: Final = 0.2
_NICE: Final = 10


@dataclass(slots=True)
class Job:
    """Graphs to compile, as one message. ``done``: the worker has reported, or never will, for which ``failed`` is the
    reason. ``seconds``: what compiling took it.
    """

    message: bytes
    limit_s: float
    done: bool = False
    failed: str = ""
    seconds: float | None = None

    def ends(self, failed: str = "", *, seconds: float | None = None) -> None:
        """Note the end, once."""
        if not self.done:
            self.failed, self.seconds = failed, seconds
            self.message = b""
            self.done = True


class Worker:
    """One process, and a thread that talks with it. It is started for the first job, and anew where it ended."""

    def __init__(self, idle_s: float = _IDLE_S, nice: int = _NICE) -> None:
        self._idle_s = idle_s
        self._nice = nice
        self._lock = Condition()
        self._talks = False  # whether the thread runs
        self._jobs: deque[Job] = deque()  # the first is with the process
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        """Whether it compiles now, which takes processor time from the program."""
        return bool(self._jobs)

    @property
    def pid(self) -> int | None:
        """Its process; None where none is running."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def submit(self, graphs: list[bytes], limit_s: float) -> Job:
        """Ask for some graphs to be compiled. What cannot be done is the job's answer, never an error."""
        job = Job(b"".join(len(graph).to_bytes(8, "little") + graph for graph in graphs), limit_s)
        if not _POSIX or not sys.executable:
            job.ends("no process of low priority can be started here")
            return job
        with self._lock:
            self._jobs.append(job)
            self._lock.notify()
            if not self._talks:
                self._talks = True
                threading.Thread(target=self._work, name="rooflight.hot", daemon=True).start()
        return job

    def stop(self, reason: str) -> None:
        """End the process and what it started; its jobs end with this reason."""
        with self._lock:
            for job in self._jobs:
                job.ends(reason)
            if self._process is not None:
                _kill(self._process)  # its pipes are the thread's, which may be waiting for one: closed, it never ends

    def forget(self) -> None:
        """In a forked child, which has the pipes of a process that is not its own: let go of them."""
        jobs, process = self._jobs, self._process
        self._lock, self._jobs, self._process = Condition(), deque(), None
        self._talks = False
        for job in jobs:
            job.ends("the program forked meanwhile")
        if process is not None:
            process.returncode = 0  # not this process's to wait for
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    os.close(pipe.fileno())  # type: ignore[union-attr]

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Have all jobs done, one after the other, until there have been none for a while."""
        while True:
            with self._lock:
                while self._jobs and self._jobs[0].done:
                    self._jobs.popleft()
                if not self._jobs and not self._lock.wait(self._idle_s):
                    self._let_go()
                    self._talks = False
                    return
                if not self._jobs:
                    continue
                job = self._jobs[0]
                try:
                    process = self._running()
                except OSError as error:
                    job.ends(f"no process could be started: {error}")
                    continue
            self._converse(process, job)

    def _converse(self, process: subprocess.Popen[bytes], job: Job) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            message = job.message
            process.stdin.write(len(message).to_bytes(8, "little") + message)
            process.stdin.flush()
            with selectors.DefaultSelector() as ready:
                ready.register(process.stdout, selectors.EVENT_READ)
                answered = ready.select(job.limit_s)
            if not answered:
                raise TimeoutError(f"took longer than {job.limit_s:g} s")
            answer = json.loads(process.stdout.readline() or b"null")
            if not isinstance(answer, dict):
                raise ValueError("ended")
        except (OSError, ValueError) as error:  # a TimeoutError is an OSError
            with self._lock:
                self._let_go()
            why = str(error) if isinstance(error, TimeoutError) else "ended before it had compiled"
            job.ends(f"the process beside the loop {why}")
            return
        job.ends(f"it did not compile beside the loop ({answer['failed']})" if "failed" in answer else "",
                 seconds=answer.get("seconds"))  # fmt: skip

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one where there is none. Called with the lock."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._let_go()
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache_dir(),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        for name in ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG"):
            environment.pop(name, None)  # these are the program's own
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(self._nice)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # no session: Linux shares processor time between sessions whatever their priorities
        )  # fmt: skip
        return self._process

    def _let_go(self) -> None:
        """End the process, if there is one, and close its pipes. Called with the lock."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # compilers remove their files at the first
        with suppress(OSError):  # ended, with all that it started
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
    process.wait()


worker: Final = Worker()
"""The one worker of this process."""

atexit.register(worker.stop, "the program ends")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker.forget)
