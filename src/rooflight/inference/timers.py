"""The active profiler, and the timers that find it without being passed it.

A timer costs a program next to nothing while no step is measured: it returns one context manager that is made of C.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rooflight.inference.config import Domain

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler


def left_out_of_graphs(of_label: Iterable[Callable[[str], Any]], without_label: Iterable[Callable[[], Any]]) -> None:
    """Have dynamo trace calls of these functions as contexts that do nothing. Without torch, nothing happens."""
    try:
        from torch.compiler import substitute_in_graph
    except ImportError:
        return
    for function in of_label:
        substitute_in_graph(function)(_of_label)
    for other in without_label:
        substitute_in_graph(other)(_without_label)


def _of_label(bucket: str) -> AbstractContextManager[None]:  # noqa: ARG001 - the signature of what it stands for
    return nullcontext()


def _without_label() -> AbstractContextManager[None]:
    return nullcontext()


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


class Labels(dict[str, Timer]):
    """The timers of one domain by label, each made when it is first asked for. A label that is no text gets none."""

    def __init__(self, make: Callable[[Domain, str], Timer], domain: Domain, on_problem: Callable[[str], None]) -> None:
        super().__init__()
        self._make = make
        self._domain = domain
        self._on_problem = on_problem

    def __missing__(self, label: object) -> Timer:
        if not isinstance(label, str) or not label:
            return self._refuse(label)
        first, _, rest = label.partition(".")
        timer = self._make(Domain(first), rest) if rest and first in _DOMAINS else self._make(self._domain, label)
        if len(self) < _MOST_LABELS:
            self[label] = timer
        return timer

    def timer(self, label: str) -> Timer:
        """The timer of a label, whatever it is."""
        try:
            return self[label]
        except TypeError:
            return self._refuse(label)

    def _refuse(self, label: object) -> Timer:
        """What is no text, or an empty one, has no timer."""
        what = "by an empty one" if label == "" else f"by {type(label).__name__}"
        self._on_problem(f"a bucket is named by a text, not {what}: it was not timed")
        return OFF  # type: ignore[no-any-return]


class NullProfiler:
    """Stands for the profiler where none is active: every call of a ``Profiler`` is there, and does nothing."""

    disabled: Final = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from rooflight.inference.profiler import Profiler

        if name.startswith("_") or not callable(getattr(Profiler, name, None)):
            raise AttributeError(f"a profiler has no call {name}")
        return _context if name in _CONTEXTS else _nothing


_CONTEXTS: Final = ("step_timing_ctx", "cuda_bucket_timer", "cpu_bucket_timer", "record_steps")


def _context(*_: Any, **__: Any) -> Timer:
    return OFF  # type: ignore[no-any-return]


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing."""


_NULL: Final = NullProfiler()
_active: Profiler | None = None
_open: tuple[Labels, Labels] | None = None  # the active profiler's, of model and engine, while it measures a step


def register_active_profiler(prof: Profiler | NullProfiler | None) -> None:
    """Let the timers of this module be those of ``prof``. One that is active already is replaced, which is logged."""
    global _active
    if _active is not None and _active is not prof:
        _log.warning("rooflight: another profiler was active: bucket timers are those of the new one from now on")
    release_active_profiler()
    if prof is not None and not isinstance(prof, NullProfiler) and not prof.disabled:
        _active = prof
        prof.activate(_publish)


def get_active_profiler() -> Profiler | NullProfiler:
    """The active profiler; a ``NullProfiler`` if there is none or it is disabled."""
    return _NULL if _active is None else _active


def release_active_profiler() -> None:
    """Let no profiler be active."""
    global _active
    if _active is not None:
        _active.activate(None)
    _active = None
    _publish(None)


_publish: Final = partial(setattr, sys.modules[__name__], "_open")  # called in each step: costs less than a function


def cuda_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the model: on CUDA the time of the device, on a CPU that of the host.

    A label may begin with its domain, ``model.`` or ``engine.``, which then counts. Off unless the active profiler
    measures a step and the domain's profiling is on.
    """
    opened = _open
    return OFF if opened is None else opened[0].timer(bucket)


def cpu_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the engine, on the host's clock; otherwise as ``cuda_bucket_timer``."""
    opened = _open
    return OFF if opened is None else opened[1].timer(bucket)


def attention_compute_timer() -> Timer:
    """Time the bucket ``attn.compute`` of the model."""
    opened = _open
    return OFF if opened is None else opened[0]["attn.compute"]


def rope_compute_timer() -> Timer:
    """Time the bucket ``attn.rope`` of the model."""
    opened = _open
    return OFF if opened is None else opened[0]["attn.rope"]


left_out_of_graphs((cuda_bucket_timer, cpu_bucket_timer), (attention_compute_timer, rope_compute_timer))
