"""Snapshots of CUDA's caching allocator: pickles of ``torch.cuda.memory._dump_snapshot``, and the JSON of
``torch.cuda.memory_snapshot``. A pickle is read as plain types alone: one that names a class or function is refused.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from rooflight.records.account import Place, shown_path
from rooflight.records.document import Document
from rooflight.records.record import Held, Owner

SUFFIXES: Final = (".pickle", ".pkl")
_LIBRARIES: Final = ("site-packages/", "dist-packages/", "/lib/python3", "<")
_GONE: Final = ("free_requested", "free")
_SEGMENTS: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class _Frame(msgspec.Struct):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Block(msgspec.Struct):
    size: int
    state: str = ""
    address: int = 0
    frames: Sequence[_Frame] = ()


class _Segment(msgspec.Struct):
    total_size: int
    device: int = 0
    address: int = 0
    blocks: Sequence[_Block] = ()


class _Event(msgspec.Struct):
    action: str
    addr: int = 0
    size: int = 0
    frames: Sequence[_Frame] = ()


class _Whole(msgspec.Struct):
    segments: Sequence[_Segment]
    device_traces: Sequence[Sequence[_Event]] = ()


class Snapshot(Document, frozen=True, kw_only=True, tag="rooflight.snapshot/1"):
    """The allocator of one device: bytes allocated and reserved at the end, and at most in the ``events`` that were
    recorded. ``rows``: what was allocated at that peak, by the program's line that asked for it.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int
    events: int
    rows: tuple[Held, ...]


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which could run code")


def read_snapshots(path: Path) -> tuple[Snapshot, ...]:
    """The snapshot of each device that holds memory. Raises ValueError for a file that is cut, hostile or no snapshot,
    OSError for one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_json = file.peek(1)[:1] in {b"{", b"["}
            data: Any = msgspec.json.decode(file.read()) if is_json else _Plain(file).load()
        whole = msgspec.convert({"segments": data} if isinstance(data, list) else data, _Whole)
        traced = {number for number, each in enumerate(whole.device_traces) if each}
        return tuple(_of_device(whole, each) for each in sorted(traced | {one.device for one in whole.segments}))
    except OSError:
        raise
    except Exception as error:  # pickle raises whatever its bytes lead to
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path} is no snapshot of CUDA's allocator that can be read ({why}): write one with "
            "torch.cuda.memory._dump_snapshot(FILE), or torch.cuda.memory_snapshot() as JSON"
        ) from error


def _of_device(whole: _Whole, device: int) -> Snapshot:
    segments = [each for each in whole.segments if each.device == device]
    events = whole.device_traces[device] if device < len(whole.device_traces) else ()
    blocks = {
        block.address or (segment.address, number): (block.size, _place_of(block.frames))
        for segment in segments
        for number, block in enumerate(segment.blocks)
        if block.state == "active_allocated"
    }
    allocated, reserved = sum(size for size, _ in blocks.values()), sum(each.total_size for each in segments)
    alive: dict[Any, tuple[int, Place]] = dict(blocks)
    at, now, taken = len(events), allocated, reserved
    peak, peak_reserved = allocated, reserved
    for number in range(len(events) - 1, -1, -1):  # backwards, from what is known
        event = events[number]
        if event.action == "alloc":
            now -= event.size
            alive.pop(event.addr, None)
        elif event.action in _GONE:
            now += event.size
            alive[event.addr] = event.size, Place()
        taken -= _SEGMENTS.get(event.action, 0) * event.size
        peak_reserved = max(peak_reserved, taken)
        if now > peak:
            peak, at = now, number
    return Snapshot(device=device, allocated_bytes=allocated, reserved_bytes=reserved, peak_bytes=peak,
                    peak_reserved_bytes=peak_reserved, events=len(events), rows=_rows(alive, events[:at]))  # fmt: skip


def _rows(alive: dict[Any, tuple[int, Place]], events: Sequence[_Event]) -> tuple[Held, ...]:
    """What is alive after these events, by the line that asked for it, from what was before them."""
    for event in events:
        if event.action == "alloc":
            alive[event.addr] = event.size, _place_of(event.frames)
        elif event.action in _GONE:
            alive.pop(event.addr, None)
    by_place: Counter[Place] = Counter()
    for size, where in alive.values():
        by_place[where] += size
    return tuple(Held(bytes=size, owner=Owner(where=where)) for where, size in by_place.most_common())


def _place_of(frames: Sequence[_Frame]) -> Place:
    """The innermost line of the program's own; an empty place where there is none."""
    own = (each for each in frames if each.filename.endswith(".py") and not any(p in each.filename for p in _LIBRARIES))
    frame = next(own, None)
    return Place() if frame is None else Place(file=shown_path(frame.filename), line=frame.line, function=frame.name)
