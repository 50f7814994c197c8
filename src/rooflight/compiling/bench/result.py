"""What a comparison of a target, eager and compiled, found."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal

from rooflight.compiling.bench.trial import Check, Trial

Verdict = Literal["pays", "neutral", "hurts"]
NEUTRAL: Final = 0.05
"""A steady-state speed-up within so much of 1 is neither a gain nor a loss."""


def short_names(targets: Iterable[str]) -> dict[str, str]:
    """The names of targets in tables and sentences: of a path only its file, where no two are called so."""
    names = {target: target.rstrip("/").rpartition("/")[2] for target in targets}
    counts = Counter(names.values())
    return {target: name if counts[name] == 1 else target for target, name in names.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The iteration after which the compiled program, compiling included, has taken no longer than the eager one.

    ``iterations`` is None where the compiled program is no faster, so that there is none. ``measured``: it lies within
    the iterations that ran; else it follows from the time lost until then and the gain per iteration. ``low`` and
    ``high`` come of the quartiles of both programs' steady iterations; ``high`` is None where they overlap.
    """

    iterations: int | None
    measured: bool = False
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A target in a mode. ``eager`` and ``cold`` (an empty cache of Inductor's) ran ``iterations`` times each in a
    process of its own; ``warm`` did so with the cache that ``cold`` filled. ``warmup`` iterations are not steady state.

    ``op_kernels``: ops of a step that compute, each a kernel or more. ``failed`` says why the target did not compile
    or run; then ``cold`` is None, and ``eager`` too if that did not run. ``interrupted``: the user ended the benchmark
    before all of its programs had run; those that had not are None. ``bounds_failed`` says why there are no bounds, and
    no ops and bytes of eager's, where they were asked for.
    """

    target: str
    mode: str
    warmup: int
    eager: Trial | None
    cold: Trial | None = None
    warm: Trial | None = None
    check: Check | None = None
    failed: str = ""
    interrupted: bool = False
    bounds_failed: str = ""
    op_bound_s: float | None = None
    fused_bound_s: float | None = None
    op_kernels: int | None = None
    op_bytes: int | None = None
    fused_bytes: int | None = None

    @property
    def iterations(self) -> int:
        """How many iterations ran."""
        return 0 if self.eager is None else len(self.eager.samples_s)

    @property
    def ran(self) -> tuple[Trial, Trial] | None:
        """Both programs, the compiled one from an empty cache; None where one of them did not run."""
        return None if self.eager is None or self.cold is None else (self.eager, self.cold)

    @property
    def others_share(self) -> float | None:
        """The share of the CPU that other programs took while it ran, the largest of the trials; None if unknown."""
        trials = (self.eager, self.cold, self.warm)
        shares = [trial.others_share for trial in trials if trial is not None and trial.others_share is not None]
        return max(shares, default=None)

    def warmup_s(self, trial: Trial) -> float:
        """Time of the warm-up iterations, compiling included."""
        return sum(trial.samples_s[: self.warmup])

    def steady_s(self, trial: Trial) -> float:
        """Median time of a steady iteration."""
        return statistics.median(trial.samples_s[self.warmup :])

    @property
    def steady_speedup(self) -> float | None:
        """Eager's median of steady iterations over the compiled program's."""
        return None if self.ran is None else self.steady_s(self.ran[0]) / self.steady_s(self.ran[1])

    @property
    def total_speedup(self) -> float | None:
        """Eager's time of all iterations over the compiled program's, compiling included."""
        return None if self.ran is None else sum(self.ran[0].samples_s) / sum(self.ran[1].samples_s)

    def compile_s(self, trial: Trial) -> float:
        """What compiling added to the warm-up: its time beyond that of as many steady iterations, at least 0."""
        return max(0.0, self.warmup_s(trial) - self.warmup * self.steady_s(trial))

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether compiling pays in the steady state; None where it failed."""
        gain = self.steady_speedup
        if gain is None:
            return None
        return "pays" if gain > 1 + NEUTRAL else "hurts" if gain < 1 - NEUTRAL else "neutral"

    @cached_property
    def break_even(self) -> BreakEven:
        """When compiling has paid back what it cost."""
        if self.ran is None:
            return BreakEven(iterations=None)
        before, cold = self.ran
        lost = list(accumulate(c - e for c, e in zip(cold.samples_s, before.samples_s, strict=True)))
        behind = [number for number, loss in enumerate(lost, start=1) if loss > 0]
        measured = not behind or behind[-1] < len(lost)
        eager, compiled = (self._quartiles(trial) for trial in (before, cold))
        gain = self.steady_s(before) - self.steady_s(cold)
        spent = self.warmup_s(cold) - self.warmup_s(before)
        return BreakEven(
            iterations=(behind[-1] + 1 if behind else 1) if measured else self._after(spent, gain),
            measured=measured,
            low=self._after(spent, eager[1] - compiled[0]),
            high=self._after(spent, eager[0] - compiled[1]),
        )

    def _quartiles(self, trial: Trial) -> tuple[float, float]:
        steady = trial.samples_s[self.warmup :]
        if len(steady) < 2:
            return steady[0], steady[0]
        first, _, third = statistics.quantiles(steady, n=4, method="inclusive")
        return first, third

    def _after(self, spent: float, gain: float) -> int | None:
        """The iteration after which a loss of ``spent`` in the warm-up is regained at ``gain`` per iteration."""
        if spent <= 0:
            return 1
        return None if gain <= 0 else self.warmup + -int(-spent // gain)
