"""The waterfall: how the time of a step builds up from its program bound to the measured time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rooflight.records.document import Fields

_KERNELS: Final = "kernels slower than their bound"
_OVERHEAD: Final = "overhead and idle"
_UNKNOWN: Final = "work of the device that belongs to no op"


class Gap(Fields, frozen=True, kw_only=True):
    """One step of the waterfall: ``seconds`` more than before, ``until_s`` in all, and what would shrink it.

    Seconds are negative where a later figure is the smaller one; the name then states what that is.
    """

    name: str
    seconds: float
    until_s: float
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Seconds of a step's collectives: their times in sum, the part of the step that they alone filled, and the sum of
    their op bounds, which is part of the op bound already.
    """

    measured_s: float
    exposed_s: float
    op_bound_s: float


def waterfall_of(
    *,
    program_bound_s: float,
    fused_bound_s: float,
    op_bound_s: float,
    ops_measured_s: float | None = None,
    measured_s: float | None = None,
    exchange: Exchange | None = None,
    warm_program_bound_s: float | None = None,
    warm_op_bound_s: float | None = None,
    unknown_work_s: float = 0.0,
    all_timed: bool = True,
    idle_remedy: str = "",
) -> tuple[Gap, ...]:
    """The gaps between the figures that are known, in order; their seconds sum to the last figure.

    Where the profiled ops took longer in sum than a whole step (the profiler slowed them, or they overlap), the two
    cannot be told apart and become one gap. With an ``exchange``, kernels and collectives have a gap each: what
    computing ops took beyond their bound, and what was exposed of collectives beyond theirs. The latter is negative
    where computing hid them. ``unknown_work_s`` is work of the device of which no op is known. ``idle_remedy`` is what
    would shrink the idle time, where its causes are known.

    A step may be faster than its ops one by one, when it runs fused or overlapped, and faster than its bounds down to
    the ``warm`` ones, when a cache serves its data: the gap is then negative and called so. What
    is faster than its warm bound (None: there is no such cache) is a contradiction: the gap is negative too, nothing is
    clipped, and its name says it. Unless ``all_timed``, ops that work have no time, and that the others took less than
    all must proves nothing.
    """
    busy_s = ops_measured_s
    if exchange is not None and ops_measured_s is not None:
        computing_s = ops_measured_s - exchange.measured_s
        ops_measured_s, busy_s = computing_s + exchange.op_bound_s, computing_s + exchange.exposed_s
    else:
        exchange = None
    worked_s = busy_s + unknown_work_s if busy_s is not None and unknown_work_s else None
    if busy_s is not None and measured_s is not None and max(busy_s, worked_s or 0.0) > measured_s:
        ops_measured_s = busy_s = worked_s = exchange = None
    levels: list[tuple[str, float | None, str]] = [
        ("program bound", program_bound_s, "another algorithm: fewer FLOPs or bytes"),
        ("no overlap, no reuse between kernels", fused_bound_s, "overlap, reuse across kernels"),
        ("data movement that fusion would save", op_bound_s, "torch.compile, fused kernels and optimizers"),
        (_KERNELS, ops_measured_s, "better kernels, aligned shapes, lower precision"),
        *_communication(exchange, busy_s),
        (_UNKNOWN, worked_s, "a trace that begins earlier, or has the ops"),
        (_OVERHEAD, measured_s, idle_remedy or "torch.compile, CUDA graphs, a bigger batch"),
    ]
    gaps: list[Gap] = []
    before = 0.0
    for name, until_s, remedy in levels:
        if until_s is None:
            continue
        called = "kernels and overhead" if name == _OVERHEAD and ops_measured_s is None else name, remedy
        if until_s < before and name in (_OVERHEAD, _KERNELS):
            warm_s = warm_op_bound_s if name == _KERNELS else warm_program_bound_s
            bound_s = op_bound_s if name == _KERNELS else program_bound_s
            called = _below(name, until_s, bound_s, bound_s if warm_s is None else warm_s, all_timed=all_timed)
        gaps.append(Gap(name=called[0], seconds=until_s - before, until_s=until_s, remedy=called[1]))
        before = until_s
    return tuple(gaps)


def _below(name: str, until_s: float, bound_s: float, warm_s: float, *, all_timed: bool) -> tuple[str, str]:
    """What a negative gap is called, and what to do about it."""
    if name == _KERNELS and not all_timed:
        return "kernels, some of them without a time", ""
    if until_s < warm_s:
        what = "kernels faster than their bound" if name == _KERNELS else "step faster than its program bound"
        return f"contradiction: {what}", "see the notes"
    return ("saved by a warm cache" if until_s < bound_s else "saved by fusion and overlap"), ""


def _communication(exchange: Exchange | None, busy_s: float | None) -> list[tuple[str, float | None, str]]:
    if exchange is None:
        return []
    if exchange.exposed_s < exchange.op_bound_s:
        return [("communication hidden behind computing", busy_s, "")]
    remedy = "overlap with computing, larger messages, balanced ranks"
    return [("exposed communication beyond its bound", busy_s, remedy)]
