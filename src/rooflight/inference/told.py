"""What an engine says of the open step: tokens, KV lengths, drafts.

It is read when the step's times are, since what is on a device has no value before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rooflight.inference.drafts import UNKNOWN_DRAFTS, Drafts, drafts_of
from rooflight.inference.kv_length import reduced, token_count
from rooflight.inference.memory_use import cache_bytes
from rooflight.inference.problems import Problems

DECODE: Final = "decode"
"""The phase of steps that is in the statistics."""

OTHER_PHASES: Final = ("prefill", "mixed")
"""Steps that put a prompt into the KV cache, alone or beside sequences that are decoded. They are kept apart."""

IDLE: Final = "idle"
"""What turned out to be no step, since there was nothing to run: its time is in the gap before the next step."""

_MANY: Final = 1 << 31


class Facts(NamedTuple):
    """What is known of a step; None where nothing was said, or what cannot be."""

    tokens: int | None = None
    length: float | None = None
    drafts: Drafts | None = None
    phase: str = DECODE
    cache_bytes: int | None = None
    batch: int | None = None


@dataclass(slots=True)
class Said:
    """What was said of a step, as it was said; None where nothing was."""

    tokens: Any = None
    length: Any = None
    drafts: Any = None
    batch: Any = None
    cache_bytes: int | None = None
    phase: str = DECODE


class Told:
    """``said`` is of the open step. ``reduction`` makes one KV length of a batch's. Never raises."""

    def __init__(self, reduction: str, problems: Problems) -> None:
        self._reduction, self._problems = reduction, problems
        self.said = Said()

    def take(self) -> Said:
        """What was said of the step that ends; nothing was said of the next."""
        said, self.said = self.said, Said()
        return said

    def set_phase(self, phase: str) -> None:
        """The step is of a phase."""
        if phase in (DECODE, IDLE, *OTHER_PHASES):
            self.said.phase = phase
        else:
            self._problems.note(f"set_step_phase: {str(phase)[:40]!r} is no phase: give decode, prefill, mixed or idle")

    def set_cache(self, cache: Any) -> None:
        """The KV cache as it is now."""
        self.said.cache_bytes = self._read("set_step_kv_cache", cache_bytes, cache)

    def copied(self, value: Any, *, on_device: bool) -> Any:
        """A value to be read later, when the engine may have changed it: of a tensor a copy, which on a device is only
        queued.
        """
        try:
            if on_device and getattr(value, "is_cuda", False):
                return value.detach().to("cpu", non_blocking=True)
            return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, list) else value
        except Exception as error:
            self._problems.error("set_step", error)
            return None

    def read(self, said: Said, batch: int | None) -> Facts:
        """What is known of a step, from what was said of it. ``batch`` is that of a step of which none was said; if it
        is None too, there are as many sequences as KV lengths, where these are several.
        """
        tokens, length, drafts = said.tokens, said.length, said.drafts
        if said.batch is not None:
            batch = self._read("set_step_batch", _batch_size, said.batch) or batch
        elif batch is None:
            batch = _sequences(length)
        if drafts is None and type(tokens) is type(length) is int and 0 <= tokens < _MANY and 0 <= length < _MANY:
            return Facts(tokens, length, None, said.phase, said.cache_bytes, batch)  # most often, and the fastest
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
        return Facts(
            tokens=count,
            length=self._read("set_step_seq_len", lambda each: reduced(each, self._reduction), length),
            drafts=UNKNOWN_DRAFTS if drafts is not None and found is None else found,
            phase=said.phase,
            cache_bytes=said.cache_bytes,
            batch=batch,
        )

    def _read(self, call: str, reader: Any, value: Any) -> Any:
        try:
            return None if value is None else reader(value)
        except Exception as error:
            self._problems.note(f"{call}: {error}")
            return None


def _batch_size(batch: Any) -> int:
    sequences = token_count(batch)
    if not sequences:
        raise ValueError("a batch of 0 sequences: give a whole number from 1 on")
    return sequences


def _sequences(lengths: Any) -> int | None:
    """How many sequences have these KV lengths, where there is one each."""
    one_each = isinstance(lengths, list) or getattr(lengths, "ndim", 0) == 1
    return len(lengths) or None if one_each else None
