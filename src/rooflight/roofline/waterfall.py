"""The waterfall: how the time of a step builds up from its program bound to the clock on the wall."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One step of the waterfall: ``seconds`` more than before, ``until_s`` in all, and what would shrink it.

    Seconds are negative where a later figure is the smaller one, as when ops overlap on the device.
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
) -> tuple[Gap, ...]:
    """The gaps between the figures that are known, in order; their seconds sum to the last figure.

    Where the profiled ops took longer in sum than a whole step (the profiler slowed them, or they overlap), the two
    cannot be told apart and become one gap. With an ``exchange``, kernels and collectives have a gap each: what
    computing ops took beyond their bound, and what was exposed of collectives beyond theirs. The latter is negative
    where computing hid them.
    """
    busy_s = ops_measured_s
    if exchange is not None and ops_measured_s is not None:
        computing_s = ops_measured_s - exchange.measured_s
        ops_measured_s, busy_s = computing_s + exchange.op_bound_s, computing_s + exchange.exposed_s
    else:
        exchange = None
    if busy_s is not None and measured_s is not None and busy_s > measured_s:
        ops_measured_s = busy_s = exchange = None
    levels: list[tuple[str, float | None, str]] = [
        ("program bound", program_bound_s, "another algorithm: fewer FLOPs or bytes"),
        ("no overlap, no reuse between kernels", fused_bound_s, "overlap, reuse across kernels"),
        ("memory traffic that fusion would save", op_bound_s, "torch.compile, fused kernels and optimizers"),
        ("kernels slower than their bound", ops_measured_s, "better kernels, aligned shapes, lower precision"),
        *_communication(exchange, busy_s),
        ("overhead and idle", measured_s, "torch.compile, CUDA graphs, a bigger batch"),
    ]
    gaps: list[Gap] = []
    before = 0.0
    for name, until_s, remedy in levels:
        if until_s is None:
            continue
        label = "kernels and overhead" if name == "overhead and idle" and ops_measured_s is None else name
        gaps.append(Gap(name=label, seconds=until_s - before, until_s=until_s, remedy=remedy))
        before = until_s
    return tuple(gaps)


def _communication(exchange: Exchange | None, busy_s: float | None) -> list[tuple[str, float | None, str]]:
    if exchange is None:
        return []
    if exchange.exposed_s < exchange.op_bound_s:
        return [("communication hidden behind computing", busy_s, "")]
    remedy = "overlap with computing, fewer or larger messages, a faster link, balanced ranks"
    return [("exposed communication beyond its bound", busy_s, remedy)]
