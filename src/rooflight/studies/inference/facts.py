"""Facts of a step: the tokens, KV lengths, drafts and cache that an engine gives for it, checked and reduced.

They are read when the step's times are, since what is on a device has no value before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from rooflight.studies.inference.config import REDUCTIONS
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.speculation import UNKNOWN_DRAFTS, drafts_of

_TOO_MANY: Final = 1 << 53  # from here on floats skip whole numbers

UNBINNED: Final = "unbinned"
"""The bin of steps whose length is not known, or below the first edge."""


class LengthBins:
    """Bins between ascending edges, each with its lower edge; the last is open. After them comes ``UNBINNED``."""

    def __init__(self, edges: Sequence[int]) -> None:
        self._edges = tuple(edges)
        pairs = zip(self._edges, [*self._edges[1:], None], strict=True)
        self.ranges: tuple[tuple[int | None, int | None], ...] = (*pairs, (None, None))
        self.keys = tuple(
            UNBINNED if low is None else f"[{low},{'∞' if high is None else high})" for low, high in self.ranges
        )
        self.unbinned = len(self._edges)

    def number(self, length: float | None) -> int:
        """The number of the bin of a length."""
        if length is None or length < self._edges[0]:
            return self.unbinned
        return bisect_right(self._edges, length) - 1


def reduced(lengths: Any, reduction: str) -> float:
    """The length of a step: of a number itself, of a list, array or tensor of one dimension its reduction. Percentiles
    are interpolated linearly.

    Raises ValueError for an empty batch, more dimensions, and lengths that are negative or no numbers.
    """
    if type(lengths) is int and 0 <= lengths < _TOO_MANY:  # most often, and the fastest
        return lengths
    values = np.asarray(lengths.tolist() if hasattr(lengths, "tolist") else lengths)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"KV lengths of {values.dtype.name}: give numbers")
    if values.ndim > 1:
        raise ValueError(f"KV lengths of shape {values.shape}: give one per sequence, in one dimension")
    if not values.size:
        raise ValueError("no KV length: give one per sequence")
    if not np.isfinite(values).all() or (values < 0).any() or (values >= _TOO_MANY).any():
        raise ValueError(f"KV lengths from {values.min()} to {values.max()}: give finite lengths from 0 on")
    return float(REDUCTIONS[reduction](values))


def token_count(tokens: Any) -> int:
    """A number of tokens. Raises ValueError for what is negative, NaN, no whole number or several numbers."""
    if type(tokens) is int and 0 <= tokens < _TOO_MANY:
        return tokens
    value = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _TOO_MANY or value % 1:
        raise ValueError(f"{str(value)[:40]} tokens: give a whole number from 0 on")
    return int(value)


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


DECODE: Final = "decode"
"""The phase of steps that is in the statistics."""

OTHER_PHASES: Final = ("prefill", "mixed")
"""Steps that put a prompt into the KV cache, alone or beside sequences that are decoded. They are kept apart."""

IDLE: Final = "idle"
"""What turned out to be no step, since there was nothing to run: its time is in the gap before the next step."""

_MANY: Final = 1 << 31


@dataclass(slots=True)
class Facts:
    """What is known of a step; None where nothing was given, or what cannot be. Until ``StepFacts.read`` made them
    numbers and ``Drafts``, tokens, length, drafts and batch are what the engine gave.
    """

    tokens: Any = None
    length: Any = None
    drafts: Any = None
    batch: Any = None
    cache_bytes: int | None = None
    phase: str = DECODE


class StepFacts:
    """``given`` are the facts of the open step. ``reduction`` makes one KV length of a batch's. Never raises.

    What is set is read later, when the engine may have changed it: of a tensor a copy is made, which ``on_device`` is
    only queued.
    """

    def __init__(self, reduction: str, problems: Problems) -> None:
        self._reduction, self._problems = reduction, problems
        self.given = Facts()
        self.on_device = False

    def take(self) -> Facts:
        """The facts of the step that ends; the next has none yet."""
        given, self.given = self.given, Facts()
        return given

    def set(self, name: str, value: Any) -> None:
        """The accepted ``tokens``, the sequences (``batch``), or the KV ``length`` of the step or of each of them."""
        setattr(self.given, name, value if type(value) is int else self._copied(value))  # most often, and the fastest

    def set_drafts(self, proposed: Any, accepted: Any, depth: Any = None) -> None:
        """Draft tokens, as ``drafts_of`` has them."""
        self.given.drafts = self._copied(proposed), self._copied(accepted), self._copied(depth)

    def set_phase(self, phase: str) -> None:
        """The step is of a phase."""
        if phase in (DECODE, IDLE, *OTHER_PHASES):
            self.given.phase = phase
        else:
            self._problems.note(f"set_step_phase: {str(phase)[:40]!r} is no phase: give decode, prefill, mixed or idle")

    def set_cache(self, cache: Any) -> None:
        """The KV cache as it is now."""
        self.given.cache_bytes = self._read("set_step_kv_cache", cache_bytes, cache)

    def _copied(self, value: Any) -> Any:
        try:
            if self.on_device and getattr(value, "is_cuda", False):
                return value.detach().to("cpu", non_blocking=True)
            return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, list) else value
        except Exception as error:
            self._problems.error("set_step", error)
            return None

    def read(self, given: Facts, batch: int | None) -> Facts:
        """Check what is known of a step, in place. ``batch`` is that of a step which gives none; if it is None too,
        there are as many sequences as KV lengths, where these are several.
        """
        tokens, length, drafts = given.tokens, given.length, given.drafts
        if given.batch is not None:
            batch = self._read("set_step_batch", batch_size, given.batch) or batch
        elif batch is None:
            batch = _sequences(length)
        given.batch = batch
        if drafts is None and type(tokens) is type(length) is int and 0 <= tokens < _MANY and 0 <= length < _MANY:
            return given  # most often, and the fastest
        found = self._read("set_step_speculation", lambda each: drafts_of(*each, batch=batch), drafts)
        count = self._read("set_step_tokens", token_count, tokens)
        if found and count is not None and count > sum(found.accepted) + len(found.accepted):
            self._problems.note(
                "set_step_tokens: more tokens than draft tokens accepted and one per sequence: give sequences without "
                "a draft to set_step_speculation too, with 0 proposed"
            )
        if batch is not None and isinstance(length, list) and len(length) > batch:
            self._problems.note(
                f"set_step_seq_len: {len(length)} KV lengths for a batch of {batch}: "
                "give set_step_batch() the sequences of the step, or begin_run() those of every step of the run"
            )
        given.tokens = count
        given.length = self._read("set_step_seq_len", lambda each: reduced(each, self._reduction), length)
        given.drafts = UNKNOWN_DRAFTS if drafts is not None and found is None else found
        return given

    def _read(self, call: str, reader: Any, value: Any) -> Any:
        try:
            return None if value is None else reader(value)
        except Exception as error:
            self._problems.note(f"{call}: {error}")
            return None


def batch_size(batch: Any) -> int:
    """A number of sequences. Raises ValueError for 0, and as ``token_count`` does."""
    sequences = token_count(batch)
    if not sequences:
        raise ValueError("a batch of 0 sequences: give a whole number from 1 on")
    return sequences


def _sequences(lengths: Any) -> int | None:
    one_each = isinstance(lengths, list) or getattr(lengths, "ndim", 0) == 1
    return len(lengths) or None if one_each else None
