"""Remedies that can be tried on a step without touching its code: what the program asks torch for is asked differently
while the step is made and run. Each restores torch when its block ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import signature
from typing import Any, Final


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _with_options(function: Callable[..., Any], change: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    """The function, which gets keyword arguments as ``change`` leaves them."""

    def called(*args: Any, **options: Any) -> Any:
        change(options)
        return function(*args, **options)

    return called


@contextmanager
def fused_optimizer() -> Iterator[None]:
    """Optimizers that can be are fused; others, as RMSprop, work on lists of tensors."""
    import torch

    def fuse(options: dict[str, Any]) -> None:
        options.pop("foreach", None)
        options["fused"] = True

    def on_lists(options: dict[str, Any]) -> None:
        options["foreach"] = True

    with ExitStack() as stack:
        kinds: list[Any] = [each for each in vars(torch.optim).values() if isinstance(each, type)]
        for kind in kinds:
            options = signature(kind).parameters if "__init__" in vars(kind) else {}
            change = fuse if "fused" in options else on_lists if "foreach" in options else None
            if change is not None:
                stack.enter_context(_replaced(kind, "__init__", _with_options(kind.__init__, change)))
        yield


@contextmanager
def _loaders(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    from torch.utils.data import DataLoader

    with _replaced(DataLoader, "__init__", _with_options(DataLoader.__init__, change)):
        yield


def loader_workers() -> AbstractContextManager[None]:
    """Data loaders have two workers that stay."""

    def change(options: dict[str, Any]) -> None:
        if not options.get("num_workers"):
            options |= {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}

    return _loaders(change)


def persistent_workers() -> AbstractContextManager[None]:
    """The workers of data loaders stay."""

    def change(options: dict[str, Any]) -> None:
        if options.get("num_workers"):
            options["persistent_workers"] = True

    return _loaders(change)


def without_anomaly_detection() -> AbstractContextManager[None]:
    """Anomaly detection stays off."""
    import torch

    return _replaced(torch, "set_anomaly_enabled", lambda *_: None)


@contextmanager
def sparse_embeddings() -> Iterator[None]:
    """Embeddings have sparse gradients."""
    from torch import nn

    def change(options: dict[str, Any]) -> None:
        options["sparse"] = True

    with _replaced(nn.Embedding, "__init__", _with_options(nn.Embedding.__init__, change)):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """What modules are asked to hold in 16 bits they hold in float32."""
    import torch
    from torch import nn

    short = (torch.float16, torch.bfloat16)
    to: Any = nn.Module.to

    def kept(self: nn.Module, *args: Any, **options: Any) -> nn.Module:
        args = tuple(torch.float32 if each in short else each for each in args)
        options = {name: torch.float32 if each in short else each for name, each in options.items()}
        return to(self, *args, **options)  # type: ignore[no-any-return]

    def as_float(self: nn.Module) -> nn.Module:
        return self.float()

    with (
        _replaced(nn.Module, "to", kept),
        _replaced(nn.Module, "half", as_float),
        _replaced(nn.Module, "bfloat16", as_float),
    ):
        yield


WHILE_MADE: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "fused-optimizer": fused_optimizer,
    "loader": loader_workers,
    "workers-anew": persistent_workers,
    "anomaly": without_anomaly_detection,
    "sparse-gradient": sparse_embeddings,
    "half-on-cpu": full_precision,
    "compile": nullcontext,
    "channels-last": nullcontext,
    "constant-work": nullcontext,
}
"""By finding, what is open while the step is made and run; the rest of a remedy is done to the step that was made."""


def modules_alive() -> dict[int, Any]:
    """All modules and optimizers of the process by their id: a step of a user need not say which it runs."""
    from torch import nn, optim

    # not isinstance, which asks dead weak references for their class
    return {id(each): each for each in gc.get_objects() if issubclass(type(each), (nn.Module, optim.Optimizer))}


def changed(finding: str, run: Callable[[], Any], others: Collection[int] = ()) -> Callable[[], Any]:
    """The step with what a remedy does once it is made, to all modules but the ``others`` (by id). Raises ValueError
    where this step cannot have it.
    """
    import torch
    from torch import nn

    alive = [each for number, each in modules_alive().items() if number not in others]
    modules = [each for each in alive if isinstance(each, nn.Module)]
    if finding == "compile":
        inside = {id(child) for module in modules for child in module.children()}
        roots = [each for each in modules if id(each) not in inside]
        for module in roots:  # and not the optimizer, nor what the program does beside the model
            module.compile()
        if roots:
            return run
        for each in alive:  # which the predicted gain leaves out
            each.step = torch.compiler.disable(each.step)
        return torch.compile(run)
    if finding == "channels-last":
        for module in modules:
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if finding == "constant-work" and not sum(map(_unparametrized, modules)):
        raise ValueError("only frozen parametrizations are removed without a change of the program")
    return run


def _unparametrized(module: Any) -> int:
    """Remove parametrizations of frozen weights; returns how many there were."""
    from torch.nn.utils import parametrize

    if not parametrize.is_parametrized(module) or any(each.requires_grad for each in module.parameters()):
        return 0
    names = list(module.parametrizations)
    for name in names:
        parametrize.remove_parametrizations(module, name)
    return len(names)
