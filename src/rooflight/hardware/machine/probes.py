"""The search for a roof: one part of the machine is loaded in many ways, and the fastest sample of all is the roof."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflight.hardware.machine.timing import Clock, Timing, measure
from rooflight.records.quantity import Quantity

Progress = Callable[[str, float], None]

# how many leaders of each probe run (None: every trial), and how much of the budget has passed when the sweep ends
_SWEEPS = ((None, 0.4), (None, 0.7), (3, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One way to load the machine: ``prepare`` allocates and returns the call that does ``work`` FLOPs, bytes or ops.

    ``clock`` None: the clock of the search.
    """

    pattern: str
    work: float
    prepare: Callable[[], Callable[[], object]]
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One figure to measure, and the trials that compete for it. ``unit`` is that of a trial's work."""

    name: str
    unit: str  # "FLOP", "B" or "op"
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The best trial of a probe with its raw samples; or, with ``rate`` None, why there is none."""

    name: str
    unit: str
    pattern: str = ""
    work: float = 0.0
    timing: Timing | None = None
    reason: str = ""

    @property
    def rate(self) -> float | None:
        """Work per second of the fastest sample; None where nothing was measured."""
        return None if self.timing is None else self.work / self.timing.minimum_s

    def verdict(self) -> str:
        """The figure in words: the rate and the winning pattern, or why there is none."""
        if self.rate is None:
            return f"not measured: {self.reason or 'no trial'}"
        return f"{Quantity(self.rate, f'{self.unit}/s')} by {self.pattern}"

    def samples(self) -> str:
        """Every raw sample of the winning pattern, in seconds per call, with the work of a call."""
        samples_s = self.timing.samples_s if self.timing else ()
        return f"{self.work:.9g} {self.unit} per call; s per call: {' '.join(f'{sample:.5g}' for sample in samples_s)}"


Stream = tuple[str, int, int, Callable[[Any, Any, Any], Callable[[], object]]]
"""Its name, how many arrays it needs, how often it touches an element, and the call, of arrays (out, left, right)."""


def streams() -> tuple[Stream, ...]:
    """Ops that compute next to nothing: whichever moves most bytes per second shows a memory's bandwidth."""
    import torch

    return (
        ("sum (read)", 1, 1, lambda _out, left, _right: lambda: left.sum(-1)),
        ("mul_ (read, write)", 1, 2, lambda out, _left, _right: lambda: out.mul_(1.0)),
        ("copy_ (read, write)", 2, 2, lambda out, left, _right: lambda: out.copy_(left)),
        ("add_ (2 reads, write)", 2, 3, lambda out, left, _right: lambda: out.add_(left)),
        ("add (2 reads, write)", 3, 3, lambda out, left, right: lambda: torch.add(left, right, out=out)),
        ("fill_ (write)", 1, 1, lambda out, _left, _right: lambda: out.fill_(0.5)),
    )


@dataclass(slots=True, kw_only=True)
class _Standing:
    trial: Trial
    samples_s: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def rate(self) -> float:
        return self.trial.work / min(self.samples_s) if self.samples_s else 0.0


def search(
    probes: Sequence[Probe],
    *,
    clock: Clock,
    budget_s: float,
    progress: Progress | None = None,
    longest_call_s: float = 0.2,
) -> dict[str, Figure]:
    """Run every trial in two sweeps across all probes, the second backwards, then the leaders of each probe in a third.

    So a program that slows the machine for a second does not spoil one figure, as it would if the samples of a figure
    were taken one after the other. A trial that fails keeps its error, and does not stop the others. Calls expected to
    take over ``longest_call_s``, and trials for which no time is left, are skipped once another has given a figure.
    """
    contests = [[_Standing(trial=trial) for trial in probe.trials] for probe in probes]
    start_ns = clock.now_ns()
    for sweep, (leaders, until) in enumerate(_SWEEPS):
        end_ns = start_ns + round(until * budget_s * 1e9)
        for index, contest in enumerate(contests):
            if progress is not None:
                progress(probes[index].name, (sweep + index / len(probes)) / len(_SWEEPS))
            chosen = contest[:: 1 - 2 * sweep] if leaders is None else _leaders(contest, leaders)
            now_ns = clock.now_ns()
            share_ns = max(0, end_ns - now_ns) // (len(probes) - index)
            _run_each(chosen, contest, clock=clock, end_ns=now_ns + share_ns, longest_call_s=longest_call_s)
    if progress is not None:
        progress("done", 1.0)
    return {probe.name: _winner(probe, contest) for probe, contest in zip(probes, contests, strict=True)}


def _run_each(
    chosen: Sequence[_Standing],
    contest: Sequence[_Standing],
    *,
    clock: Clock,
    end_ns: int,
    longest_call_s: float,
) -> None:
    for number, standing in enumerate(chosen):
        left_s = (end_ns - clock.now_ns()) / 1e9
        best_rate = max(rival.rate for rival in contest)
        too_long = best_rate > 0 and standing.trial.work / best_rate > longest_call_s
        if best_rate == 0 or (left_s > 0 and not too_long):
            # the only figure so far may not be one sample, which the host's launch may have held up
            _run(standing, clock=clock, box_s=max(left_s / (len(chosen) - number), 1e-3 if best_rate else 0.02))


def _leaders(contest: Sequence[_Standing], count: int) -> Sequence[_Standing]:
    ran = (standing for standing in contest if standing.samples_s)
    return sorted(ran, key=lambda standing: standing.rate, reverse=True)[:count]


def _run(standing: _Standing, *, clock: Clock, box_s: float) -> None:
    try:
        run = standing.trial.prepare()
        run()  # outside the box: a GPU loads a kernel's code at its first call, for up to a second
        clock = standing.trial.clock or clock
        timing = measure(run, clock=clock, spread=0, box_s=box_s, max_samples=100, warmups=0)
    except Exception as error:  # an unsupported dtype, a full memory, no compiler: the reason is reported
        first_line = re.sub(r"(?<!\w)/[\w./+-]+", "(path)", str(error).strip().split("\n", 1)[0])[:160]
        standing.error = f"{type(error).__name__}: {first_line}"
        return
    standing.samples_s.extend(timing.samples_s)


def _winner(probe: Probe, standings: Sequence[_Standing]) -> Figure:
    best = max(standings, key=lambda standing: standing.rate, default=None)
    if best is None or not best.samples_s:
        reasons = dict.fromkeys(standing.error for standing in standings if standing.error)
        return Figure(name=probe.name, unit=probe.unit, reason="; ".join(list(reasons)[:2]))
    timing = Timing(samples_s=tuple(best.samples_s))
    return Figure(name=probe.name, unit=probe.unit, pattern=best.trial.pattern, work=best.trial.work, timing=timing)
