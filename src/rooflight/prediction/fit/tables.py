"""What was learned from measured tables, and how wrong it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Final

from rooflight.costs.operators import registry
from rooflight.hardware.devices.spec import roofs_used_by
from rooflight.prediction.fit.fitting import Added, Fit
from rooflight.prediction.fit.rows import Taught
from rooflight.prediction.lint.findings import Finding, Rule, beats_note
from rooflight.prediction.model.corrections import Correction
from rooflight.prediction.model.model import Expert, Model
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read.measured import MeasuredOps, MeasuredTable
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import count_of
from rooflight.records.report import Report, Table, table

_NAMED: Final = 6
"""Kinds of work with too few times that are named."""
_STALE: Final = 0.01
"""A share of times that beat a calibration, from which the calibration is at fault rather than the times."""


class FittedModel(Fields, frozen=True, kw_only=True):
    """A model of one kind of work on one device; ``corrects``: its rows correct what others taught. ``error`` is the
    mean absolute share of times held out; ``inside`` and ``outside`` are 90 % of log(true / predicted), for shapes
    within and beyond those sampled.
    """

    key: str
    device: str
    rows: int
    error: float
    inside: tuple[float, float]
    outside: tuple[float, float]
    corrects: bool = False


class FitDocument(Document, frozen=True, kw_only=True, tag="rooflight.fit/1"):
    """What was learned. ``unseen_device`` are 90 % of log(true / predicted) for devices without a model, by kind of
    work; ``too_few`` counts times of what had too few to learn from; ``flagged`` those that lint took out;
    ``beat_bound`` those of the rest that are faster than their bound. ``added``: what was learned on top of other
    models (``--on``); ``models`` are those learned from these times alone then.
    """

    models: tuple[FittedModel, ...]
    unseen_device: Mapping[str, tuple[float, float]]
    too_few: Mapping[str, int]
    times: int
    flagged: int
    beat_bound: int
    added: tuple[Added, ...] = ()


def report_of(
    fit: Fit,
    tables: Sequence[MeasuredTable | MeasuredOps],
    findings: Sequence[Finding],
    folder: Path,
    taught_by_ops: Taught | None = None,
    beats: int = 0,
) -> Report:
    """The models made, with the errors of rows held out; what lint took out, and what was too little to learn from. Of
    models on top of others, what was added.
    """
    added = fit.added or ()
    models = [model for model in fit.models if model.key not in {each.key for each in added}]
    learned = [
        FittedModel.view(each, key=model.key, outside=getattr(each, "outside", each.inside), corrects=corrects)
        for model in sorted(models, key=lambda model: (-model.rows, model.key))
        for corrects, each in sorted(_parts(model), key=lambda part: -part[1].rows)
    ]
    learned += [
        FittedModel.view(curve, each, key=f"{each.name} {each.dtype} {direction}")
        for each in fit.functions
        for direction, curve in each.curves.items()
    ]
    times = sum(table.seconds.size for table in tables)
    flagged = len({(*finding.place, finding.row) for finding in findings if finding.row is not None})
    return Report(
        title=f"Models in {folder}",
        data=FitDocument(
            models=tuple(learned),
            unseen_device={model.key: model.unseen for model in models},
            too_few=fit.few,
            times=times,
            flagged=flagged,
            beat_bound=beats,
            added=added,
        ),
        facts=(
            ("tables", len(tables)),
            ("times", times),
            ("left out, flagged by lint", flagged),
            ("roofs from", roofs_used_by(table.device for table in tables)),
        ),
        tables=(*([_added(added)] if added else []), *([_learned(learned)] if learned or not added else [])),
        notes=(
            *_too_few(fit.few),
            *(
                f"{key}: {count} times of one shape or two say nothing of others: sample other shapes too."
                for key, count in sorted(fit.alike.items())
            ),
            *_skipped(tables, fit),
            *_unusable(tables, findings),
            *_of_sessions(taught_by_ops),
            *([note] if (note := beats_note(beats)) else []),
            *_stale_calibrations(tables, findings),
            *(_earlier_fits(fit, folder) if fit.added is None else ()),
        ),
    )


def _parts(model: Model) -> list[tuple[bool, Expert | Correction]]:
    return [*((False, each) for each in model.experts), *((True, each) for each in model.corrections)]


def _added(added: Sequence[Added]) -> Table:
    return table(
        "added",
        "On top of the other models",
        sorted(added, key=lambda each: (-each.rows, each.key)),
        ("kind", "", lambda each: each.key),
        ("device", "", lambda each: each.device),
        ("times", "", lambda each: each.rows),
        ("error before", "%", lambda each: each.error_before),
        ("error", "%", lambda each: each.error),
        ("true / predicted, 90 %", "", lambda each: _factors(each.inside)),
        ("learned", "", lambda each: each.how),
        optional=("learned",),
        note="Errors: mean absolute percentage errors, before of the other models, then of times left out in turn.",
    )


def _learned(learned: Sequence[FittedModel]) -> Table:
    return table(
        "models",
        "By kind of work and device",
        learned,
        ("kind", "", lambda each: each.key),
        ("device", "", lambda each: each.device + ", on top" * each.corrects),
        ("times", "", lambda each: each.rows),
        ("error", "%", lambda each: each.error),
        ("true / predicted, 90 %", "", lambda each: _factors(each.inside)),
        ("larger than sampled", "", lambda each: _factors(each.outside)),
        optional=("larger than sampled",),
        note="Error: mean absolute percentage error of held-out times. Nine in ten lie in true / predicted. On top: "
        "few times correct what other times taught.",
    )


def _too_few(few: Mapping[str, int]) -> Iterator[str]:
    if len(few) <= _NAMED:
        for key, count in sorted(few.items()):
            yield f"{key}: {count_of(count, 'time is', 'times are')} too few to learn from."
        return
    most = sorted(few, key=lambda key: (-few[key], key))[:_NAMED]
    named = ", ".join(f"{key} ({few[key]})" for key in most)
    rest = len(few) - _NAMED
    yield f"{len(few)} kinds of work have too few times for a model of their own: {named} and {rest} more."


def _of_sessions(taught: Taught | None) -> Iterator[str]:
    if taught is not None and taught.collectives:
        yield (
            f"Left out: {count_of(taught.collectives, 'collective')} of traces and sessions, in whose times a rank "
            "waits for others; rooflight sample measures them alone."
        )
    if taught is not None and taught.uncosted:
        yield f"Left out: {count_of(taught.uncosted, 'op')} of traces and sessions without a cost, or with no work."


def _skipped(tables: Sequence[MeasuredTable | MeasuredOps], fit: Fit) -> Iterator[str]:
    learned = {each.name for each in fit.functions}
    for name, features in dict.fromkeys((each.name, tuple(each.features)) for each in fit.functions):
        named = f", not Rooflight's {name}" if name in registry.names() else ""
        yield f"{name}: a function of yours{named}: predicted without a bound, by {', '.join(features)}."
    unknown = sorted({table.kernel for table in tables if not table.known} - learned)
    if unknown:
        yield f"Skipped, because no such operator is registered: {', '.join(unknown)}."


def _unusable(tables: Sequence[MeasuredTable | MeasuredOps], findings: Sequence[Finding]) -> Iterator[str]:
    measured = [table for table in tables if isinstance(table, MeasuredTable)]
    labels = {(table.source, table.kernel, table.device.name): table.label for table in measured}
    unusable: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        if each.rule is Rule.UNUSABLE_COLUMN:
            unusable.setdefault((each.kernel, each.device), []).append(each)
    for (kernel, device), those in unusable.items():  # of several files and directions
        names = sorted({labels.get((each.source, kernel, device)) or kernel for each in those})
        ways = ", ".join(dict.fromkeys(each.direction for each in those))
        yield f"Left out whole: {', '.join(names)} {ways} on {device}: {those[0].evidence}."


def _earlier_fits(fit: Fit, folder: Path) -> Iterator[str]:
    if left := Predictor.of(fit.models, fit.functions).left_by_others(folder):
        yield f"{folder} also holds {count_of(left, 'model')} of earlier fits, used too: delete what should not be."


def _stale_calibrations(tables: Sequence[MeasuredTable | MeasuredOps], findings: Sequence[Finding]) -> Iterator[str]:
    times = Counter[str]()
    for each in tables:
        if each.device.calibrated is not None and each.device.datasheet is None:
            times[each.device.name] += each.seconds.size
    faster = Counter(finding.device for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT)
    for device, count in sorted(faster.items()):
        if count > _STALE * times[device] > 0:
            yield (
                f"{count} of {count_of(times[device], 'time')} on {device} are faster than its calibration allows, and "
                "were left out: run rooflight calibrate on the idle machine, then fit again."
            )


def _factors(interval: tuple[float, float]) -> str:
    return f"{exp(interval[0]):.2f} to {exp(interval[1]):.2f}"
