"""OpCost: what an operation must do, whatever runs it. Uncosted: no formula. Traffic: what one call of a collective
moves, and among whom. Traits: what formulas declare besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from rooflight.hardware.network import collectives
from rooflight.hardware.network.collectives import CollectiveKind
from rooflight.hardware.network.groups import RankGroup
from rooflight.hardware.network.topology import Interconnect


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One call: S as ``collectives`` counts it, among a group of known size."""

    kind: CollectiveKind
    payload_bytes: int
    group: RankGroup

    @property
    def bytes_sent(self) -> int:
        """What one rank sends, one direction, where only ranks add and copy."""
        return collectives.bytes_sent(self.kind, self.payload_bytes, self.group.size)

    @property
    def between_ends(self) -> Traffic:
        """The same among the ranks that take part: a send is between two, on two nodes where its group has several."""
        return replace(self, group=self.group.taking_part(self.kind))

    def least_s(self, interconnect: Interconnect) -> float:
        """The bound of the call: nothing beats it. A speed that it needs and nobody knows bounds nothing: 0 s."""
        from rooflight.hardware.network.algorithms import least_s  # needs numpy, which formulas do without

        return self.payload_bytes * float(least_s(self.kind, 1.0, interconnect.joining(self.group)))

    def unknown_speeds(self, interconnect: Interconnect) -> tuple[str, ...]:
        """The speeds that the bound needs and nobody knows."""
        topology = interconnect.joining(self.group)
        missing = []
        if topology.ranks_per_node > 1 and interconnect.link_bytes_per_s is None:
            missing.append("link bandwidth")
        if topology.nodes > 1 and interconnect.network_bytes_per_s is None:
            missing.append("network bandwidth")
        return tuple(missing) if self.bytes_sent else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Work of one operation.

    ``matrix_flops`` run on the matrix unit at the peak of ``matrix_dtype``, ``vector_flops`` on the vector unit; one
    multiply-add is 2 FLOPs. A dtype left None is that of the op's first floating-point input. Bytes are the least
    that must move: distinct storage read once and written once; ``bytes_sent`` leave the device over a link. FLOPs are
    counted as others count them, and bounds use the least: without ``avoidable_flops``, the part of ``matrix_flops``
    that a kernel can do without (what follows by symmetry or repeats, taps in the padding), and the bound of a program
    without ``recomputed_flops``, which another of its ops computes too (the scores of an attention). Of bytes the
    usual data's are counted, and bounds are without ``avoidable_read`` and ``avoidable_written``, which other data
    spare: rows picked again and again, what a mask leaves out. Of a collective, ``traffic`` has the group, which its
    bound needs between nodes. ``upper`` marks a count that data could only lower (unknown sequence lengths, routing);
    ``note`` gives the reason. Counts may be those of many shapes (``costs.lanes``).
    """

    matrix_flops: int = 0
    matrix_dtype: str | None = None
    avoidable_flops: int = 0
    recomputed_flops: int = 0
    vector_flops: int = 0
    vector_dtype: str | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    avoidable_read: int = 0
    avoidable_written: int = 0
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
            or self.avoidable_flops < 0
            or self.recomputed_flops < 0
            or self.matrix_flops < self.avoidable_flops + self.recomputed_flops
        ):
            raise ValueError("FLOPs and bytes cannot be negative, nor more FLOPs be avoidable than there are")

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def least_read(self) -> int:
        """Bytes that are read whatever the data."""
        return self.bytes_read - self.avoidable_read

    @property
    def least_written(self) -> int:
        """Bytes that are written whatever the data."""
        return self.bytes_written - self.avoidable_written

    @property
    def is_assumed(self) -> bool:
        """Whether data could lower the bound, too."""
        return self.upper and not self.avoidable_read and not self.avoidable_written

    @property
    def does_nothing(self) -> bool:
        """Whether no kernel runs: a view, an allocation."""
        return not (self.matrix_flops or self.vector_flops or self.bytes_moved or self.bytes_sent)


@dataclass(frozen=True, slots=True)
class Uncosted:
    """An operation whose cost is unknown, and why. Never counted as zero: it lowers the coverage."""

    reason: str


class Float32Kind(Enum):
    """Ops whose float32 products run at a precision of their own, in words for a report."""

    MATMUL = "matrix products"
    CONV = "convolutions"
    RNN = "recurrent networks"
    ATTENTION = "attention"


class Needs(Enum):
    """What a part of a result needs of the inputs, so that a kernel that computes only this part reads no more.

    SHARE: as large a share of what is read, wherever that lies. ELEMENTS: those of the same index, broadcast. ROWS:
    these and all along the dimensions ``dim`` or ``normalized_shape``. SCAN: these and all before them along ``dim``.
    JOINED: each input goes to elements of its own. DIVIDED: each of several results has elements of its own. PRODUCT:
    rows of the one operand, columns of the other. CONVOLVED: entries of the batch and output channels. ATTENDED:
    queries, and the keys that they see. RECURRENT: the steps before it. ALL: everything.
    """

    SHARE = "share"
    ELEMENTS = "elements"
    ROWS = "rows"
    SCAN = "scan"
    JOINED = "joined"
    DIVIDED = "divided"
    PRODUCT = "product"
    CONVOLVED = "convolved"
    ATTENDED = "attended"
    RECURRENT = "recurrent"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Declared at ``@formula``, whose docstring explains each trait. An op without any runs alone.

    Raises ValueError for traits that exclude each other.
    """

    fusable: bool = False
    ends_chain: bool = False
    epilogue: bool = False
    view: bool = False
    mask_input: str | None = None
    over_lists: bool = False
    product: bool = False
    convolution: bool = False
    softmax: bool = False
    needs: Needs | None = None
    float32: Float32Kind = Float32Kind.MATMUL
    error_group: str = "other"

    @property
    def part_needs(self) -> Needs:
        """What a part of a result needs: as declared, or what is the least for ops that fuse so."""
        if self.needs is not None:
            return self.needs
        if self.ends_chain:
            return Needs.JOINED
        return Needs.SHARE if self.fusable or self.epilogue else Needs.ALL

    def __post_init__(self) -> None:
        if self.view and (self.fusable or self.epilogue):
            raise ValueError("a view runs no kernel that could be shared: declare either view or fusable and epilogue")
        if self.ends_chain and not self.fusable:
            raise ValueError("ends_chain declares the last op of a chain of fusable ops: declare fusable too")
