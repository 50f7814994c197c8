"""Bounds: recorded steps bounded for a device, beside the measured times of the same buckets and of whole steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.front.device import place_of
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.bound import Limiter
from rooflight.roofline.time_by_place import (
    UNATTRIBUTED,
    TimeByPlace,
    contradictions,
    time_by_place,
    whole_contradiction,
    whole_time,
)
from rooflight.studies.inference.clocks import HOST_CLOCK
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.facts import OTHER_PHASES
from rooflight.studies.inference.result import (
    BoundsData,
    BucketBound,
    Buckets,
    BucketSplit,
    RecordedStepData,
    StepBound,
    WholeStep,
)
from rooflight.studies.inference.runs import Results, known_or_none
from rooflight.studies.inference.sums import BucketSums, BucketTime

if TYPE_CHECKING:
    from rooflight.hardware.devices.spec import DeviceSpec

NOTHING_RECORDED: Final = (
    "no step was recorded: call add_bounds(model) after the runs, or put some steps into record_steps()"
)
MODEL_ALONE: Final = (
    "add_bounds() records the model alone: record_steps() around steps of the engine records its buckets too"
)
_ON_THE_HOST: Final = (
    "without strict_sync the host's clock, which times the engine's buckets, does not wait for the device: their times "
    "are not compared with bounds"
)
_NO_DECODE_STEP: Final = "only decode steps are bounded: what a prefill does depends on the lengths of its prompts"
_FIGURES: Final = ("program_bound", "fused_bound", "op_bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One recorded step. ``sessions`` has its ops by domain, where the phase of each is the bucket it ran in: so the
    groups of ``analyses`` by phase are the buckets, sum to the whole step, and no op is in two. ``whole``: all that the
    engine's step did; False for the call of a model alone.
    """

    batch: int | None
    kv_length: float | None
    sessions: Mapping[Domain, Session]
    whole: bool
    kv_cache_bytes: int | None
    analyses: Mapping[Domain, Analysis] = field(default_factory=dict)

    def beside(self, domain: Domain, sums: BucketSums, *, timed_here: bool) -> TimeByPlace:
        """The buckets of a domain beside their mean times per step; ``timed_here``: on the device of the bounds."""
        if not timed_here:
            return time_by_place(self.analyses[domain], "phase")
        seconds = {name: sums.average_ms(ns) / 1e3 for name, ns in sums.exclusive_ns.items()}
        seconds[UNATTRIBUTED] = sums.average_ms(sums.unattributed_ns) / 1e3
        return time_by_place(self.analyses[domain], "phase", seconds, sums.average_ms(sums.whole_ns) / 1e3)

    def data(self) -> RecordedStepData:
        """As a summary has it."""
        analysis = self.analyses[Domain.MODEL]
        return RecordedStepData.view(
            self,
            ops=analysis.totals.calls,
            ops_without_cost=sum(op.calls for op in analysis.coverage.uncosted),
            op_bound_ms=analysis.totals.op_bound_s * 1e3,
        )


class RecordedBounds:
    """The bounds of all steps that a profiler recorded. Those of one device: the last that was given."""

    def __init__(self) -> None:
        self.device: DeviceSpec | None = None
        self.steps: list[RecordedStep] = []

    def add(self, steps: Iterable[RecordedStep], device: DeviceSpec) -> None:
        """Bound more steps for a device; those of another device are dropped."""
        earlier = self.steps if self.device == device else []
        more = [
            replace(step, sessions={}, analyses={domain: analyze(ops, device) for domain, ops in step.sessions.items()})
            for step in steps
        ]
        self.device = device
        self.steps = list({(step.batch, step.kv_length, step.whole): step for step in (*earlier, *more)}.values())

    def of(self, domain: Domain, batch: int | None, kv_length: float | None) -> RecordedStep | str:
        """The recorded step that bounds steps of a batch and a mean KV length: the longest that is no longer, since
        what a step must do grows with the KV length. Where there is none, why.
        """
        if not self.steps:
            return NOTHING_RECORDED
        steps = [step for step in self.steps if step.whole or domain is Domain.MODEL]
        if not steps:
            return MODEL_ALONE
        fitting = [step for step in steps if step.batch == batch and _no_longer(step.kv_length, kv_length)]
        if not fitting:
            of_batch = "an unknown batch" if batch is None else f"batch {batch:,}"
            length = "of unknown KV length" if kv_length is None else f"with a KV length up to {kv_length:,.0f}"
            return f"no step of {of_batch} {length} was recorded"
        return max(fitting, key=lambda step: (step.kv_length or 0.0, step.whole))


def _no_longer(recorded: float | None, measured: float | None) -> bool:
    if recorded is None or measured is None:
        return recorded is measured
    return recorded <= measured


def with_bounds(results: Results, book: RecordedBounds, buckets: Buckets, *, strict: bool) -> dict[str, Any]:
    """Fields of a summary: the buckets of measured steps, each beside the bound of what it must do, where steps were
    recorded. What contradicts a bound is a problem.
    """
    not_compared = {domain: _why_not_compared(results, book, domain, strict=strict) for domain in Domain}
    notes: list[str] = []
    reasons: dict[str, str] = {}
    splits = tuple(_splits(results, book, not_compared, reasons, notes))
    rows = {}
    for domain in Domain:
        rows[domain.value] = getattr(buckets, domain.value)
        mine = [split for split in splits if split.domain == domain.value and split.no_bound != _NO_DECODE_STEP]
        if mine and domain.value not in reasons:
            means = _means(mine)
            compared = not_compared[domain] is None
            rows[domain.value] = tuple(_with_bound(row, means, compared=compared) for row in rows[domain.value])
    steps = tuple(_whole_steps(results, book, notes, compared=not_compared[Domain.MODEL] is None))
    if book.steps:
        reasons = {domain.value: why for domain, why in not_compared.items() if why} | reasons
    for note in dict.fromkeys(notes):
        results.problems.note(note)
    data = BoundsData(
        device=book.device.name if book.device else None,
        roofs=book.device.roofs_used if book.device else None,
        recorded=tuple(step.data() for step in book.steps),
        steps=steps,
        step=_mean(steps, results.totals.steps),
        none_because=reasons,
    )
    return {"buckets": Buckets(**rows), "bucket_splits": splits, "bounds": data}


def _splits(
    results: Results,
    book: RecordedBounds,
    not_compared: Mapping[Domain, str | None],
    reasons: dict[str, str],
    notes: list[str],
) -> Iterable[BucketSplit]:
    keys = (*results.bins.keys, *OTHER_PHASES)
    for domain in results.profiled:
        for (batch, number), cell in sorted(results.cells.items()):
            sums, size, length = cell.buckets[domain], known_or_none(batch), cell.length
            bounds: dict[str, Any] = {"no_bound": _NO_DECODE_STEP}
            if number in results.decode:
                step = book.of(domain, size, length)
                if isinstance(step, str):
                    reasons.setdefault(domain.value, step)
                    bounds = {"no_bound": step}
                else:
                    times = step.beside(domain, sums, timed_here=not_compared[domain] is None)
                    of_buckets = tuple(_bucket_bounds(times))
                    bounds = {
                        "bounds": of_buckets,
                        "step_bound": _step_bound(of_buckets, times.whole_s, step.kv_length),
                    }
                    notes += [f"{_steps_of(size, keys[number])}: {text}" for text in contradictions(times)]
            yield BucketSplit(
                domain=domain.value,
                batch=size,
                kv_bin=keys[number],
                steps=sums.steps,
                mean_ms=sums.average_ms(sums.whole_ns),
                buckets_avg_ms=sums.averages(domain),
                unattributed_ms=sums.average_ms(sums.unattributed_ns),
                kv_length_mean=length,
                **bounds,
            )


def _whole_steps(results: Results, book: RecordedBounds, notes: list[str], *, compared: bool) -> Iterable[WholeStep]:
    for (batch, number), cell in sorted(results.cells.items()):
        size = known_or_none(batch)
        step = book.of(Domain.MODEL, size, cell.length)
        if number not in results.decode or isinstance(step, str):
            continue
        mean_s = cell.time_ns / cell.steps / 1e9
        whole = whole_time(step.analyses[Domain.MODEL], mean_s if compared else None)
        if contradiction := whole_contradiction(whole):
            notes.append(f"{_steps_of(size, results.bins.keys[number])}: {contradiction}")
        yield WholeStep(
            batch=size,
            kv_bin=results.bins.keys[number],
            kv_length=step.kv_length,
            steps=cell.steps,
            mean_ms=mean_s * 1e3,
            **{f"{name}_ms": getattr(whole, f"{name}_s") * 1e3 for name in _FIGURES},
            compulsory_bound_ms=whole.program_bound_s * 1e3,
            compulsory_bytes=whole.compulsory_bytes,
            limiter=whole.limiter,
            efficiency=whole.efficiency,
        )


def _mean(wholes: Sequence[WholeStep], decode_steps: int) -> WholeStep | None:
    steps = sum(each.steps for each in wholes)
    if not steps or steps != decode_steps:
        return None
    means = {
        name: sum(each.steps * float(getattr(each, name)) for each in wholes) / steps
        for name in ("mean_ms", *(f"{name}_ms" for name in _FIGURES), "compulsory_bound_ms", "compulsory_bytes")
    }
    compared = all(each.efficiency is not None for each in wholes)
    return WholeStep(
        batch=None,
        kv_bin=None,
        kv_length=None,
        steps=steps,
        limiter=_most((each.limiter, each.steps * each.op_bound_ms) for each in wholes),
        efficiency=means["op_bound_ms"] / means["mean_ms"] if compared and means["mean_ms"] else None,
        **means,
    )


def _why_not_compared(results: Results, book: RecordedBounds, domain: Domain, *, strict: bool) -> str | None:
    device = book.device
    if device is None:
        return NOTHING_RECORDED
    clocks = results.clocks_of_steps
    place = "cpu" if clocks <= {HOST_CLOCK} else "cuda"
    if len(clocks) > 1 or place_of(device) != place:
        return f"the steps did not run on {device.name} alone: their times are not compared with its bounds"
    if domain is Domain.ENGINE and place == "cuda" and not strict:
        return _ON_THE_HOST
    return None


def _bucket_bounds(times: TimeByPlace) -> Iterable[BucketBound]:
    for place in times.places:
        if place.group is not None:
            yield BucketBound(
                name=place.name,
                op_bound_ms=place.group.bound_s * 1e3,
                limiter=place.group.limiter,
                efficiency=place.efficiency if place.group.bound_s else None,  # what does no work has none
            )


def _step_bound(bounds: Sequence[BucketBound], whole_s: float | None, kv_length: float | None) -> StepBound:
    op_bound_ms = sum(each.op_bound_ms for each in bounds)
    return StepBound(
        kv_length=kv_length,
        op_bound_ms=op_bound_ms,
        limiter=_most((each.limiter, each.op_bound_ms) for each in bounds),
        efficiency=op_bound_ms / 1e3 / whole_s if whole_s else None,
    )


def _means(splits: Sequence[BucketSplit]) -> dict[str, tuple[float, str]]:
    parts: dict[str, list[tuple[str, float]]] = {}
    for split in splits:
        for each in split.bounds:
            parts.setdefault(each.name, []).append((each.limiter, split.steps * each.op_bound_ms))
    steps = sum(split.steps for split in splits)
    return {name: (sum(ms for _, ms in mine) / steps, _most(mine)) for name, mine in parts.items()}


def _with_bound(row: BucketTime, means: Mapping[str, tuple[float, str]], *, compared: bool) -> BucketTime:
    op_bound_ms, limiter = means.get(row.name, (0.0, Limiter.NOTHING.value))
    efficiency = op_bound_ms / row.exclusive_ms if compared and op_bound_ms and row.exclusive_ms else None
    return msgspec.structs.replace(row, op_bound_ms=op_bound_ms, limiter=limiter, efficiency=efficiency)


def _most(parts: Iterable[tuple[str, float]]) -> str:
    sums: Counter[str] = Counter()
    for limiter, ms in parts:
        sums[limiter] += ms  # type: ignore[assignment]
    return max(sums, key=lambda limiter: sums[limiter], default=Limiter.NOTHING.value)


def _steps_of(batch: int | None, kv_bin: str) -> str:
    return f"{'steps of unknown batch' if batch is None else f'steps of batch {batch:,}'}, KV length {kv_bin}"
