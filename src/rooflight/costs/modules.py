"""Work of modules whose kernels bypass torch's dispatcher, by the names of their classes: shapes in, ops out.

The ops are named and costed like those that a dispatcher shows (``aten::linear``), so that they are bounded, fused and
predicted alike. Only ops that nobody recorded are filled in: see ``missing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rooflight.costs import registry
from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.signature import UNSEEN, AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec


class Operand:
    """A tensor of a module's call. Each is itself alone: two of the same shape are two tensors.

    ``origin`` is the one whose memory it is; itself, unless it was made by ``viewed``.
    """

    __slots__ = ("origin", "requires_grad", "tensor")

    def __init__(self, tensor: TensorSpec, *, requires_grad: bool = False, origin: Operand | None = None) -> None:
        self.tensor = tensor
        self.requires_grad = requires_grad
        self.origin: Operand = origin if origin is not None else self

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, outermost first."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype: ``bfloat16``."""
        return self.tensor.dtype

    def viewed(self, *shape: int, dtype: str | None = None) -> Operand:
        """The same memory, or a part of it, in another shape; ``dtype`` is what a kernel reads it as."""
        tensor = TensorSpec(shape or self.shape, dtype or self.dtype)
        return Operand(tensor, requires_grad=self.requires_grad, origin=self.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleOp:
    """One op of a module: its name, inputs by the names of the op's arguments, outputs and settings."""

    name: str
    inputs: Mapping[str, Operand]
    outputs: Sequence[Operand]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    @property
    def signature(self) -> OpSignature:
        """As a record has it."""
        return OpSignature(
            name=self.name,
            inputs=tuple(operand.tensor for operand in self.inputs.values()),
            outputs=tuple(operand.tensor for operand in self.outputs),
            input_names=tuple(self.inputs),
            attributes=(*self.attributes.items(), UNSEEN),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWork:
    """The ops of one call and those of its backward pass, in the order in which they run."""

    forward: Sequence[ModuleOp]
    backward: Sequence[ModuleOp] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of a module.

    ``arguments`` are those of its ``forward`` by name, with operands in place of tensors; ``inputs`` are the operands
    among them, ``outputs`` those returned, in order. ``parameters`` have their qualified names.
    """

    module: Any
    arguments: Mapping[str, Any]
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    parameters: Mapping[str, Operand]
    _gradients: dict[Operand, Operand] = field(default_factory=dict)

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting: as the call was given it, or the module's attribute; ``default`` where both are None."""
        given = self.arguments.get(name)
        if given is None:
            given = getattr(self.module, name, None)
        return default if given is None else given

    def new(self, *shape: int, dtype: str) -> Operand:
        """A tensor that the module makes and keeps to itself."""
        return Operand(TensorSpec(shape, dtype))

    def gradient(self, operand: Operand) -> Operand:
        """The gradient of an operand, of its shape and dtype."""
        if operand.origin not in self._gradients:
            self._gradients[operand.origin] = Operand(operand.origin.tensor)
        gradient = self._gradients[operand.origin]
        return gradient if operand.shape == gradient.shape else gradient.viewed(*operand.shape)

    @property
    def gradients(self) -> Iterator[tuple[Operand, Operand]]:
        """Operands with their gradients, those asked for."""
        return iter(self._gradients.items())


ModuleFormula = Callable[[ModuleCall], ModuleWork | None]

_formulas: dict[str, ModuleFormula] = {}


def module_formula(*class_names: str) -> Callable[[ModuleFormula], ModuleFormula]:
    """Register the decorated function as the work of modules of these classes, and of classes derived from them.

    It is for modules whose kernels bypass torch's dispatcher (Transformer Engine, Apex, raw Triton), so that no op is
    recorded. The function takes a ModuleCall and returns a ModuleWork, or None where it cannot tell::

        from rooflight.costs.modules import ModuleCall, ModuleOp, ModuleWork, module_formula_of

        @rl.module_formula("FastNorm")
        def fast_norm(call: ModuleCall) -> ModuleWork:
            '''x [..., n] and weight [n] to y.'''
            x, weight = call.inputs[0], call.parameters["weight"]
            op = ModuleOp(name="aten::rms_norm", inputs={"input": x, "weight": weight}, outputs=call.outputs)
            return ModuleWork(forward=[op])

    A formula that is there already serves another class in one line::

        rl.module_formula("MyFusedLinear")(module_formula_of("TELinear"))

    Raises ValueError for a name that has a formula already, TypeError for what is no name.
    """
    if not class_names:
        raise ValueError('module_formula() needs at least one name of a class, such as "TELinear"')
    for name in class_names:
        if not isinstance(name, str):
            raise TypeError('module_formula() takes names of classes: @rl.module_formula("TELinear")')

    def register(function: ModuleFormula) -> ModuleFormula:
        for name in class_names:
            if name in _formulas:
                raise ValueError(f'modules named "{name}" already have a formula, {_formulas[name].__qualname__}')
        _formulas.update(dict.fromkeys(class_names, function))
        return function

    return register


def module_formula_of(class_name: str) -> ModuleFormula:
    """The formula for modules of this class. Raises ValueError where there is none."""
    registry.load_formulas()
    if class_name not in _formulas:
        raise ValueError(f'no module formula for "{class_name}": there are those of {", ".join(sorted(_formulas))}')
    return _formulas[class_name]


def formula_for(kind: type) -> ModuleFormula | None:
    """The formula for modules of a class: that of the first of its bases, itself included, that has one. torch's own
    classes are passed over, for the dispatcher sees their ops.
    """
    registry.load_formulas()
    for base in kind.__mro__:
        if base.__name__ in _formulas and not base.__module__.startswith("torch."):
            return _formulas[base.__name__]
    return None


def missing(expected: Sequence[ModuleOp], recorded: Sequence[OpSignature]) -> list[ModuleOp]:
    """The ops expected of a module that are not among the ops recorded while it ran, by their work.

    An op counts as recorded if the records have its FLOPs, those of other expected ops not counted again; where kernels
    may do with less (masks, other ways to write a norm) half of them is enough. Products use matrix FLOPs up, others
    vector FLOPs of records that are no products; without FLOPs, bytes. Beside a recorded op without a cost nothing is
    missing: it may be the work, and is listed as uncosted.
    """
    costs = [registry.cost_of(op) for op in recorded]
    left: dict[str, float] = dict.fromkeys(("matrix", "vector", "moved"), 0.0)
    for cost in costs:
        if not isinstance(cost, OpCost):
            return []
        kind, work = _work(cost)
        left[kind] += work

    def take(op: OpSignature, cost: OpCost | Uncosted) -> bool:
        """Use up the work of an expected op; whether enough was there."""
        if not isinstance(cost, OpCost):
            return False
        kind, needed = _work(cost)
        enough = left[kind] >= needed * (1 if registry.traits_of(op).product else _ENOUGH)
        if needed and enough:
            left[kind] = max(0.0, left[kind] - needed)
        return enough or not needed

    signatures = [op.signature for op in expected]
    wanted = [registry.cost_of(signature) for signature in signatures]
    order = sorted(range(len(expected)), key=lambda place: -getattr(wanted[place], "matrix_flops", 0))
    found = [place for place in order if take(signatures[place], wanted[place])]
    return [op for place, op in enumerate(expected) if place not in found]


_ENOUGH: Final = 0.5


def _work(cost: OpCost) -> tuple[str, int]:
    if cost.matrix_flops:
        return "matrix", cost.matrix_flops
    return ("vector", cost.vector_flops) if cost.vector_flops else ("moved", cost.bytes_moved)
