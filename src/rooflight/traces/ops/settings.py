"""Settings that a trace does not tell, where shapes tell them or where no cost depends on them.

Traces of torch before 2.2 have shapes and dtypes of a call's tensors, but none of its other arguments. Some settings
follow from the shapes (a convolution's stride from that of its result), of several that fit any will do, since a cost
depends on shapes alone. Some change no cost (an epsilon). Where one changes a cost and nothing tells it, the choice is
the one with less work, so that a bound stays one: batch norm with fixed statistics, the smallest window of a pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from rooflight.traces.ops.arguments import NUMBERED, CannotRebuild, Described
from rooflight.traces.ops.context import Clues, Shape

Inference = Callable[[Described, Clues], Mapping[str, str]]

_BOTH: Final = {
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
"""The types that the profiler notes for a dtype that was given."""

CONVOLUTION_BACKWARD: Final = frozenset({"aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"})
_DATA_BACKWARD: Final = frozenset({"aten::_log_softmax_backward_data", "aten::_softmax_backward_data"})


def as_today(name: str, noted: Described, clues: Clues) -> tuple[str, Described]:
    """A call of an op that torch had once, as a call of the one that does the same today; others as they are.

    Raises CannotRebuild for shapes that no such call has.
    """
    if name in CONVOLUTION_BACKWARD:
        return "aten::convolution_backward", _convolution_backward(noted, clues)
    if name in _DATA_BACKWARD and len(noted) == 4 and (dtype := noted.dtype(3)) is not None:
        # until torch 1.11 the fourth argument was the forward's input, of which only the dtype mattered
        types = [*noted.types[:3], "Int"]
        return name, replace(noted, dims=[*noted.dims[:3], []], types=types, inferred={3: str(NUMBERED.index(dtype))})
    return name, noted


def with_untold(name: str, arguments: Sequence[str], noted: Described, clues: Clues) -> Described:
    """What was noted, and values for those of the ``arguments`` (names, in order) that the trace does not tell.

    Raises CannotRebuild where shapes exclude every value.
    """
    if noted.values is not None:
        return noted
    found = dict(_BOTH)
    op = name.removeprefix("aten::")
    if (infer := _BY_OP.get(op.removesuffix("_"))) is not None:
        found |= infer(noted, clues)
    if op in _ALONG or _is_flat(noted):
        found.setdefault("dim", "0")
    if "dtype" in arguments[: len(noted)] and noted.types[arguments.index("dtype")] in _GIVEN:
        if not clues.result_dtype:
            raise CannotRebuild("the trace does not contain its dtype")
        found["dtype"] = str(NUMBERED.index(clues.result_dtype))
    values = {
        index: found[key]
        for index, key in enumerate(arguments[: len(noted)])
        if key in found and noted.dtype(index) is None and index not in noted.inferred
    }
    return replace(noted, inferred={**values, **noted.inferred})


def _is_flat(noted: Described) -> bool:
    """Whether every tensor has one dimension, so that an op works along this one."""
    return bool(noted.tensors) and all(len(tensor.shape) == 1 for tensor in noted.tensors)


def _convolution(noted: Described, clues: Clues) -> Mapping[str, str]:
    if clues.result is None or len(noted.tensors) < 2:
        raise CannotRebuild("the trace does not contain its stride, and no op after it shows the shape of its result")
    x, weight = (tensor.shape for tensor in noted.tensors[:2])
    return _settings(x, weight, clues.result)


def _settings(x: Shape, weight: Shape, result: Shape) -> Mapping[str, str]:
    """Settings of a convolution of x [B, Cin, in...] with w [Cout, Cin / g, k...] that has a result of this shape."""
    groups = x[1] // weight[1] if len(x) > 2 and len(weight) == len(x) == len(result) and weight[1] else 0
    if not groups or x[1] % weight[1] or weight[0] % groups or result[:2] != (x[0], weight[0]):
        raise CannotRebuild("the trace does not contain its settings, and its shapes are those of no convolution")
    per_size = []
    for size, taps, out in zip(x[2:], weight[2:], result[2:], strict=True):
        fits = next(_windows(size, taps, out), None)
        if fits is None:
            raise CannotRebuild(
                f"the trace does not contain its stride, and none makes {out} of {size} with {taps} taps"
            )
        per_size.append(fits)
    stride, padding, dilation = (_text([each[place] for each in per_size]) for place in range(3))
    return {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": "False",
        "output_padding": _text([0] * len(per_size)),
        "groups": str(groups),
    }


def _windows(size: int, taps: int, out: int) -> Iterator[tuple[int, int, int]]:
    """Strides, paddings and dilations with which so many taps make ``out`` steps of ``size``."""
    for dilation, stride in product((1, 2, 4, 8), range(1, max(taps, size // max(out, 1) + 1) + 1)):
        reach = dilation * (taps - 1)
        for padding in range(reach + 1):
            if size + 2 * padding > reach and (size + 2 * padding - reach - 1) // stride + 1 == out:
                yield stride, padding, dilation


def _convolution_backward(noted: Described, clues: Clues) -> Described:
    """x, dy, w, settings to dy, x, w, None, settings and which gradients ops inside it computed."""
    if len(noted.tensors) < 3 or not all(noted.dtype(place) for place in range(3)):
        raise CannotRebuild("its shapes are those of no backward of a convolution")
    settings = _settings(noted.tensors[0].shape, noted.tensors[2].shape, noted.tensors[1].shape)
    asked = [any(part.endswith(end) for part in clues.parts) for end in ("_backward_input", "_backward_weight")]
    texts = {
        3 + place: settings[key]
        for place, key in enumerate(("", "stride", "padding", "dilation", "transposed", "output_padding", "groups"))
        if key
    }
    texts[10] = f"[{asked[0]}, {asked[1]}, False]"
    kinds = ["", *["ScalarList"] * 3, "Bool", "ScalarList", "Int", "ScalarList"]
    order = (1, 0, 2)
    return Described(
        dims=[*(noted.dims[place] for place in order), *[[]] * 8],
        types=[*(noted.types[place] for place in order), *kinds],
        strides=[*(noted.strides[place] for place in order), *[[]] * 8],
        values=None,
        inferred=texts,
    )


def _layer_norm(noted: Described, clues: Clues) -> Mapping[str, str]:
    """The weight's shape is the one that is normalized; kernels tell which gradients were computed."""
    tensors = noted.tensors
    backward = len(tensors) > 4
    place = 4 if backward else 1
    if len(tensors) <= place:
        raise CannotRebuild("the trace does not contain its normalized_shape")
    grads = any("grad_input" in part for part in clues.parts), any("amma" in part for part in clues.parts)
    return {
        "normalized_shape": _text(tensors[place].shape),
        "output_mask": f"[{grads[0]}, {grads[1]}, {grads[1]}]",
    }


def _pooling(noted: Described, clues: Clues) -> Mapping[str, str]:
    """The smallest windows that make a result of this shape."""
    tensors = noted.tensors
    backward = len(tensors) > 2
    result = tensors[0].shape if backward else clues.result
    if result is None or not tensors:
        raise CannotRebuild(
            "the trace does not contain its kernel_size, and no op after it shows the shape of its result"
        )
    x = tensors[1 if backward else 0].shape
    strides = [size // max(out, 1) for size, out in zip(x[-2:], result[-2:], strict=True)]
    for size, out, stride in zip(x[-2:], result[-2:], strides, strict=True):
        if stride < 1 or (size - stride) // stride + 1 != out:
            raise CannotRebuild(f"the trace does not contain its kernel_size, and none makes {out} of {size}")
    return {
        "kernel_size": _text(strides),
        "stride": _text(strides),
        "padding": "[0, 0]",
        "dilation": "[1, 1]",
        "ceil_mode": "False",
    }


def _loss(noted: Described, clues: Clues) -> Mapping[str, str]:  # noqa: ARG001 - as all inferences
    """A mean unless the gradient has an entry for each sample."""
    each = len(noted.tensors) > 2 and noted.tensors[0].shape != () and len(noted.tensors[0].shape) == 1
    return {"reduction": "0" if each else "1"}


def _clamp(noted: Described, clues: Clues) -> Mapping[str, str]:  # noqa: ARG001 - as all inferences
    return {"min": "0"}


_BY_OP: Final[Mapping[str, Inference]] = {
    "convolution": _convolution,
    "cudnn_convolution": _convolution,
    "miopen_convolution": _convolution,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm,
    "max_pool2d_with_indices": _pooling,
    "max_pool2d_with_indices_backward": _pooling,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss,
    "clamp": _clamp,
}


def _text(sizes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
