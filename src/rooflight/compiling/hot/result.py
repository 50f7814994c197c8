"""How a hot loop is treated, and what was seen, decided and gained of it: facts that outlive the function or module."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, Literal

from rooflight.compiling.hot.calls import Kind
from rooflight.compiling.hot.detector import HotPath
from rooflight.compiling.hot.gain import ExpectedGain
from rooflight.compiling.hot.patterns import Pattern
from rooflight.compiling.hot_beside import Beside
from rooflight.machine.hardware import usable_cores

State = Literal["watching", "hot", "trying", "compiled", "eager"]
"""Of a kind of call: not yet called often enough; worth compiling once it has run for long enough; compiled, and
compared with eager runs; compiled for good; eager for good."""


_MANY: Final = 3
_LEAST: Final = 3
_ENOUGH: Final = 12
"""Runs of each side that end a trial."""
_TRIAL_S: Final = 0.2
"""A trial may end with eager runs after so many seconds, or after ``MOST_TRIED`` runs of each side: compiling slows the
runs that follow it, and runs of less than a millisecond differ by more than compiling gains.
"""
MOST_TRIED: Final = 128


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
    background: bool | None = None
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        for name, value in (("hot_threshold", self.hot_threshold), ("expected_runs", self.expected_runs)):
            if (value is not None or name == "hot_threshold") and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{name} {value!r}: a number of calls, a whole number from 1")
        if not self.limit_s > 0:
            raise ValueError(f"limit_s {self.limit_s!r}: seconds, more than 0")

    @property
    def beside(self) -> bool:
        """Whether to compile in a process beside the loop; if not told, where the program leaves a core free."""
        return leaves_a_core() if self.background is None else self.background


def leaves_a_core() -> bool:
    """Whether torch runs on the CPU alone, and on fewer threads than there are cores: threads that have to wait for a
    compiler on their core slow all others of their loop.
    """
    import torch

    return not torch.cuda.is_available() and torch.get_num_threads() < len(usable_cores())


@dataclass(slots=True)
class CallKind:
    """What is known of the calls of one kind. ``eager_s`` and ``compiled_s``: the last times of runs."""

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
    beside: Beside | None = None
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


@dataclass(slots=True)
class Seen:
    """A hot loop: its calls by kind, while they were observed. ``what``: the parts that were compiled."""

    name: str
    calls: int = 0
    kinds: dict[Kind, CallKind] = field(default_factory=dict)
    what: str = ""
    settled: bool = False
    recompiles: int = 0
    checked: int = 0
    error: float | None = None
    note: str = ""
