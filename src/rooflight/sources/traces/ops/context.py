"""What a trace shows of a call outside of its own event: in its kernels, in ops inside it, in later ops.

Then settings of an op that the trace leaves out, where shapes show them or where no cost depends on them. Traces of
torch before 2.2 have shapes and dtypes of a call's tensors, but none of its other arguments. Some settings follow from
the shapes (a convolution's stride from that of its result), of several that fit any will do, since a cost depends on
shapes alone. Some change no cost (an epsilon). Where one changes a cost and nothing shows it, the choice is the one
with less work, so that a bound stays one: batch norm with fixed statistics, the smallest window of a pooling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import numpy as np

from rooflight.records.dtypes import item_bytes
from rooflight.records.session import Int64
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sources.traces.file.trace import UNKNOWN, Trace, WorkKind
from rooflight.sources.traces.ops.arguments import (
    DTYPES,
    NUMBERED,
    Arguments,
    CannotRebuild,
    arguments_of_op,
    tensors_of_op,
)
from rooflight.sources.traces.ops.collectives import Collectives
from rooflight.sources.traces.ownership import Ownership

TF32: Final = "tfloat32"
FLOAT32: Final = "float32"

Shape = tuple[int, ...]

_ON_TENSOR_CORES: Final = re.compile(r"tf32|xf32|s1688(?!6)|nvjet|Cijk_\w+_S_MX_", re.IGNORECASE)
"""Kernels that multiply float32 numbers as TF32: "s1688" is the shape of NVIDIA's product of such. cuBLAS's "nvjet"
kernels are all of tensor cores. AMD's Tensile names its kernels Cijk_..._S_MX_... where the math is XF32."""
_ON_VECTOR_UNITS: Final = re.compile(r"sgemm|scudnn|simt|ffma|gemv|gemmk1_kernel<float|Cijk_\w+_S_B_", re.IGNORECASE)
"""Kernels that keep float32's precision. On AMD, matrix units have float32 too."""
_PRODUCTS: Final = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "addbmm")
)

_LIST_OPS: Final = re.compile(r"CatArrayBatchedCopy\w*<|multi_tensor_apply_kernel<")
_OPAQUE: Final = re.compile(r"CatArrayBatchedCopy\w*<[^<]*OpaqueType<(\d+)u>")
_COPIED: Final = re.compile(r"\bCopyFunctor<([\w: ]+?), ([\w: ]+?),")
_WINOGRAD: Final = re.compile("winograd|Sp3AsmConv", re.IGNORECASE)
"""Kernels of cuDNN and MIOpen."""
_FILLED: Final = re.compile(r"FillFunctor<([\w: ]+)>")
_TYPED: Final = re.compile(r"(?:CatArrayBatchedCopy\w*|\w*Functor\w*)<([\w: ]+?)(?:,|>)")
_OF_SIZE: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    2: ("float16", "bfloat16", "int16"),
    4: ("float32", "int32"),
    8: ("int64", "float64", "complex64"),
    16: ("complex128",),
}
_CONVOLUTIONS: Final = frozenset(
    f"aten::{name}" for name in ("convolution", "cudnn_convolution", "miopen_convolution", "max_pool2d_with_indices")
)
_GRADIENTS: Final = {  # places of x, of the weight and of dy among the tensors
    "aten::cudnn_convolution_backward": (0, 2, 1),
    "aten::miopen_convolution_backward": (0, 2, 1),
    "aten::convolution_backward": (1, 2, 0),
    "aten::max_pool2d_with_indices_backward": (1, UNKNOWN, 0),
}
_WITH_PARTS: Final = frozenset({*_GRADIENTS, "aten::native_layer_norm_backward"})
"""Ops whose gradients old traces leave out: which were computed."""
_TYPED_BY_SETTING: Final = frozenset(
    f"aten::{name}" for name in ("_to_copy", "zeros_like", "ones_like", "full_like", "empty_like")
)
_LOOKED_AHEAD: Final = 12
"""So many ops after a convolution are searched for the one that takes its result: those inside it come first."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What is known of a call besides its own event. ``dtypes``: those that tensors in its lists can have by the names
    of its kernels, empty if those show none. ``result_dtype``: that of its result, by the same. ``result``: its
    shape. ``algorithm``: "winograd" or "fft" if the kernels of a convolution are such. ``computed_in``: the precision
    at which its kernels multiplied float32 numbers, empty where they did not or do not show it. ``parts``: the ops and
    the kernels inside it. ``collective``: its signature, if it is one. ``facts``: attributes of an engine's op.
    ``shared``: the storages that its tensors share, ``results``: the tensors that it returned, where an execution trace
    has them, or a CPU's kernels are known to return others than the meta device's.
    """

    dtypes: tuple[str, ...] = ()
    result_dtype: str = ""
    result: Shape | None = None
    algorithm: str = ""
    shared: tuple[tuple[int, int], ...] = ()
    results: tuple[TensorSpec | None, ...] = ()
    computed_in: str = ""
    parts: frozenset[str] = field(default_factory=frozenset)
    collective: OpSignature | None = None
    facts: tuple[tuple[str, AttributeValue], ...] = ()


NO_CONTEXT: Final = CallContext()


def call_contexts(owned: Ownership, ops: Iterable[int]) -> dict[int, CallContext]:
    """The context of each op, where there is any."""
    chosen = list(ops)
    if not chosen:
        return {}
    trace, inside = owned.trace, _ops_inside(owned)
    shown = trace.named(trace.ops, lambda name: name in _TYPED_BY_SETTING or name in _WITH_PARTS)
    kernels = owned.work_of(shown, trace.named(trace.work, _shows))
    collectives, convolutions = Collectives(owned), _Convolutions(trace)
    found = {}
    for op in chosen:
        name, work = trace.op_name(op), kernels.get(op, {})
        parts = (*inside.get(op, ()), *(kernel for kernel, _ in work)) if name in _WITH_PARTS else ()
        context = CallContext(
            dtypes=_list_dtypes(kernel for kernel, _ in work),
            result_dtype=_result_dtype(trace, op, work) if name in _TYPED_BY_SETTING else "",
            result=convolutions.result(op) if name in _CONVOLUTIONS else None,
            algorithm=_algorithm(work) if "conv" in name and "::" in name else "",
            computed_in=_precision(trace, op, name, work) if work else "",
            results=_results(trace, op) if name == "aten::native_batch_norm" else (),
            parts=frozenset(parts),
            collective=collectives.signature(op),
        )
        if context != NO_CONTEXT:
            found[op] = context
    return found


_Work = Mapping[tuple[str, int], None]
"""Names and kinds of an op's work, each once."""


def _shows(kernel: str) -> bool:
    return bool(dtypes_of_kernel(kernel) or precision_of_kernel(kernel) or _algorithm([(kernel, 0)]))


def _ops_inside(owned: Ownership) -> Mapping[int, list[str]]:
    trace, around = owned.trace, owned.level
    chosen = (around != UNKNOWN) & (around != np.arange(len(around)))
    chosen[chosen] = trace.named(trace.ops, _WITH_PARTS.__contains__)[around[chosen]]
    inside: dict[int, list[str]] = defaultdict(list)
    for op, name in zip(around[chosen].tolist(), trace.ops.name[chosen].tolist(), strict=True):
        inside[op].append(trace.names[name])
    return inside


def dtypes_of_kernel(name: str) -> tuple[str, ...]:
    """The dtypes that tensors in the lists of ``cat`` and ``_foreach_`` ops can have, by the name of their kernel."""
    if not _LIST_OPS.search(name):
        return ()
    if opaque := _OPAQUE.search(name):
        return _OF_SIZE.get(int(opaque[1]), ())
    if copied := _COPIED.search(name):  # of two dtypes the smaller, so that a bound stays one
        both = [DTYPES[kind] for kind in copied.groups() if kind in DTYPES]
        return (min(both, key=item_bytes),) if len(both) == 2 else ()
    found = {DTYPES[kind.strip()] for kind in _TYPED.findall(name) if kind.strip() in DTYPES}
    return (found.pop(),) if len(found) == 1 else ()


def _list_dtypes(kernels: Iterable[str]) -> tuple[str, ...]:
    found: tuple[str, ...] | None = None
    for allowed in filter(None, map(dtypes_of_kernel, kernels)):
        found = tuple(dtype for dtype in (allowed if found is None else found) if dtype in allowed)
    return found or ()


def _algorithm(work: Collection[tuple[str, int]]) -> str:
    if any(_WINOGRAD.search(kernel) for kernel, _ in work):
        return "winograd"
    return "fft" if any("fft" in kernel.lower() for kernel, _ in work) else ""


def _result_dtype(trace: Trace, op: int, work: _Work) -> str:
    arguments = arguments_of_op(trace, op)
    if arguments is None or arguments.values is not None or not work:
        return ""
    if all(kind == WorkKind.COPY for _, kind in work) and arguments.tensors:
        return arguments.tensors[0].dtype
    filled = {DTYPES.get(match[1], "") for kernel, _ in work if (match := _FILLED.search(kernel))}
    return filled.pop() if len(filled) == 1 else ""


def _results(trace: Trace, op: int) -> tuple[TensorSpec | None, ...]:
    """Of a CPU's batch norm outside of training: statistics of no channel, which nothing reads."""
    arguments = None if trace.has_device else arguments_of_op(trace, op)
    if arguments is None or arguments.value(5) != "False" or arguments.dtype(0) != FLOAT32:
        return ()
    return None, TensorSpec((0,), FLOAT32), TensorSpec((0,), FLOAT32)


def precision_of_kernel(name: str) -> str:
    """The precision at which a kernel multiplies float32 numbers, empty where its name does not show it."""
    if _ON_TENSOR_CORES.search(name):
        return TF32
    return FLOAT32 if _ON_VECTOR_UNITS.search(name) else ""


def _precision(trace: Trace, op: int, name: str, work: _Work) -> str:
    """TF32 if a kernel computed so. Attention in float32 has its own rule (``roofline.float32``)."""
    multiplies = name in _PRODUCTS or ("::" in name and "conv" in name)
    if not multiplies and not ("::" in name and "attention" in name):
        return ""
    shown = {precision_of_kernel(kernel) for kernel, _ in work}
    found = TF32 if TF32 in shown else FLOAT32 if FLOAT32 in shown and multiplies else ""
    return found if found and any(tensor.dtype == FLOAT32 for tensor in tensors_of_op(trace, op)) else ""


def multiplies_by_tf32(owned: Ownership) -> bool:
    """Whether a product of matrices ran in TF32, so that torch's setting allows it; convolutions may use it anyway."""
    trace = owned.trace
    chosen = trace.named(trace.work, _ON_TENSOR_CORES.search) & (owned.accounted != UNKNOWN)
    return bool(trace.named(trace.ops, _PRODUCTS.__contains__)[owned.accounted[chosen]].any())


class _Convolutions:
    """Shapes of results in traces without settings: of the gradient that came back, or of what the next op takes."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._gradients: dict[tuple[Shape, Shape], set[Shape]] = defaultdict(set)
        for op in np.flatnonzero(trace.named(trace.ops, _GRADIENTS.__contains__)).tolist():
            shapes = self._shapes(op)
            if len(shapes) > 2:
                at_x, at_weight, at_grad = _GRADIENTS[trace.op_name(op)]
                weight: Shape = () if at_weight == UNKNOWN else shapes[at_weight]
                self._gradients[shapes[at_x], weight].add(shapes[at_grad])
        self._in_order: dict[int, tuple[Int64, Int64]] = {}  # by thread its ops, and when they began

    def result(self, op: int) -> Shape | None:
        arguments = arguments_of_op(self._trace, op)
        if arguments is None or not arguments.tensors or arguments.values is not None:
            return None
        x, *others = self._shapes(op)
        weight = others[0] if others else ()
        gradients = self._gradients.get((x, weight), set())
        return next(iter(gradients)) if len(gradients) == 1 else self._taken_next(op, x, weight)

    def _taken_next(self, op: int, x: Shape, weight: Shape) -> Shape | None:
        ops, thread = self._trace.ops, int(self._trace.ops.thread[op])
        if thread not in self._in_order:
            mine = np.flatnonzero(ops.thread == thread)
            mine = mine[np.argsort(ops.start[mine], kind="stable")]
            self._in_order[thread] = mine, ops.start[mine]
        in_order, starts = self._in_order[thread]
        at = int(np.searchsorted(starts, ops.start[op], side="right"))
        for later in in_order[at : at + _LOOKED_AHEAD].tolist():
            taken = self._shapes(later)[:1] if ops.start[later] >= ops.stop[op] else []
            if taken and len(taken[0]) == len(x) and taken[0][:2] == (x[0], weight[0] if weight else x[1]):
                return taken[0]
        return None

    def _shapes(self, op: int) -> list[Shape]:
        return [tensor.shape for tensor in tensors_of_op(self._trace, op)]


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
