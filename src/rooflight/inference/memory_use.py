"""Memory over a run: bytes of the KV cache step by step, and those of the process at both ends of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from rooflight.inference.summary_sections import KvCacheData, MemoryData
from rooflight.inference.sums import Sums
from rooflight.machine.memory import Memory

_DEPTH: Final = 6  # levels: an encoder's and a decoder's cache, each with layers, which have tensors or lists of them


def cache_bytes(cache: Any) -> int:
    """Bytes of a KV cache: of a number itself, of anything else those of the storages of all tensors found in it
    (transformers' caches, tensors, containers of them), each once.

    Nothing is read of the tensors but sizes. Weights of modules are no cache. Raises ValueError for a negative or
    broken number, and where there is no tensor.
    """
    if isinstance(cache, int) and not isinstance(cache, bool):
        if cache < 0:
            raise ValueError(f"a KV cache of {cache} bytes: give a number from 0 on, or the cache")
        return cache
    storages: dict[int, int] = {}
    level: list[Any] = [cache]
    for _ in range(_DEPTH):
        inside: list[Any] = []
        for value in level:
            kind = _kinds.get(type(value)) or _kind_of(type(value))
            if kind is _TENSOR:
                storage = value.untyped_storage()
                storages[storage._cdata] = storage.nbytes()
            elif kind is _ITEMS:
                inside.extend(value)
            elif kind is not _NOTHING:
                inside.extend((value if kind is _VALUES else vars(value)).values())
        level = inside
    if not storages:
        raise ValueError(f"no tensor in a {type(cache).__name__}: give the cache, or its bytes as a whole number")
    return sum(storages.values())


_TENSOR, _ITEMS, _VALUES, _ATTRIBUTES, _NOTHING = "tensor", "items", "values", "attributes", "nothing"
_kinds: Final[dict[type, str]] = {}  # an engine tells its cache in each step
_MOST_KINDS: Final = 1024


def _kind_of(kind: type) -> str:
    """How to look for tensors in objects of a class."""
    found = _NOTHING
    if hasattr(kind, "untyped_storage"):
        found = _TENSOR
    elif issubclass(kind, Mapping):
        found = _VALUES
    elif issubclass(kind, list | tuple):
        found = _ITEMS
    elif kind.__dictoffset__ and not issubclass(kind, type | ModuleType) and not hasattr(kind, "named_parameters"):
        found = _ATTRIBUTES
    if len(_kinds) < _MOST_KINDS:
        _kinds[kind] = found
    return found


@dataclass(slots=True)
class KvCacheUse(Sums):
    """The bytes of a KV cache over steps that told them; ``last_bytes`` is None before the first."""

    steps: int = 0
    sum_bytes: int = 0
    most_bytes: int = field(default=0, metadata={"add": max})
    last_bytes: int | None = field(default=None, metadata={"add": lambda mine, later: mine if later is None else later})

    def add(self, found: int) -> None:
        """One more step."""
        self.merge(KvCacheUse(1, found, found, found))

    def data(self) -> KvCacheData | None:
        """As a summary has it; None where no step told it."""
        if self.last_bytes is None:
            return None
        return KvCacheData(
            steps=self.steps,
            mean_bytes=self.sum_bytes / self.steps,
            max_bytes=self.most_bytes,
            last_bytes=self.last_bytes,
        )


def memory_data(place: str, before: Memory | None, after: Memory | None) -> MemoryData | None:
    """Memory at both ends of a run; None where it is not known."""
    if before is None or after is None:
        return None
    return MemoryData(
        place=place,
        before_bytes=before.held_bytes,
        after_bytes=after.held_bytes,
        peak_bytes=after.peak_bytes,
        peak_in_run=after.peak_bytes > before.peak_bytes,
    )


def over_runs(runs: Iterable[MemoryData | None]) -> MemoryData | None:
    """From the begin of the first run to the end of the last; None where one is not known, or was elsewhere."""
    known = [run for run in runs if run is not None]
    if not known or len({run.place for run in known}) > 1:
        return None
    return MemoryData(
        place=known[0].place,
        before_bytes=known[0].before_bytes,
        after_bytes=known[-1].after_bytes,
        peak_bytes=max(run.peak_bytes for run in known),
        peak_in_run=any(run.peak_in_run for run in known),
    )
