"""What is known of a hot loop: how it is treated, its calls by kind, and what is decided of each kind."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Literal

from rooflight.studies.compiling.hot.calls import Kind
from rooflight.studies.compiling.hot.detector import HotPath

State = Literal["watching", "hot", "trying", "compiled", "eager"]
"""Of a kind of call: not yet called often enough; worth compiling once it has run for long enough; compiled, and
compared with eager runs; compiled for good; eager for good."""
Step = Literal["time", "watch", "record", "compile", "try"]
"""What the next call of a kind is for: to run eagerly, timed; to note its pattern; to be recorded, for the gain that
compiling brings; to be compiled; to take its turn in the trial of eager and compiled runs."""

TRAINS: Final = "it runs its own backward pass or optimizer, and calls no module that could be compiled"
"""Why a function is not compiled whose parts may be."""
_MANY: Final = 3
_LEAST: Final = 3
_ENOUGH: Final = 12
"""Runs of each side that end a trial."""
_TRIAL_S: Final = 0.2
"""A trial may end with eager runs after so many seconds, or after ``MOST_TRIED`` runs of each side: compiling slows the
runs that follow it, and runs of less than a millisecond differ by more than compiling gains.
"""
MOST_TRIED: Final = 128
_MOST_SAMPLES: Final = 6
_PAYS: Final = 1.05
_LEAST_COMPILE_S: Final = 4.0
_LEAST_PER_OP_S: Final = 0.01
_MOST_GAINED: Final = 0.5  # of an eager run
_ONE_IN_TWENTY: Final = 1.645  # standard deviations
_DOUBT: Final = 20.0
"""What is not expected to pay is compiled once it has run for as long as compiling takes, over the probability that it
pays; at the latest after this many times as long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotOptions:
    """How a loop is treated; see ``hot``. Raises ValueError for numbers below 1."""

    hot_threshold: int = 10
    expected_runs: int | None = None
    on_hot: Callable[[HotPath], object] | None = None
    check: bool = True
    remember: bool = True
    limit_s: float = 600.0
    backend: Any = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        for name, value in (("hot_threshold", self.hot_threshold), ("expected_runs", self.expected_runs)):
            if (value is not None or name == "hot_threshold") and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{name} {value!r}: a number of calls, a whole number from 1")
        if not self.limit_s > 0:
            raise ValueError(f"limit_s {self.limit_s!r}: seconds, more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """``speedup``: eager over compiled time of a run; ``compile_s``: what compiling takes once; ``source`` of both.
    ``high``: one speed-up in twenty is larger, None where that is not known. ``blocks``: only the module's blocks that
    are alike are compiled, one for all.
    """

    speedup: float
    compile_s: float
    source: str
    high: float | None = None
    blocks: bool = False

    @property
    def chance(self) -> float:
        """The probability that it pays, speed-ups being distributed log-normally."""
        if self.high is None or self.high <= self.speedup:
            return float(self.speedup >= _PAYS)
        spread = statistics.NormalDist(math.log(self.speedup), math.log(self.high / self.speedup) / _ONE_IN_TWENTY)
        return 1 - spread.cdf(math.log(_PAYS))

    def total_s(self, eager_s: float, runs: float) -> float:
        """What compiling and so many runs take, each of which takes ``eager_s`` eagerly."""
        return self.compile_s + runs * eager_s / self.speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Two calls have the same ``exact`` if they ran the same operations, wired alike, on the same dtypes, devices and
    sizes; the same ``shape_free`` if only sizes differ. Wiring: which earlier result, or which memory from outside,
    is each operand.
    """

    operations: int
    exact: bytes
    shape_free: bytes
    random: bool
    backward: bool
    optimizer: bool


@dataclass(slots=True)
class CallKind:
    """What is known of the calls of one kind. ``eager_s`` and ``compiled_s``: the last times of runs. ``spent_s``: time
    of its runs since it was called often enough, or is hot, or was compiled.
    """

    state: State = "watching"
    calls: int = 0
    reason: str = ""
    sizes: list[tuple[Any, ...]] = field(default_factory=list)
    compiled_sizes: list[tuple[Any, ...]] = field(default_factory=list)
    any_size: bool = False
    inside: list[dict[str, tuple[int, ...]]] = field(default_factory=list)  # shapes in objects, of watched calls
    compiled_at: float = 0.0  # by the loop's clock
    recompiles: int = 0  # since then
    digests: list[bytes] = field(default_factory=list)  # of watched calls, whatever their sizes
    operations: int = 0
    backward: bool = False
    pattern: Pattern | None = None  # of the recorded call
    eager_s: list[float] = field(default_factory=list)
    compiled_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    expected: ExpectedGain | None = None
    compile_s: float | None = None
    tried: int = 0
    next_sample: int = 2
    key: str = ""  # under which its outcome is remembered
    first_ops: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether nothing more is to be learned of it."""
        return self.state in {"compiled", "eager"}

    @property
    def speedup(self) -> float | None:
        """Eager over compiled time, each that of the quickest quarter's slowest run, since other programs only make
        runs longer; None before both were timed.
        """
        if not self.eager_s or not self.compiled_s:
            return None
        eager_s, compiled_s = (sorted(times)[len(times) // 4] for times in (self.eager_s, self.compiled_s))
        return eager_s / compiled_s if compiled_s > 0 else None

    def give_up(self, reason: str) -> None:
        """Run eagerly from now on."""
        self.state, self.reason = "eager", reason

    def runs_with(self, sizes: tuple[Any, ...]) -> bool:
        """Whether a call of these sizes is known to return, or to be one of many sizes."""
        return sizes in self.sizes or len(self.sizes) >= _MANY

    def only_sizes_seen(self) -> None:
        """Take compiled code to be there only for the sizes with which it was observed."""
        if self.any_size:
            self.any_size, self.compiled_sizes = False, list(self.sizes)

    def covers(self, sizes: tuple[Any, ...]) -> bool:
        """Whether compiled code is there for these sizes."""
        return self.any_size or sizes in self.compiled_sizes

    # -- decisions -----------------------------------------------------------------------------------------------------

    def step(self, sizes: tuple[Any, ...], options: HotOptions, left: float | None) -> Step:
        """What its next call is for, by its state and by what is at stake. Gives up what cannot pay. ``left``: how many
        calls are to come, this one included; None where that is not known.
        """
        if self.state == "trying" and self.covers(sizes):
            return "try"
        if self.state == "watching":
            due = self.calls >= self.next_sample and (
                options.on_hot is not None or self._worth_a_look(_LEAST_COMPILE_S, left)
            )
            return "watch" if due else "time"
        if self.state == "hot" and self.expected is None:
            return "record" if self._worth_a_look(self._floor_s, left) else "time"
        return "compile" if self.state != "eager" and self.runs_with(sizes) and self._pays(left) else "time"

    def _worth_a_look(self, floor_s: float, left: float | None) -> bool:
        if not self.eager_s:
            return False
        if left is None:
            return self.spent_s >= floor_s / 2
        eager_s = statistics.median(self.eager_s)
        if eager_s * left * _MOST_GAINED > floor_s:
            return True
        self.give_up(f"{left:.0f} runs of {eager_s:.3g} s gain less than compiling takes")
        return False

    def _waits(self) -> tuple[float, str]:
        """Seconds that it runs before its next step, where the number of runs is not known; and why, in words."""
        if self.state == "watching":
            return _LEAST_COMPILE_S / 2, "compiling takes seconds, so that shorter loops stay eager; it is watched"
        if self.expected is None:
            return self._floor_s / 2, "compiling so many operations takes longer; its gain is predicted"
        speedup, compile_s = self._outlook
        what = f"compiling takes {compile_s:.3g} s, for runs {speedup:.2f} times as fast ({self.expected.source})"
        chance = 1.0 if speedup >= _PAYS else self.expected.chance
        return compile_s / max(chance, 1 / _DOUBT), f"{what}; it is compiled"

    def why(self, *, runs_known: bool) -> str:
        """Why it is eager, or not compiled yet; empty if it is compiled. ``runs_known``: how many runs come is."""
        if self.reason or self.decided or self.state == "trying":
            return self.reason
        if self.state == "watching" and self.calls < self.next_sample:
            return f"called {self.calls} times: it is looked at from call {self.next_sample} on"
        if runs_known:
            return "it waits for a call of sizes that it had before"
        wait_s, what = self._waits()
        return f"{what} once it has run for {wait_s:.3g} s (so far {self.spent_s:.2g} s)"

    @property
    def _floor_s(self) -> float:
        return _LEAST_COMPILE_S + _LEAST_PER_OP_S * self.operations

    @property
    def _outlook(self) -> tuple[float, float]:
        assert self.expected is not None
        return self.speedup or self.expected.speedup, self.compile_s or self.expected.compile_s

    def _pays(self, left: float | None) -> bool:
        """By what is left to gain, or, as that is not known, once it has run for as long as compiling takes."""
        if left is None:
            return self.spent_s >= self._waits()[0]
        assert self.expected is not None
        speedup, compile_s = self._outlook
        if speedup <= 1:
            self.give_up(f"no gain is expected: {speedup:.2f} times as fast ({self.expected.source})")
        elif statistics.median(self.eager_s) * (1 - 1 / speedup) * left <= compile_s:
            self.give_up(f"compiling takes {compile_s:.3g} s, and {left:.0f} runs would gain less")
        return self.state != "eager"

    def judge(self) -> None:
        """Whether its watched calls repeat, so that it is hot."""
        most = max(self.digests.count(each) for each in self.digests)
        if most < 2 or 2 * most < len(self.digests):
            if len(self.digests) >= _MOST_SAMPLES:
                self.give_up(f"no pattern: {len(set(self.digests))} of {len(self.digests)} watched calls differ")
        elif not self.operations:
            self.give_up("it runs no operations of torch")
        else:
            self.state, self.spent_s = "hot", 0.0

    def faster(self, now: float) -> Literal["compiled", "eager"] | None:
        """Which side of a trial is faster, None as long as that is not clear. Other programs only make runs longer, so
        that the quicker quarter of each side decides where runs of both overlap.
        """
        eager, compiled = sorted(self.eager_s), sorted(self.compiled_s)
        count = min(len(eager), len(compiled))
        if count >= _LEAST and compiled[-1] < eager[0]:
            return "compiled"
        if count < MOST_TRIED and now - self.compiled_at < _TRIAL_S:
            return None
        if count >= 2 * _LEAST and compiled[0] > statistics.median(eager):
            return "eager"
        if count >= _ENOUGH and self.speedup is not None:
            return "compiled" if self.speedup > 1 else "eager"
        return None


@dataclass(slots=True)
class Seen:
    """A hot loop: its calls by kind, while they were observed. ``what``: the parts that were compiled."""

    name: str
    expected_runs: int | None = None
    calls: int = 0
    kinds: dict[Kind, CallKind] = field(default_factory=dict)
    what: str = ""
    settled: bool = False
    recompiles: int = 0
    checked: int = 0
    error: float | None = None
    note: str = ""

    def left(self, kind: CallKind) -> float | None:
        """How many calls of a kind are to be expected, this one included; None where the number of all is not known."""
        runs = self.expected_runs
        return None if runs is None else max(0.0, (runs - self.calls + 1) * kind.calls / self.calls)
