"""Convolutions of any number of dimensions, forward and backward.

Conventions: 2 FLOPs per multiply-add of the direct algorithm, padded taps included, per group; Winograd and FFT
algorithms do fewer and may seem to beat 100 %. Backward is one forward's worth for each of the input's and weight's
gradients asked for; the bias gradient is a vector reduction. A complex convolution is three real ones, as torch does
it (Gauss's trick; ATen's complex_convolution), so that a multiply-add is 6 FLOPs. Only elements under some tap are
read, and only taps that meet data; of the FLOPs, those on padding and on what repeats are avoidable. Where a trace
shows that one was computed by Winograd's algorithm, the multiplications of F(4x4, 3x3) are counted, which needs the
fewest of those in use (Lavin, Gray, "Fast algorithms for convolutional neural networks", 2015); where by FFT, none
are, since their number is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Final

from rooflight.costs.cost import Float32Kind, Needs, OpCost
from rooflight.costs.rules import Family, first_input, flags, integers, picked_bytes, picking, sources, tensor_bytes
from rooflight.costs.windows import windows_of
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
    """Of each 4 results along a dimension with t taps Winograd's algorithm needs 3 + t products, not 4 t."""
    algorithm = op.attribute(ALGORITHM)
    if algorithm == "fft":
        return 0
    if algorithm == "winograd":
        taps = weight.shape[2:]
        return flops * prod(WINOGRAD_TILE - 1 + t for t in taps) // prod(WINOGRAD_TILE * t for t in taps)
    return flops


def is_transposed(op: OpSignature) -> bool:
    """Whether a convolution is a transposed one."""
    return bool(op.attribute("transposed")) or "transpose" in op.name


class _Met:
    """What of a convolution of x [B, Cin, in...] to y [B, Cout, out...] meets data, not padding; of a transposed one,
    what ends inside its result: bytes of each tensor, and FLOPs.
    """

    def __init__(self, op: OpSignature, x: TensorSpec, weight: TensorSpec, y: TensorSpec) -> None:
        self._op, self._weight, self._spatial = op, weight, len(weight.shape) - 2
        over, steps = (y, x) if is_transposed(op) else (x, y)
        sizes, taps, places = (tensor.shape[-self._spatial :] for tensor in (over, weight, steps))
        self._along = windows_of(op, sizes, taps, places)
        self._groups = max(1, over.shape[-self._spatial - 1] // max(1, weight.shape[1]))
        of_over, of_steps = [each.touched for each in self._along], [each.steps_used for each in self._along]
        of_x, of_y = (of_steps, of_over) if is_transposed(op) else (of_over, of_steps)
        self.x_bytes, self.y_bytes = self._bytes(x, of_x), self._bytes(y, of_y)
        self.weight_bytes = self._bytes(weight, [each.taps_used for each in self._along])

    def _bytes(self, tensor: TensorSpec, places: Sequence[int]) -> int:
        return picked_bytes(tensor, prod(tensor.shape[: -self._spatial]) * prod(places))

    def avoidable(self, flops: int, image: TensorSpec, other: TensorSpec | None = None) -> int:
        """Of the FLOPs of a product of x or y with the weight, or with the ``other`` of the two: those of taps on
        padding, and of what repeats along a dimension (stride 0) all but one, be it a result or a term, summed first.
        """
        if self._op.attribute(ALGORITHM):
            return 0
        pairs, counted = prod(each.pairs for each in self._along), prod(each.steps * each.taps for each in self._along)
        repeats = self._of_image(image) * (self._of_image(other) if other else self._of_weight())
        return flops - flops * pairs // max(1, counted * repeats)

    def _of_image(self, image: TensorSpec) -> int:
        sizes = [*image.shape[: -self._spatial], *(each.steps * each.taps for each in self._along)]
        sizes[-self._spatial - 1] //= self._groups
        return _repeated(image, sizes)

    def _of_weight(self) -> int:
        first, *sizes = self._weight.shape
        return _repeated(self._weight, [first // self._groups, *sizes])


def _repeated(tensor: TensorSpec, sizes: Sequence[int]) -> int:
    return prod(size for dim, size in enumerate(sizes) if tensor.repeats(dim) > 1)


def convolve(op: OpSignature, *, epilogue: int = 0) -> OpCost:
    """The cost of convolving the first input with the second, further inputs (bias, addend) read in full."""
    x, weight, *others = sources(op)
    out = op.outputs[0]
    met, count = _Met(op, x, weight, out), direct_multiply_adds(x, weight, out, transposed=is_transposed(op))
    flops = _by_algorithm(op, multiply_adds(count, x), weight)
    return OpCost(
        matrix_flops=flops,
        matrix_dtype=x.dtype,
        avoidable_flops=met.avoidable(flops, x),
        vector_flops=(epilogue + bool(others)) * out.numel,
        bytes_read=met.x_bytes + met.weight_bytes + tensor_bytes(*others),
        bytes_written=out.nbytes,
    )


convolution_ops.having(needs=Needs.CONVOLVED).rows(
    {
        # x [B, Cin, in...], w [Cout, Cin / g, k...] (transposed [Cin, Cout / g, k...]) to y [B, Cout, out...]
        convolve: "convolution _convolution convolution_overrideable _convolution_mode conv1d conv2d conv3d "
        "conv_transpose1d conv_transpose2d conv_transpose3d mkldnn_convolution cudnn_convolution "
        "cudnn_convolution_transpose miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution "
        "_mps_convolution _mps_convolution_transpose _nnpack_spatial_convolution _conv_depthwise2d conv_depthwise3d "
        "thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
        "slow_conv_transpose2d slow_conv_transpose3d mkldnn::_convolution_pointwise "
        "mkldnn::_convolution_transpose_pointwise"
    }
)


def _backward(op: OpSignature, grad: TensorSpec, x: TensorSpec, weight: TensorSpec) -> OpCost:
    wants_x, wants_weight, wants_bias = (*flags(op, "output_mask", (True, True, True)), False)[:3]
    met, count = _Met(op, x, weight, grad), direct_multiply_adds(x, weight, grad, transposed=is_transposed(op))
    flops = _by_algorithm(op, multiply_adds(count, x), weight)
    return OpCost(
        matrix_flops=(wants_x + wants_weight) * flops,
        matrix_dtype=x.dtype,
        avoidable_flops=wants_x * met.avoidable(flops, grad) + wants_weight * met.avoidable(flops, x, grad),
        vector_flops=grad.numel if wants_bias else 0,
        bytes_read=(grad.nbytes if wants_bias else met.y_bytes)
        + (met.x_bytes if wants_weight else 0)
        + (met.weight_bytes if wants_x else 0),
        bytes_written=op.output_bytes,
    )


def _by_taps(op: OpSignature, times: int, out: TensorSpec, x: TensorSpec, weight: TensorSpec) -> OpCost:
    """x [T, B, Cin], w [k, Cin, Cout], y [T', B, Cout]: so many times the products, and an addition of the bias."""
    taps, channels, _ = weight.shape
    return OpCost(
        matrix_flops=multiply_adds(times * out.numel * taps * channels, x),
        matrix_dtype=x.dtype,
        vector_flops=out.numel,
        bytes_read=op.input_bytes,
        bytes_written=op.output_bytes,
    )


convolution_ops.rows(
    {
        # with bias and relu in the epilogue, or an addend, bias and relu
        partial(convolve, epilogue=1): "cudnn_convolution_relu miopen_convolution_relu",
        partial(convolve, epilogue=2): "cudnn_convolution_add_relu miopen_convolution_add_relu",
        # dy, w to dx; dy, x to dw; dy to db: each as ``output_mask`` asks; or the input given first
        lambda op: _backward(op, *op.inputs[:3]): "convolution_backward convolution_backward_overrideable "
        "_slow_conv2d_backward",
        lambda op: _backward(op, op.inputs[1], op.inputs[0], op.inputs[2]): "mps_convolution_backward "
        "mps_convolution_transpose_backward",
        lambda op: _by_taps(op, 1, op.outputs[0], *op.inputs[:2]): "conv_tbc",
        lambda op: _by_taps(op, 2, *op.inputs[:3]): "conv_tbc_backward",
    }
)
convolution_ops.having(epilogue=False, convolution=False).rows(
    {
        # windows added back into x: one addition per element of theirs
        first_input(1): "col2im unfold_backward",
    }
)


@convolution_ops("im2col", epilogue=False, convolution=False)
def im2col(op: OpSignature) -> OpCost:
    """x [B, C, h, w] to its windows [B, C k k, L]."""
    x, taps = op.inputs[0], integers(op, "kernel_size")
    spans = windows_of(op, x.shape[-2:], taps, (0,) * len(taps))
    along = [each._replace(steps=each.fitting) for each in spans]
    return picking(op, prod(x.shape[:-2]) * prod(each.touched for each in along))
