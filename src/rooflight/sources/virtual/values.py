"""What fake tensors hold, where that is known, and what is answered where it is not.

A value is known where a script moved it to the device, or made it of known ones: counters, scales, positions, masks,
labels of random states. It belongs to a storage, so that all views of it are right by construction: the real bytes lie
beside the fake storage, and an op whose inputs are all known runs on them too. An op that writes anything else into a
storage makes it unknown. Only small ones are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.multiprocessing.reductions import StorageWeakRef

from rooflight.records.account import Place
from rooflight.records.timeline import Assumed
from rooflight.sources.capture.run.callers import calling_line, calling_place, while_loop

MOST_INTEGERS: Final = 1 << 22
MOST_FLOATS: Final = 1 << 16
_SWEEP: Final = 4096  # storages held between looking for those that are gone
_PATIENCE: Final = 100  # times that a line may ask before its loop is looked at, and times between its answers


class _Held(NamedTuple):
    storage: StorageWeakRef  # keeps the fake storage's address from being used again
    real: torch.UntypedStorage


class Values:
    """The bytes of fake storages, where they are known."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._sweep_at = _SWEEP

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return _storage_id(tensor) in self._held

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor on the CPU that shares the known bytes of a fake one, None where these are unknown."""
        held = self._held.get(_storage_id(tensor))
        return None if held is None else _seen_as(tensor, held.real)

    def hold(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """``tensor``, fake, which covers its storage, holds what ``real`` does."""
        storage = torch.UntypedStorage(tensor.untyped_storage().nbytes())
        _seen_as(tensor, storage).copy_(real)
        self._keep(tensor, storage)

    def begin(self, tensor: torch.Tensor) -> None:
        """The storage of ``tensor`` is about to be overwritten with known values."""
        self._keep(tensor, torch.UntypedStorage(tensor.untyped_storage().nbytes()).fill_(0))  # type: ignore[attr-defined]

    def forget(self, tensor: torch.Tensor) -> None:
        """What the storage of ``tensor`` holds is unknown from here on."""
        self._held.pop(_storage_id(tensor), None)

    def _keep(self, tensor: torch.Tensor, real: torch.UntypedStorage) -> None:
        if len(self._held) >= self._sweep_at:
            gone = [key for key, held in self._held.items() if held.storage.expired()]
            for key in gone:
                del self._held[key]
            self._sweep_at = len(self._held) + _SWEEP
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = _Held(StorageWeakRef(storage), real)


def _seen_as(tensor: torch.Tensor, real: torch.UntypedStorage) -> torch.Tensor:
    """What a tensor would be if its storage were ``real``."""
    view = torch.empty(0, dtype=tensor.dtype, device="cpu")
    view.set_(real, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        view = view.conj()
    return torch._neg_view(view) if tensor.is_neg() else view


def is_small(tensor: torch.Tensor) -> bool:
    """Whether its values are worth keeping."""
    dtype = tensor.dtype
    return tensor.numel() <= (MOST_FLOATS if dtype.is_floating_point or dtype.is_complex else MOST_INTEGERS)


def covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage, each byte once."""
    size = tensor.numel() * tensor.element_size()
    return size == tensor.untyped_storage().nbytes() and is_non_overlapping_and_dense_or_false(tensor)


class Answers:
    """What was answered where a value does not exist: counted by question, answer and line."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str, Place]] = Counter()
        self._asked: Counter[str] = Counter()  # by line
        self._loops: dict[str, FrameType] = {}

    def __iter__(self) -> Iterator[Assumed]:
        for (what, answer, where), times in self._times.most_common():
            yield Assumed(what=what, answer=answer, times=times, where=where)

    def note(self, what: str, answer: str) -> None:
        """Something was assumed for the line of the script that runs."""
        self._times[what, answer, calling_place()] += 1

    def truth(self, what: str, *, likely: bool) -> bool:
        """A yes or no that only the device could give. Raises RuntimeError where neither ends a loop, with the line."""
        answer = likely is not self._is_stuck(what)
        self.note(what, str(answer))
        return answer

    def number(self, tensor: torch.Tensor, likely: float | None) -> Any:
        """One number that only the device has: what is likely, else 1, which is finite, positive and a divisor."""
        what = "a number of the device"
        answer = 0 if self._is_stuck(what) else 1 if likely is None else round(likely)
        self.note(what, f"{answer:,}")
        kind = float if tensor.dtype.is_floating_point else complex if tensor.dtype.is_complex else int
        return kind(answer)

    def _is_stuck(self, what: str) -> bool:
        """Whether the line asks on and on in one ``while`` loop, which then waits for another answer."""
        where = calling_line()
        asked = self._asked[where] = self._asked[where] + 1
        if asked <= _PATIENCE:
            return False
        loop = while_loop()
        if loop is None or loop is not self._loops.setdefault(where, loop):
            del self._asked[where]
            self._loops.pop(where, None)
            return False
        if asked > 3 * _PATIENCE:
            raise RuntimeError(
                f"{where} asks again and again for {what}, which only a GPU has, and no answer ends its loop: limit it"
            )
        return asked > 2 * _PATIENCE
