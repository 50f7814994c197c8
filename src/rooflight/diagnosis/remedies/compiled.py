"""torch.compile and CUDA graphs: what fusion and fewer launches would bring, and what compiled code loses again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import BESIDE_CALLS, NO_CALLS, Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.prediction.gain.gain import Gain, predicted_gain
from rooflight.prediction.gain.kernels import CONVOLUTIONS, CompiledWork
from rooflight.records.account import Cause, Place, Regime
from rooflight.records.quantity import count_of, percent
from rooflight.records.timeline import IdleCause, Within
from rooflight.roofline.analysis import Analysis

COMPILE: Final = Remedy(
    id="compile",
    title="many ops that few kernels could do",
    short="torch.compile(model)",
    verify="rooflight compile-bench: steady-state gain, and what compiling costs",
    waste=False,
)
GRAPHS: Final = Remedy(
    id="cuda-graphs",
    title="launches take longer than the kernels",
    short="torch.compile(mode='reduce-overhead')",
    rest="or torch.cuda.graph around the step",
    verify="the device is busy through the step",
    waste=False,
)
RECOMPILES: Final = Remedy(
    id="recompiles",
    title="functions are compiled again and again",
    short="a tensor in the place of what changes",
    rest="or take it out of the compiled code: rooflight explain names it",
    verify="TORCH_LOGS=recompiles is silent after the first steps",
)
_BY_REASON: Final = (
    (r"\['lr'\]", "lr=torch.tensor(...) in the optimizer"),
    (r"param_groups", "fused=True in the optimizer, not compiled"),
    (r"size|shape|\bs\d+\b", "dynamic=True, or mark_dynamic"),
)
"""What helps, by what the guard that failed is on."""
BREAKS: Final = Remedy(
    id="graph-breaks",
    title="graph breaks cut compiled code into pieces",
    short="take the line out of the compiled function",
    rest="print, .item() or a branch on data; fullgraph=True finds it",
    verify="rooflight explain shows no break",
)


_DOUBTFUL: Final = 0.05
_FEWER: Final = 0.8
"""Of the time that a device waits for launches: compiled code still launches its kernels, one after the other."""
_COMPILED: Final = (Cause.COMPILING, Cause.LAUNCHES, Cause.PYTHON, Cause.FUSION, Cause.SLOW_KERNELS, Cause.UNKNOWN)
_REPLAY_S: Final = 10e-6


def compiling(facts: Facts) -> Iterable[Draft]:
    """What torch.compile would bring to a program that does not use it."""
    of = facts.of
    analysis = of.analysis
    if analysis.session.compiled or not isinstance(analysis, Analysis) or analysis.without_storages:
        return
    if not of.step_s or not of.works.any():
        return
    if not of.on_cpu and not analysis.predicts:
        yield from _fusing(facts)
        return
    gain, (best, low, high) = _brought(facts, analysis)
    if not best or (not low and best < _DOUBTFUL * of.step_s):  # a few percent that may be none
        return
    calls, launches = np.flatnonzero(of.works & ~gain.work.eager), len(gain.work.launches)
    if len(calls) <= launches:
        return
    pieces, beside_s = analysis.account.of_calls(calls), analysis.account.outside(*BESIDE_CALLS)
    lost_s = beside_s + sum(seconds for (cause, _), seconds in pieces.items() if cause is not Cause.LIGHT)
    text = f"{count_of(len(calls), 'op')}, {count_of(launches, 'kernel')} when compiled"
    named = any(each.path or each.class_name for each in of.session.modules)
    remedy = COMPILE if named else replace(COMPILE, short="torch.compile(step)", rest="but for the optimizer's step")
    for draft in facts.draft(remedy, calls, text, gain_s=min(best, lost_s), low=min(0.7, low / best),
                             high=max(1.2, high / best)):  # fmt: skip
        yield replace(draft, lost_s=max(lost_s, draft.gain_s))


def _brought(facts: Facts, analysis: Analysis) -> tuple[Gain, tuple[float, ...]]:
    """What compiling is predicted to bring, and seconds of the step that it saves: the best, the low and the high."""
    of, gain = facts.of, predicted_gain(analysis)
    share = min(1.0, (of.device_total_s + of.host_total_s) / of.step_s) if of.on_cpu else 1.0
    most_s = of.step_s * share if of.on_cpu or gain.of_networks else _at_most(of, gain.work)
    speedups = (gain.steady_speedup, gain.speedup_low, gain.speedup_high)
    best, low, high = (min(most_s, max(0.0, of.step_s * share * (1 - 1 / each))) for each in speedups)
    # without roofs nobody knows what the ops lose: at most all that the merged ones take
    return gain, (best, low, high) if analysis.totals.op_bound_s else (best / 2, 0.0, best)


def _at_most(of: Evidence, work: CompiledWork) -> float:
    """What compiling may save on a GPU: kernels that are merged, launches, what convolutions gain in another layout.
    Calls of libraries and ops that stay alone cost what they cost now.
    """
    merged = [launch for launch in work.launches if launch.generated and sum(launch.ops.values()) > 1]
    laid = [each for each in work.launches if work.channels_last and not CONVOLUTIONS.isdisjoint(each.ops)]
    device_s = sum(launch.op_s for launch in merged) + 0.5 * sum(launch.op_s for launch in laid)
    return min(of.step_s, device_s + _FEWER * of.late_s)


def _fusing(facts: Facts) -> Iterable[Draft]:
    """Of a program whose kernels were measured, without predictions: what must not move, and what host time goes."""
    of, program = facts.of, facts.of.analysis.program
    op_s = of.analysis.totals.op_bound_s
    if not op_s:
        return
    calls = np.flatnonzero(of.works & ~of.products)
    if len(calls) < 2:  # nothing to be fused with
        return
    gain_s = of.gain((1 - program.fused_bound_s / op_s) * of.device_total_s, 0.6 * of.host_total_s)
    text = f"the ops move more than fused ones must: bound {percent(1 - program.fused_bound_s / op_s)} lower"
    yield from facts.draft(COMPILE, calls, text, gain_s=gain_s, low=0.3, high=1.4)


def graphs(facts: Facts) -> Iterable[Draft]:
    """Launches on a GPU that the host issues more slowly than the device works."""
    of = facts.of
    if of.on_cpu or of.analysis.host.replayed:
        return
    launches = of.timeline.launches if of.timeline is not None else None
    if launches is not None and launches.graphs:
        return
    text = f"the device waits for launches {percent(of.late_s / max(of.step_s, 1e-12))} of the step"
    text += of.mostly_in(IdleCause.HOST)
    # a graph is one launch in the place of many; where its host reads a result, there must be several graphs
    many = 1 - 1 / max(1.0, float(of.analysis.queue.launches.sum()))
    graphs = 1 + int(of.syncs.sum())
    gain_s = (0.85 if graphs > 1 or of.idle is not None else 1.0) * (of.late_s - graphs * _REPLAY_S) * many
    yield from facts.waiting(GRAPHS, (Cause.LAUNCHES, Cause.PYTHON), of.late_s, gain_s, text, 0.5)


def compiled_again(facts: Facts) -> Iterable[Draft]:
    """Functions that were compiled too often, and graph breaks."""
    of, measurement = facts.of, facts.of.analysis.measurement
    if measurement is None or measurement.host is None:
        return
    seen = measurement.host.compilations
    in_torch_s, _, _ = of.in_library(Within.COMPILING)
    limited = [each for each in seen if each.limited]
    again = limited or [each for each in seen if each.times > 1 and in_torch_s > 0.05 * of.step_s]
    if again:
        worst = max(again, key=lambda each: each.times)
        text = f"{worst.where}, was compiled {worst.times:,} times, the last time for {worst.reason}"
        helps = (short for pattern, short in _BY_REASON if re.search(pattern, worst.reason))
        where = worst.where if worst.where is not None and worst.where.line else None
        remedy = replace(RECOMPILES, short=next(helps, RECOMPILES.short))
        yield from _compiled_well(facts, remedy, text, in_torch_s, runs_eagerly=bool(limited), place=where)
    broken = [each.reason for each in seen if not each.times and each.reason]
    if broken and not again:
        text = f"{count_of(len(broken), 'graph break')}: {broken[0][:100]}"
        yield from _compiled_well(facts, BREAKS, text, in_torch_s, runs_eagerly=True)


def _compiled_well(
    facts: Facts, remedy: Remedy, text: str, in_torch_s: float, *, runs_eagerly: bool, place: Place | None = None
) -> Iterable[Draft]:
    """What the step saves if torch's compiler keeps out of it; and where a part ``runs_eagerly``, which nothing
    measures, what compiling saves: whoever compiles it gains, so the middle of what is likely and what is possible.
    """
    of, analysis, best, high = facts.of, facts.of.analysis, 0.0, 0.0
    if runs_eagerly and isinstance(analysis, Analysis) and not analysis.without_storages:
        best, _, high = _brought(facts, analysis)[1] if of.on_cpu or analysis.predicts else (0.0, 0.0, 0.0)
    gain_s = min(of.step_s, in_torch_s + (best + high) / 2)
    # that it happened is known, however little is predicted to come of it
    yield Draft(remedy=remedy, regime=Regime.OVERHEAD, evidence=text, lost_s=max(gain_s, high), gain_s=gain_s,
                low_s=0.5 * in_torch_s, high_s=min(of.step_s, max(1.2 * gain_s, in_torch_s + high)),
                calls=NO_CALLS, causes=_COMPILED, place=place)  # fmt: skip


RULES: Final = (compiling, graphs, compiled_again)
