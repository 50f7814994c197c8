"""Collectives in buckets of their own, while a profiler is attached to a model.

Three ways lead to a collective, and each is timed at its last function in Python, so that it does not matter where a
program got the function from that it calls:

- ``torch.distributed.all_reduce`` and its like, also those of objects and of ``_into_tensor``: methods of
  ``ProcessGroup``. A synchronous call is one call of the bucket, with its wait.
- ``async_op=True``: the bucket is open while the collective is issued, and again while the program waits for it, in
  ``Work.wait``. What runs in between is in its own buckets. So the time is what the collective costs the step.
- functional collectives (``torch.distributed._functional_collectives``, as DTensor calls them): the same, the wait in
  ``wait_tensor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import local
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_compiling
from torch.utils.weak import WeakTensorKeyDictionary

from rooflight.studies.inference.engines.graphs import StandIn, call_within
from rooflight.studies.inference.timers import BucketTimers

WAIT: Final = "comm.wait"
"""The bucket of waiting for a collective that was issued before the profiler was attached."""

_METHODS: Final = {
    method: f"comm.{bucket}"
    for bucket, methods in (
        ("all_reduce", ("allreduce", "allreduce_coalesced")),
        ("reduce_scatter", ("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base")),
        ("reduce_scatter", ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")),
        ("all_gather", ("allgather", "allgather_coalesced", "_allgather_base", "all_gather_single")),
        ("all_gather", ("all_gather_single_coalesced", "allgather_into_tensor_coalesced")),
        ("all_to_all", ("alltoall", "alltoall_base", "all_to_all_single")),
        ("recv", ("recv", "recv_anysource")),
        *((name, (name,)) for name in ("broadcast", "reduce", "gather", "scatter", "send", "barrier")),
    )
    for method in methods
}
"""Methods of ``ProcessGroup`` and their buckets. Versions of torch differ in which of them they have."""

_FUNCTIONAL: Final = {
    "all_reduce": "comm.all_reduce",
    "reduce_scatter": "comm.reduce_scatter",
    "all_gather": "comm.all_gather",
    "all_to_all": "comm.all_to_all",
    "permute_tensor": "comm.all_to_all",
    "broadcast": "comm.broadcast",
}
"""Functional collectives by the beginnings of their names."""

_NOT_CALLED: Final = ("_backward", "_setup_context", "_inplace")
"""Ends of names beside them that only torch's autograd and dynamo use."""


_here: Final = local()  # has ``inside`` while a thread times a collective: what that calls is part of it
_works: Final[WeakKeyDictionary[Any, str | None]] = WeakKeyDictionary()
"""The bucket of each work that was issued while one was attached; None if its wait is part of its issue."""
_results: Final = WeakTensorKeyDictionary()
"""The bucket of the results of functional collectives that nobody has waited for."""


def time_collectives(timers: BucketTimers) -> Iterable[StandIn]:
    """Time all collectives of the process for a profiler. Yields what undoes it; nothing without torch.distributed."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import ProcessGroup, Work
    from torch.distributed import _functional_collectives as functional

    for name, bucket in _METHODS.items():
        if name in vars(ProcessGroup):
            yield StandIn(ProcessGroup, name, timers, partial(_issue, bucket))
    yield StandIn(Work, "wait", timers, _wait)
    for name in [name for name, each in vars(functional).items() if callable(each)]:
        for begin, bucket in _FUNCTIONAL.items():
            if name.startswith(begin) and not name.endswith(_NOT_CALLED):
                yield StandIn(functional, name, timers, partial(_functional, bucket))
    yield StandIn(functional, "wait_tensor", timers, _wait_tensor)


def _issue(bucket: str, function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def issue(*args: Any, **kwargs: Any) -> Any:
        return _timed(served, bucket, _issued, function, bucket, args, kwargs)

    return issue


def _issued(function: Callable[..., Any], bucket: str, args: Any, kwargs: Any) -> Any:
    work = function(*args, **kwargs)
    if work is not None:
        asynchronous = [each.asyncOp for each in (*args, *kwargs.values()) if hasattr(each, "asyncOp")]
        if asynchronous == [False]:
            work.wait()  # as torch does next, in the same call of the program
            _works[work] = None
        else:
            _works[work] = bucket
    return work


def _wait(function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        bucket = _works.get(work, WAIT)
        if bucket is None:
            return function(work, *args, **kwargs)
        return _timed(served, bucket, function, work, *args, **kwargs)

    return wait


def _functional(bucket: str, function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def issue(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        result = _timed(served, bucket, function, *args, **kwargs)
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, torch.Tensor):
                _results[getattr(each, "elem", each)] = bucket
        return result

    return issue


def _wait_tensor(function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def wait_tensor(tensor: Any) -> Any:
        if is_compiling():
            return function(tensor)
        return _timed(served, _results.pop(tensor, WAIT), function, tensor)

    return wait_tensor


def _timed(served: Sequence[BucketTimers], bucket: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if getattr(_here, "inside", False):
        return function(*args, **kwargs)
    _here.inside = True
    try:
        measuring = [timers for timers in served if timers.step.measuring]
        return call_within(measuring, f"model.{bucket}", function, args, kwargs)
    finally:
        _here.inside = False
