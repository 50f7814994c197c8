"""Samples the main thread of a script all along its run: at which line it is, and whether it works or sleeps.

A sample stands for the time since the one before: while a library computes, signals wait, and the line that called it
has them all when it goes on.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Final

from rooflight.records.timeline import Between, HostTime, Within
from rooflight.sources.capture.time.host_lines import HostLines, Key, longest_lines, skip_compiling
from rooflight.sources.capture.time.ticks import Ticks

if TYPE_CHECKING:
    from rooflight.records.session import Int64

INTERVAL_S: Final = 2e-2  # a sample takes 0.1 to 0.2 ms of the thread, most of it to warm its caches again
_MOST: Final = 1 << 18  # samples that are kept: 8 MB; then every second is dropped, and half as many follow
_WIDTH: Final = 4
_FEW: Final = 10


class Sampler:
    """Samples the thread that makes it, from ``start`` to ``stop``. ``evaluates``: whether a model is evaluated now."""

    def __init__(self, evaluates: Callable[[], bool], interval_s: float = INTERVAL_S) -> None:
        self._evaluates = evaluates
        self._ticks = Ticks(self._sample, interval_s)
        self._stacks = HostLines()
        self._numbers: dict[tuple[Key, bool], int] = {}
        self._samples = array("q")

    # -- while the script runs

    def start(self) -> None:
        """Sample from here on."""
        self._sample(None)
        self._ticks.start()

    def stop(self) -> None:
        """Sample no more; the script's own handler is back."""
        self._ticks.stop()
        self._stacks.close()

    @property
    def thread(self) -> int:
        """The thread that is sampled."""
        return self._ticks.thread

    def skip_compiling(self) -> None:
        """Tell torch.compile, once torch is there, that it is not to compile what a signal runs."""
        skip_compiling(Sampler._sample, Sampler._thin, self._evaluates)

    def _sample(self, frame: FrameType | None) -> None:
        key = (None, 0, Within.ITSELF, None, 0) if frame is None else self._stacks.key(frame)
        number = self._numbers.setdefault((key, self._evaluates()), len(self._numbers))
        ran_s, waited_s = self._stacks.clocks()
        self._samples.extend((time.perf_counter_ns(), number, int(ran_s * 1e9), int(waited_s * 1e9)))
        if len(self._samples) >= _WIDTH * _MOST:
            self._thin()

    def _thin(self) -> None:
        kept = array("q")
        for place in range(0, len(self._samples), 2 * _WIDTH):
            kept.extend(self._samples[place : place + _WIDTH])
        self._samples = kept
        self._ticks.slower()

    # -- afterwards

    def within(self, begins: Int64, ends: Int64, *, evaluating: bool = False) -> HostTime | None:
        """What the thread did in such stretches of time (ns, in order), in the mean of one; None of few samples. That
        of evaluations is left out, or is all that is looked at.
        """
        import numpy as np  # not before the script says how many threads it may have

        samples = np.array(self._samples, dtype=np.int64).reshape(-1, _WIDTH)
        at, number = samples[1:, 0], samples[1:, 1]
        took, ran, waited = np.diff(samples[:, 0]), np.diff(samples[:, 2]), np.diff(samples[:, 3])
        stretch = np.searchsorted(begins, at, "right") - 1
        inside = (stretch >= 0) & (at <= ends[stretch]) if len(ends) else np.zeros(len(at), dtype=np.bool_)
        keys = list(self._numbers)
        inside &= np.array([mode == evaluating for _, mode in keys], dtype=np.bool_)[number]
        if np.count_nonzero(inside) < _FEW:
            return None
        sums = [
            np.bincount(number[inside], each[inside] * 1e-9 / len(begins), len(keys))
            for each in (took, np.maximum(took - ran - waited, 0), ran)
        ]
        seconds, asleep_s, cpu_s = sums
        found = Counter[Key]()
        asleep = Counter[Key]()
        for (key, _), its_s, its_asleep_s in zip(keys, seconds.tolist(), asleep_s.tolist(), strict=True):
            found[key] += its_s
            asleep[key] += its_asleep_s
        return HostTime(cpu_s=float(cpu_s.sum()), lines=longest_lines(found, asleep))

    @property
    def whole(self) -> tuple[Between, ...]:
        """The whole run."""
        import numpy as np

        first, last = self._samples[0], self._samples[-_WIDTH]
        host = self.within(np.array([first]), np.array([last]))
        return (Between(name="run", seconds=(last - first) * 1e-9, share=1.0, lines=host.lines),) if host else ()
