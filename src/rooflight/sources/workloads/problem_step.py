"""A step of a problem file: its forward pass, or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflight.sources.workloads.build import TITLES, make_optimizer
from rooflight.sources.workloads.errors import RunFailed, TargetError, need_torch
from rooflight.sources.workloads.problem import Problem, open_problem, same_numbers, tensors_in
from rooflight.sources.workloads.steps import Step

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def load_problem(path: Path, device: str = "meta", *, step: str = "forward", optimizer: str | None = None) -> Step:
    """A step of a problem file's ``Model``, model and inputs on ``device``.

    ``forward``: the forward pass without gradients. ``train``: forward, backward from a gradient of ones for every
    output (the file has no loss) to weights and floating inputs, and a step of ``optimizer`` where one is named
    (default: none, as the file has none). On meta nothing is allocated, unless the constructor or ``get_inputs`` reads
    a value, which meta tensors lack: then they are made on the CPU and moved. Elsewhere weights and inputs are random,
    the same on every call. The model is in training mode, as built.

    Raises TargetError for another step, a file that is no problem, raises, needs a package that is not installed,
    allocates on CUDA where ``device`` is another, or has inputs that are neither tensors nor numbers.
    """
    if step not in ("forward", "train"):
        raise TargetError(f"--step {step}: {path.name} has no such step: use forward or train")
    if optimizer is not None and step != "train":
        raise TargetError("--optimizer: only a step with --step train has one")
    problem = open_problem(path, device)
    model, inputs = problem.model(), problem.inputs()
    dtypes = [tensor.dtype for tensor in (*model.parameters(), *tensors_in(inputs)) if tensor.is_floating_point()]
    dtype = str(dtypes[0]).removeprefix("torch.") if dtypes else None
    run, optimizing = _forward(problem, model, inputs), None
    if step == "train":
        if optimizer not in (None, "none") and not any(each.requires_grad for each in model.parameters()):
            raise TargetError(f"--optimizer {optimizer}: the model of {path.name} has no weights to update")
        optimizing = make_optimizer(optimizer or "none", model, with_state=True)
        run = _train(problem, model, inputs, optimizing)
    what = "forward pass" if step == "forward" else "training step"
    with_optimizer = f", {TITLES[optimizer]}" if optimizer and optimizing is not None else ""
    return Step(
        run=problem.file.explaining(run),
        model=model,
        optimizer=optimizing,
        description=f"{path.name}: {what}{f', {dtype}' if dtype else ''}{with_optimizer}",
        name="train" if step == "train" else None,
        dtype=dtype,
        device=str(problem.file.place),
    )


def _forward(problem: Problem, model: nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    def forward() -> Any:
        # tensors that forward makes without naming a device are made where its inputs are
        with need_torch().no_grad(), problem.file.place:
            return model(*inputs)

    return forward


def _train(
    problem: Problem, model: nn.Module, inputs: Sequence[Any], optimizer: torch.optim.Optimizer | None
) -> Callable[[], Any]:
    torch = need_torch()
    leaves = [tensor for tensor in tensors_in(inputs) if tensor.is_floating_point() or tensor.is_complex()]
    for leaf in leaves:
        leaf.requires_grad_()
    gradients: list[Tensor] = []

    def outputs() -> list[Tensor]:
        with problem.file.place:
            return [tensor for tensor in tensors_in([model(*inputs)]) if tensor.requires_grad]

    def step() -> None:
        found = outputs()
        if not found:
            raise TargetError(
                f"--step train: no output of {problem.file.path.name} depends on floating inputs or weights"
            )
        if [each.shape for each in gradients] != [each.shape for each in found]:
            gradients[:] = map(torch.ones_like, found)
        torch.autograd.backward(found, gradients)
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        for leaf in leaves:
            leaf.grad = None

    # a loss would give the gradients, so they are no work of this step and are made before it, if it runs here at all
    with suppress(RunFailed, TargetError), same_numbers():
        gradients[:] = map(torch.ones_like, problem.file.explaining(outputs)())
    return step
