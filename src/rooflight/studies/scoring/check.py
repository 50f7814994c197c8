"""Whether a solution is right: its results beside the reference's, draw by draw of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.errors import STEP_FAILED, RunFailed
from rooflight.sources.workloads.outputs import Difference, compare, copied, same_tensors
from rooflight.sources.workloads.problem import same_numbers
from rooflight.studies.scoring.result import Checked
from rooflight.studies.scoring.trials import Run

if TYPE_CHECKING:
    from torch import Tensor, nn


DRAWS: Final = 5
"""How many inputs a solution is checked with, as KernelBench does."""
_FEWEST: Final = 2
_BOX_S: Final = 30.0


def check(
    reference: Run,
    solution: Run,
    draw: Callable[[int], tuple[Any, ...]],
    *,
    tolerance: float | None,
    tf32: bool,
    progress: Callable[[str], None],
) -> Checked:
    """Run both on the same inputs, each on a copy of its own, DRAWS times (at least twice, within half a minute).

    A solution that raises, changes its inputs or keeps results is not right. What the reference raises passes through.
    """
    found, why, start, number = Difference(), "", perf_counter(), 0
    before: _Draw | None = None
    same_inputs = same_results = True
    reuses = False
    while number < DRAWS and (number < _FEWEST or perf_counter() - start < _BOX_S) and not why:
        progress(f"checking draw {number + 1}")
        now = _Draw(reference, solution, draw(number))
        why = now.why
        if not why:
            difference = compare(now.expected, now.given, tolerance=tolerance, tf32=tf32)
            found = found.worse(difference)
            if not difference.agrees:
                why = _reason(now, before, difference, reference)
        if before is not None:
            same_inputs &= same_tensors(before.inputs, now.inputs)
            same_results &= same_tensors(before.expected, now.expected)
            reuses |= not why and not same_tensors(before.copy, before.given)
        before = now
        number += 1
    return Checked(
        draws=number,
        difference=found,
        why=why,
        same_inputs=number > 1 and same_inputs,
        same_results=number > 1 and same_results,
        reuses_memory=reuses,
    )


class _Draw:
    """What both programs made of the same inputs, and what became of the inputs."""

    def __init__(self, reference: Run, solution: Run, inputs: tuple[Any, ...]) -> None:
        self.inputs, self.why, self.given, self.copy = inputs, "", None, None
        theirs, ours = (tuple(map(copied, inputs)) for _ in range(2))
        with same_numbers():  # where both draw, they draw the same
            self.expected = reference(theirs)
        self.own = ours
        try:
            with same_numbers():
                self.given = solution(ours)
        except RunFailed as error:
            self.why = str(error).replace(STEP_FAILED, "raised ", 1)
            return
        self.copy = copied(self.given)  # a later call may write over it
        changed = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if not same_tensors(*pair)]
        if changed:
            self.why = f"changes its input {changed[0]} in place, as the reference does not"


def _reason(now: _Draw, before: _Draw | None, difference: Difference, reference: Run) -> str:
    returned = [number for number, value in enumerate(now.own) if same_tensors(now.given, value)]
    if returned:
        return f"returns its input {returned[0]}"
    if before is not None and same_tensors(before.copy, now.given) and not same_tensors(before.inputs, now.inputs):
        return "gives the same result for other inputs: it keeps results between calls, or ignores its inputs"
    with same_numbers(1):
        again = reference(tuple(map(copied, now.inputs)))
    if not same_tensors(now.expected, again):
        return f"{difference.message}; the reference draws random numbers, and the solution did not draw the same"
    return difference.message


def copy_weights(reference: nn.Module, solution: nn.Module) -> tuple[int, tuple[str, ...]]:
    """Give the solution the reference's parameters, buffers and plain tensors of the same name and shape. Returns how
    many of its tensors the reference has, and the names of the others.

    Tensors that are equal are not written, so that what a constructor prepared from them stays valid.
    """
    import torch

    theirs = dict(_state(reference))
    matched, unmatched = 0, []
    with torch.no_grad():
        for name, tensor in _state(solution):
            given = theirs.get(name)
            if given is None or given.shape != tensor.shape:
                unmatched.append(name)
                continue
            matched += 1
            if not (given.dtype == tensor.dtype and torch.equal(given, tensor)):
                tensor.copy_(given)
    return matched, tuple(unmatched)


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    import torch

    for path, module in model.named_modules():
        for name, value in {**vars(module), **module._parameters, **module._buffers}.items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}" if path else name, value
