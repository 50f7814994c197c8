"""Bounds of buckets in a summary: by batch and KV bin, and the mean over all steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from rooflight.front.device import place_of
from rooflight.inference.bucket_bounds import NOTHING_RECORDED, RecordedBounds
from rooflight.inference.config import Domain
from rooflight.inference.meter import HOST_CLOCK
from rooflight.inference.steps import UNKNOWN
from rooflight.inference.summary import (
    BoundsData,
    BucketBound,
    Buckets,
    BucketSplit,
    BucketTime,
    RecordedStepData,
    StepBound,
    WholeStep,
)
from rooflight.roofline.bound import Limiter
from rooflight.roofline.time_by_place import TimeByPlace
from rooflight.roofline.time_by_place_report import contradictions, whole_contradiction

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler

_ON_THE_HOST: Final = (
    "without strict_sync the host's clock, which times the engine's buckets, does not wait for the device: their times "
    "are not compared with bounds"
)
_NO_DECODE_STEP: Final = "only decode steps are bounded: what a prefill does depends on the lengths of its prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A summary's buckets with their bounds; ``notes`` has what contradicts one."""

    buckets: Buckets
    splits: tuple[BucketSplit, ...]
    data: BoundsData
    notes: tuple[str, ...]


def with_bounds(profiler: Profiler, buckets: Buckets, splits: Sequence[BucketSplit]) -> Bounded:
    """The buckets of a profiler's steps, each beside the bound of what it must do, where steps were recorded."""
    book, results = profiler.bounds, profiler.results
    not_compared = {domain: _why_not_compared(profiler, domain) for domain in Domain}
    found: list[BucketSplit] = []
    reasons: dict[str, str] = {}
    notes: dict[str, None] = {}
    lengths = {key: cell.mean_length for key, cell in results.cells.items()}
    for split, (key, sums) in zip(splits, results.splits_in_order(), strict=True):
        batch, cell, domain = key
        length = lengths[batch, cell]
        if cell >= len(results.bins.keys):
            found.append(msgspec.structs.replace(split, kv_length_mean=length, no_bound=_NO_DECODE_STEP))
            continue
        step = book.of(domain, None if batch == UNKNOWN else batch, length)
        if isinstance(step, str):
            reasons.setdefault(domain.value, step)
            found.append(msgspec.structs.replace(split, kv_length_mean=length, no_bound=step))
            continue
        times = step.beside(domain, sums, timed_here=not_compared[domain] is None)
        bounds = tuple(_bucket_bounds(times))
        found.append(
            msgspec.structs.replace(
                split,
                kv_length_mean=length,
                bounds=bounds,
                step_bound=_step_bound(bounds, times.whole_s, step.kv_length),
            )
        )
        notes |= dict.fromkeys(f"{_steps_of(split)}: {text}" for text in contradictions(times))
    rows: dict[str, tuple[BucketTime, ...]] = {}
    for domain in Domain:
        mine = [split for split in found if split.domain == domain.value and split.no_bound != _NO_DECODE_STEP]
        rows[domain.value] = getattr(buckets, domain.value)
        if not mine or domain.value in reasons:
            continue
        means = _means(mine)
        compared = not_compared[domain] is None
        rows[domain.value] = tuple(_with_bound(row, means, compared=compared) for row in rows[domain.value])
    wholes = tuple(_whole_steps(profiler, compared=not_compared[Domain.MODEL] is None))
    notes |= dict.fromkeys(f"{_steps_of(whole)}: {text}" for whole, text in wholes if text)
    if book.steps:
        reasons = {domain.value: why for domain, why in not_compared.items() if why} | reasons
    data = _data(book, [whole for whole, _ in wholes], reasons, _mean(profiler, [whole for whole, _ in wholes]))
    return Bounded(buckets=Buckets(**rows), splits=tuple(found), data=data, notes=tuple(notes))


def _whole_steps(profiler: Profiler, *, compared: bool) -> Iterable[tuple[WholeStep, str]]:
    """Decode steps by batch size and KV bin beside the bounds of a whole step, where one was recorded; and what
    contradicts them.
    """
    results = profiler.results
    for (batch, number), cell in results.cells.items():
        totals, length = cell.totals, cell.mean_length
        if number >= len(results.bins.keys):
            continue
        step = profiler.bounds.of(Domain.MODEL, None if batch == UNKNOWN else batch, length)
        if isinstance(step, str):
            continue
        mean_s = totals.time_ns / totals.steps / 1e9
        whole = step.whole_time(mean_s if compared else None)
        yield (
            WholeStep(
                batch=None if batch == UNKNOWN else batch,
                kv_bin=results.bins.keys[number],
                kv_length=step.kv_length,
                steps=totals.steps,
                mean_ms=mean_s * 1e3,
                program_bound_ms=whole.program_bound_s * 1e3,
                fused_bound_ms=whole.fused_bound_s * 1e3,
                op_bound_ms=whole.op_bound_s * 1e3,
                compulsory_bound_ms=whole.compulsory_bound_s * 1e3,
                compulsory_bytes=whole.compulsory_bytes,
                bound_ms=whole.bound_s * 1e3,
                limiter=whole.limiter,
                efficiency=whole.efficiency,
            ),
            whole_contradiction(whole),
        )


def _mean(profiler: Profiler, wholes: Sequence[WholeStep]) -> WholeStep | None:
    """Over all decode steps; None where some of them have no bound."""
    steps = sum(each.steps for each in wholes)
    if not steps or steps != profiler.results.totals.steps:
        return None

    times = {
        name: sum(each.steps * float(getattr(each, name)) for each in wholes) / steps
        for name in WholeStep.__struct_fields__
        if name.endswith(("_ms", "_bytes"))
    }
    compared = all(each.efficiency is not None for each in wholes)
    return WholeStep(
        batch=None,
        kv_bin=None,
        kv_length=None,
        steps=steps,
        limiter=_most((each.limiter, each.steps * each.bound_ms) for each in wholes),
        efficiency=times["bound_ms"] / times["mean_ms"] if compared and times["mean_ms"] else None,
        **times,
    )


def _why_not_compared(profiler: Profiler, domain: Domain) -> str | None:
    """Why measured times are not those of the device that the bounds are for; None where they are."""
    device = profiler.bounds.device
    if device is None:
        return NOTHING_RECORDED
    clocks = profiler.results.clocks_of_steps
    place = "cpu" if clocks <= {HOST_CLOCK} else "cuda"
    if len(clocks) > 1 or place_of(device) != place:
        return f"the steps did not run on {device.name} alone: their times are not compared with its bounds"
    if domain is Domain.ENGINE and place == "cuda" and not profiler.cfg.strict_sync:
        return _ON_THE_HOST
    return None


def _bucket_bounds(times: TimeByPlace) -> Iterable[BucketBound]:
    for place in times.places:
        if place.group is not None:
            yield BucketBound(
                name=place.name,
                bound_ms=place.group.bound_s * 1e3,
                limiter=place.group.limiter,
                efficiency=place.efficiency if place.group.bound_s else None,  # what does no work has none
            )


def _step_bound(bounds: Sequence[BucketBound], whole_s: float | None, kv_length: float | None) -> StepBound:
    bound_ms = sum(each.bound_ms for each in bounds)
    return StepBound(
        kv_length=kv_length,
        bound_ms=bound_ms,
        limiter=_most((each.limiter, each.bound_ms) for each in bounds),
        efficiency=bound_ms / 1e3 / whole_s if whole_s else None,
    )


def _means(splits: Sequence[BucketSplit]) -> tuple[BucketBound, ...]:
    """The mean bound of each bucket over the steps of all splits."""
    parts: dict[str, list[tuple[str, float]]] = {}
    for split in splits:
        for each in split.bounds:
            parts.setdefault(each.name, []).append((each.limiter, split.steps * each.bound_ms))
    steps = sum(split.steps for split in splits)
    return tuple(
        BucketBound(
            name=name, bound_ms=sum(ms for _, ms in of_bucket) / steps, limiter=_most(of_bucket), efficiency=None
        )
        for name, of_bucket in parts.items()
    )


def _with_bound(row: BucketTime, means: Sequence[BucketBound], *, compared: bool) -> BucketTime:
    nothing = BucketBound(name=row.name, bound_ms=0.0, limiter=Limiter.NOTHING.value, efficiency=None)
    mean = next((each for each in means if each.name == row.name), nothing)
    efficiency = mean.bound_ms / row.exclusive_ms if compared and mean.bound_ms and row.exclusive_ms else None
    return msgspec.structs.replace(row, bound_ms=mean.bound_ms, limiter=mean.limiter, efficiency=efficiency)


def _most(parts: Iterable[tuple[str, float]]) -> str:
    """The limiter that most of a bound is due to."""
    sums: dict[str, float] = {}
    for limiter, ms in parts:
        sums[limiter] = sums.get(limiter, 0.0) + ms
    return max(sums, key=lambda limiter: sums[limiter], default=Limiter.NOTHING.value)


def _steps_of(split: BucketSplit | WholeStep) -> str:
    batch = "steps of unknown batch" if split.batch is None else f"steps of batch {split.batch:,}"
    return f"{batch}, KV length {split.kv_bin}"


def _data(
    book: RecordedBounds, steps: Sequence[WholeStep], reasons: dict[str, str], mean: WholeStep | None
) -> BoundsData:
    return BoundsData(
        device=book.device.name if book.device else None,
        roofs=book.device.roofs_used if book.device else None,
        recorded=tuple(
            RecordedStepData(
                batch=each.batch,
                kv_length=each.kv_length,
                whole=each.whole,
                ops=each.analysis.totals.calls,
                ops_without_cost=sum(op.calls for op in each.analysis.coverage.uncosted),
                bound_ms=each.analysis.totals.op_bound_s * 1e3,
                kv_cache_bytes=each.cache_bytes,
            )
            for each in book.steps
        ),
        steps=tuple(steps),
        step=mean,
        none_because=reasons,
    )
