"""Convolutions of any number of dimensions, forward and backward.

Conventions: 2 FLOPs per multiply-add of the direct algorithm, padded taps included, per group; Winograd and FFT
algorithms do fewer and may seem to beat 100 %. Backward is one forward's worth for each of the input's and weight's
gradients asked for; the bias gradient is a vector reduction. A complex convolution is three real ones, as torch does
it (Gauss's trick; ATen's complex_convolution), so that a multiply-add is 6 FLOPs. Where strides skip input (1x1 at
stride 2) only the elements under some tap are read. Where a trace shows that one was computed by Winograd's
algorithm, the multiplications of F(4x4, 3x3) are counted, which needs the fewest of those in use (Lavin, Gray, "Fast
algorithms for convolutional neural networks", 2015); where by FFT, none are, since their number is unknown.
"""

from __future__ import annotations

from math import prod
from typing import Final

from rooflight.costs.cost import Float32Kind, Needs, OpCost
from rooflight.costs.rules import Family, flags, moves, picked_bytes, sources, tensor_bytes
from rooflight.records.signature import ALGORITHM, OpSignature
from rooflight.records.tensor import TensorSpec

convolution_ops = Family("convolution", fusable=True, epilogue=True, convolution=True, float32=Float32Kind.CONV)


WINOGRAD_TILE: Final = 4


def multiply_adds(count: int, operand: TensorSpec) -> int:
    """FLOPs of so many multiply-adds on the operand's kind of numbers."""
    return count * (6 if operand.dtype.startswith("complex") else 2)


def direct_multiply_adds(x: TensorSpec, weight: TensorSpec, out: TensorSpec, *, transposed: bool) -> int:
    """B Cout prod(out) (Cin / g) prod(k), or transposed B Cin prod(in) (Cout / g) prod(k).

    The weight is [Cout, Cin / g, k...], transposed [Cin, Cout / g, k...]: either way every element of one side meets
    a weight slice of all but the first dimension.
    """
    return (x if transposed else out).numel * prod(weight.shape[1:])


def _by_algorithm(op: OpSignature, flops: int, weight: TensorSpec) -> int:
    """What is left of a convolution's FLOPs by the algorithm that computed it: of each 4 results along a dimension with
    t taps Winograd's needs 3 + t products, not 4 t.
    """
    algorithm = op.attribute(ALGORITHM)
    if algorithm == "fft":
        return 0
    if algorithm == "winograd":
        taps = weight.shape[2:]
        return flops * prod(WINOGRAD_TILE - 1 + t for t in taps) // prod(WINOGRAD_TILE * t for t in taps)
    return flops


def touched_bytes(x: TensorSpec, weight: TensorSpec, out: TensorSpec) -> int:
    """Bytes of x [B, Cin, in...] that lie under a tap: along a dimension no more than out x k of them."""
    spatial = len(weight.shape) - 2
    inner = zip(x.shape[-spatial:], out.shape[-spatial:], weight.shape[-spatial:], strict=True)
    touched = prod(x.shape[:-spatial]) * prod(min(size, steps * taps) for size, steps, taps in inner)
    return picked_bytes(x, touched)


def _is_transposed(op: OpSignature) -> bool:
    return bool(op.attribute("transposed")) or "transpose" in op.name


def convolve(op: OpSignature, *, epilogue: int = 0) -> OpCost:
    """The cost of convolving the first input with the second, further inputs (bias, addend) read in full."""
    x, weight, *others = sources(op)
    out = op.outputs[0]
    transposed = _is_transposed(op)
    return OpCost(
        matrix_flops=_by_algorithm(
            op, multiply_adds(direct_multiply_adds(x, weight, out, transposed=transposed), x), weight
        ),
        matrix_dtype=x.dtype,
        vector_flops=(epilogue + bool(others)) * out.numel,
        bytes_read=(x.nbytes if transposed else touched_bytes(x, weight, out)) + tensor_bytes(weight, *others),
        bytes_written=out.nbytes,
    )


@convolution_ops(
    "convolution _convolution convolution_overrideable _convolution_mode conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d mkldnn_convolution cudnn_convolution cudnn_convolution_transpose "
    "miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution _mps_convolution "
    "_mps_convolution_transpose _nnpack_spatial_convolution _conv_depthwise2d conv_depthwise3d thnn_conv2d "
    "_slow_conv2d_forward slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
    "slow_conv_transpose2d slow_conv_transpose3d mkldnn::_convolution_pointwise "
    "mkldnn::_convolution_transpose_pointwise",
    needs=Needs.CONVOLVED,
)
def convolution(op: OpSignature) -> OpCost:
    """x [B, Cin, in...], w [Cout, Cin / g, k...] (transposed [Cin, Cout / g, k...]) to y [B, Cout, out...]."""
    return convolve(op)


@convolution_ops("cudnn_convolution_relu miopen_convolution_relu")
def convolution_relu(op: OpSignature) -> OpCost:
    """A convolution with bias and relu in its epilogue."""
    return convolve(op, epilogue=1)


@convolution_ops("cudnn_convolution_add_relu miopen_convolution_add_relu")
def convolution_add_relu(op: OpSignature) -> OpCost:
    """A convolution with an addend, bias and relu in its epilogue."""
    return convolve(op, epilogue=2)


@convolution_ops("convolution_backward convolution_backward_overrideable _slow_conv2d_backward")
def convolution_backward(op: OpSignature) -> OpCost:
    """dy, w to dx; dy, x to dw; dy to db: each as ``output_mask`` asks."""
    grad, x, weight = op.inputs[:3]
    return _backward(op, grad, x, weight)


@convolution_ops("mps_convolution_backward mps_convolution_transpose_backward")
def mps_convolution_backward(op: OpSignature) -> OpCost:
    """As convolution_backward, the input given first."""
    x, grad, weight = op.inputs[:3]
    return _backward(op, grad, x, weight)


def _backward(op: OpSignature, grad: TensorSpec, x: TensorSpec, weight: TensorSpec) -> OpCost:
    wants_x, wants_weight, wants_bias = (*flags(op, "output_mask", (True, True, True)), False)[:3]
    transposed = _is_transposed(op)
    forward = direct_multiply_adds(x, weight, grad, transposed=transposed)
    seen = x.nbytes if transposed else touched_bytes(x, weight, grad)
    return OpCost(
        matrix_flops=_by_algorithm(op, multiply_adds((wants_x + wants_weight) * forward, x), weight),
        matrix_dtype=x.dtype,
        vector_flops=grad.numel if wants_bias else 0,
        bytes_read=grad.nbytes + (seen if wants_weight else 0) + (weight.nbytes if wants_x else 0),
        bytes_written=op.output_bytes,
    )


@convolution_ops("conv_tbc")
def conv_tbc(op: OpSignature) -> OpCost:
    """x [T, B, Cin], w [k, Cin, Cout] to y [T', B, Cout]."""
    x, weight = op.inputs[:2]
    taps, channels, _ = weight.shape
    out = op.outputs[0]
    return OpCost(
        matrix_flops=multiply_adds(out.numel * taps * channels, x),
        matrix_dtype=x.dtype,
        vector_flops=out.numel,
        bytes_read=op.input_bytes,
        bytes_written=out.nbytes,
    )


@convolution_ops("conv_tbc_backward")
def conv_tbc_backward(op: OpSignature) -> OpCost:
    """dy [T', B, Cout], x, w to dx, dw and db."""
    grad, x, weight = op.inputs[:3]
    taps, channels, _ = weight.shape
    return OpCost(
        matrix_flops=multiply_adds(2 * grad.numel * taps * channels, x),
        matrix_dtype=x.dtype,
        vector_flops=grad.numel,
        bytes_read=op.input_bytes,
        bytes_written=op.output_bytes,
    )


@convolution_ops("im2col", epilogue=False, convolution=False)
def im2col(op: OpSignature) -> OpCost:
    """Copies every window of x: no FLOPs, x read once."""
    return moves(op)


@convolution_ops("col2im unfold_backward", epilogue=False, convolution=False)
def col2im(op: OpSignature) -> OpCost:
    """Adds windows back into x: one addition per element of the windows."""
    return moves(op, vector_flops=op.inputs[0].numel)
