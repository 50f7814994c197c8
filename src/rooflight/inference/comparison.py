"""Two summaries side by side: what changed in steps, buckets, throughput and acceptance, and what was set otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from rooflight.inference.report import machine_of, report_of
from rooflight.inference.result import SUMMARY, SummaryDocument
from rooflight.inference.sections import WorkloadData
from rooflight.records.document import Document, Fields
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity, count_of, percent, three_digits
from rooflight.records.report import Cell, Report, Table, table_of_fields

_MOST_BYTES: Final = 1 << 28
_MACHINE: Final = ("machine", "threads", "torch", "transformers")
_NOT_SETTINGS: Final = frozenset({*_MACHINE, "others_share", "traced_steps", "notes"})


class SettingDifference(Fields, frozen=True, kw_only=True):
    """A setting that the two runs do not have in common, as text."""

    name: str
    this: str
    other: str


class ComparedValue(Fields, frozen=True, kw_only=True):
    """A figure of both runs, null where one does not have it; ``unit`` is ``ms``, ``tok/s``, or empty for a number or a
    share. ``ratio`` is this / other.
    """

    name: str
    unit: str
    this: float | None
    other: float | None
    ratio: float | None


class ComparedBucket(Fields, frozen=True, kw_only=True):
    """A bucket of both runs: exclusive ms per step, 0 where one did not open it."""

    domain: str
    name: str
    this_ms: float
    other_ms: float
    difference_ms: float


class ComparisonDocument(Document, frozen=True, kw_only=True, tag="rooflight.inference_comparison/1"):
    """A run beside another one, whose summary was ``other_file``."""

    this: SummaryDocument
    other: SummaryDocument
    other_file: str
    settings: tuple[SettingDifference, ...]
    values: tuple[ComparedValue, ...]
    buckets: tuple[ComparedBucket, ...]


def read_summary(path: Path) -> SummaryDocument:
    """The ``summary.json`` of a run. Raises ValueError for a file that is none."""
    if path.is_dir():
        path = path / SUMMARY
    if not path.is_file():
        raise ValueError(f"no file {path}: name a run's summary.json, or its folder")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large to be a summary.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=SummaryDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no summary.json of this version of Rooflight: {error}") from error


def comparison_report(this: SummaryDocument, other: SummaryDocument, other_file: str) -> Report:
    """The report of a run, with the other run's figures after its own."""
    report = report_of(this)
    data = ComparisonDocument(
        this=this,
        other=other,
        other_file=other_file,
        settings=tuple(_settings(this, other)),
        values=tuple(_values(this, other)),
        buckets=tuple(_buckets(this, other)),
    )
    return Report(
        title=report.title,
        data=data,
        facts=(*report.facts, ("compared with", f"{other.meta.run_name} ({other_file})")),
        tables=(*report.tables, *_tables(data)),
        notes=(*report.notes, *_notes(data)),
        conclusion=_conclusion(report.conclusion, data),
    )


def _settings(this: SummaryDocument, other: SummaryDocument) -> Iterable[SettingDifference]:
    mine, theirs = this.workload, other.workload
    if mine is None or theirs is None:
        values = {"workload": ["unknown" if each is None else each.target for each in (mine, theirs)]}
        if mine is theirs:
            return
    else:
        values = {"machine": [machine_of(mine), machine_of(theirs)]} | {
            name: [_text(getattr(mine, name)), _text(getattr(theirs, name))]
            for name in WorkloadData.__struct_fields__
            if name not in _NOT_SETTINGS
        }
    for name, (own, others) in values.items():
        if own != others:
            yield SettingDifference(name=name, this=own, other=others)


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _values(this: SummaryDocument, other: SummaryDocument) -> Iterable[ComparedValue]:
    for (name, unit, value), (_, _, beside) in zip(_figures(this), _figures(other), strict=True):
        if value is not None or beside is not None:
            ratio = value / beside if value is not None and beside else None
            yield ComparedValue(name=name, unit=unit, this=value, other=beside, ratio=ratio)


def _figures(summary: SummaryDocument) -> Iterable[tuple[str, str, float | None]]:
    stats, rounds = summary.stats, summary.speculative
    prefill, bound = summary.other_phases.get("prefill"), summary.bounds.step
    yield "step latency, mean", "ms", stats.mean_ms
    yield "step latency, p50", "ms", stats.p50_ms
    yield "step latency, p90", "ms", stats.p90_ms
    yield "step latency, p99", "ms", stats.p99_ms
    yield "throughput in steps", "tok/s", stats.throughput_tok_s
    yield "throughput by wall time", "tok/s", summary.wall.throughput_tok_s
    yield "prefill, mean", "ms", None if prefill is None else prefill.mean_ms
    yield "bound of the mean step", "ms", None if bound is None else bound.bound_ms
    yield "efficiency of the mean step", "", None if bound is None else bound.efficiency
    yield "acceptance rate", "", rounds.acceptance_rate
    yield "mean accepted length", "", rounds.mean_accepted_length
    yield "speed-up of the draft, measured", "", rounds.speedup_measured
    yield "speed-up of the draft, predicted", "", rounds.speedup_predicted


def _buckets(this: SummaryDocument, other: SummaryDocument) -> Iterable[ComparedBucket]:
    for domain in ("model", "engine"):
        mine, theirs = ({row.name: row.exclusive_ms for row in getattr(each.buckets, domain)} for each in (this, other))
        for name in dict.fromkeys((*mine, *theirs)):
            own, others = mine.get(name, 0.0), theirs.get(name, 0.0)
            yield ComparedBucket(domain=domain, name=name, this_ms=own, other_ms=others, difference_ms=own - others)


def _tables(data: ComparisonDocument) -> Iterable[Table]:
    runs = "this as this run, other as other run"
    if data.settings:
        yield table_of_fields(
            "compared_settings",
            "Settings that differ",
            data.settings,
            f"name as setting, {runs}",
            wraps=("this run", "other run"),
        )
    yield table_of_fields(
        "compared",
        "This run beside the other",
        [{"name": each.name, "this": _cell(each.unit, each.this), "other": _cell(each.unit, each.other),
          "ratio": each.ratio} for each in data.values],
        f"name as figure, {runs}, ratio",
        note="Ratio: this run over the other.",
    )  # fmt: skip
    if data.buckets:
        yield table_of_fields(
            "compared_buckets",
            "Buckets of this run beside the other's (average per step)",
            data.buckets,
            "domain, name as bucket, this_ms as this run, other_ms as other run, difference_ms",
            note="Exclusive times: differences of a domain sum to that of the mean step.",
        )


def _cell(unit: str, value: float | None) -> Cell:
    return Quantity(value / 1e3, "s") if unit == "ms" and value is not None else value


def _notes(data: ComparisonDocument) -> Iterable[str]:
    names = [each.name for each in data.settings]
    if "machine" in names:
        yield "The other run was on another machine, or with other threads or libraries: compare it as such."
    rest = [name for name in names if name != "machine"]
    if rest:
        verb = "differs" if len(rest) == 1 else "differ"
        yield f"The runs did not do the same: {', '.join(rest)} {verb}."
    other = data.other.workload
    if other is not None and other.others_share is not None and other.others_share >= BUSY_SHARE:
        yield f"Other programs took at least {percent(other.others_share)} of the CPU during the other run."


def _conclusion(own: str, data: ComparisonDocument) -> str:
    ratio = next((each.ratio for each in data.values if each.name == "throughput in steps"), None)
    if ratio is None:
        return own
    differing = f", with {count_of(len(data.settings), 'setting')} changed" if data.settings else ""
    return f"{own} That is {three_digits(ratio)} times the other run's tokens per second{differing}."
