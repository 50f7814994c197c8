"""Sessions written by hand: what a recording would have left, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from rooflight.records import assembly as from_records
from rooflight.records.record import Direction, ModuleEntry, OpRecord
from rooflight.records.session import NO_PARENT, Session
from rooflight.records.signature import OpSignature


@dataclass(frozen=True, kw_only=True)
class Call:
    op: OpSignature
    module: str = ""
    layer: str = ""
    phase: str = ""
    function: str = ""
    direction: Direction = Direction.FORWARD
    parent: int = NO_PARENT
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    read_starts: tuple[int, ...] = ()
    write_starts: tuple[int, ...] = ()

    def record(self, times_s: tuple[float, ...]) -> OpRecord:
        return OpRecord(
            signature=self.op,
            module=ModuleEntry(self.module, self.layer),
            phase=self.phase,
            direction=self.direction,
            function=self.function,
            reads=self.reads,
            writes=self.writes,
            read_starts=self.read_starts,
            write_starts=self.write_starts,
            parent=None if self.parent == NO_PARENT else self.parent,
            times_s=times_s,
        )


def programs_of(*ops: OpSignature, most: int = 30) -> st.SearchStrategy[list[Call]]:
    """Programs of these operations, anywhere."""
    calls = st.builds(
        Call,
        op=st.sampled_from(ops),
        module=st.sampled_from(["", "a", "a.b"]),
        layer=st.just(""),
        phase=st.sampled_from(["", "p", "q"]),
        direction=st.sampled_from(list(Direction)),
    )
    return st.lists(calls, max_size=most)


def session_of(
    calls: Sequence[Call],
    *,
    times: Sequence[Sequence[float]] | None = None,
    walls: Sequence[float] = (),
    storage_bytes: Sequence[int] = (),
    environment: dict[str, str] | None = None,
) -> Session:
    """A session of these calls; ``times`` has one row a measured step."""
    samples = np.array([] if times is None else times, dtype=np.float64).reshape(len(times or []), len(calls))
    touched = [storage for call in calls for storage in (*call.reads, *call.writes)]
    return from_records.session_of(
        [call.record(tuple(samples[:, index])) for index, call in enumerate(calls)],
        storage_bytes=storage_bytes or [0] * (max(touched, default=-1) + 1),
        environment=environment,
        wall_samples_s=walls,
        clock="by hand",
    )
