"""Settings of an op that the trace leaves out, where shapes show them or where no cost depends on them.

Traces of torch before 2.2 have shapes and dtypes of a call's tensors, but none of its other arguments. Some settings
follow from the shapes (a convolution's stride from that of its result), of several that fit any will do, since a cost
depends on shapes alone. Some change no cost (an epsilon). Where one changes a cost and nothing shows it, the choice is
the one with less work, so that a bound stays one: batch norm with fixed statistics, the smallest window of a pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from rooflight.traces.ops.arguments import NUMBERED, Arguments, CannotRebuild
from rooflight.traces.ops.context import CallContext, Shape

_OF_ANY_OP: Final = {
    "epsilon": "1e-5",
    "eps": "1e-5",
    "momentum": "0.1",
    "exponential_average_factor": "0.1",
    "training": "False",
    "train": "False",
    "threshold": "0",
    "value": "0",
    "other": "1",
    "exponent": "2",
    "half_to_float": "False",
    "ignore_index": "-100",
    "negative_slope": "0",
    "s": "0",
    "benchmark": "False",
    "deterministic": "False",
    "allow_tf32": "False",
}
"""By the name of an argument: settings on whose value no cost depends, or of which this one costs least."""

_ALONG: Final = frozenset(["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"])
"""Ops that cost the same along whatever dimension they work."""

_GIVEN: Final = ("Scalar", "Int", "number")
"""The types that the profiler has for a dtype that was given."""

CONVOLUTION_BACKWARD: Final = frozenset({"aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"})
_DATA_BACKWARD: Final = frozenset({"aten::_log_softmax_backward_data", "aten::_softmax_backward_data"})


def in_todays_form(name: str, arguments: Arguments, context: CallContext) -> tuple[str, Arguments]:
    """A call of an op that torch had once, as a call of the one that does the same today; others as they are.

    Raises CannotRebuild for shapes that no such call has.
    """
    if name in CONVOLUTION_BACKWARD:
        return "aten::convolution_backward", _convolution_backward(arguments, context)
    if name in _DATA_BACKWARD and len(arguments) == 4 and (dtype := arguments.dtype(3)) is not None:
        # until torch 1.11 the fourth argument was the forward's input, of which only the dtype mattered
        dims, types = [*arguments.dims[:3], []], [*arguments.types[:3], "Int"]
        return name, replace(arguments, dims=dims, types=types, inferred={3: str(NUMBERED.index(dtype))})
    return name, arguments


def with_settings(name: str, names: Sequence[str], arguments: Arguments, context: CallContext) -> Arguments:
    """The arguments (of these ``names``, in order), with inferred values of those that the trace leaves out.

    Raises CannotRebuild where shapes exclude every value.
    """
    if arguments.values is not None:
        return arguments
    found, op = dict(_OF_ANY_OP), name.removeprefix("aten::")
    if (infer := _BY_OP.get(op.removesuffix("_"))) is not None:
        found |= infer(arguments, context)
    tensors = arguments.tensors
    if op in _ALONG or (tensors and all(len(tensor.shape) == 1 for tensor in tensors)):
        found.setdefault("dim", "0")
    if "dtype" in names[: len(arguments)] and arguments.types[names.index("dtype")] in _GIVEN:
        if not context.result_dtype:
            raise CannotRebuild("the trace does not contain its dtype")
        found["dtype"] = str(NUMBERED.index(context.result_dtype))
    values = {
        index: found[key]
        for index, key in enumerate(names[: len(arguments)])
        if key in found and arguments.dtype(index) is None
    }
    return replace(arguments, inferred={**values, **arguments.inferred})


def _convolution(arguments: Arguments, context: CallContext) -> Mapping[str, str]:
    if context.result is None or len(arguments.tensors) < 2:
        raise CannotRebuild("the trace does not contain its stride, and no op after it shows the shape of its result")
    x, weight = (tensor.shape for tensor in arguments.tensors[:2])
    return _of_convolution(x, weight, context.result)


def _of_convolution(x: Shape, weight: Shape, result: Shape) -> Mapping[str, str]:
    """Settings of a convolution of x [B, Cin, in...] with w [Cout, Cin / g, k...] that has a result of this shape."""
    groups = x[1] // weight[1] if len(x) > 2 and len(weight) == len(x) == len(result) and weight[1] else 0
    if not groups or x[1] % weight[1] or weight[0] % groups or result[:2] != (x[0], weight[0]):
        raise CannotRebuild("the trace does not contain its settings, and its shapes are those of no convolution")
    per_size = []
    for size, taps, out in zip(x[2:], weight[2:], result[2:], strict=True):
        fits = next(windows(size, taps, out), None)
        if fits is None:
            raise CannotRebuild(
                f"the trace does not contain its stride, and none makes {out} of {size} with {taps} taps"
            )
        per_size.append(fits)
    stride, padding, dilation = (_text(sizes) for sizes in zip(*per_size, strict=True))
    return {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": "False",
        "output_padding": _text([0] * len(per_size)),
        "groups": str(groups),
    }


def windows(size: int, taps: int, out: int) -> Iterator[tuple[int, int, int]]:
    """Strides, paddings and dilations with which so many taps make ``out`` steps of ``size``."""
    for dilation, stride in product((1, 2, 4, 8), range(1, max(taps, size // max(out, 1) + 1) + 1)):
        reach = dilation * (taps - 1)
        for padding in range(reach + 1):
            if size + 2 * padding > reach and (size + 2 * padding - reach - 1) // stride + 1 == out:
                yield stride, padding, dilation


def _convolution_backward(arguments: Arguments, context: CallContext) -> Arguments:
    """x, dy, w, settings to dy, x, w, None, settings and which gradients ops inside it computed."""
    if len(arguments.tensors) < 3 or not all(arguments.dtype(place) for place in range(3)):
        raise CannotRebuild("its shapes are those of no backward of a convolution")
    x, result, weight = (tensor.shape for tensor in arguments.tensors[:3])
    settings = _of_convolution(x, weight, result)
    asked = [any(part.endswith(end) for part in context.parts) for end in ("_backward_input", "_backward_weight")]
    keys = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    order, no_tensors = (1, 0, 2), [list[int]() for _ in range(8)]
    kinds = ("", *["ScalarList"] * 3, "Bool", "ScalarList", "Int", "ScalarList")
    inferred = {4 + place: settings[key] for place, key in enumerate(keys)}
    return Arguments(
        dims=[*(arguments.dims[place] for place in order), *no_tensors],
        types=[*(arguments.types[place] for place in order), *kinds],
        strides=[*(arguments.strides[place] for place in order), *no_tensors],
        values=None,
        inferred=inferred | {10: f"[{asked[0]}, {asked[1]}, False]"},
    )


def _layer_norm(arguments: Arguments, context: CallContext) -> Mapping[str, str]:
    """The weight's shape is the one that is normalized; kernels show which gradients were computed."""
    tensors = arguments.tensors
    place = 4 if len(tensors) > 4 else 1  # of the backward the fifth
    if len(tensors) <= place:
        raise CannotRebuild("the trace does not contain its normalized_shape")
    of_input, of_weight = (any(mark in part for part in context.parts) for mark in ("grad_input", "amma"))
    mask = f"[{of_input}, {of_weight}, {of_weight}]"
    return {"normalized_shape": _text(tensors[place].shape), "output_mask": mask}


def _pooling(arguments: Arguments, context: CallContext) -> Mapping[str, str]:
    tensors = arguments.tensors
    backward = len(tensors) > 2
    result = tensors[0].shape if backward else context.result
    if result is None or not tensors:
        raise CannotRebuild(
            "the trace does not contain its kernel_size, and no op after it shows the shape of its result"
        )
    x = tensors[1 if backward else 0].shape
    strides = [size // max(out, 1) for size, out in zip(x[-2:], result[-2:], strict=True)]
    for size, out, stride in zip(x[-2:], result[-2:], strides, strict=True):
        if stride < 1 or (size - stride) // stride + 1 != out:
            raise CannotRebuild(f"the trace does not contain its kernel_size, and none makes {out} of {size}")
    kernel = _text(strides)
    return {"kernel_size": kernel, "stride": kernel, "padding": "[0, 0]", "dilation": "[1, 1]", "ceil_mode": "False"}


def _loss(arguments: Arguments, _: CallContext) -> Mapping[str, str]:
    """A mean unless the gradient has an entry for each sample."""
    tensors = arguments.tensors
    return {"reduction": "0" if len(tensors) > 2 and len(tensors[0].shape) == 1 else "1"}


_BY_OP: Final[Mapping[str, Callable[[Arguments, CallContext], Mapping[str, str]]]] = {
    "convolution": _convolution,
    "cudnn_convolution": _convolution,
    "miopen_convolution": _convolution,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm,
    "max_pool2d_with_indices": _pooling,
    "max_pool2d_with_indices_backward": _pooling,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss,
    "clamp": lambda _, __: {"min": "0"},
}


def _text(sizes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
