"""What compiling is expected to gain and to cost, before it is tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_BASE_S: Final = 3.0
_PER_OP_S: Final = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """``speedup``: eager over compiled time of a run; ``compile_s``: what compiling takes once; ``source`` of both."""

    speedup: float
    compile_s: float
    source: str


def expected_gain(operations: int, eager_s: float) -> ExpectedGain:
    """From the number of operations of a run, which a compiler reads one by one, and its eager time."""
    # an op costs a CPU's host about 5 µs to issue, of which generated code saves most
    saved = min(0.5, 0.6 * operations * 5e-6 / eager_s) if eager_s > 0 else 0.0
    return ExpectedGain(
        speedup=1 / (1 - max(0.1, saved)), compile_s=_BASE_S + _PER_OP_S * operations, source="number of operations"
    )
