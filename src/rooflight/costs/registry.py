"""The formula registry: op name to the function that costs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import FrameType

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.dtypes import precision_of
from rooflight.records.signature import OpSignature

Formula = Callable[[OpSignature], OpCost | Uncosted]

_FAMILIES = "rooflight.costs.families"
ENTRY_POINT_GROUP = "rooflight.formulas"

_formulas: dict[str, Formula] = {}
_family: dict[str, str] = {}
_families_loaded = False


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register the decorated function as the cost of the ops named (``"aten::mm"``, ``"mylib::my_triton_op"``).

    The function takes an OpSignature and returns an OpCost, or Uncosted with the reason. A name without overload
    covers all overloads; ``aten::add`` also covers ``aten::add_``. Raises ValueError for a name that already has a
    formula or is not of the form ``namespace::op``.
    """
    if not names:
        raise ValueError('formula() needs at least one op name, such as "mylib::my_op"')
    for name in names:
        namespace, separator, op = name.partition("::")
        if not (namespace and separator and op) or "." in op:
            raise ValueError(f'"{name}" is not an op name: write "namespace::op", without overload')

    family = _calling_family()

    def register(function: Formula) -> Formula:
        for name in names:
            if name in _formulas:
                raise ValueError(f'"{name}" already has a formula, {_formulas[name].__qualname__}')
        _formulas.update(dict.fromkeys(names, function))
        _family.update(dict.fromkeys(names, family or _family_file(function.__module__) or "foreign"))
        return function

    return register


def unregister(*names: str) -> None:
    """Forget the formulas of the ops named, so that others can be given. Raises KeyError for a name without one."""
    _load_families()
    for name in names:
        del _formulas[name], _family[name]


def registered() -> Iterator[str]:
    """Names of all ops with a formula of their own, in-place variants that follow from them not included."""
    _load_families()
    return iter(sorted(_formulas))


def find(name: str) -> Formula | None:
    """The formula of an op: its own, or that of the op it is the in-place variant of."""
    _load_families()
    return _formulas.get(name) or _formulas.get(name.removesuffix("_"))


def family_of(name: str) -> str | None:
    """The family that an op's formula belongs to (``"matmul"``, ``"pointwise"``: the file it stands in), None without
    one. Formulas of users and packages are ``"foreign"``.
    """
    _load_families()
    return _family.get(name) or _family.get(name.removesuffix("_"))


def cost_of(op: OpSignature) -> OpCost | Uncosted:
    """What ``op`` must do. Uncosted where no formula is known or where its formula could not read the signature."""
    function = find(op.name)
    if function is None:
        return Uncosted("no formula")
    try:
        cost = function(op)
    except Exception as error:  # a formula may be the user's, and one odd call must not cost the whole report
        return Uncosted(f"formula failed: {type(error).__name__}: {error}")
    if not isinstance(cost, OpCost | Uncosted):
        return Uncosted(f"its formula gave {type(cost).__name__}, not OpCost")
    return cost if isinstance(cost, Uncosted) else _with_dtypes(cost, op)


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


def _family_file(module: str) -> str | None:
    """The family that a module is the file of; None for ``rules``, which all share, and for modules elsewhere."""
    home, _, name = module.rpartition(".")
    return name if home == _FAMILIES and name != "rules" else None


def _calling_family() -> str | None:
    """The family file that is registering a formula, perhaps through the tables of ``rules``."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        family = _family_file(str(frame.f_globals.get("__name__", "")))
        if family is not None:
            return family
        frame = frame.f_back
    return None


def _load_families() -> None:
    """Import every family file beside this one, then the packages that announce formulas of their own."""
    global _families_loaded
    if _families_loaded:
        return
    package = import_module(_FAMILIES)
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    _families_loaded = True  # only now: a family that failed to load must fail again, not be missed in silence
