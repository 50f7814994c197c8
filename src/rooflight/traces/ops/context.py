"""What a trace shows of a call outside of its own event: in its kernels, in ops inside it, in later ops."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np

from rooflight.records.dtypes import item_bytes
from rooflight.records.session import Flags, Int32
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.traces.file.nesting import Nesting
from rooflight.traces.file.trace import COLLECTIVE, UNKNOWN, HostArgs, Trace, WorkKind
from rooflight.traces.ops.arguments import DTYPES, CannotRebuild, Described, described
from rooflight.traces.ops.collectives import (
    ENGINE_COLLECTIVES,
    NOTED,
    RUNS_COLLECTIVE,
    Groups,
    annotated_collective,
    described_collective,
    engine_collective,
    gloo_spans,
    reduced_in_switches,
)
from rooflight.traces.ownership import Ownership

TF32: Final = "tfloat32"
FLOAT32: Final = "float32"

_ON_TENSOR_CORES: Final = re.compile(r"tf32|xf32|s1688(?!6)|nvjet|Cijk_\w+_S_MX_", re.IGNORECASE)
"""Kernels that multiply float32 numbers as TF32: "s1688" is the shape of NVIDIA's product of such. cuBLAS's "nvjet"
kernels are all of tensor cores. AMD's Tensile names its kernels Cijk_..._S_MX_... where the math is XF32."""

_ON_VECTOR_UNITS: Final = re.compile(r"sgemm|scudnn|simt|ffma|gemv|gemmk1_kernel<float|Cijk_\w+_S_B_", re.IGNORECASE)
"""Kernels that keep float32's precision. On AMD, matrix units have float32 too."""

_PRODUCTS: Final = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "addbmm")
)


def precision_of_kernel(name: str) -> str:
    """The precision at which a kernel multiplies float32 numbers, empty where its name does not tell."""
    if _ON_TENSOR_CORES.search(name):
        return TF32
    return FLOAT32 if _ON_VECTOR_UNITS.search(name) else ""


def precisions_of(trace: Trace, owned: Ownership) -> Mapping[int, str]:
    """The precision by op: TF32 if one of its kernels computed so. Attention in float32 has a rule of its own
    (``roofline.float32``), so that of it only TF32 is told.
    """
    kernels = [precision_of_kernel(name) for name in trace.names]
    ops = [2 if _multiplies(name) else int("::" in name and "attention" in name) for name in trace.names]
    found: dict[int, str] = {}
    pairs = np.unique(np.stack([owned.accounted, trace.work.name]), axis=1)
    for op, kernel in pairs.T.tolist():
        precision = kernels[kernel]
        if op != UNKNOWN and precision and ops[trace.ops.name[op]] > (precision == FLOAT32):
            found[op] = TF32 if precision == TF32 else found.get(op, FLOAT32)
    return found


def multiplies_by_tf32(trace: Trace, precisions: Mapping[int, str]) -> bool:
    """Whether a product of matrices ran in TF32, so that torch's setting allows it; convolutions may use it anyway."""
    products = {number for number, name in enumerate(trace.names) if name in _PRODUCTS}
    return any(precision == TF32 and int(trace.ops.name[op]) in products for op, precision in precisions.items())


def _multiplies(op: str) -> bool:
    return op in _PRODUCTS or ("::" in op and "conv" in op)


Shape = tuple[int, ...]

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
"""Ops of which old traces do not tell which gradients they computed."""
_TYPED_BY_SETTING: Final = frozenset(
    f"aten::{name}" for name in ("_to_copy", "zeros_like", "ones_like", "full_like", "empty_like")
)
_OF_WHOLE_TENSORS: Final = frozenset({"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"})
"""Collectives with one tensor for all ranks, and one for this rank."""
_LOOKED_AHEAD: Final = 12
"""So many ops after a convolution are searched for the one that takes its result: those inside it come first."""


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known of a call besides its own event. ``dtypes``: those that tensors in its lists can have by the names
    of its kernels, empty if those tell nothing. ``result_dtype``: that of its result, by the same. ``result``: its
    shape. ``algorithm``: "winograd" or "fft" if the kernels of a convolution are such. ``computed_in``: the precision
    at which its kernels multiplied float32 numbers, empty where they did not or do not tell. ``parts``: the ops and the
    kernels inside it. ``collective``: its signature, if it is one. ``facts``: attributes of an engine's op.
    ``shared``: the storages that its tensors share, ``results``: the tensors that it returned, where an execution trace
    tells them, or a CPU's kernels are known to return others than the meta device's.
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


NOTHING: Final = Clues()


def find_clues(trace: Trace, nesting: Nesting, owned: Ownership, ops: Iterable[int]) -> dict[int, Clues]:
    """The clues of each op, where there are any."""
    chosen = list(ops)
    if not chosen:
        return {}
    names = [trace.names[trace.ops.name[op]] for op in chosen]
    dtypes = _kernel_dtypes(trace, owned)
    kernels, algorithms = _kernels(trace, owned), _algorithms(trace, owned)
    precisions = precisions_of(trace, owned)
    collectives = _Collectives(trace, nesting, owned)
    convolutions = _Convolutions(trace)
    inside = _parts(trace, nesting, owned)
    found = {}
    for op, name in zip(chosen, names, strict=True):
        clues = Clues(
            dtypes=dtypes.get(op, ()),
            result_dtype=_result_dtype(trace, op, name, kernels.get(op, frozenset())),
            result=convolutions.result(op) if name in _CONVOLUTIONS else None,
            algorithm=algorithms.get(op, ""),
            computed_in=precisions[op] if op in precisions and _takes_float32(trace, op) else "",
            results=_results(trace, op, name),
            parts=frozenset(inside.get(op, ())),
            collective=collectives.signature(op),
        )
        if clues != NOTHING:
            found[op] = clues
    return found


def _results(trace: Trace, op: int, name: str) -> tuple[TensorSpec | None, ...]:
    """Of a CPU's batch norm outside of training: statistics of no channel, which nothing reads."""
    noted = noted_of(trace, op) if name == "aten::native_batch_norm" and not trace.has_device else None
    if noted is None or noted.value(5) != "False" or noted.dtype(0) != FLOAT32:
        return ()
    return None, TensorSpec((0,), FLOAT32), TensorSpec((0,), FLOAT32)


def _takes_float32(trace: Trace, op: int) -> bool:
    noted = noted_of(trace, op)
    return noted is not None and any(tensor.dtype == FLOAT32 for tensor in noted.tensors)


def noted_of(trace: Trace, op: int) -> Described | None:
    """What the profiler noted of an op's arguments, None if nothing or nothing readable."""
    return _noted(trace.arguments[trace.ops.args[op]])


@lru_cache(maxsize=1 << 14)
def _noted(args: HostArgs) -> Described | None:
    try:
        return described(args)
    except CannotRebuild:
        return None


def _named(trace: Trace, names: Collection[str], of: Int32) -> Flags:
    """Which of these numbers are those of the ``names``."""
    return np.isin(of, [number for number, name in enumerate(trace.names) if name in names])


def _work_of(trace: Trace, owned: Ownership, chosen: Flags) -> Iterator[tuple[int, int, int]]:
    """The op, the name and the kind of each piece of work chosen that has an op."""
    chosen = chosen & (owned.accounted != UNKNOWN)
    work = trace.work
    return zip(owned.accounted[chosen].tolist(), work.name[chosen].tolist(), work.kind[chosen].tolist(), strict=True)


def _of_ops(trace: Trace, owned: Ownership, names: Collection[str]) -> Flags:
    """Which work belongs to ops of these names."""
    return np.asarray((owned.accounted != UNKNOWN) & _named(trace, names, trace.ops.name[owned.accounted]))


def _parts(trace: Trace, nesting: Nesting, owned: Ownership) -> Mapping[int, set[str]]:
    """Ops and kernels inside ops of which old traces do not tell what they computed."""
    inside: dict[int, set[str]] = defaultdict(set)
    around = nesting.parent
    chosen = (around != UNKNOWN) & _named(trace, _WITH_PARTS, trace.ops.name[around])
    for op, name in zip(around[chosen].tolist(), trace.ops.name[chosen].tolist(), strict=True):
        inside[op].add(trace.names[name])
    for op, name, _ in _work_of(trace, owned, _of_ops(trace, owned, _WITH_PARTS)):
        inside[op].add(trace.names[name])
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


def _kernel_dtypes(trace: Trace, owned: Ownership) -> dict[int, tuple[str, ...]]:
    """By op; of several kernels those that all of them allow."""
    kernels = {number: told for number, name in enumerate(trace.names) if (told := dtypes_of_kernel(name))}
    found: dict[int, tuple[str, ...]] = {}
    for op, name, _ in _work_of(trace, owned, np.isin(trace.work.name, list(kernels))):
        allowed = kernels[name]
        found[op] = tuple(dtype for dtype in found.get(op, allowed) if dtype in allowed)
    return found


def _algorithms(trace: Trace, owned: Ownership) -> Mapping[int, str]:
    """How convolutions were computed where it was not by their definition."""
    named = {number: algorithm for number, name in enumerate(trace.names) if (algorithm := _algorithm(name))}
    convolving = {name for name in trace.names if "conv" in name and "::" in name}
    chosen = np.isin(trace.work.name, list(named)) & _of_ops(trace, owned, convolving)
    return {op: named[kernel] for op, kernel, _ in _work_of(trace, owned, chosen)}


def _algorithm(kernel: str) -> str:
    if _WINOGRAD.search(kernel):
        return "winograd"
    return "fft" if "fft" in kernel.lower() else ""


def _kernels(trace: Trace, owned: Ownership) -> Mapping[int, frozenset[tuple[str, int]]]:
    """The names and kinds of the work of each op whose result may have a dtype that old traces do not tell."""
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for op, name, kind in _work_of(trace, owned, _of_ops(trace, owned, _TYPED_BY_SETTING)):
        found[op].add((trace.names[name], kind))
    return {op: frozenset(each) for op, each in found.items()}


def _result_dtype(trace: Trace, op: int, name: str, work: frozenset[tuple[str, int]]) -> str:
    """What a kernel fills, or that of the source where memory was copied as it is."""
    noted = noted_of(trace, op) if name in _TYPED_BY_SETTING else None
    if noted is None or noted.values is not None or not work:
        return ""
    if all(kind == WorkKind.COPY for _, kind in work) and noted.tensors:
        return noted.tensors[0].dtype
    filled = {DTYPES.get(match[1], "") for kernel, _ in work if (match := _FILLED.search(kernel))}
    return filled.pop() if len(filled) == 1 else ""


class _Collectives:
    """The signature of the collective that an op is, or that ran inside it."""

    def __init__(self, trace: Trace, nesting: Nesting, owned: Ownership) -> None:
        self._trace, self._groups = trace, Groups.of(trace.head)
        self._on_threads = gloo_spans(trace)
        runs = np.array([bool(RUNS_COLLECTIVE.search(name)) for name in trace.names], dtype=np.bool_)
        chosen = runs[trace.work.name] if len(trace.work) else np.empty(0, dtype=np.bool_)
        self._running = {op for op, _, _ in _work_of(trace, owned, chosen)}
        self._described: dict[int, OpSignature] = {}
        parent = nesting.parent
        for op in np.flatnonzero(trace.ops.collective != UNKNOWN).tolist():
            found = described_collective(trace.collectives[trace.ops.collective[op]], self._groups)
            around = op
            while found is not None and around != UNKNOWN:
                self._described.setdefault(around, found)
                around = int(parent[around])
        self._annotations: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by thread: begin and number
        names = {name for name in trace.names if name.startswith(NOTED)}
        for index in np.flatnonzero(_named(trace, names, trace.ranges.name)).tolist():
            self._annotations[int(trace.ranges.thread[index])].append((int(trace.ranges.start[index]), index))
        for listed in self._annotations.values():
            listed.sort()

    def signature(self, op: int) -> OpSignature | None:
        name = self._trace.names[self._trace.ops.name[op]]
        if name == "symm_mem::multimem_all_reduce_":
            noted = noted_of(self._trace, op)
            tensors = noted.tensors if noted is not None else ()
            return reduced_in_switches(tensors[0], self._groups) if tensors else None
        if op in self._running and name in ENGINE_COLLECTIVES:
            noted = noted_of(self._trace, op)
            return engine_collective(name, noted.tensors, self._groups) if noted is not None else None
        if not (name == COLLECTIVE or name.startswith("c10d::")):
            return None
        return self._described.get(op) or self._annotated(op)

    def _annotated(self, op: int) -> OpSignature | None:
        """From the annotation inside the op that has a tensor, or the one of gloo's thread that did the work."""
        trace = self._trace
        if op in self._on_threads:
            return self._of_range(self._on_threads[op])
        listed = self._annotations.get(int(trace.ops.thread[op]), [])
        for start, index in listed[bisect_left(listed, (int(trace.ops.start[op]), 0)) :]:
            if start >= trace.ops.stop[op]:
                break
            if (found := self._of_range(index, self._ranks(op))) is not None:
                return found
        return None

    def _ranks(self, op: int) -> int:
        """How many ranks gather or scatter in an op, by the sizes of its tensors; 0 where those do not tell."""
        noted = noted_of(self._trace, op) if self._trace.names[self._trace.ops.name[op]] in _OF_WHOLE_TENSORS else None
        if noted is None or len(noted.tensors) < 2:
            return 0
        small, large = sorted(prod(tensor.shape) for tensor in noted.tensors[:2])
        return large // small if small and large % small == 0 else 0

    def _of_range(self, index: int, ranks: int = 0) -> OpSignature | None:
        trace = self._trace
        noted = _noted(trace.arguments[trace.ranges.args[index]])
        if noted is None or not noted.tensors:
            return None
        tensor = noted.tensors[0]
        name = trace.names[trace.ranges.name[index]]
        return annotated_collective(name, tensor.shape, tensor.dtype, self._groups, ranks)


class _Convolutions:
    """Shapes of results of convolutions in traces without settings: that of the gradient that came back for the same x
    and weight, where all such are equal, or that of the tensor which the next op takes.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._gradients: dict[tuple[Shape, Shape], set[Shape]] = defaultdict(set)
        by_name: dict[int, tuple[int, int, int]] = {
            number: places for number, name in enumerate(trace.names) if (places := _GRADIENTS.get(name))
        }
        for op in np.flatnonzero(np.isin(trace.ops.name, list(by_name))).tolist():
            shapes = self._shapes(op)
            if len(shapes) > 2:
                at_x, at_weight, at_grad = by_name[trace.ops.name[op]]
                weight: Shape = () if at_weight == UNKNOWN else shapes[at_weight]
                self._gradients[shapes[at_x], weight].add(shapes[at_grad])
        self._next: dict[int, list[int]] = {}
        for thread in np.unique(trace.ops.thread).tolist():
            mine = np.flatnonzero(trace.ops.thread == thread)
            self._next[thread] = mine[np.argsort(trace.ops.start[mine], kind="stable")].tolist()

    def result(self, op: int) -> Shape | None:
        shapes = self._shapes(op)
        noted = noted_of(self._trace, op)
        if not shapes or noted is None or noted.values is not None:
            return None
        x, weight = shapes[0], shapes[1] if len(shapes) > 1 else ()
        gradients = self._gradients.get((x, weight), set())
        return next(iter(gradients)) if len(gradients) == 1 else self._taken_next(op, x, weight)

    def _taken_next(self, op: int, x: Shape, weight: Shape) -> Shape | None:
        ops, stop = self._trace.ops, self._trace.ops.stop[op]
        after = self._next[int(ops.thread[op])]
        at = int(np.searchsorted(ops.start[after], ops.start[op], side="right"))
        for later in after[at : at + _LOOKED_AHEAD]:
            if ops.start[later] < stop:
                continue
            taken = self._shapes(later)[:1]
            if taken and len(taken[0]) == len(x) and taken[0][:2] == (x[0], weight[0] if weight else x[1]):
                return taken[0]
        return None

    def _shapes(self, op: int) -> list[Shape]:
        noted = noted_of(self._trace, op)
        return [tensor.shape for tensor in noted.tensors] if noted is not None else []
