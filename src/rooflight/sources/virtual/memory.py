"""How much memory of the device a script holds: what its allocator would count, from the lifetimes of storages."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor

_BLOCK: Final = 512  # bytes to which CUDA's allocator rounds a request
_SEGMENT: Final = 2 << 20  # to which it rounds what it reserves


class _Block(weakref.ref[torch.UntypedStorage]):
    __slots__ = ("key", "nbytes")

    key: int
    nbytes: int


class Memory:
    """Bytes of fake storages on the device that are alive, and the most that were."""

    def __init__(self) -> None:
        self.allocated = self.peak = self._segments = 0
        self._blocks: dict[int, _Block] = {}

    @property
    def reserved(self) -> int:
        """What the allocator keeps: the most that was allocated since it was emptied, in whole segments."""
        self._segments = max(self._segments, self.peak)
        return -(-self._segments // _SEGMENT) * _SEGMENT

    def hold(self, tensor: torch.Tensor | None) -> None:
        """The storage of a tensor is alive; one that is known already, or is not on the device, is left."""
        if not isinstance(tensor, FakeTensor) or tensor.fake_device.type != "cuda":
            return
        key = _storage_id(tensor)
        if key in self._blocks:
            return
        storage = tensor.untyped_storage()
        block = self._blocks[key] = _Block(storage, self._free)
        block.key, block.nbytes = key, 0
        self._resize(block, storage.nbytes())

    def _resize(self, block: _Block, nbytes: int) -> None:
        rounded = -(-nbytes // _BLOCK) * _BLOCK
        self.allocated += rounded - block.nbytes
        block.nbytes = rounded
        self.peak = max(self.peak, self.allocated)

    def _free(self, block: _Block) -> None:
        self.allocated -= block.nbytes
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]

    def follow_resizes(self) -> None:
        """Notice, for the rest of the process, when a storage is given another size, as by FSDP."""
        storage: Any = torch.UntypedStorage
        resize = storage.resize_

        def resized(self_: torch.UntypedStorage, *args: Any) -> Any:
            out = resize(self_, *args)
            block = self._blocks.get(self_._cdata)
            if block is not None:
                self._resize(block, self_.nbytes())
            return out

        storage.resize_ = resized

    def answers(self, total: int) -> dict[str, Callable[[Any], Any]]:
        """What functions of ``torch.cuda`` and ``torch.accelerator`` return, of a device with ``total`` bytes."""

        def reset(_: Any) -> None:
            self.peak = self.allocated

        def empty(_: Any) -> None:
            self._segments = self.peak = self.allocated

        def statistics(_: Any) -> dict[str, int]:
            of = {"allocated": (self.allocated, self.peak), "reserved": (self.reserved, self.reserved)}
            of["active"] = of["requested"] = of["allocated"]
            return defaultdict(int, {
                f"{name}_bytes.all.{which}": pair[which == "peak"]
                for name, pair in of.items() for which in ("current", "peak")
            })  # fmt: skip

        allocated, most = lambda _: self.allocated, lambda _: self.peak
        reserved = lambda _: self.reserved  # noqa: E731
        return {
            "memory_allocated": allocated, "max_memory_allocated": most, "memory_reserved": reserved,
            "max_memory_reserved": reserved, "memory_cached": reserved, "max_memory_cached": reserved,
            "device_memory_used": reserved, "memory_stats": statistics, "empty_cache": empty,
            "mem_get_info": lambda _: (max(0, total - self.reserved), total), "reset_peak_memory_stats": reset,
            "get_memory_info": lambda _: (max(0, total - self.reserved), total),
            "reset_max_memory_allocated": reset, "reset_max_memory_cached": reset,
        }  # fmt: skip
