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


def waterfall_of(
    *,
    program_bound_s: float,
    fused_bound_s: float,
    op_bound_s: float,
    ops_measured_s: float | None = None,
    measured_s: float | None = None,
) -> tuple[Gap, ...]:
    """The gaps between the figures that are known, in order; their seconds sum to the last figure.

    Where the profiled ops took longer in sum than a whole step (the profiler slowed them, or they overlap), the two
    cannot be told apart and become one gap.
    """
    if ops_measured_s is not None and measured_s is not None and ops_measured_s > measured_s:
        ops_measured_s = None
    levels: list[tuple[str, float | None, str]] = [
        ("program bound", program_bound_s, "another algorithm: fewer FLOPs or bytes"),
        ("no overlap, no reuse between kernels", fused_bound_s, "overlap, reuse across kernels"),
        ("memory traffic that fusion would save", op_bound_s, "torch.compile, fused kernels and optimizers"),
        ("kernels slower than their bound", ops_measured_s, "better kernels, aligned shapes, lower precision"),
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
