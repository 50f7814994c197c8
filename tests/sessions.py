"""Sessions written by hand: what a recording would have left, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import NO_PARENT, Columns, Measurement, Session
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


def session_of(
    calls: Sequence[Call],
    *,
    times: Sequence[Sequence[float]] | None = None,
    walls: Sequence[float] = (),
    storage_bytes: Sequence[int] = (),
    environment: dict[str, str] | None = None,
) -> Session:
    """A session of these calls; ``times`` has one row a measured step."""
    signatures = list(dict.fromkeys(call.op for call in calls))
    modules = list(dict.fromkeys(ModuleEntry(call.module, call.layer) for call in calls))
    phases = list(dict.fromkeys(call.phase for call in calls))
    functions = list(dict.fromkeys(call.function for call in calls))
    session = Session(
        signatures=tuple(signatures),
        modules=tuple(modules),
        phases=tuple(phases),
        functions=tuple(functions),
        columns=Columns(
            signature=np.array([signatures.index(call.op) for call in calls], dtype=np.int32),
            module=np.array([modules.index(ModuleEntry(call.module, call.layer)) for call in calls], dtype=np.int32),
            phase=np.array([phases.index(call.phase) for call in calls], dtype=np.int32),
            function=np.array([functions.index(call.function) for call in calls], dtype=np.int32),
            direction=np.array([call.direction for call in calls], dtype=np.int8),
            parent=np.array([call.parent for call in calls], dtype=np.int32),
            read_offsets=_offsets([call.reads for call in calls]),
            read_ids=np.array([i for call in calls for i in call.reads], dtype=np.int32),
            written_offsets=_offsets([call.writes for call in calls]),
            written_ids=np.array([i for call in calls for i in call.writes], dtype=np.int32),
        ),
        storage_bytes=np.array(storage_bytes, dtype=np.int64),
        environment=environment or {},
    )
    if times is None:
        return session
    samples = np.array(times, dtype=np.float64).reshape(-1, len(calls))
    return session.with_measurement(
        Measurement(wall_samples_s=np.array(walls, dtype=np.float64), op_samples_s=samples, clock="by hand")
    )


def _offsets(ids: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.cumsum([0, *(len(entry) for entry in ids)]).astype(np.int64)
