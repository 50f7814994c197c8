"""What a comparison of a target, eager and compiled, found."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal

import msgspec

from rooflight.records.document import Document
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import count_of
from rooflight.records.report import Report, Shown, Table, table
from rooflight.roofline.account.account import AccountFields
from rooflight.sources.workloads.outputs import Difference
from rooflight.sources.workloads.targets import called

Verdict = Literal["pays", "neutral", "hurts", "unsure"]
NEUTRAL: Final = 0.05
"""A steady-state speed-up within so much of 1 is neither a gain nor a loss."""
_MOST_SHARE: Final = 0.25
"""Of the CPU: where other programs took more, threads waited for cores that these held, and times say nothing."""


def short_names(targets: Iterable[str]) -> dict[str, str]:
    """The names of targets in tables and sentences: of a path its file, of a config its folder, where no two are so."""
    names = {target: called(target) for target in targets}
    counts = Counter(names.values())
    return {target: name if counts[name] == 1 else target for target, name in names.items()}


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the eager and of the compiled program against the same program in float64.

    ``eager`` and ``compiled``: the largest root mean square error of a tensor among results, gradients and state, as
    a share of its values; None where ``failed`` says why there is no float64 run. ``further``: the first tensor
    that the compiled program has further from float64 than rounding explains; empty for none. ``missing``: ops
    without a float64 form.
    """

    eager: float | None = None
    compiled: float | None = None
    further: str = ""
    missing: tuple[str, ...] = ()
    failed: str = ""

    @property
    def explains(self) -> bool:
        """Whether the compiled program is no further from float64 than the eager one."""
        return not self.failed and not self.further


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the compiled program is right: its ``result``, and the ``state`` of the model (parameters and buffers
    after the same ``steps``, gradients after each) beside the eager program's; None for a step without a model.
    """

    result: Difference
    state: Difference | None = None
    steps: int = 0
    rounding: Rounding | None = None

    @property
    def correct(self) -> bool:
        """Whether nothing differs by more than the tolerance of its dtype, or than rounding explains."""
        return not self.why

    @property
    def why(self) -> str:
        """What is wrong; empty for a right program."""
        different = self.different
        if different and not self.form and self.rounding is not None and self.rounding.explains:
            return ""
        return different

    @property
    def form(self) -> bool:
        """Whether results differ in form, or in what is not a floating-point number."""
        return any(each is not None and not each.agrees and each.error is None for each in (self.result, self.state))

    @property
    def different(self) -> str:
        """How the compiled program differs from the eager one by more than the tolerance; empty if it does not."""
        state = "" if self.state is None or self.state.agrees else f"the model's state after it: {self.state.message}"
        return self.result.message or state

    @property
    def error(self) -> float | None:
        """The larger error of the two; None where nothing has floating numbers."""
        errors = [each.error for each in (self.result, self.state) if each is not None and each.error is not None]
        return max(errors, default=None)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each iteration, and what torch noted while it compiled.

    ``stages_s``: seconds by stage of compiling. ``peak_bytes``: the most memory the process held (CUDA: that torch
    allocated). ``graph_breaks`` and ``recompiles``: line and reason of each, by torch's logs, in order.
    ``kernel_bytes``: those that the compiled graphs' kernels read and write, by Inductor's account; None where it gives
    none. ``cache_hits``, ``cache_misses``: graphs that Inductor's cache had, and had not. ``others_share``: of the CPU,
    taken by other programs. ``step``: what ran, in a line; empty where the target
    says it. ``notes``: what was not done as its config says, or how its function was taken.
    """

    samples_s: tuple[float, ...]
    stages_s: dict[str, float] = {}
    peak_bytes: int | None = None
    graphs: int = 0
    kernels: int = 0
    kernel_bytes: int | None = None
    cache_hits: int = 0
    cache_misses: int = 0
    graph_breaks: tuple[str, ...] = ()
    recompiles: tuple[str, ...] = ()
    others_share: float | None = None
    step: str = ""
    notes: tuple[str, ...] = ()


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
class Compiled(Shown):
    """A target in a mode. ``eager`` and ``cold`` (an empty cache of Inductor's) ran ``iterations`` times each in a
    process of its own; ``warm`` did so with the cache that ``cold`` filled. ``warmup`` iterations are not steady state.

    ``op_kernels``: ops of a step that compute, each a kernel or more. ``failed`` says why the target did not compile
    or run; then ``cold`` is None, and ``eager`` too if that did not run. ``interrupted``: the user ended the benchmark
    before all of its programs had run; those that had not are None. ``bounds_failed`` says why there are no bounds, and
    no ops and bytes of eager's, where they were asked for. ``account``: where an eager iteration that was timed
    op by op beside it spends its time.
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
    account: AccountFields | None = None

    def report(self, *, top: int = 10) -> Report:  # noqa: ARG002 - it has one row
        """What compiling costs and brings."""
        return Report(title=f"torch.compile: {self.target}", data=document(self), tables=(summary([self]),))

    def __repr__(self) -> str:
        whole = summary([self])
        rows = [[column.name for column in whole.columns], *whole.rows]
        return "\n".join("  ".join(f"{cell!s:<17}" for cell in row) for row in rows)

    __str__ = __repr__

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

    @property
    def eager_s(self) -> float | None:
        """Median time of a steady iteration of the eager program."""
        return self._steady_s(self.eager)

    @property
    def compiled_s(self) -> float | None:
        """Median time of a steady iteration of the compiled program."""
        return self._steady_s(self.cold)

    @property
    def warmup_eager_s(self) -> float | None:
        """Time of the eager warm-up iterations."""
        return self._warmup_s(self.eager)

    @property
    def warmup_compiled_s(self) -> float | None:
        """Time of the compiled warm-up iterations, compiling included."""
        return self._warmup_s(self.cold)

    @property
    def compile_s(self) -> float | None:
        """What compiling from an empty cache added to the warm-up: its time beyond that of as many steady iterations,
        at least 0.
        """
        return self._compile_s(self.cold)

    @property
    def compile_warm_s(self) -> float | None:
        """What compiling from a full cache added to the warm-up."""
        return self._compile_s(self.warm)

    def _steady_s(self, trial: Trial | None) -> float | None:
        return None if trial is None else statistics.median(trial.samples_s[self.warmup :])

    def _warmup_s(self, trial: Trial | None) -> float | None:
        return None if trial is None else sum(trial.samples_s[: self.warmup])

    def _compile_s(self, trial: Trial | None) -> float | None:
        warmup_s, steady_s = self._warmup_s(trial), self._steady_s(trial)
        return None if warmup_s is None or steady_s is None else max(0.0, warmup_s - self.warmup * steady_s)

    @property
    def steady_speedup(self) -> float | None:
        """Eager's median of steady iterations over the compiled program's."""
        return None if self.eager_s is None or self.compiled_s is None else self.eager_s / self.compiled_s

    @property
    def total_speedup(self) -> float | None:
        """Eager's time of all iterations over the compiled program's, compiling included."""
        return None if self.ran is None else sum(self.ran[0].samples_s) / sum(self.ran[1].samples_s)

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether compiling pays in the steady state; None where it failed. "unsure" where other programs took so much
        of the CPU that on a quiet machine it may be another.
        """
        gain = self.steady_speedup
        if gain is None:
            return None
        verdicts = {_verdict(each) for each in (gain, *self._quiet_gains())}
        return verdicts.pop() if len(verdicts) == 1 else "unsure"

    def _quiet_gains(self) -> Sequence[float]:
        """Least and largest speed-up that a disturbed run leaves possible, and that of the fastest iterations: a
        program takes no longer in quiet, and at least its share of the CPU of that time.
        """
        if self.ran is None or max(shares := [trial.others_share or 0.0 for trial in self.ran]) < BUSY_SHARE:
            return ()
        if max(shares) >= _MOST_SHARE:
            return 0.0, math.inf
        eager, compiled = (trial.samples_s[self.warmup :] for trial in self.ran)
        (eager_1, eager_3), (compiled_1, compiled_3) = _quartiles(eager), _quartiles(compiled)
        least, most = eager_1 * (1 - shares[0]) / compiled_3, eager_3 / (compiled_1 * (1 - shares[1]))
        return least, most, min(eager) / min(compiled)

    @cached_property
    def break_even(self) -> BreakEven:
        """When compiling has paid back what it cost."""
        if self.ran is None:
            return BreakEven(iterations=None)
        before, cold = (trial.samples_s for trial in self.ran)
        steady = before[self.warmup :], cold[self.warmup :]
        lost = list(accumulate(c - e for c, e in zip(cold, before, strict=True)))
        behind = [number for number, loss in enumerate(lost, start=1) if loss > 0]
        measured = not behind or behind[-1] < len(lost)
        eager, compiled = map(_quartiles, steady)
        gain = statistics.median(steady[0]) - statistics.median(steady[1])
        spent = sum(cold[: self.warmup]) - sum(before[: self.warmup])
        return BreakEven(
            iterations=(behind[-1] + 1 if behind else 1) if measured else self._after(spent, gain),
            measured=measured,
            low=self._after(spent, eager[1] - compiled[0]),
            high=self._after(spent, eager[0] - compiled[1]),
        )

    def _after(self, spent: float, gain: float) -> int | None:
        if spent <= 0:
            return 1
        return None if gain <= 0 else self.warmup + -int(-spent // gain)


def _verdict(gain: float) -> Verdict:
    return "pays" if gain > 1 + NEUTRAL else "hurts" if gain < 1 - NEUTRAL else "neutral"


def _quartiles(steady: tuple[float, ...]) -> tuple[float, float]:
    if len(steady) < 2:
        return steady[0], steady[0]
    first, _, third = statistics.quantiles(steady, n=4, method="inclusive")
    return first, third


class CompileDocument(Document, frozen=True, kw_only=True, tag="rooflight.compile-bench/1"):
    """A target in a mode. What compiling gains, and when; all that compiling changed is None where it ``failed``,
    and all that eager did where that failed. ``step``: what ran, with its sizes where they are known.

    ``eager_s``, ``compiled_s``: median of a steady iteration. ``steady_speedup`` is their quotient, ``total_speedup``
    that of all iterations, compiling included. ``warmup_eager_s``, ``warmup_compiled_s``: all warm-up iterations.
    ``compile_s``: what compiling from an empty cache added to them, ``compile_warm_s`` from a full one; ``stages_s``:
    by stage, empty cache. ``break_even_iterations``: after so many the compiled program is ahead, None for never;
    ``break_even_measured`` says whether it ran so many; ``break_even_low`` and ``_high`` come of quartiles. ``verdict``
    is of the steady state: beyond 5 % it pays or hurts; "unsure" where ``others_share`` leaves more than one open.
    ``correct``: results, gradients and state equal the eager ones
    within tolerance, or are no further than those from a float64 run; ``wrong`` says why not. ``fp64_error_eager``,
    ``fp64_error_compiled``: errors against float64 (root mean square, of the tensor with the largest), None where
    ``fp64_failed`` says why there is no such run; ``fp64_further``: the first tensor that compiling moved away from
    float64 by more than rounding; ``fp64_missing``: ops without a float64 form. ``others_share``: of the CPU, taken by
    other programs, None where unknown.
    ``op_kernels``: ops of a step that compute, each a kernel or more; ``kernels``: of the compiled graphs.
    ``cache_hits_cold``, ``cache_hits_warm``: graphs that Inductor's cache had, in the start that filled it and in the
    next; ``cache_misses_cold``, ``cache_misses_warm``: those that it had not.
    ``op_bytes`` and ``fused_bytes``: moved by the ops one by one, and fused at best; ``kernel_bytes``: by the compiled
    graphs, by Inductor's account. ``bounds_failed``: why there are no bounds, ``op_kernels``, ``op_bytes`` and
    ``fused_bytes``, which a recording of the step gives, and no ``account`` of an eager iteration.
    """

    target: str
    step: str
    mode: str
    iterations: int
    warmup: int
    eager_s: float | None
    compiled_s: float | None
    steady_speedup: float | None
    total_speedup: float | None
    warmup_eager_s: float | None
    warmup_compiled_s: float | None
    compile_s: float | None
    compile_warm_s: float | None
    stages_s: dict[str, float]
    break_even_iterations: int | None
    break_even_measured: bool
    break_even_low: int | None
    break_even_high: int | None
    correct: bool | None
    wrong: str
    error: float | None
    fp64_error_eager: float | None
    fp64_error_compiled: float | None
    fp64_further: str
    fp64_missing: tuple[str, ...]
    fp64_failed: str
    verdict: Verdict | None
    others_share: float | None
    peak_bytes_eager: int | None
    peak_bytes_compiled: int | None
    graphs: int | None
    kernels: int | None
    cache_hits_cold: int | None
    cache_misses_cold: int | None
    cache_hits_warm: int | None
    cache_misses_warm: int | None
    graph_breaks: tuple[str, ...]
    recompiles: tuple[str, ...]
    op_bound_s: float | None
    fused_bound_s: float | None
    op_kernels: int | None
    op_bytes: int | None
    kernel_bytes: int | None
    fused_bytes: int | None
    bounds_failed: str
    account: AccountFields | None
    failed: str
    samples_eager_s: tuple[float, ...]
    samples_compiled_s: tuple[float, ...]


def document(result: Compiled) -> CompileDocument:
    """A result in machine-readable form."""
    eager, cold, even, check = result.eager, result.cold, result.break_even, result.check
    rounding = (check.rounding if check else None) or Rounding()
    return CompileDocument.view(
        result,
        cold or Trial(samples_s=()),  # its stages, kernel bytes, graph breaks and recompiles
        graphs=None if cold is None else cold.graphs,
        kernels=None if cold is None else cold.kernels,
        step=(eager.step if eager else "") or result.target,
        correct=None if check is None else check.correct,
        wrong="" if check is None else check.why,
        error=None if check is None else check.error,
        **{
            f"cache_{what}_{start}": None if trial is None else getattr(trial, f"cache_{what}")
            for start, trial in (("cold", cold), ("warm", result.warm))
            for what in ("hits", "misses")
        },
        **{f"break_even_{name}": getattr(even, name) for name in ("iterations", "measured", "low", "high")},
        fp64_error_eager=rounding.eager,
        fp64_error_compiled=rounding.compiled,
        **{f"fp64_{name}": getattr(rounding, name) for name in ("further", "missing", "failed")},
        peak_bytes_eager=eager.peak_bytes if eager else None,
        peak_bytes_compiled=cold.peak_bytes if cold else None,
        samples_eager_s=eager.samples_s if eager else (),
        samples_compiled_s=cold.samples_s if cold else (),
    )


def summary(results: Sequence[Compiled]) -> Table:
    """What compiling costs and brings, a row for each result."""
    return table(
        "summary",
        "What compiling costs and brings",
        results,
        ("target", "", lambda row: row.target),
        ("mode", "", lambda row: row.mode),
        ("warm-up overhead", "", _overhead),
        ("steady", "", lambda row: times_faster(row.steady_speedup)),
        ("total", "", lambda row: times_faster(row.total_speedup)),
        ("break-even", "", break_even),
        ("best for", "", _best_for),
        note="warm-up overhead: time of the first iterations, compiling included, over eager's. best for: by the "
        "break-even, which a cache of compiled code makes earlier.",
    )


def _overhead(result: Compiled) -> str | None:
    eager_s, compiled_s = result.warmup_eager_s, result.warmup_compiled_s
    return f"{compiled_s / eager_s:,.3g} x eager" if eager_s and compiled_s else None


def _best_for(result: Compiled) -> str:
    even = result.break_even
    if result.verdict is None:
        return "nothing: it did not run"
    if result.check is not None and not result.check.correct:
        return "nothing: its result is wrong"
    if result.verdict == "unsure":
        return "not known: the machine was busy"
    return "nothing" if even.iterations is None else f"over {count_of(even.iterations, 'iteration')}"


def break_even(result: Compiled) -> str | None:
    """``≈1,200``: the iteration from which on compiling has paid back its cost."""
    even = result.break_even
    if result.cold is None or even.iterations is None:
        return None if result.cold is None else "never"
    return f"{'' if even.measured else '≈'}{even.iterations:,}"


def times_faster(speedup: float | None) -> str | None:
    """``1.3 x``."""
    return None if speedup is None else f"{speedup:.3g} x"
