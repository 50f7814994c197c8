"""Taking note of ``Tensor.numpy()``, after which the memory of a tensor cannot be resized, as memory that torch did not
allocate: the tape is told beforehand that it knows this storage.

No mode of torch's sees the call. ``numpy.asarray(tensor)`` and ``tensor.__array__()`` call it too.
"""

from __future__ import annotations

from functools import wraps
from threading import Lock
from typing import Any

import torch

from rooflight.capture.composites import open_sources
from rooflight.capture.dispatch import DispatchSource
from rooflight.capture.outside_births import is_plain

_lock = Lock()
_open: set[DispatchSource] = set()


def watch_exports(source: DispatchSource) -> None:
    """Begin to take note."""
    with _lock:
        _open.add(source)
        torch.Tensor.numpy = _numpy  # type: ignore[method-assign, assignment]


def stop_watching_exports(source: DispatchSource) -> None:
    """Undo ``watch_exports``; the last recording to do so takes the attribute away, which torch has in a base class."""
    with _lock:
        _open.discard(source)
        if not _open and "numpy" in torch.Tensor.__dict__:
            del torch.Tensor.numpy


@wraps(torch._C.TensorBase.numpy)
def _numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if is_plain(self):
        for source in open_sources():
            try:
                source.tape.exported(self)
            except Exception as error:
                source.fail(error)
    return torch._C.TensorBase.numpy(self, *args, **kwargs)
