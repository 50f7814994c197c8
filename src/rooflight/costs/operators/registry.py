"""Which operators there are, by name, and those in a user's Python file. Their files are imported when first needed."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

from rooflight.costs.operators.operator import PAIR, Operator, Prepared, Shape, Work
from rooflight.costs.operators.sizes import Size
from rooflight.costs.operators.tensors import differentiable, of_spec
from rooflight.records.package import SUFFIX, load_module

ENTRY_POINT_GROUP = "rooflight.operators"

_operators: dict[str, Operator] = {}
_loaded = False


def operator(
    summary: str,
    *,
    name: str = "",
    check: Callable[[Shape], str | None] | None = None,
    directions: tuple[str, ...] = PAIR,
    launch_parameters: tuple[str, ...] = (),
    smart_share: int = 0,
    **sizes: Size,
) -> Callable[[Any], Operator]:
    """Make the decorated class an operator of its name, or of ``name``; further keywords are the sizes of a shape::

        @operator("silu(gate) * up, both [rows, dim]", rows=ROWS, dim=HIDDEN_WIDTH)
        class swiglu:
            def work(self, shape, dtype):
                x = tensor(dtype, shape["rows"], shape["dim"])
                ...
                return Work(inputs=(x, x), forward=(map_one("aten::silu", x), product), backward=(...))

            def run(self, torch, shape, gate, up):
                return torch.nn.functional.silu(gate) * up

    ``work`` describes a run; ``run`` is what is timed. It gets a tensor for each of the ``inputs`` and ``constants``
    that the work declares: numbers, none negative where the class has ``positive``, or indices below ``below(shape)``.
    A class may have ``prepare`` in the place of ``run``, and ``check`` and ``tie``: ``Operator`` explains them.

    Raises ValueError for a name that is taken.
    """

    def decorate(given: Any) -> Operator:
        made = given() if isinstance(given, type) else given
        return register(
            Operator(
                name=name or type(made).__name__,
                summary=summary,
                sizes=sizes,
                work=made.work,
                prepare=getattr(made, "prepare", None) or partial(_prepare, made, directions == PAIR),
                check=check or getattr(made, "check", None),
                directions=directions,
                launch_parameters=launch_parameters,
                tie=getattr(made, "tie", None),
                smart_share=smart_share,
            )
        )

    return decorate


def _prepare(made: Any, backward: bool, torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    work: Work = made.work(shape, dtype)
    below = made.below(shape) if hasattr(made, "below") else 0
    inputs = [
        of_spec(torch, spec, device, below=below, grad=backward and "float" in spec.dtype) for spec in work.first_inputs
    ]
    tensors = inputs + [of_spec(torch, spec, device, below=below) for spec in work.constants]
    if getattr(made, "positive", False):
        tensors = [tensor.abs_() for tensor in tensors]
    run = partial(made.run, torch, shape, *tensors)
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    return differentiable(torch, run, leaves) if backward else Prepared(forward=run)


_SYNONYMS: Final = {
    **dict.fromkeys(("attention", "attn", "flash_attention", "scaled_dot_product_attention"), ("sdpa",)),
    **dict.fromkeys(("matmul", "mm", "addmm", "dot"), ("gemm", "linear")),
    **dict.fromkeys(("conv", "convolution"), ("conv2d",)),
    **dict.fromkeys(("norm", "layer_norm", "rms_norm"), ("layernorm_rows", "rmsnorm")),
    **dict.fromkeys(("allreduce", "nccl"), ("all_reduce",)),
}
"""What operators are called elsewhere."""


def register(operator: Operator) -> Operator:
    """Make an operator known under its name. Raises ValueError for a name that is taken."""
    if operator.name in _operators:
        raise ValueError(f'operator "{operator.name}" is registered already: give it another name')
    _operators[operator.name] = operator
    return operator


def find(name: str) -> Operator:
    """The operator of a name. Raises ValueError, naming those spelled similarly, for an unknown one."""
    _load()
    if name in _operators:
        return _operators[name]
    close = [*_SYNONYMS.get(name.lower(), ()), *get_close_matches(name, _operators, n=3)][:3]
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise ValueError(f'unknown operator "{name}": {hint}see rooflight sample --list')


def names() -> tuple[str, ...]:
    """All names, in alphabetical order, capitals last as in a dictionary."""
    _load()
    return tuple(sorted(_operators, key=lambda name: (name.lower(), name)))


def every() -> tuple[Operator, ...]:
    """All operators, in the order of their names."""
    return tuple(_operators[name] for name in names())


def _load() -> None:
    global _loaded
    if _loaded:
        return
    package = import_module("rooflight.costs.operators.library")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        entry.load()
    _loaded = True  # only now: a file that failed to load must fail again, not be missed in silence


_registered: dict[Path, tuple[Operator, ...]] = {}
"""What running each file added: a file is run once, however often it is named."""


def operators_of(text: str) -> tuple[Operator, ...]:
    """The operators that a word of the command line names: one of ours, ``file.py:name``, or all of ``file.py``.

    Raises ValueError for an unknown operator, and for a file that cannot be run or registers none.
    """
    head, separator, name = text.rpartition(":")
    file = head if separator and head.endswith(SUFFIX) else text
    if not file.endswith(SUFFIX):
        return (find(text),)
    registered = _operators_in(Path(file))
    if not registered:
        raise ValueError(
            f"{file} registers no operator: decorate a class with rooflight.costs.operators.registry.operator"
        )
    if file == text:
        return registered
    found = [operator for operator in registered if operator.name == name]
    if not found:
        raise ValueError(f"{file} registers {', '.join(operator.name for operator in registered)}, not {name}")
    return tuple(found)


def _operators_in(path: Path) -> tuple[Operator, ...]:
    key = path.resolve()
    if key not in _registered:
        before = set(names())
        load_module(path)
        _registered[key] = tuple(operator for operator in every() if operator.name not in before)
    return _registered[key]
