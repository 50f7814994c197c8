"""How much memory of the device a script holds: what its allocator would count, from the lifetimes of storages."""

from __future__ import annotations

import os
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.records.account import Place
from rooflight.records.record import Held, Owner, PhaseMemory
from rooflight.roofline.memory.allocator import Allocator, Block
from rooflight.sources.capture.holders import Holders
from rooflight.sources.capture.run.callers import calling_place

_MORE: Final = 1.005  # times the peak that was looked at last: the next one
_SETTINGS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class _Held(weakref.ref[torch.UntypedStorage]):
    __slots__ = ("block", "key", "nbytes", "where")

    key: int
    nbytes: int
    where: Place
    block: Block


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the indices and values of a sparse one."""
    names = ("_indices", "_values") if tensor.is_sparse else ("values", "crow_indices", "col_indices")
    for name in names:
        with suppress(RuntimeError):  # of blocks, or by columns
            yield getattr(tensor, name)()


class Memory:
    """Memory of fake storages on the device. ``phase`` names what the script does; of each phase the most is kept."""

    def __init__(self) -> None:
        settings = next(filter(None, map(os.environ.get, _SETTINGS)), "").lower()
        split = re.search(r"max_split_size_mb:(\d+)", settings)
        limit = {"max_split": int(split[1]) << 20} if split else {}
        self.allocator = Allocator(expandable="expandable_segments:true" in settings, **limit)
        self.phase: Callable[[], str] = str
        self.phases: dict[str, PhaseMemory] = {}
        self._held: dict[int, _Held] = {}
        self._by_place: Counter[Place] = Counter()

    def hold(self, tensor: torch.Tensor | None) -> None:
        """The storage of a tensor is alive; one that is known already, or is not on the device, is left."""
        if not isinstance(tensor, FakeTensor) or tensor.fake_device.type != "cuda":
            return
        if tensor.layout is not torch.strided:
            for each in parts_of(tensor):
                self.hold(each)
            return
        key = _storage_id(tensor)
        if key not in self._held:
            storage = tensor.untyped_storage()
            held = self._held[key] = _Held(storage, self._free)
            held.key, held.where = key, calling_place()
            self._allocate(held, storage.nbytes())

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is on the device."""
        return storage._cdata in self._held

    def now(self) -> tuple[int, int]:
        """Bytes that storages asked for, and how many those are."""
        return sum(each.nbytes for each in self._held.values()), len(self._held)

    def standing(self) -> Holders:
        """What is alive, with the lines that made it, and without names."""
        found = Holders()
        for held in list(self._held.values()):
            storage = held()
            if storage is not None:
                found.storages.append(storage)
                found.places[storage._cdata] = held.where
        return found

    def _allocate(self, held: _Held, nbytes: int) -> None:
        held.block = self.allocator.allocate(nbytes) if nbytes else Block(0, 0, small=True)
        held.nbytes = nbytes
        self._by_place[held.where] += held.block.size
        phase, allocated = self.phase(), self.allocator.allocated
        known = self.phases.get(phase)
        if known is None or allocated > _MORE * known.allocated_bytes:
            rows = tuple(Held(bytes=size, owner=Owner(where=where)) for where, size in self._by_place.items() if size)
            self.phases[phase] = PhaseMemory(
                phase=phase,
                allocated_bytes=allocated,
                reserved_bytes=self.allocator.reserved,
                where=held.where,
                rows=rows,
            )

    def _free(self, held: _Held) -> None:
        self._by_place[held.where] -= held.block.size
        if held.block.size:
            self.allocator.release(held.block)
        if self._held.get(held.key) is held:
            del self._held[held.key]

    def follow_resizes(self) -> None:
        """Notice, for the rest of the process, when a storage is given another size, as by FSDP."""
        storage: Any = torch.UntypedStorage
        resize = storage.resize_

        def resized(self_: torch.UntypedStorage, *args: Any) -> Any:
            out = resize(self_, *args)
            held = self._held.get(self_._cdata)
            if held is not None:
                self._free(held)
                self._held[held.key] = held
                self._allocate(held, self_.nbytes())
            return out

        storage.resize_ = resized

    def answers(self, total: int) -> dict[str, Callable[[Any], Any]]:
        """What functions of ``torch.cuda`` and ``torch.accelerator`` return, of a device with ``total`` bytes."""
        of = self.allocator

        def reset(_: Any) -> None:
            of.peak, of.peak_reserved = of.allocated, of.reserved

        def statistics(_: Any) -> dict[str, int]:
            known = {"allocated": (of.allocated, of.peak), "reserved": (of.reserved, of.peak_reserved)}
            known["active"] = known["requested"] = known["allocated"]
            return defaultdict(int, {
                f"{name}_bytes.all.{which}": pair[which == "peak"]
                for name, pair in known.items() for which in ("current", "peak")
            })  # fmt: skip

        reserved, most_reserved = lambda _: of.reserved, lambda _: of.peak_reserved
        return {
            "memory_allocated": lambda _: of.allocated, "max_memory_allocated": lambda _: of.peak,
            "memory_reserved": reserved, "max_memory_reserved": most_reserved,
            "memory_cached": reserved, "max_memory_cached": most_reserved,
            "device_memory_used": reserved, "memory_stats": statistics, "empty_cache": lambda _: of.empty(),
            "mem_get_info": lambda _: (max(0, total - of.reserved), total), "reset_peak_memory_stats": reset,
            "get_memory_info": lambda _: (max(0, total - of.reserved), total),
            "reset_max_memory_allocated": reset, "reset_max_memory_cached": reset,
        }  # fmt: skip
