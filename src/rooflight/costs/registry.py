"""The formula registry: op name to the function that costs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import walk_packages
from typing import Any

from rooflight.costs.cost import OpCost, Traits, Uncosted
from rooflight.records.dtypes import precision_of
from rooflight.records.signature import OpSignature

Formula = Callable[[OpSignature], OpCost | Uncosted]

STRIDED, SPARSE, NESTED = "strided", "sparse", "nested"

GENERATED = "triton::fused"
"""Whose formula is that of all fused kernels which Inductor wrote, each with a name of its own."""
TEMPLATE = "triton::template"
"""Whose formula is that of all kernels that Inductor wrote after a template: products with what is fused into them."""
KERNEL = "triton::kernel"
"""Whose formula is that of all Triton kernels that were counted by their own code, each with a name of its own."""
_GENERATED_NAMES = {
    GENERATED: re.compile(r"trace::triton_(poi|red|per|for|spl)_fused_"),
    TEMPLATE: re.compile(r"trace::triton_tem_fused_"),
}

_FAMILIES = "rooflight.costs.families"
ENTRY_POINT_GROUP = "rooflight.formulas"


@dataclass(frozen=True, slots=True)
class _Registered:
    function: Formula
    traits: Traits


_UNDECLARED = Traits()

_formulas: dict[tuple[str, str], _Registered] = {}  # by op and layout
_families_loaded = False


def formula(*names: str, layout: str = STRIDED, **traits: Any) -> Callable[[Formula], Formula]:
    """Register the decorated function as the cost of the ops named (``"aten::mm"``, ``"mylib::my_triton_op"``).

    The function takes an OpSignature and returns an OpCost, or Uncosted with the reason. A name without overload
    covers all overloads; ``aten::add`` also covers ``aten::add_``::

        @rl.formula("mylib::gated_gelu", fusable=True)
        def gated_gelu(op: rl.OpSignature) -> rl.OpCost:
            '''a, b [...] to gelu(a) b: gelu 8, multiply 1.'''
            flops = 9 * op.outputs[0].numel
            return rl.OpCost(vector_flops=flops, bytes_read=op.input_bytes, bytes_written=op.output_bytes)

    ``traits`` say how the ops share a kernel with other ops, for the fused bound. By default they share none:

    - ``fusable``: with the pointwise ops, norms, reductions and copies before and after them. Calls that compute a
      matrix product (``matrix_flops``) are excepted.
    - ``ends_chain``: of those, only with the ones before them: what a scatter writes, a later op reads from memory.
    - ``epilogue``: calls that compute a matrix product take the fusable ops that follow into their kernel.
    - ``view``: they run no kernel; whatever they return is memory of their inputs.
    - ``mask_input``: the name of an input of which one byte per element is enough, so that a mask could be written and
      read in its place (backward of ReLU).
    - ``over_lists``: they work on lists of tensors, each result computed from the entries at its own place.

    - ``softmax``: between two products it makes attention of them, which one kernel computes.
    - ``needs`` (``rooflight.costs.cost.Needs``): what a part of a result needs of the inputs, where only a part is
      read. By default an op that fuses needs as large a share of them; one that ends a chain, of what the rest of the
      result has no room for; any other, all.

    What estimates and bounds use besides:

    - ``product``: [b, m, k] @ [b, k, n], whose sizes are features of models. With a size of 1 it fuses like a
      pointwise op, if it is ``fusable``.
    - ``convolution``: FFT may do with fewer multiplications than are counted, along the ``weight``'s last dimensions.
    - ``float32``: which of torch's settings governs the precision of these ops on float32 numbers.
    - ``error_group``: errors of estimates of one group have one cause and add up; groups err independently.

    ``layout`` is "strided", or "sparse" or "nested" for calls with such a tensor, whose shape is a flat list of the
    elements that it stores (``TensorSpec.packing`` has the rest).

    Raises ValueError for a name that already has a formula or is not of the form ``namespace::op``, for a layout of
    another name and for traits that exclude each other; TypeError for an unknown trait.
    """
    _check(names)
    if layout not in (STRIDED, SPARSE, NESTED):
        raise ValueError(f'no layout is called "{layout}": use "{STRIDED}", "{SPARSE}" or "{NESTED}"')
    declared = Traits(**traits)

    def register(function: Formula) -> Formula:
        keys = [(name, layout) for name in names]
        for key in keys:
            if key in _formulas:
                raise ValueError(f'"{key[0]}" already has a formula, {_formulas[key].function.__qualname__}')
        _formulas.update(dict.fromkeys(keys, _Registered(function, declared)))
        return function

    return register


def registered() -> Iterator[str]:
    """Names of all ops with a formula of their own, in-place variants that follow from them not included."""
    load_formulas()
    return iter(sorted({name for name, _ in _formulas}))


def find(name: str) -> Formula | None:
    """The formula of an op on strided tensors: its own, or that of the op it is the in-place variant of."""
    found = _find(name, STRIDED)
    return found.function if found else None


def traits_of(op: OpSignature | str) -> Traits:
    """What the formula that costs a call declares, or an op by its name on strided tensors; the defaults of ``formula``
    without one.
    """
    found = _find(op, STRIDED) if isinstance(op, str) else _find_for(op)
    return found.traits if found else _UNDECLARED


def cost_of(op: OpSignature) -> OpCost | Uncosted:
    """What ``op`` must do. Uncosted where no formula is known, where its formula could not read the signature, and
    where the signature is not complete.
    """
    if op.incomplete:
        return Uncosted(op.incomplete)
    found = _find_for(op)
    if found is None:
        layout = _layout_of(op)
        return Uncosted("no formula" if layout == STRIDED else f"no formula for {layout} tensors")
    try:
        cost = found.function(op)
    except Exception as error:  # a formula may be the user's, and one odd call must not cost the whole report
        _refuse_lanes(op)
        return Uncosted(f"formula failed: {type(error).__name__}: {error}")
    if not isinstance(cost, OpCost | Uncosted):
        return Uncosted(f"its formula gave {type(cost).__name__}, not OpCost")
    return cost if isinstance(cost, Uncosted) else _with_dtypes(cost, op)


def _refuse_lanes(op: OpSignature) -> None:
    """A formula that fails at many shapes at once may well read each of them."""
    from rooflight.costs.lanes import OneByOneError, is_lanes  # needs numpy, which formulas do not

    settings = (value for _, value in op.attributes)
    sizes = (size for tensor in (*op.inputs, *op.outputs) for size in tensor.shape)
    if any(map(is_lanes, (*sizes, *settings))):
        raise OneByOneError(f"the formula of {op.name} takes no lanes")


def _with_dtypes(cost: OpCost, op: OpSignature) -> OpCost:
    needs_matrix = cost.matrix_flops > 0 and cost.matrix_dtype is None
    needs_vector = cost.vector_flops > 0 and cost.vector_dtype is None
    if not (needs_matrix or needs_vector):
        return cost
    tensors = (*op.inputs, *op.outputs)
    dtype = next((t.dtype for t in tensors if t.dtype.startswith(("float", "bfloat", "complex"))), None)
    dtype = dtype or next((t.dtype for t in tensors if precision_of(t.dtype)), None)
    return replace(
        cost,
        matrix_dtype=dtype if needs_matrix else cost.matrix_dtype,
        vector_dtype=dtype if needs_vector else cost.vector_dtype,
    )


def _check(names: Sequence[str]) -> None:
    if not names:
        raise ValueError('formula() needs at least one op name, such as "mylib::my_op"')
    for name in names:
        if not isinstance(name, str):
            raise TypeError('formula() takes the names of ops: @rl.formula("mylib::my_op") above the function')
        namespace, separator, op = name.partition("::")
        if not (namespace and separator and op) or "." in op:
            raise ValueError(f'"{name}" is not an op name: write "namespace::op", without overload')


def _find_for(op: OpSignature) -> _Registered | None:
    """On sparse and nested tensors the formula for their layout, else the strided one of views and elementwise ops."""
    layout = _layout_of(op)
    found = _find(op.name, layout)
    if found is not None or layout == STRIDED:
        return found
    found = _find(op.name, STRIDED)
    return found if found is not None and (found.traits.view or _is_elementwise(op, found.traits, layout)) else None


def _layout_of(op: OpSignature) -> str:
    layouts = {tensor.packing.layout for tensor in (*op.inputs, *op.outputs) if tensor.packing is not None}
    return NESTED if NESTED in layouts else SPARSE if layouts else STRIDED


def _is_elementwise(op: OpSignature, traits: Traits, layout: str) -> bool:
    """Whether a call takes the elements that tensors store one by one; beside nested ones dense tensors may stand."""
    if not traits.fusable or traits.epilogue or not op.inputs or not op.outputs:
        return False
    dense_too = layout == NESTED
    tensors = [tensor for tensor in (*op.inputs, *op.outputs) if tensor.numel != 1 or tensor.packing is not None]
    sizes = {tensor.numel for tensor in tensors if tensor.packing is not None}
    return len(sizes) == 1 and (dense_too or all(tensor.packing is not None for tensor in tensors))


def _find(name: str, layout: str) -> _Registered | None:
    load_formulas()
    found = _formulas.get((name, layout)) or _formulas.get((name.removesuffix("_"), layout))
    if found is not None or not name.startswith(("trace::triton_", "triton::")):
        return found
    if name.startswith("triton::"):
        return _formulas.get((KERNEL, layout))
    kinds = (kind for kind, pattern in _GENERATED_NAMES.items() if pattern.match(name))
    return _formulas.get((next(kinds, ""), layout))


def load_formulas() -> None:
    """Import every family file beside this one, then the packages that announce formulas of their own."""
    global _families_loaded
    if _families_loaded:
        return
    package = import_module(_FAMILIES)
    for module in walk_packages(package.__path__, f"{_FAMILIES}."):
        import_module(module.name)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    _families_loaded = True  # only now: a family that failed to load must fail again, not be missed in silence
