"""Two summaries side by side: what changed in steps, buckets, throughput and acceptance, and what was set otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rooflight.inference.report import report_of
from rooflight.inference.summary import BucketTime, StepStats, SummaryDocument
from rooflight.inference.workload_data import WorkloadData
from rooflight.inference.workload_report import machine_of
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import Quantity, count_of, percent, three_digits
from rooflight.records.report import Cell, Column, Report, Table
from rooflight.records.session import BUSY_SHARE

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
        path = path / "summary.json"
    if not path.is_file():
        raise ValueError(f"no file {path}: name a run's summary.json, or its folder")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large to be a summary.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=SummaryDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no summary.json of this version of Rooflight: {error}") from error


def comparison_of(this: SummaryDocument, other: SummaryDocument, other_file: str) -> ComparisonDocument:
    """Two summaries and what differs."""
    return ComparisonDocument(
        this=this,
        other=other,
        other_file=other_file,
        settings=tuple(_settings(this, other)),
        values=tuple(_values(this, other)),
        buckets=tuple(_buckets(this, other)),
    )


def comparison_report(this: SummaryDocument, other: SummaryDocument, other_file: str) -> Report:
    """The report of a run, with the other run's figures after its own."""
    report, data = report_of(this), comparison_of(this, other, other_file)
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
        if mine is not theirs:
            texts = ["unknown" if each is None else each.target for each in (mine, theirs)]
            yield SettingDifference(name="workload", this=texts[0], other=texts[1])
        return
    if machine_of(mine) != machine_of(theirs):
        yield SettingDifference(name="machine", this=machine_of(mine), other=machine_of(theirs))
    for name in WorkloadData.__struct_fields__:
        values = getattr(mine, name), getattr(theirs, name)
        if name not in _NOT_SETTINGS and values[0] != values[1]:
            yield SettingDifference(name=name, this=_text(values[0]), other=_text(values[1]))


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _values(this: SummaryDocument, other: SummaryDocument) -> Iterable[ComparedValue]:
    mine, theirs = _figures(this), _figures(other)
    for name, (unit, value) in mine.items():
        beside = theirs[name][1]
        if value is not None or beside is not None:
            ratio = value / beside if value is not None and beside else None
            yield ComparedValue(name=name, unit=unit, this=value, other=beside, ratio=ratio)


def _figures(summary: SummaryDocument) -> Mapping[str, tuple[str, float | None]]:
    stats, rounds = summary.stats, summary.speculative
    prefill, bound = summary.other_phases.get("prefill"), summary.bounds.step
    return {
        **{f"step latency, {name}": ("ms", getattr(stats, f"{name}_ms")) for name in ("mean", "p50", "p90", "p99")},
        "throughput in steps": ("tok/s", stats.throughput_tok_s),
        "throughput by wall time": ("tok/s", summary.wall.throughput_tok_s),
        "prefill, mean": ("ms", _mean(prefill)),
        "bound of the mean step": ("ms", None if bound is None else bound.bound_ms),
        "efficiency of the mean step": ("", None if bound is None else bound.efficiency),
        "acceptance rate": ("", rounds.acceptance_rate),
        "mean accepted length": ("", rounds.mean_accepted_length),
        "speed-up of the draft, measured": ("", rounds.speedup_measured),
        "speed-up of the draft, predicted": ("", rounds.speedup_predicted),
    }


def _mean(stats: StepStats | None) -> float | None:
    return None if stats is None else stats.mean_ms


def _buckets(this: SummaryDocument, other: SummaryDocument) -> Iterable[ComparedBucket]:
    for domain in ("model", "engine"):
        mine, theirs = (_by_name(getattr(each.buckets, domain)) for each in (this, other))
        for name in dict.fromkeys((*mine, *theirs)):
            values = mine.get(name, 0.0), theirs.get(name, 0.0)
            yield ComparedBucket(
                domain=domain, name=name, this_ms=values[0], other_ms=values[1], difference_ms=values[0] - values[1]
            )


def _by_name(rows: Iterable[BucketTime]) -> dict[str, float]:
    return {row.name: row.exclusive_ms for row in rows}


def _tables(data: ComparisonDocument) -> Iterable[Table]:
    if data.settings:
        yield Table(
            id="compared_settings",
            title="Settings that differ",
            columns=(Column("setting"), Column("this run", wraps=True), Column("other run", wraps=True)),
            rows=tuple((each.name, each.this, each.other) for each in data.settings),
        )
    yield Table(
        id="compared",
        title="This run beside the other",
        columns=(Column("figure"), Column("this run"), Column("other run"), Column("ratio")),
        rows=tuple((each.name, _cell(each, each.this), _cell(each, each.other), each.ratio) for each in data.values),
        note="Ratio: this run over the other.",
    )
    if data.buckets:
        yield Table(
            id="compared_buckets",
            title="Buckets of this run beside the other's (average per step)",
            columns=(
                Column("domain"),
                Column("bucket"),
                Column("this run", "s"),
                Column("other run", "s"),
                Column("difference", "s"),
            ),
            rows=tuple(
                (each.domain, each.name, each.this_ms / 1e3, each.other_ms / 1e3, each.difference_ms / 1e3)
                for each in data.buckets
            ),
            note="Exclusive times: differences of a domain sum to that of the mean step.",
        )


def _cell(figure: ComparedValue, value: float | None) -> Cell:
    return Quantity(value / 1e3, "s") if figure.unit == "ms" and value is not None else value


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
