"""Whether a compiled program is right: beside the eager one, and both beside a float64 run of the same program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rooflight.compiling.bench.trial import Check, Difference, Rounding
from rooflight.workloads.errors import told_in_one_line
from rooflight.workloads.outputs import Difference as Compared
from rooflight.workloads.outputs import compare, copied, tolerance_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rooflight.compiling.bench.float64 import InFloat64

STEPS: Final = 3
_NO_FURTHER: Final = 2.0
"""Errors of rounding of the same program differ by such a factor: torch's own benchmarks allow it."""
_SHARE: Final = 0.1
"""Of the tolerance of its dtype: an error that is smaller counts as none. Also torch's."""
_LEAST_SCALE: Final = 0.1
"""Of the root mean square of all values: what a tensor's error is held against at least, as some are 0 but for
rounding (the gradient of a key's bias)."""

Run = Callable[[], Any]
Opened = tuple[Run, "nn.Module | None"]


@dataclass(slots=True)
class _Seen:
    """What a program returned and computed, step by step, on which errors are taken."""

    results: list[Any] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


def check(eager: Opened, compiled: Opened, double: Opened) -> Check:
    """The programs side by side for ``STEPS`` steps, each from the same weights, inputs and random numbers.

    ``double`` is the eager program once more, which runs in float64 beside itself. What keeps it from that is an
    answer, not an error.
    """
    ours, theirs = _followed(*eager), _followed(*compiled)
    result = Compared()
    for one, other in zip(ours.results, theirs.results, strict=True):
        result = result.worse(_compared(one, other))
    state = None
    if eager[1] is not None:
        state = compare(ours.state, theirs.state)
        for before, after in zip(ours.gradients, theirs.gradients, strict=True):
            state = state.worse(compare(before, after))
    return Check(
        result=_difference(result),
        state=None if state is None else _difference(state),
        steps=STEPS,
        rounding=_rounding(ours, theirs, double),
    )


def _followed(run: Run, model: nn.Module | None) -> _Seen:
    import torch

    seen = _Seen()
    for number in range(STEPS):
        torch.manual_seed(number)
        seen.results.append(copied(_plain(run())))
        if model is not None:
            seen.gradients.append(copied(_gradients(model)))
    if model is not None:
        seen.state = copied(_state(model))
    return seen


def _rounding(eager: _Seen, compiled: _Seen, double: Opened) -> Rounding:
    """Errors of both programs against float64."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from rooflight.compiling.bench.float64 import InFloat64

    run, model = double
    truth, mode = _Seen(), InFloat64()
    try:
        for number in range(STEPS):
            torch.manual_seed(number)
            with mode, sdpa_kernel(SDPBackend.MATH):  # flash attention has no float64 form on GPUs
                result = _plain(run())
            truth.results.append(mode.of(result))
            if model is not None:
                truth.gradients.append(mode.of(_gradients(model)))
        if model is not None:
            truth.state = mode.of(_state(model))
        return _errors(truth, eager, compiled, mode)
    except Exception as error:  # that the program has no float64 form does not make it wrong
        return Rounding(failed=told_in_one_line(error))


def _errors(truth: _Seen, eager: _Seen, compiled: _Seen, mode: InFloat64) -> Rounding:
    kinds = (
        ("result", list(zip(truth.results, eager.results, compiled.results, strict=True))),
        ("gradient", list(zip(truth.gradients, eager.gradients, compiled.gradients, strict=True))),
        ("state", [(truth.state, eager.state, compiled.state)]),
    )
    most, least, further = 0.0, 0.0, ""
    some = False
    for kind, steps in kinds:
        for wide, one, other in steps:
            for name, own, theirs, tolerance in _leaf_errors(wide, one, other):
                some = True
                least, most = max(least, own), max(most, theirs)
                if not further and not theirs <= _NO_FURTHER * own + _SHARE * tolerance:
                    further = f"{kind} {name}".strip()
    missing = tuple(sorted(mode.missing))
    if not some:
        return Rounding(missing=missing, failed="it gives no floating-point numbers")
    return Rounding(eager=least, compiled=most, further=further, missing=missing)


def _leaf_errors(wide: Any, one: Any, other: Any) -> Iterator[tuple[str, float, float, float]]:
    """Each tensor's name, its root mean square errors against float64 in both programs, and its tolerance."""
    import torch
    from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path

    trios = [
        (keystr(path), truth, own, theirs)
        for (path, truth), own, theirs in zip(
            tree_leaves_with_path(wide), tree_leaves(one), tree_leaves(other), strict=True
        )
        if isinstance(own, torch.Tensor) and own.is_floating_point() and own.numel()
    ]
    sizes = [float(truth.square().sum()) for _, truth, _, _ in trios]
    count = sum(truth.numel() for _, truth, _, _ in trios)
    least = _LEAST_SCALE * math.sqrt(sum(sizes) / count) if count else 0.0
    for (name, truth, own, theirs), size in zip(trios, sizes, strict=True):
        scale = max(math.sqrt(size / truth.numel()), least) or 1.0
        yield name, _gap(truth, own) / scale, _gap(truth, theirs) / scale, tolerance_of(own.dtype)


def _gap(truth: Tensor, given: Tensor) -> float:
    """Root mean square of the difference; what is equal, infinities and NaN too, differs by 0."""
    given = given.to(truth.dtype)
    gap = (truth - given).masked_fill((truth == given) | (truth.isnan() & given.isnan()), 0.0)
    return float(gap.square().mean().sqrt())


def _plain(value: Any) -> Any:
    return value.to_tuple() if hasattr(value, "to_tuple") else value


def _compared(expected: Any, given: Any) -> Compared:
    try:
        return compare(expected, given)
    except TypeError:  # a step that returns an object of its own: its model's state is compared
        return Compared()


def _gradients(model: nn.Module) -> dict[str, Any]:
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def _state(model: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in model.state_dict().items() if hasattr(value, "shape")}


def _difference(found: Compared) -> Difference:
    return Difference(why=found.told, error=found.error, tolerance=found.tolerance)
