"""Results whose sizes depend on values: of the known ones where they are, else the largest that can be, said so."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.virtual.likely import likely_of
from rooflight.sources.virtual.mode import HANDLERS, Handler, VirtualMode


def sized_by_values(mode: VirtualMode, call: OpCall) -> Any:
    """The result of an op whose shape depends on values. Raises RuntimeError for an op that is not known here."""
    name = call.op._schema.name.split("::")[-1]
    with suppress(KeyError):
        if name in _ON_BOTH:
            raise KeyError
        return tree_map_only(torch.Tensor, partial(_held, mode, call.args[0].device), mode.of_known(call))
    make = _MAKERS.get(name)
    if make is None:
        raise RuntimeError(f"what {call.op} makes depends on values that only a GPU would have")
    with mode.fake:
        return make(mode, call)


def _held(mode: VirtualMode, device: torch.device, value: torch.Tensor) -> torch.Tensor:
    with mode.fake:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    mode.values.hold(made, value)
    return made


def _integers(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device=like.device)


def _nonzero(mode: VirtualMode, call: OpCall) -> torch.Tensor:
    return _integers(call.args[0], mode.chosen_of(call.args[0]), call.args[0].dim())


def _index(mode: VirtualMode, call: OpCall) -> Any:
    return call.op(call.args[0], [place for each in call.args[1] for place in _places(mode, each)])


def _places(mode: VirtualMode, index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """An index without a mask: for each dimension of one, the places that it chooses."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    with torch._C._DisableTorchDispatch():
        known = mode.values.of(index) if isinstance(index, FakeTensor) else index
        count = mode.chosen_of(index) if known is None else int(known.sum())
    return [_integers(index, count) for _ in range(index.dim())]


def _masked_select(mode: VirtualMode, call: OpCall) -> torch.Tensor:
    tensor, mask = call.args
    share = mode.chosen_of(mask) / max(1, mask.numel())
    return tensor.new_empty(round(share * max(tensor.numel(), mask.numel())))  # type: ignore[no-any-return]


def _unique(mode: VirtualMode, call: OpCall) -> Any:
    tensor, below = call.args[0], likely_of(call.args[0]).below
    size = tensor.numel() if below is None else min(tensor.numel(), int(below))
    mode.answers.note("how many distinct values the device has", "all differ" if below is None else f"{size:,}")
    return tensor.new_empty(size), _integers(tensor, *tensor.shape), _integers(tensor, size)


def _bincount(mode: VirtualMode, call: OpCall) -> torch.Tensor:
    size = max(1, call.option("minlength", 2, 0), int(likely_of(call.args[0]).below or 0))
    mode.answers.note("how many bins a count of the device has", str(size))
    return _integers(call.args[0], size)


def _repeat_interleave(mode: VirtualMode, call: OpCall) -> torch.Tensor:
    size = call.kwargs.get("output_size") or round(likely_of(call.args[0]).total or call.args[0].numel())
    mode.answers.note("how often the device repeats each", f"{size} in all")
    return _integers(call.args[0], size)


def _packed(mode: VirtualMode, call: OpCall) -> Any:
    """Sequences [T, B, ...], or batch first, without their padding, and how many have each place."""
    tensor, lengths, batch_first = call.args
    known = mode.values.of(lengths) if isinstance(lengths, FakeTensor) else lengths
    longest, count = tensor.shape[batch_first], tensor.shape[not batch_first]
    if known is None:
        mode.answers.note("lengths of sequences of the device", "all as the longest")
    with torch._C._DisableTorchDispatch():
        sizes = [longest] * count if known is None else known.tolist()
        present = torch.tensor([sum(size > place for size in sizes) for place in range(longest)], device="cpu")
    return tensor.new_empty(sum(sizes), *tensor.shape[2:]), present


def _padded(mode: VirtualMode, call: OpCall) -> Any:
    """Sequences with their padding again, and their lengths, which the sizes of batches on the host say."""
    data, sizes, batch_first, _, least = call.args
    if isinstance(sizes, FakeTensor) or not isinstance(data, FakeTensor):
        return NotImplemented
    count, longest = int(sizes[0]), max(least, len(sizes))
    lengths = (sizes[None, :] > torch.arange(count, device="cpu")[:, None]).sum(1)
    with mode.fake:
        shape = (count, longest) if batch_first else (longest, count)
        return data.new_empty(*shape, *data.shape[1:]), lengths


def _ctc(mode: VirtualMode, call: OpCall) -> Any:
    """The losses of logarithms [steps, batch, classes] for labels [batch, longest] or in a row, and what they keep."""
    logs, labels = call.args[:2]
    if not isinstance(logs, FakeTensor):
        return NotImplemented
    steps, batch = logs.shape[:2]
    longest = labels.shape[-1] if labels.dim() > 1 else -(-labels.shape[0] // batch)
    with mode.fake:
        return logs.new_empty(batch), logs.new_empty(batch, steps, 2 * longest + 1)


def _equal(mode: VirtualMode, call: OpCall) -> bool:
    if all(each.dtype is torch.bool and each.numel() == 1 for each in call.tensors):  # so C++ asks for a truth
        one, other = (mode.value_of(each) for each in call.tensors)
        return bool(one == other)
    return mode.answers.truth("whether two tensors of the device are equal", likely=True)


_MAKERS: Final[dict[str, Handler]] = {
    "nonzero": _nonzero, "index": _index, "masked_select": _masked_select, "_unique2": _unique, "unique_dim": _unique,
    "_unique": _unique, "unique_consecutive": _unique, "bincount": _bincount,
    "repeat_interleave": _repeat_interleave, "_pack_padded_sequence": _packed, "equal": _equal, "allclose": _equal,
}  # fmt: skip
_ON_BOTH: Final = ("_pack_padded_sequence",)  # one of its results is the host's
HANDLERS[torch.ops.aten._pad_packed_sequence.default] = _padded
HANDLERS[torch.ops.aten._ctc_loss.default] = HANDLERS[torch.ops.aten._ctc_loss.Tensor] = _ctc
