"""What a formula declares of its ops besides their cost: how they share kernels and how estimates of them err."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    REDUCED: all along the dimensions ``dim``. JOINED: each input goes to elements of its own. DIVIDED: each of
    several results has elements of its own. PRODUCT: rows of the one
    operand, columns of the other. CONVOLVED: entries of the batch and output channels. ATTENDED: queries, and the keys
    that they see. RECURRENT: the steps before it. ALL: everything.
    """

    SHARE = "share"
    ELEMENTS = "elements"
    ROWS = "rows"
    SCAN = "scan"
    REDUCED = "reduced"
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
