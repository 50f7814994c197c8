"""Memory over a run: bytes of the KV cache step by step, and those of the process at both ends of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from rooflight.machine.memory import Memory
from rooflight.records.document import Fields

_DEPTH: Final = 6  # levels: an encoder's and a decoder's cache, each with layers, which have tensors or lists of them


class MemoryData(Fields, frozen=True, kw_only=True):
    """Memory of the process, on the ``host`` (resident) or the ``device`` (torch's tensors), when runs began and ended.
    ``peak_bytes`` is the process's until then; ``peak_in_run``: it rose while they ran, else it is older.
    """

    place: str
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    peak_in_run: bool


class KvCacheData(Fields, frozen=True, kw_only=True):
    """Bytes of the KV cache over the steps that told them (``set_step_kv_cache``): their number, mean, most, last."""

    steps: int
    mean_bytes: float
    max_bytes: int
    last_bytes: int


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
class KvCacheUse:
    """The bytes of a KV cache over steps that told them."""

    steps: int = 0
    sum_bytes: int = 0
    most_bytes: int = 0
    last_bytes: int = 0

    def add(self, found: int) -> None:
        """One more step."""
        self.steps += 1
        self.sum_bytes += found
        self.most_bytes = max(self.most_bytes, found)
        self.last_bytes = found

    def merge(self, later: KvCacheUse) -> None:
        """The steps of both."""
        self.steps += later.steps
        self.sum_bytes += later.sum_bytes
        self.most_bytes = max(self.most_bytes, later.most_bytes)
        self.last_bytes = later.last_bytes if later.steps else self.last_bytes

    def data(self) -> KvCacheData | None:
        """As a summary has it; None where no step told it."""
        if not self.steps:
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
