"""What stands in the place of torch's own functions while a recording is open, since no mode of torch's sees the calls.

- ``Tensor.numpy()``, which ``numpy.asarray`` calls too: the memory of a tensor cannot be resized after it, as if torch
  had not allocated it, so the tape must know that storage beforehand.
- ``storage.resize_()``, by which FSDP frees memory.
- The context that DTensor enters for ops on fake tensors, one for each new call, to find the shape of its result
  (``ShardingPropagator._fake_mode_lock``, which torch has for its own tests). They are no part of the program.
- Dynamo's stance: threads that record run the original code of compiled functions, and a stance that the program sets
  meanwhile is that of the others, and of all after the recording.
- The kernels of composites (``composites``).
- The contexts of autocast (``autocast``).
"""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager
from functools import wraps
from threading import RLock, get_ident, local
from types import TracebackType
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflight.sources.capture.record.autocast import close_autocast, open_autocast
from rooflight.sources.capture.record.composites import Source, open_sources, route_composites, unroute_composites
from rooflight.sources.capture.record.dispatch import DispatchSource

_HOOKS_WARNING: Final = "Using `torch.compile\\(module\\)` when there are global hooks"  # Rooflight's hooks do no harm
IN_COMPILED: Final = (
    "rooflight.record() inside a function that torch.compile compiled: record around the call of the compiled "
    "function, or put torch.compiler.disable on the function that records"
)

_lock = RLock()  # a recording that is thrown away may end inside
_open: dict[int, DispatchSource] = {}  # by id
_eager: dict[int, int] = {}  # threads that run compiled functions eagerly, by the id of the source


def patch(source: DispatchSource, *, compiled_eagerly: bool) -> None:
    """Put everything in place for a recording that begins. Without ``compiled_eagerly``, Dynamo is left alone. Where
    DTensor is loaded later, inside the recording, its ops on fake tensors are recorded. Raises RuntimeError where
    compiled code runs.
    """
    with _lock:
        _open[id(source)] = source
        open_autocast(source)
        route_composites()
        for kind, name, ours in _METHODS:
            if kind.__dict__.get(name) is not ours:
                _theirs[name] = kind.__dict__.get(name)
                setattr(kind, name, ours)
        propagator = _propagator()
        if propagator is not None and not isinstance(propagator._fake_mode_lock, _LookingAway):
            propagator._fake_mode_lock = _LookingAway(propagator._fake_mode_lock)
        if compiled_eagerly:
            from torch._dynamo import decorators as setters
            from torch._dynamo import eval_frame

            _eager[id(source)] = source.thread
            if not isinstance(eval_frame._stance, _EagerWhereRecorded):
                warnings.filterwarnings("ignore", _HOOKS_WARNING)
                try:
                    eval_frame._set_stance(_EagerWhereRecorded(eval_frame._stance))  # type: ignore[arg-type]
                except RuntimeError as error:  # torch refuses it where compiled code runs
                    raise RuntimeError(IN_COMPILED) from error
                setters._set_stance = _beneath_ours  # type: ignore[attr-defined]


def unpatch(source: DispatchSource) -> None:
    """Undo ``patch``, also half of it; the last recording to do so leaves torch as it was."""
    with _lock:
        _eager.pop(id(source), None)
        eval_frame = sys.modules.get("torch._dynamo.eval_frame")
        if not _eager and eval_frame is not None:
            for entry in [entry for entry in warnings.filters if getattr(entry[1], "pattern", "") == _HOOKS_WARNING]:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]
            if isinstance(eval_frame._stance, _EagerWhereRecorded):
                eval_frame._set_stance(eval_frame._stance.prior)
            decorators: Any = sys.modules["torch._dynamo.decorators"]
            if decorators._set_stance is _beneath_ours:
                decorators._set_stance = eval_frame._set_stance
        close_autocast(source)
        _open.pop(id(source), None)
        if _open:
            return
        unroute_composites()
        for kind, name, ours in _METHODS:
            if kind.__dict__.get(name) is ours and _theirs[name] is None:
                delattr(kind, name)  # torch has them in base classes
            elif kind.__dict__.get(name) is ours:
                setattr(kind, name, _theirs[name])
        propagator = _propagator()
        if propagator is not None and isinstance(propagator._fake_mode_lock, _LookingAway):
            propagator._fake_mode_lock = propagator._fake_mode_lock.replaced


@wraps(torch._C.TensorBase.numpy)
def _numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not is_traceable_wrapper_subclass(self):
        for source in tuple(_open.values()):  # inside a custom op, the mode is off the stack
            try:
                if (source.thread == get_ident() and source.here) or source in open_sources():
                    source.tape.exported(self)
            except Exception as error:
                source.fail(error)
    return (_theirs["numpy"] or torch._C.TensorBase.numpy)(self, *args, **kwargs)


def _resize(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
    before = storage.nbytes()
    out = (_theirs["resize_"] or torch._C.StorageBase.resize_)(storage, *args, **kwargs)  # type: ignore[attr-defined]
    for source in tuple(_open.values()):
        source.tape.resized(storage, len(source.tape), before)
    return out


_METHODS: Final = ((torch.Tensor, "numpy", _numpy), (torch.UntypedStorage, "resize_", _resize))
_theirs: dict[str, Any] = {}  # what other tools had put in their places; None where torch's own were


class _LookingAway(local):
    """Pauses the recordings of this thread. It also enters the context that it replaces."""

    def __init__(self, replaced: AbstractContextManager[Any]) -> None:
        self.replaced = replaced
        self._sources: list[list[Source]] = []

    def __enter__(self) -> None:
        self.replaced.__enter__()
        sources = open_sources()
        for source in sources:
            source.blind += 1
        self._sources.append(sources)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for source in self._sources.pop():
            source.blind -= 1
        self.replaced.__exit__(kind, error, trace)


def _propagator() -> Any:
    found = getattr(sys.modules.get("torch.distributed.tensor._sharding_prop"), "ShardingPropagator", None)
    return found if hasattr(found, "_fake_mode_lock") else None


class _EagerWhereRecorded:
    """A stance of Dynamo's: threads that record run the original code of compiled functions, which leaves the caches of
    these as they are (pytorch issue 140909). All others run as under the ``prior`` stance.
    """

    def __init__(self, prior: Any) -> None:
        self.prior = prior

    @property
    def stance(self) -> str:
        """Dynamo's name of what to do in this thread, asked at each call of a function compiled or kept from it."""
        name: str = "force_eager" if get_ident() in tuple(_eager.values()) else self.prior.stance
        return name

    @property
    def skip_guard_eval_unsafe(self) -> bool:
        """Asked where a compiled function is called, and nowhere else."""
        for source in tuple(_open.values()):
            if id(source) in _eager and source.thread == get_ident() and source.here:
                source.compiled |= self.prior.stance != "force_eager"
        skips: bool = self.prior.skip_guard_eval_unsafe
        return skips

    def __getattr__(self, name: str) -> Any:
        return getattr(self.prior, name)


def _beneath_ours(stance: Any) -> Any:
    """``torch.compiler.set_stance`` while something records: of threads that do not. Returns the stance before."""
    eval_frame = sys.modules["torch._dynamo.eval_frame"]
    ours = eval_frame._stance
    if not isinstance(ours, _EagerWhereRecorded):
        return eval_frame._set_stance(stance)
    eval_frame._set_stance(ours)  # which torch refuses where compiled code runs
    before, ours.prior = ours.prior, stance
    return before


_beneath_ours._dynamo_forbidden = True  # type: ignore[attr-defined]  # as torch's own
