"""Samples the main thread of a script all along its run: at which line it is, and whether it works or sleeps.

While a library computes, signals wait, and the line that called it has all that time when it goes on.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable
from operator import add
from typing import TYPE_CHECKING, Final

from rooflight.hardware.machine.memory import fetched_s, of_the_system
from rooflight.records.timeline import Between, HostTime, Within
from rooflight.sources.capture.time.host_lines import HostLines, Key, longest_lines, skip_compiling
from rooflight.sources.capture.time.ticks import Ticks

if TYPE_CHECKING:
    from rooflight.records.session import Int64

INTERVAL_S: Final = 1e-2
SHARE: Final = 7e-3  # of the thread: a sample takes 0.1 to 0.2 ms, most of it to warm its caches again
_MOST: Final = 1 << 18  # samples that are kept: 14 MB; then every second is dropped, and half as many follow
_WIDTH: Final = 7
_FEW: Final = 8


class Sampler:
    """Samples the thread that makes it, from ``start`` to ``stop``. ``evaluates``: whether a model is evaluated now."""

    def __init__(self, evaluates: Callable[[], bool], interval_s: float = INTERVAL_S, share: float = SHARE) -> None:
        self._evaluates = evaluates
        self._stacks = HostLines()
        self._ticks = Ticks(self._stacks.key, self._take, interval_s, share=share)
        self._numbers: dict[tuple[Key, bool], int] = {}
        self._samples = array("q")
        self._before = of_the_system()

    # -- while the script runs

    def start(self) -> None:
        """Sample from here on."""
        self._take((None, 0, Within.ITSELF, None, 0), 0.0, 0.0, 0.0)
        self._ticks.start()

    def stop(self) -> None:
        """Sample no more; the script's own handler is back."""
        self._ticks.stop()

    @property
    def thread(self) -> int:
        """The thread that is sampled."""
        return self._ticks.thread

    def skip_compiling(self) -> None:
        """Tell torch.compile, once torch is there, that it is not to compile what a signal runs."""
        skip_compiling(Sampler._take, Sampler._thin, of_the_system, self._evaluates)

    def _take(self, key: Key, *seconds: float) -> None:
        number = self._numbers.setdefault((key, self._evaluates()), len(self._numbers))
        now, before = of_the_system(), self._before
        self._before = now
        times = (int(each * 1e9) for each in (*seconds, now[0] - before[0]))
        self._samples.extend((time.perf_counter_ns(), number, *times, now[1] - before[1]))
        if len(self._samples) >= _WIDTH * _MOST:
            self._thin()

    def _thin(self) -> None:
        """Every second sample stands for the one before it too. A tick may come meanwhile, and take another."""
        old, self._samples, kept = self._samples, array("q"), array("q")
        pairs = len(old) - len(old) % (2 * _WIDTH)
        for place in range(0, pairs, 2 * _WIDTH):
            middle, end = place + _WIDTH, place + 2 * _WIDTH
            (_, _, *earlier), (at, number, *later) = old[place:middle], old[middle:end]
            kept.extend((at, number, *map(add, earlier, later)))
        self._samples = kept + old[pairs:] + self._samples
        self._ticks.slower()

    # -- afterwards

    def within(self, begins: Int64, ends: Int64, *, evaluating: bool = False) -> HostTime | None:
        """What the thread did in such stretches of time (ns, in order), in the mean of one; None of few samples. That
        of evaluations is left out, or is all that is looked at.
        """
        import numpy as np  # not before the script says how many threads it may have

        samples = np.array(self._samples, dtype=np.int64).reshape(-1, _WIDTH)
        at, number, took, ran, waited, system, pages = samples.T
        stretch = np.searchsorted(begins, at, "right") - 1
        inside = (stretch >= 0) & (at <= ends[stretch]) if len(ends) else np.zeros(len(at), dtype=np.bool_)
        keys = list(self._numbers)
        inside &= np.array([mode == evaluating for _, mode in keys], dtype=np.bool_)[number]
        if np.count_nonzero(took[inside]) < _FEW:
            return None
        sums = list[Counter[Key]]()
        for each in (took, ran + waited, system, pages * 1_000_000_000):
            found = np.bincount(number[inside], each[inside] * 1e-9 / len(begins), len(keys))
            sums.append(Counter())
            for (key, _), its_sum in zip(keys, found.tolist(), strict=True):
                sums[-1][key] += its_sum
        seconds, awake_s, system_s, new = sums
        fetched = {key: fetched_s(system_s[key], new[key]) for key in seconds}
        return HostTime(
            cpu_s=float(ran[inside].sum()) * 1e-9 / len(begins),
            fetched_s=sum(fetched.values()),
            pages=new.total(),
            lines=longest_lines(seconds, awake_s, fetched),
        )

    @property
    def whole(self) -> tuple[Between, ...]:
        """The whole run."""
        import numpy as np

        first, last = self._samples[0], self._samples[-_WIDTH]
        host = self.within(np.array([first]), np.array([last]))
        return (Between(name="run", seconds=(last - first) * 1e-9, share=1.0, lines=host.lines),) if host else ()
