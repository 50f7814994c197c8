"""The active profiler, and the timers that find it without being passed it.

A timer costs a program next to nothing while no step is measured: it returns one context manager that is made of C.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from rooflight.inference.compiled import left_out_of_graphs
from rooflight.inference.config import Domain

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler

_log = logging.getLogger("rooflight")


class _Off:
    """Does nothing. A method in Python would take longer than all the rest of a timer that is off: ``"".format`` takes
    any arguments and returns what is false, so that exceptions pass.
    """

    __slots__ = ()
    __enter__ = __exit__ = "".format


OFF: Final[Any] = _Off()
"""The timer that is off."""

Timer = AbstractContextManager[object]


_DOMAINS: Final = tuple(Domain)
_MOST_LABELS: Final = 1024


class NullProfiler:
    """Stands for the profiler where none is active: every call of a ``Profiler`` is there, and does nothing."""

    disabled: Final = True

    def begin_run(self, *, bsz: int = 1, label: str = "decode") -> None:
        """Nothing."""

    def end_run(self) -> None:
        """Nothing."""

    def step_timing_ctx(self) -> Timer:
        """A context that measures nothing."""
        return OFF  # type: ignore[no-any-return]

    def set_step_tokens(self, n: Any) -> None:
        """Nothing."""

    def set_step_seq_len(self, kv_len: Any) -> None:
        """Nothing."""

    def set_step_speculation(self, proposed: Any, accepted: Any, depth: Any = None) -> None:
        """Nothing."""

    def begin_request(self, request_id: Hashable, prompt_tokens: int | None = None) -> None:
        """Nothing."""

    def request_tokens(self, request_id: Hashable, n: Any = 1) -> None:
        """Nothing."""

    def end_request(self, request_id: Hashable) -> None:
        """Nothing."""

    def set_step_phase(self, phase: str) -> None:
        """Nothing."""

    def cuda_bucket_timer(self, bucket: str) -> Timer:  # noqa: ARG002
        """A context that measures nothing."""
        return OFF  # type: ignore[no-any-return]

    cpu_bucket_timer = cuda_bucket_timer

    def attach_model(self, model: Any, use_gated_lora: bool = False) -> None:
        """Nothing is put into the model."""

    def detach(self) -> None:
        """Nothing."""

    def save_config(self, extra: Mapping[str, Any] | None = None) -> None:
        """Nothing is written."""

    def save_all(self) -> None:
        """Nothing is written."""


_NULL: Final = NullProfiler()
_active: Profiler | None = None
_of_model: Any = None  # what gives the active profiler's timers by label; None while it measures no step
_of_engine: Any = None


def register_active_profiler(prof: Profiler | NullProfiler | None) -> None:
    """Let the timers of this module be those of ``prof``. One that is active already is replaced, which is logged."""
    global _active
    if _active is not None and _active is not prof:
        _log.warning("rooflight: another profiler was active: bucket timers are those of the new one from now on")
    release_active_profiler()
    if prof is not None and not isinstance(prof, NullProfiler) and not prof.disabled:
        _active = prof
        prof.activate(_set)


def get_active_profiler() -> Profiler | NullProfiler:
    """The active profiler; a ``NullProfiler`` if there is none or it is disabled."""
    return _NULL if _active is None else _active


def release_active_profiler() -> None:
    """Let no profiler be active."""
    global _active
    if _active is not None:
        _active.activate(None)
    _active = None
    _set(None, None)


def _set(of_model: Any, of_engine: Any) -> None:
    global _of_model, _of_engine
    _of_model, _of_engine = of_model, of_engine


def cuda_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the model: on CUDA the time of the device, on a CPU that of the host.

    A label may begin with its domain, ``model.`` or ``engine.``, which then counts. Off unless the active profiler
    measures a step and the domain's profiling is on.
    """
    return OFF if _of_model is None else _of_model(bucket)  # type: ignore[no-any-return]


def cpu_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the engine, on the host's clock; otherwise as ``cuda_bucket_timer``."""
    return OFF if _of_engine is None else _of_engine(bucket)  # type: ignore[no-any-return]


def attention_compute_timer() -> Timer:
    """Time the bucket ``attn.compute`` of the model."""
    return OFF if _of_model is None else _of_model("attn.compute")  # type: ignore[no-any-return]


def rope_compute_timer() -> Timer:
    """Time the bucket ``attn.rope`` of the model."""
    return OFF if _of_model is None else _of_model("attn.rope")  # type: ignore[no-any-return]


left_out_of_graphs((cuda_bucket_timer, cpu_bucket_timer), (attention_compute_timer, rope_compute_timer))


class Labels:
    """The timers of one domain by label. Never raises: a label that is no text gets no timer."""

    def __init__(self, make: Callable[[Domain, str], Timer], domain: Domain, on_problem: Callable[[str], None]) -> None:
        self._make = make
        self._domain = domain
        self._on_problem = on_problem
        self._known: dict[str, Timer] = {}

    def find(self, label: str) -> Timer:
        """The timer of a label."""
        try:
            return self._known[label]
        except (KeyError, TypeError):
            return self._new(label)

    def forget(self) -> None:
        """Make all timers anew: those there are belong to another clock."""
        self._known.clear()

    def _new(self, label: object) -> Timer:
        if not isinstance(label, str) or not label:
            self._on_problem(f"a bucket is named by a text, not by {type(label).__name__}: it was not timed")
            return OFF  # type: ignore[no-any-return]
        first, _, rest = label.partition(".")
        timer = self._make(Domain(first), rest) if rest and first in _DOMAINS else self._make(self._domain, label)
        if len(self._known) < _MOST_LABELS:
            self._known[label] = timer
        return timer
