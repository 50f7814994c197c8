"""One step on each of several devices: how long, whether it fits, how much of it a second, and at what price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, Final

import numpy as np
from msgspec import structs

from rooflight.front.device import find_device
from rooflight.front.sessions import analyze, predicted
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.gain.gain import Gain, predicted_gain
from rooflight.prediction.predictor import Predictor
from rooflight.records.quantity import Quantity, percent
from rooflight.records.record import EVALUATION, STEP, Direction
from rooflight.records.report import Cell, Report, Table, table
from rooflight.records.session import Session
from rooflight.records.timeline import OnDevice, Run, VirtualRun
from rooflight.records.visible import visible
from rooflight.roofline.account.batch import batch_of, matrix_share
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.memory.use import compiled_peak
from rooflight.roofline.predicted import Predicted, PredictedWall
from rooflight.roofline.tables.document import AnalysisDocument

_HOUR_S: Final = 3600.0
NO_PRICES: Final[Mapping[str, float]] = {}
_MILLION: Final = 1e6
_LARGE: Final = 1000
_OF_ONE_BATCH: Final = ("reduce", "send", "recv")


def row_of(analysis: Analysis, virtual: VirtualRun, predictor: Predictor, price: float | None = None) -> OnDevice:
    """What a step takes on one device, and a batch of an evaluation. ``price``: of one GPU, in dollars an hour."""
    totals, memory, beside = analysis.totals, analysis.memory, _evaluation(analysis, predictor)
    wall, peak, phase = _wall(analysis), memory.peak_bytes, memory.phase
    gain = predicted_gain(analysis, "default") if virtual.compiled and totals.predicted else None
    gain_beside = predicted_gain(beside, "default") if gain is not None and beside is not None else None
    if gain is not None and memory.followed:
        peaks = {each.phase: each.allocated_bytes for each in memory.phases}
        peaks[STEP] = _compiled_peak(analysis, gain)
        if beside is not None and gain_beside is not None:
            peaks[EVALUATION] = _compiled_peak(beside, gain_beside)
        phase = max(peaks, key=lambda name: peaks[name])
        peak = peaks[phase]
    wall_beside = _wall(beside) if beside is not None else None
    eager_beside_s = wall_beside.time_s if wall_beside is not None else None
    row = OnDevice(
        device=analysis.device.name,
        gpus=virtual.gpus * virtual.nodes,
        step_s=wall.time_s if wall else None,
        step_low_s=wall.low_s if wall else None,
        step_high_s=wall.high_s if wall else None,
        compiled_s=gain.compiled_s if gain else None,
        compiled_low_s=gain.eager_s / gain.speedup_high if gain else None,
        compiled_high_s=gain.eager_s / gain.speedup_low if gain else None,
        bound_s=_bound_s(analysis),
        memory_bytes=peak,
        eager_memory_bytes=memory.peak_bytes,
        fits=memory.device_bytes is None or peak <= memory.device_bytes,
        exchange_bytes=totals.bytes_sent,
        phase=phase,
        batch_factor=memory.batch_factor if gain is None else None,
        evaluation_s=gain_beside.compiled_s if gain_beside else eager_beside_s,
        evaluation_bound_s=_bound_s(beside) if beside else None,
        price_per_hour=price,
    )
    return _with_rates(row, analysis)


def _with_rates(row: OnDevice, analysis: Analysis) -> OnDevice:
    """With tokens or samples a second of all GPUs, each of which has its own batch, and what they cost."""
    time_s, batch = row.time_s, batch_of(analysis.session)
    if not time_s:
        return row
    row = replace(row, mfu=matrix_share(analysis, time_s))
    if batch is None or (row.gpus > 1 and _may_share_batches(analysis.session)):
        return row
    unit, count = batch
    rate, price = count * row.gpus / time_s, row.price_per_hour
    dollars = None if price is None else price * row.gpus / _HOUR_S / rate * _MILLION
    found: dict[str, Any] = {f"{unit}_per_s": rate, f"dollars_per_million_{unit}": dollars}
    if row.batch_factor is not None:
        found["largest_batch"] = int(count * row.batch_factor)
    return replace(row, **found)


def _may_share_batches(session: Session) -> bool:
    """Whether ranks may work on one batch together: in the forward pass they add what they computed, or hand it on."""
    columns = session.columns
    forward = np.unique(columns.signature[session.counted & (columns.direction == Direction.FORWARD)])
    names = [session.signatures[each].name for each in forward.tolist()]
    return any("c10d" in name and any(word in name for word in _OF_ONE_BATCH) for name in names)


def _evaluation(analysis: Analysis, predictor: Predictor) -> Analysis | None:
    session = analysis.session.evaluation
    return predicted(analyze(session, analysis.device.name), predictor) if session is not None else None


def _wall(analysis: Analysis) -> PredictedWall | Predicted | None:
    return analysis.totals.predicted_wall or analysis.totals.predicted


def _compiled_peak(analysis: Analysis, gain: Gain) -> int:
    """Of one that is compiled: no more than its ops need one by one, no less than any code that computes the same."""
    memory = analysis.memory
    return min(memory.step_bytes, max(memory.compiled_least_bytes, compiled_peak(analysis.session, gain.work.stored)))


def _bound_s(analysis: Analysis) -> float:
    """Of ops one by one, or fused where they are compiled; what is exchanged may run beside the rest."""
    exchange_s = sum(each.bound_s or 0.0 for each in analysis.communication.collectives)
    return max(exchange_s, analysis.leading_bound[1] - exchange_s)


def prices_of(words: Iterable[str], devices: Sequence[DeviceSpec]) -> dict[str, float]:
    """Dollars an hour of one GPU, by the name of its device, of words such as ``H100-SXM5-80GB=2.5``. Raises ValueError
    for other words, and for a device that is not among those.
    """
    found = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            price = float(text)
        except ValueError:
            price = inf
        if not (isfinite(price) and price > 0):
            raise ValueError(f"--price {visible(word)}: say DEVICE=DOLLARS, as H100-SXM5-80GB=2.5, for an hour of one")
        device = find_device(name).name
        if device not in {each.name for each in devices}:
            raise ValueError(f"--price {visible(word)}: {device} is none of {', '.join(each.name for each in devices)}")
        found[device] = price
    return found


def rows_of(
    analyses: Sequence[Analysis], virtual: VirtualRun, predictor: Predictor, prices: Mapping[str, float]
) -> tuple[OnDevice, ...]:
    """A row for each device that a step was analysed for."""
    return tuple(row_of(each, virtual, predictor, prices.get(each.device.name)) for each in analyses)


def with_devices(
    report: Report, session: Session, devices: Sequence[DeviceSpec], prices: Mapping[str, float]
) -> Report:
    """The report of a step that was recorded once, with what it takes on each of several devices."""
    predictor = Predictor()
    analyses = [predicted(analyze(session, device), predictor) for device in devices]
    names = tuple(device.name for device in devices)
    virtual = VirtualRun(devices=names, gpus=1, nodes=1, rank=0, compiled=int(session.compiled))
    rows = rows_of(analyses, virtual, predictor, prices)
    run = Run(script=session.environment.get("target", ""), exit_code=None, on=rows)
    return replace(
        report,
        conclusion=f"{ranking(rows)} {report.conclusion}".strip(),
        tables=(devices_table(rows), *report.tables),
        data=structs.replace(report.data, run=run) if isinstance(report.data, AnalysisDocument) else report.data,
    )


def ranked(rows: Sequence[OnDevice]) -> list[OnDevice]:
    """Those that fit first; of these the cheapest first where all prices are known, and else the fastest."""
    cost = [each.dollars_per_million for each in rows]
    by_price = None not in cost

    def order(row: OnDevice) -> tuple[bool, float]:
        return not row.fits, (row.dollars_per_million if by_price else row.time_s) or row.bound_s

    return sorted(rows, key=order)


def ranking(rows: Sequence[OnDevice]) -> str:
    """Which of several devices is fastest, and which costs least."""
    fit = {row.device: row.time_s for row in rows if row.fits and row.time_s}
    if len(fit) < 2:
        return ""
    fastest = min(fit, key=lambda name: fit[name])
    text = f"Fastest where it fits: {fastest}, {Quantity(fit[fastest], 's')}"
    priced = [row for row in rows if row.device in fit and row.dollars_per_million is not None]
    if len(priced) > 1:
        cheapest = min(priced, key=lambda row: row.dollars_per_million or inf)
        unit = "tokens" if cheapest.dollars_per_million_tokens is not None else "samples"
        text += f"; cheapest: {cheapest.device}, ${cheapest.dollars_per_million:.3g} for a million {unit}"
    return f"{text}."


def devices_table(rows: Sequence[OnDevice]) -> Table:
    """Devices in their order, a row each; columns of which nothing is known are left out."""

    def known(name: str) -> bool:
        return any(getattr(row, name) is not None for row in rows)

    unit = "tokens" if known("tokens_per_s") else "samples"
    compiled, priced = any(row.compiled_s for row in rows), known(f"dollars_per_million_{unit}")
    columns: tuple[tuple[bool, str, str, Callable[[OnDevice], Cell]], ...] = (
        (True, "device", "", lambda row: f"{row.gpus} × {row.device}" if row.gpus > 1 else row.device),
        (compiled, "compiled", "s", lambda row: row.compiled_s),
        (compiled, "90 % compiled", "", lambda row: _between(row.compiled_low_s, row.compiled_high_s)),
        (True, "eager", "s", lambda row: row.step_s),
        (True, "90 %", "", lambda row: _between(row.step_low_s, row.step_high_s)),
        (True, "bound", "s", lambda row: row.bound_s),
        (known(f"{unit}_per_s"), f"{unit}/s", "", lambda row: _rate(getattr(row, f"{unit}_per_s"))),
        (known("mfu"), "MFU", "", lambda row: None if row.mfu is None else percent(row.mfu)),
        (priced, f"$ per million {unit}", "", lambda row: _rate(row.dollars_per_million)),
        (True, "memory", "B", lambda row: row.memory_bytes),
        (True, "fits", "", lambda row: "yes" if row.fits else "no"),
        (known("largest_batch"), f"largest batch, {unit}", "", lambda row: row.largest_batch),
        (
            known("batch_factor") and not known("largest_batch"),
            "batch that fits",
            "",
            lambda row: _times(row.batch_factor),
        ),
        (any(row.exchange_bytes for row in rows), "sent", "B", lambda row: row.exchange_bytes or None),
        (known("evaluation_s"), "evaluation", "s", lambda row: row.evaluation_s),
    )
    return table(
        "on",
        "On devices that are not here",
        ranked(rows),
        *((title, kind, cell) for there, title, kind, cell in columns if there),
        note="evaluation: a batch of it." if known("evaluation_s") else "",
    )


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _times(factor: float | None) -> str | None:
    return None if factor is None else f"{factor:.3g} times"


def _between(low_s: float | None, high_s: float | None) -> str | None:
    return None if low_s is None or high_s is None else f"{Quantity(low_s, 's')} to {Quantity(high_s, 's')}"
