"""RawEvent: an event of a trace file, with the fields that Rooflight reads."""

from __future__ import annotations

from typing import Any

import msgspec

NOTHING = msgspec.Raw(b"")


class RawArgs(msgspec.Struct, frozen=True, gc=False):
    """What the profiler noted of an event. Fields that no event has stay empty; unknown ones are skipped."""

    external_id: int | None = msgspec.field(default=None, name="External id")
    old_external_id: int | None = msgspec.field(default=None, name="external id")
    correlation: int | None = None
    kernel: Any = None  # ROCm's calls have the name of the kernel that they launch
    device: int | None = None
    stream: int | None = None
    sequence_number: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")
    size: int | None = msgspec.field(default=None, name="bytes")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    collective: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_ranks: str = msgspec.field(default="", name="Process Group Ranks")
    dtype: str = ""
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")


NO_ARGS = RawArgs()


class RawEvent(msgspec.Struct, gc=False):
    """One event: times in microseconds. ``ph`` is Chrome's phase: "X" has a duration, "M" names a thread."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: RawArgs = NO_ARGS
