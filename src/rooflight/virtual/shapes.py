"""Results whose sizes depend on values: of the known ones where they are, else the largest that can be, said so."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

_CHOSEN: Final = "a mask of the device"
_ALL: Final = "chooses all"


def sized_by_values(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an op whose shape depends on values. Raises RuntimeError for an op that is not known here."""
    name = func._schema.name.split("::")[-1]
    known = _run_known(mode, func, args, kwargs)
    if known is not None:
        return known
    first = args[0]
    device = first.device
    with mode.fake:
        if name == "nonzero":
            mode.answers.note(_CHOSEN, _ALL)
            return torch.empty((first.numel(), first.dim()), dtype=torch.int64, device=device)
        if name == "index":
            return func(first, [place for each in args[1] for place in _places(mode, each)])
        if name == "masked_select":
            mode.answers.note(_CHOSEN, _ALL)
            return torch.empty((max(first.numel(), args[1].numel()),), dtype=first.dtype, device=device)
        if name in ("_unique2", "unique_dim", "_unique", "unique_consecutive"):
            mode.answers.note("how many distinct values the device has", "all differ")
            counted = torch.empty((first.numel(),), dtype=torch.int64, device=device)
            return torch.empty_like(first.flatten()), torch.empty(first.shape, dtype=torch.int64, device=device), counted
        if name == "bincount":
            size = max(1, kwargs.get("minlength", args[2] if len(args) > 2 else 0))
            mode.answers.note("how many bins a count of the device has", str(size))
            return torch.empty((size,), dtype=torch.int64, device=device)
        if name == "repeat_interleave":
            size = kwargs.get("output_size") or first.numel()
            mode.answers.note("how often the device repeats each", f"{size} in all")
            return torch.empty((size,), dtype=torch.int64, device=device)
        if name in ("equal", "allclose"):
            return mode.answers.truth("whether two tensors of the device are equal", likely=True)
    raise RuntimeError(f"the size of what {func} makes depends on values that only a GPU would have")


def _places(mode: Any, index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """An index without a mask: for each dimension of one, the places that it chooses."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    known = mode.values.of(index) if isinstance(index, FakeTensor) else index
    if known is None:
        mode.answers.note(_CHOSEN, _ALL)
    count = index.numel() if known is None else int(known.sum())
    return [torch.empty((count,), dtype=torch.int64, device=index.device) for _ in range(index.dim())]


def _run_known(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result where all inputs are known: fake, with its values."""

    def real(value: Any) -> Any:
        if isinstance(value, FakeTensor):
            found = mode.values.of(value)
            if found is None:
                raise KeyError
            return found
        return type(value)(map(real, value)) if type(value) in (list, tuple) else value

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return type(value)(map(fake, value)) if type(value) in (list, tuple) else value
        with mode.fake:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=args[0].device)
        mode.values.hold(made, value)
        return made

    try:
        found = func(*map(real, args), **{name: real(value) for name, value in kwargs.items()})
    except KeyError:
        return None
    return fake(found)
