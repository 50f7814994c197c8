"""Bounds of buckets in the report of decode steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rooflight.inference.summary import BoundsData, BucketSplit, WholeStep
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Column, Table
from rooflight.records.series import Axis, Line, Series
from rooflight.roofline.time_by_place import UNATTRIBUTED

_WHOLE: Final = "(whole step)"
_SHOWN: Final = 40
_WHOLE_MEANING: Final = (
    "Program, fused and op bound are those of a whole step. Compulsory is the time to read weights and KV cache once "
    "and to write the results, or that of all arithmetic if it is longer. Estimated is the larger of op and compulsory."
)
_MEANING: Final = (
    "Estimated is the op bound of the bucket's own ops in a step recorded at that KV length; the bounds of all buckets "
    "sum to that of the whole step."
)


def bounds_table(splits: Sequence[BucketSplit]) -> Table:
    """One row for each bucket of the steps of a batch and KV bin, after one for the whole step."""
    return Table(
        id="bucket_bounds",
        title="Bounds by batch size and KV length",
        columns=(
            Column("domain"),
            Column("batch"),
            Column("KV length"),
            Column("recorded at"),
            Column("bucket"),
            Column("avg", "s"),
            Column("estimated", "s"),
            Column("efficiency", "%"),
            Column("bound"),
        ),
        rows=tuple(row for split in splits if split.bounds for row in _rows(split)),
        top=_SHOWN,
        see="summary.json has all",
        note=_MEANING,
    )


def steps_table(bounds: BoundsData) -> Table:
    """Whole steps beside their bounds, one row for each batch size and KV bin."""
    return Table(
        id="step_bounds",
        title="Steps beside their bounds, by batch size and KV length",
        columns=(
            Column("batch"),
            Column("KV length"),
            Column("recorded at"),
            Column("steps"),
            Column("avg", "s"),
            Column("estimated", "s"),
            Column("efficiency", "%"),
            Column("bound"),
            Column("program", "s"),
            Column("fused", "s"),
            Column("op", "s"),
            Column("compulsory", "s"),
            Column("compulsory bytes", "B"),
        ),
        rows=tuple(
            (
                each.batch,
                each.kv_bin,
                each.kv_length,
                each.steps,
                each.mean_ms / 1e3,
                each.bound_ms / 1e3,
                each.efficiency,
                each.limiter,
                each.program_bound_ms / 1e3,
                each.fused_bound_ms / 1e3,
                each.op_bound_ms / 1e3,
                each.compulsory_bound_ms / 1e3,
                each.compulsory_bytes,
            )
            for each in bounds.steps
        ),
        top=_SHOWN,
        optional=("compulsory bytes", "fused", "program", "recorded at", "op", "compulsory"),
        see="summary.json has all",
        note=_WHOLE_MEANING,
    )


def _rows(split: BucketSplit) -> Iterable[tuple[Cell, ...]]:
    whole = split.step_bound
    assert whole is not None
    place = (split.domain, split.batch, split.kv_bin, whole.kv_length)
    yield *place, _WHOLE, split.mean_ms / 1e3, whole.bound_ms / 1e3, whole.efficiency, whole.limiter
    for each in split.bounds:
        ms = split.unattributed_ms if each.name == UNATTRIBUTED else split.buckets_avg_ms.get(each.name)
        yield *place, each.name, None if ms is None else ms / 1e3, each.bound_ms / 1e3, each.efficiency, each.limiter


def bounds_series(bounds: BoundsData) -> Iterable[Series]:
    """Steps and their bounds over the KV length, of the batch size that has most steps in several KV bins."""
    by_batch: dict[int | None, list[WholeStep]] = {}
    for each in bounds.steps:
        if each.kv_length is not None:
            by_batch.setdefault(each.batch, []).append(each)
    several = [of_batch for of_batch in by_batch.values() if len({each.kv_length for each in of_batch}) > 1]
    if not several:
        return
    chosen = max(several, key=lambda of_batch: sum(each.steps for each in of_batch))
    chosen = sorted(chosen, key=lambda each: each.kv_length or 0.0)
    figures = {
        "measured": "mean_ms",
        "op bound": "op_bound_ms",
        "compulsory bound": "compulsory_bound_ms",
    }
    batch = "unknown batch" if chosen[0].batch is None else f"batch {chosen[0].batch:,}"
    yield Series(
        id="step_bounds",
        title=f"Steps of {batch} beside their bounds",
        x=Axis(name="KV length"),
        y=Axis(name="time of a step", unit="s", logarithmic=True),
        lines=tuple(
            Line(
                name=name,
                x=tuple(each.kv_length or 0.0 for each in chosen),
                y=tuple(getattr(each, field) / 1e3 for each in chosen),
            )
            for name, field in figures.items()
        ),
        note="Times are means of KV bins; bounds are of a step recorded at the mean KV length of each.",
    )


def bound_facts(bounds: BoundsData) -> Iterable[tuple[str, Cell]]:
    """What the bounds are for, and how far the whole step is from its own."""
    if not bounds.recorded:
        return
    roofs = (bounds.roofs or "").replace(f" on {bounds.device}", "")  # a calibration names its device itself
    yield "bounds", f"{bounds.device} ({roofs}), {count_of(len(bounds.recorded), 'step')} recorded"
    if bounds.step is not None:
        share = "" if bounds.step.efficiency is None else f", {percent(bounds.step.efficiency)} of the speed of light"
        yield "step bound", f"{Quantity(bounds.step.bound_ms / 1e3, 's')} ({bounds.step.limiter}){share}"


def bound_notes(bounds: BoundsData) -> Iterable[str]:
    """What has no bound, and why."""
    if not bounds.recorded:
        return
    for domain, reason in bounds.none_because.items():
        yield f"Bounds of {domain} buckets: {reason}."
    without = max(step.ops_without_cost for step in bounds.recorded)
    if without:
        yield (
            f"{count_of(without, 'op')} of a recorded step (of {max(step.ops for step in bounds.recorded):,}) have no "
            "formula: the bounds leave them out."
        )
