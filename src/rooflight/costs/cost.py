"""OpCost: what an operation must do, whatever runs it. Uncosted: what nobody wrote a formula for."""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.network.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Work of one operation.

    ``matrix_flops`` run on the matrix unit at the peak of ``matrix_dtype``, ``vector_flops`` on the vector unit; one
    multiply-add is 2 FLOPs. A dtype left None is that of the op's first floating-point input. Bytes are the least
    that must move: distinct storage read once and written once; ``bytes_sent`` leave the device over a link. Of a
    collective, ``traffic`` has the group, which its bound needs between nodes. ``upper`` marks a
    count that data could only lower (unknown sequence lengths, routing); ``note`` gives the reason. Counts may be those
    of many shapes (``costs.lanes``).
    """

    matrix_flops: int = 0
    matrix_dtype: str | None = None
    vector_flops: int = 0
    vector_dtype: str | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0
    traffic: Traffic | None = None
    upper: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        # one by one: which is the least may differ among the shapes of one cost, that none is negative does not
        if (
            self.matrix_flops < 0
            or self.vector_flops < 0
            or self.bytes_read < 0
            or self.bytes_written < 0
            or self.bytes_sent < 0
        ):
            raise ValueError("FLOPs and bytes cannot be negative")

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def does_nothing(self) -> bool:
        """Whether no kernel runs: a view, an allocation."""
        return not (self.matrix_flops or self.vector_flops or self.bytes_moved or self.bytes_sent)


@dataclass(frozen=True, slots=True)
class Uncosted:
    """An operation whose cost is unknown, and why. Never counted as zero: it lowers the coverage."""

    reason: str
