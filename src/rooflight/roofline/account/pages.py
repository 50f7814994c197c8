"""Pages: bytes of large tensors, whose memory the system gives and takes back, at the calls that make and free them."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.records.measurement import Float64
from rooflight.records.session import Int32, Int64, Session

_OF_SYSTEM_BYTES: Final = 1 << 20
"""So large a tensor has pages of its own, which the system takes back: glibc maps what is larger than 128 KiB to
32 MiB, by what the program freed before.
"""


def made_bytes(session: Session, calls: Int64) -> Float64:
    """Of each of such records the bytes of large tensors that it makes; 0 where memory was not followed."""
    return _at(session, calls, None if session.lifetimes is None else session.lifetimes.made)


def freed_bytes(session: Session, calls: Int64) -> Float64:
    """Before each of such records the bytes of large tensors that were freed; 0 where memory was not followed."""
    return _at(session, calls, None if session.lifetimes is None else session.lifetimes.freed)


def _at(session: Session, calls: Int64, moments: Int32 | None) -> Float64:
    found = np.zeros(len(calls))
    if moments is not None:
        sizes: Float64 = session.storage_bytes.astype(np.float64)
        large = (moments >= 0) & (sizes >= _OF_SYSTEM_BYTES)
        place = np.searchsorted(calls, moments[large])
        inside = place < len(calls)
        np.add.at(found, place[inside], sizes[large][inside])
    return found
