"""Results whose sizes depend on values: of the known ones where they are, else the largest that can be, said so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from rooflight.sources.virtual.likely import likely_of
from rooflight.sources.virtual.mode import VirtualMode


def sized_by_values(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an op whose shape depends on values. Raises RuntimeError for an op that is not known here."""
    name = func._schema.name.split("::")[-1]
    with suppress(KeyError):
        if name in _ON_BOTH:
            raise KeyError
        return tree_map_only(torch.Tensor, partial(_held, mode, args[0].device), mode.of_known(func, args, kwargs))
    make = _MAKERS.get(name)
    if make is None:
        raise RuntimeError(f"what {func} makes depends on values that only a GPU would have")
    with mode.fake:
        return make(mode, func, args, kwargs)


def _held(mode: VirtualMode, device: torch.device, value: torch.Tensor) -> torch.Tensor:
    with mode.fake:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    mode.values.hold(made, value)
    return made


def _integers(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device=like.device)


def _nonzero(mode: VirtualMode, _func: Any, args: Any, _kwargs: Any) -> torch.Tensor:
    return _integers(args[0], mode.chosen_of(args[0]), args[0].dim())


def _index(mode: VirtualMode, func: Any, args: Any, _kwargs: Any) -> Any:
    return func(args[0], [place for each in args[1] for place in _places(mode, each)])


def _places(mode: VirtualMode, index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """An index without a mask: for each dimension of one, the places that it chooses."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    with torch._C._DisableTorchDispatch():
        known = mode.values.of(index) if isinstance(index, FakeTensor) else index
        count = mode.chosen_of(index) if known is None else int(known.sum())
    return [_integers(index, count) for _ in range(index.dim())]


def _masked_select(mode: VirtualMode, _func: Any, args: Any, _kwargs: Any) -> torch.Tensor:
    tensor, mask = args
    share = mode.chosen_of(mask) / max(1, mask.numel())
    return tensor.new_empty(round(share * max(tensor.numel(), mask.numel())))  # type: ignore[no-any-return]


def _unique(mode: VirtualMode, _func: Any, args: Any, _kwargs: Any) -> Any:
    tensor, below = args[0], likely_of(args[0]).below
    size = tensor.numel() if below is None else min(tensor.numel(), int(below))
    mode.answers.note("how many distinct values the device has", "all differ" if below is None else f"{size:,}")
    return tensor.new_empty(size), _integers(tensor, *tensor.shape), _integers(tensor, size)


def _bincount(mode: VirtualMode, _func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    size = max(1, kwargs.get("minlength", args[2] if len(args) > 2 else 0), int(likely_of(args[0]).below or 0))
    mode.answers.note("how many bins a count of the device has", str(size))
    return _integers(args[0], size)


def _repeat_interleave(mode: VirtualMode, _func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    size = kwargs.get("output_size") or round(likely_of(args[0]).total or args[0].numel())
    mode.answers.note("how often the device repeats each", f"{size} in all")
    return _integers(args[0], size)


def _packed(mode: VirtualMode, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Sequences [T, B, ...], or batch first, without their padding, and how many have each place."""
    tensor, lengths, batch_first = args
    known = mode.values.of(lengths) if isinstance(lengths, FakeTensor) else lengths
    longest, count = tensor.shape[batch_first], tensor.shape[not batch_first]
    if known is None:
        mode.answers.note("lengths of sequences of the device", "all as the longest")
    with torch._C._DisableTorchDispatch():
        sizes = [longest] * count if known is None else known.tolist()
        present = torch.tensor([sum(size > place for size in sizes) for place in range(longest)], device="cpu")
    return tensor.new_empty(sum(sizes), *tensor.shape[2:]), present


def _ctc(_mode: VirtualMode, _func: Any, args: Any, _kwargs: Any) -> Any:
    """The losses of logarithms [steps, batch, classes] for labels [batch, longest] or in a row, and what they keep."""
    logs, labels = args[:2]
    steps, batch = logs.shape[:2]
    longest = labels.shape[-1] if labels.dim() > 1 else -(-labels.shape[0] // batch)
    return logs.new_empty(batch), logs.new_empty(batch, steps, 2 * longest + 1)


def _equal(mode: VirtualMode, _func: Any, _args: Any, _kwargs: Any) -> bool:
    return mode.answers.truth("whether two tensors of the device are equal", likely=True)


_MAKERS: Final[dict[str, Callable[[VirtualMode, Any, Any, Any], Any]]] = {
    "nonzero": _nonzero, "index": _index, "masked_select": _masked_select, "_unique2": _unique, "unique_dim": _unique,
    "_unique": _unique, "unique_consecutive": _unique, "bincount": _bincount, "_ctc_loss": _ctc,
    "repeat_interleave": _repeat_interleave, "_pack_padded_sequence": _packed, "equal": _equal, "allclose": _equal,
}  # fmt: skip
_ON_BOTH: Final = ("_pack_padded_sequence",)  # one of its results is the host's
