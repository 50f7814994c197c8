"""RawEvent: an event of a trace file, with the fields that Rooflight reads."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

NOTHING = msgspec.Raw(b"")
NO_TIME = float("nan")

Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
"""What fits a column."""


class RawArgs(msgspec.Struct, frozen=True, gc=False):
    """What the profiler noted of an event. Fields that no event has stay empty; unknown ones are skipped."""

    external_id: Number = msgspec.field(default=None, name="External id")
    old_external_id: Number = msgspec.field(default=None, name="external id")
    correlation: Number = None
    kernel: Any = None  # ROCm's calls have the name of the kernel that they launch
    device: Number = None
    stream: Number = None
    record_function: Number = msgspec.field(default=None, name="Record function id")
    sequence_number: Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: Number = msgspec.field(default=None, name="Fwd thread id")
    size: Number = msgspec.field(default=None, name="bytes")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    collective: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")
    group_size: Number = msgspec.field(default=None, name="Group size")
    group_ranks: str = msgspec.field(default="", name="Process Group Ranks")
    dtype: str = ""
    in_elements: Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: Number = msgspec.field(default=None, name="Out msg nelems")


NO_ARGS = RawArgs()


class RawEvent(msgspec.Struct, gc=False):
    """One event: times in microseconds, ``NO_TIME`` where there is none. ``ph`` is Chrome's phase: "X" has a duration,
    "M" names a thread.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = NO_TIME
    dur: float = NO_TIME
    args: RawArgs = NO_ARGS
