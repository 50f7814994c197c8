"""What a report shows of predicted times: its facts, columns, notes and data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.records.document import Fields
from rooflight.records.estimate import Estimate, Source
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import IN_THE_OPS
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.predicted import Predicted
from rooflight.roofline.wall import PredictedWall

AS_A_GRAPH: Final = "as if replayed from a graph"
_NAMED: Final = 4
_REST: Final = 1e-9  # what is left of a difference that should be 0


class PredictedFields(Fields, frozen=True, kw_only=True):
    """A predicted time as it stands in every row: with its interval, op bound / predicted, predicted / measured - 1."""

    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    predicted_efficiency: float | None
    prediction_error: float | None


class HostData(Fields, frozen=True, kw_only=True):
    """The host that a wall time assumes: seconds for an eager pointwise op, and before the first op of a step. With
    ``replayed`` the step is one CUDA graph. ``time_s`` is what it needs to issue the step.
    """

    launch_s: float
    first_s: float
    replayed: bool
    source: str
    time_s: float


class PredictionData(PredictedFields, frozen=True, kw_only=True):
    """The prediction of the whole: what of it is extrapolated, or of ops that no model knows, and of how many calls.
    Its times are the device's, as if replayed from a graph; ``predicted_wall_s`` includes the ``host``'s.
    """

    predicted_wall_s: float | None
    predicted_wall_low_s: float | None
    predicted_wall_high_s: float | None
    host: HostData | None

    extrapolated_s: float | None
    typical_s: float | None
    calls: int
    unpredicted_calls: int


def predicted_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """The predicted time, its efficiency, what it rests on, and how far it is from what was measured."""
    if not analysis.predicts:
        return
    predicted = analysis.totals.predicted
    if predicted is None or not predicted.time_s:
        yield "predicted", "nothing: no op has a cost that takes time"
        return
    yield "predicted device time", f"{_with_interval(predicted)}, the ops one after the other, {AS_A_GRAPH}"
    wall = analysis.totals.predicted_wall
    if wall is not None and wall.host is not IN_THE_OPS:
        yield "predicted wall time", f"{_with_interval(wall)}, {host_text(wall)}"
    yield "predicted efficiency", f"{percent(predicted.efficiency or 0.0)} (op bound / predicted)"
    parts = {
        "measurements of such ops": predicted.time_s - predicted.extrapolated_s - predicted.typical_s,
        "measurements of other ops, sizes or devices": predicted.extrapolated_s,
        "no measurements": predicted.typical_s,
    }
    shares = {what: seconds / predicted.time_s for what, seconds in parts.items()}
    yield (
        "prediction rests",
        ", ".join(f"{percent(share)} on {what}" for what, share in shares.items() if share > _REST),
    )
    if predicted.error is not None:
        predicted_s, measured_s = Quantity(predicted.timed_s or 0.0, "s"), Quantity(predicted.measured_s or 0.0, "s")
        yield "prediction error", f"{predicted.error:+.1%} (predicted {predicted_s}, measured {measured_s} in ops)"


def predicted_sentence(analysis: Analysis) -> str:
    """What the step is predicted to take, for the conclusion of a report on what was not measured."""
    predicted = analysis.totals.predicted
    if predicted is None or not predicted.time_s:
        return ""
    wall = analysis.totals.predicted_wall
    if wall is None or wall.host is IN_THE_OPS:
        return f" They are predicted to take {_with_interval(predicted)}."
    who = "the host, which issues the ops, takes longest" if wall.host_bound else "the device takes longest"
    return (
        f" The step is predicted to take {_with_interval(wall)} on the wall clock; {who}. The device alone, "
        f"{AS_A_GRAPH}, is predicted to take {Quantity(predicted.time_s, 's')}."
    )


def host_text(wall: PredictedWall) -> str:
    """Which host was assumed, and how long it needs."""
    if wall.host.replayed:
        return f"one launch of a graph in {Quantity(wall.host_s, 's')}"
    launch = Quantity(wall.host.launch_s, "s")
    return f"a host that takes {launch} per launch ({wall.host.source}), {Quantity(wall.host_s, 's')} in all"


def predicted_notes(analysis: Analysis) -> Iterable[str]:
    """What of the prediction is missing or unsure, and why."""
    if not analysis.predicts:
        return
    predicted, device = analysis.totals.predicted, analysis.device.name
    uncosted = sum(op.calls for op in analysis.coverage.uncosted)
    if uncosted:
        without = count_of(uncosted, "op has no cost and is", "ops have no cost and are")
        yield f"{without} not predicted: the predicted time is lower than the truth."
    left_out = analysis.totals.calls - uncosted - (predicted.calls if predicted else 0)
    if left_out:
        unbounded = count_of(left_out, "op does work", "ops do work")
        yield f"{unbounded} that no figure of {device} bounds, and {'is' if left_out == 1 else 'are'} not predicted."
    if predicted is None or not predicted.time_s:
        return
    if predicted.typical_s:
        yield (
            f"{percent(predicted.typical_s / predicted.time_s)} of the predicted time is of ops without a model "
            f"({_largest(analysis, typical=True)}): a typical share of the speed of light, with a wide interval."
        )
    if predicted.extrapolated_s:
        yield (
            f"{percent(predicted.extrapolated_s / predicted.time_s)} of the predicted time is of ops outside of what "
            f"models learned from, by kind, size or device ({_largest(analysis, typical=False)}): the "
            "interval is wider, and less certain than 90 %."
        )
    if predicted.holds is False:
        yield "The measured ops lie outside of the predicted interval: the models do not fit this device or program."


def columns_explained(analysis: Analysis) -> str:
    """What the predicted figures in a table are."""
    if not analysis.predicts:
        return ""
    text = f"Predicted: the ops one after the other on the device, {AS_A_GRAPH}."
    if analysis.totals.ops_measured_s is not None:
        text += " Error: predicted / measured − 1, of the calls that have both."
    return text


def source_text(estimate: Estimate | None) -> str | None:
    """Where the estimate of an op comes from."""
    if estimate is None:
        return None
    extrapolated = estimate.extrapolated and estimate.source is not Source.TYPICAL
    return estimate.source.value + (", extrapolated" if extrapolated else "")


def prediction_data(analysis: Analysis) -> PredictionData | None:
    """The prediction of the whole; None without a predictor."""
    if not analysis.predicts:
        return None
    predicted, wall = analysis.totals.predicted, analysis.totals.predicted_wall
    calls = predicted.calls if predicted else 0
    return PredictionData(
        **row_data(predicted),
        **wall_data(wall),
        host=_host_data(wall) if wall else None,
        extrapolated_s=predicted.extrapolated_s if predicted else None,
        typical_s=predicted.typical_s if predicted else None,
        calls=calls,
        unpredicted_calls=analysis.totals.calls - calls,
    )


def wall_data(wall: PredictedWall | None) -> dict[str, float | None]:
    """The predicted wall time and its interval; None where nothing is predicted."""
    return {
        "predicted_wall_s": wall.time_s if wall else None,
        "predicted_wall_low_s": wall.low_s if wall else None,
        "predicted_wall_high_s": wall.high_s if wall else None,
    }


def _host_data(wall: PredictedWall) -> HostData:
    host = wall.host
    return HostData(
        launch_s=host.launch_s,
        first_s=host.first_s,
        replayed=host.replayed,
        source=host.source,
        time_s=wall.host_s,
    )


def row_data(predicted: Predicted | None) -> dict[str, float | None]:
    """The values of ``PredictedFields``; None where nothing is predicted."""
    return {
        "predicted_s": predicted.time_s if predicted else None,
        "predicted_low_s": predicted.low_s if predicted else None,
        "predicted_high_s": predicted.high_s if predicted else None,
        "predicted_efficiency": predicted.efficiency if predicted else None,
        "prediction_error": predicted.error if predicted else None,
    }


def _with_interval(predicted: Predicted | PredictedWall) -> str:
    low, high = Quantity(predicted.low_s, "s"), Quantity(predicted.high_s, "s")
    return f"{Quantity(predicted.time_s, 's')} (90 %: {low} to {high})"


def _largest(analysis: Analysis, *, typical: bool) -> str:
    """The ops with most predicted time of those extrapolated, or of those without a model."""
    seconds: dict[str, float] = {}
    for operation in analysis.operations:
        estimate = operation.estimate
        if (
            estimate
            and operation.predicted
            and estimate.extrapolated
            and (estimate.source is Source.TYPICAL) is typical
        ):
            name = plain_name(operation.signature.name)
            seconds[name] = seconds.get(name, 0.0) + operation.predicted.time_s
    names = sorted(seconds, key=lambda name: -seconds[name])
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
