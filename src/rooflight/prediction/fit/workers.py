"""Workers: fitting on all cores, in processes that end with the one that started them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from threading import Thread, current_thread, main_thread
from time import sleep
from typing import Any, Final

_MANY_ROWS: Final = 20_000
"""Times from which several processes are worth their start."""


_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the threads of libraries of linear algebra: one per worker, or they compete for the cores."""


def _start_worker(parent: int) -> None:
    """Let this worker end when its parent was killed, which leaves it waiting for work for ever otherwise; and do
    without looking for cycles in millions of tuples that have none.
    """
    gc.disable()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def workers(rows: float, processes: bool) -> Iterator[Callable[..., Iterable[Any]]]:
    """A map over jobs: in this process, or for many rows, where allowed, in as many as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not processes or rows < _MANY_ROWS or cores < 2:
        yield map
        return
    pool = ProcessPoolExecutor(
        cores, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(os.getpid(),)
    )
    others = set(active_children())
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # workers read them when numpy is imported
    try:
        yield lambda *jobs: _map_deaf(pool, *jobs)
    except BaseException:
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _map_deaf(pool: ProcessPoolExecutor, *jobs: Any) -> Iterable[Any]:
    """``pool.map``, which starts the workers: deaf to Ctrl-C, which a terminal sends to every process, and for which
    each would print a traceback. This process ends them.
    """
    if current_thread() is not main_thread():
        return pool.map(*jobs)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by what is started
    try:
        return pool.map(*jobs)
    finally:
        signal.signal(signal.SIGINT, before)
