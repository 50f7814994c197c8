"""Upsampling, grid sampling and padding by reflection or replication.

Conventions: a result made of t neighbours takes 2 t - 1 FLOPs (multiply, add; nearest 0), its backward 2 t per
gradient (multiply, add). Weights, shared by all channels, are not counted. Of the input no more is read than t
elements per result. Antialiasing widens the window to cover the whole input, so the larger side is counted.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.rules import copies, integer, largest, moves, names, per_input, picked_bytes
from rooflight.costs.registry import Formula
from rooflight.costs.traits import Needs
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="resampling", fusable=True)

TAPS: dict[int, str] = {
    1: "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d",
    2: "upsample_linear1d",
    4: "upsample_bilinear2d",
    8: "upsample_trilinear3d",
    16: "upsample_bicubic2d",
}

ANTIALIASED: dict[int, str] = {
    4: "_upsample_bilinear2d_aa",
    16: "_upsample_bicubic2d_aa",
    36: "_upsample_lanczos2d_aa",
}


def blend_flops(taps: int) -> int:
    """FLOPs of a weighted sum of so many neighbours; a single one is only copied."""
    return 2 * taps - 1 if taps > 1 else 0


def upsampling(taps: int) -> Formula:
    """A formula: each result blends ``taps`` elements of the first input."""

    def cost(op: OpSignature) -> OpCost:
        x, out = op.inputs[0], op.outputs[0]
        return OpCost(
            vector_flops=blend_flops(taps) * out.numel,
            bytes_read=picked_bytes(x, taps * out.numel),
            bytes_written=out.nbytes,
        )

    return cost


def antialiased(taps: int) -> Formula:
    """A formula: a blend per element of the larger side."""

    def cost(op: OpSignature) -> OpCost:
        return moves(op, vector_flops=blend_flops(taps) * largest((*op.inputs, *op.outputs)))

    return cost


for _taps, _ops in TAPS.items():
    formula(*names(_ops))(upsampling(_taps))
    formula(*(f"{name}_backward" for name in names(_ops)))(per_input(2 * _taps))
for _taps, _ops in ANTIALIASED.items():
    formula(*names(_ops))(antialiased(_taps))
    formula(*(f"{name}_backward" for name in names(_ops)))(antialiased(_taps))


def _grid_taps(op: OpSignature) -> int:
    """interpolation_mode 0 (bi- or trilinear), 1 nearest, 2 bicubic."""
    linear = 8 if "3d" in op.name else 4
    return {1: 1, 2: 16}.get(integer(op, "interpolation_mode", 0), linear)


@formula(*names("grid_sampler grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback"))
def grid_sampler(op: OpSignature) -> OpCost:
    """x [B, C, in...] at the points of a grid [B, out..., d] to y [B, C, out...]."""
    x, grid = op.inputs[:2]
    out, taps = op.outputs[0], _grid_taps(op)
    return OpCost(
        vector_flops=blend_flops(taps) * out.numel,
        bytes_read=grid.nbytes + picked_bytes(x, taps * out.numel),
        bytes_written=out.nbytes,
        upper=True,
        note="points may share what they read, or lie outside",
    )


@formula(*names("grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward"))
@formula("aten::_grid_sampler_2d_cpu_fallback_backward")
def grid_sampler_backward(op: OpSignature) -> OpCost:
    """dy, x and the grid to dx and dgrid: each gradient meets its taps twice."""
    return moves(op, vector_flops=4 * _grid_taps(op) * op.inputs[0].numel)


@formula("aten::affine_grid_generator", "aten::cudnn_affine_grid_generator")
def affine_grid(op: OpSignature) -> OpCost:
    """theta [B, d, d + 1] to grid [B, points..., d]: d + 1 multiply-adds per coordinate."""
    return moves(op, vector_flops=2 * op.outputs[0].numel * op.inputs[0].shape[-1])


@formula("aten::affine_grid_generator_backward", "aten::cudnn_affine_grid_generator_backward")
def affine_grid_backward(op: OpSignature) -> OpCost:
    """dgrid [B, points..., d] to dtheta [B, d, d + 1]."""
    return moves(op, vector_flops=2 * op.inputs[0].numel * (op.inputs[0].shape[-1] + 1))


_PADS = "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"

formula(*names(_PADS), needs=Needs.JOINED)(copies)


@formula(*(f"{name}_backward" for name in names(_PADS)))
def pad_backward(op: OpSignature) -> OpCost:
    """dy to dx: what was repeated is added up."""
    return moves(op, vector_flops=op.inputs[0].numel, unread=("self",))
