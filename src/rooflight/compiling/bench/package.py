"""AOTInductor packages: a step exported once, compiled ahead of time into one file, loaded and run without Dynamo."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.errors import RunFailed, first_words
from rooflight.workloads.user_step import Calls

if TYPE_CHECKING:
    from torch import nn

AOT_INDUCTOR: Final = "aot-inductor"
EXPORT: Final = "export"
"""The stage of ``torch.export``."""

export_s: dict[str, float] = {}
"""Seconds that exporting took in this process, by stage."""

_FILE: Final = "model.pt2"
_TRAINS: Final = (
    "an AOTInductor package has no backward: run the model under torch.no_grad(), or take another mode to train"
)

Run = Callable[[], Any]


def packaged(run: Run, model: nn.Module | None, *, dynamic: bool | None) -> Run:
    """The step with its model as a package, or the step itself. The first call exports, compiles and loads it; where
    Inductor's folder has the package already, it only loads.

    Raises RunFailed for a step that trains, or cannot be exported.
    """
    import torch

    if model is None and isinstance(run, Calls):
        return _package_of_calls(run, dynamic)
    if model is None:
        whole = _whole(run)
        made: list[Callable[..., Any]] = []

        def packed() -> Any:
            if not made:
                made.append(_loaded(whole, (), {}, dynamic))
            return made[0]()

        return packed
    forward = model.forward
    of_model: list[Callable[..., Any]] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters()):
            raise RunFailed(_TRAINS)
        if not of_model:
            model.forward = forward
            try:
                of_model.append(_loaded(model, args, kwargs, dynamic))
            finally:
                model.forward = called
        return of_model[0](*args, **kwargs)

    model.forward = called
    return run


def _package_of_calls(calls: Calls, dynamic: bool | None) -> Calls:
    from torch import nn

    whole = nn.Module()
    whole.forward = calls.function
    made: list[Callable[..., Any]] = []

    def called(*args: Any) -> Any:
        if not made:
            made.append(_loaded(whole, args, {}, dynamic))
        return made[0](*args)

    return calls.of(called)


def _whole(run: Run) -> nn.Module:
    from torch import nn

    class Whole(nn.Module):
        def forward(self) -> Any:
            return run()

    return Whole()


def _loaded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None) -> Any:
    import torch._inductor

    path = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / _FILE
    if not path.is_file():
        begin = perf_counter()
        exported = _exported(model, args, kwargs, dynamic)
        export_s[EXPORT] = perf_counter() - begin
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own pytree
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    return torch._inductor.aoti_load_package(str(path))


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None) -> Any:
    import torch

    shapes = None
    if dynamic:
        shapes = torch.utils._pytree.tree_map(_any_size, (args, kwargs))
        shapes = {**_by_name(model, shapes[0]), **shapes[1]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # strict: only Dynamo lifts the tensors that a function without a model closes over
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=not args and not kwargs)
    except Exception as error:
        told = str(error).partition("\n")[0]
        if "backward" in told:
            raise RunFailed(_TRAINS) from None
        raise RunFailed(f"torch.export: {first_words(told) or type(error).__name__}") from None


def _any_size(leaf: Any) -> Any:
    import torch

    return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None


def _by_name(model: nn.Module, values: tuple[Any, ...]) -> dict[str, Any]:
    import inspect

    return dict(zip(inspect.signature(model.forward).parameters, values, strict=False))
