"""The wall time of a step: a host that issues ops one after the other, and a device that runs them as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.network.collectives import kind_of
from rooflight.records.record import Direction
from rooflight.records.session import Flags, Float64, Int64, Session
from rooflight.records.signature import ON_HOST
from rooflight.roofline.host import IN_THE_OPS, SYNCS, Host, units_of
from rooflight.roofline.predicted import Predicted, PredictedFields

QUEUE: Final = 1024
"""Launches that wait for the device at a time: a host that is further ahead waits too."""
_NOTHING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWall:
    """Wall time of a step, nine times in ten between ``low_s`` and ``high_s``.

    The device's ops take ``busy_s``, one after the other; the host needs ``host_s`` to issue them; ``host`` is the one
    that was assumed.
    """

    time_s: float
    low_s: float
    high_s: float
    busy_s: float
    host_s: float
    host: Host

    @property
    def host_bound(self) -> bool:
        """Whether the host takes longer than the device."""
        return self.host_s > self.busy_s


class WallFields(PredictedFields, frozen=True, kw_only=True):
    """A predicted time of the device, and of the wall with its host; None where nothing is predicted."""

    predicted_wall_s: float | None
    predicted_wall_low_s: float | None
    predicted_wall_high_s: float | None

    @staticmethod
    def read_both(device: Predicted | None, wall: PredictedWall | None) -> dict[str, float | None]:
        """The values of these fields."""
        return {
            "predicted_wall_s": wall.time_s if wall else None,
            "predicted_wall_low_s": wall.low_s if wall else None,
            "predicted_wall_high_s": wall.high_s if wall else None,
            **PredictedFields.read(device),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queue:
    """What a step's ops ask of host and device, in the order in which the host issues them.

    ``units`` [ops] of host time, in that of an eager pointwise op. ``launches`` [ops]: whether the op runs on the
    device. ``sends`` [ops]: whether it runs on the stream of collectives, beside computing ops. ``waits_for`` [ops]:
    the last collective before it whose result it reads, -1 where there is none. ``syncs`` [ops]: the host waits for
    its result.
    """

    units: Float64
    launches: Flags
    sends: Flags
    waits_for: Int64
    syncs: Flags

    def wall_s(self, device_s: Float64, host: Host) -> float:
        """Seconds from the host's first op until host and device have done everything; ``device_s`` [ops].

        The host issues op i when it has issued all before it, and no further ahead of the device than ``QUEUE`` ops.
        The device begins it when it is issued, and the op before it on its stream is done; a collective also waits for
        the computing ops before it.
        """
        host_s = np.zeros_like(self.units) if host.replayed else self.units * host.launch_s
        host_at = host.first_s
        compute_at, network_at, room_at = 0.0, 0.0, 0.0
        done: dict[int, float] = {}
        begun: deque[tuple[int, float]] = deque()  # first ops of pieces, and when the device could begin them
        for start, stop in self._pieces:
            if (waited := int(self.waits_for[start])) != _NOTHING:
                compute_at = max(compute_at, done[waited])
            while begun and begun[0][0] <= start - QUEUE:
                room_at = begun.popleft()[1]
            issued = max(host_at, room_at) + np.cumsum(host_s[start:stop])
            host_at = float(issued[-1])
            seconds = np.where(self.launches[start:stop], device_s[start:stop], 0.0)
            begun.append((start, max(float(issued[0]), compute_at)))
            if self.sends[start]:
                network_at = max(host_at, network_at, compute_at) + float(seconds.sum())
                done[start] = network_at
            elif self.launches[start:stop].any():
                compute_at = _last_end(issued, seconds, compute_at)
            if self.syncs[stop - 1] and not host.replayed:
                host_at = max(host_at, compute_at)
        return max(host_at, compute_at, network_at)

    @property
    def _pieces(self) -> list[tuple[int, int]]:
        """Runs of ops between which nothing but the queue connects host and device."""
        count = len(self.units)
        alone = np.flatnonzero(self.sends)
        cuts = {0, count, *range(0, count, QUEUE), *alone.tolist(), *(alone + 1).tolist()}
        cuts |= {*np.flatnonzero(self.waits_for != _NOTHING).tolist(), *(np.flatnonzero(self.syncs) + 1).tolist()}
        ordered = sorted(cut for cut in cuts if cut <= count)
        return list(pairwise(ordered))


def _last_end(issued: Float64, seconds: Float64, free_at: float) -> float:
    """When the last of some ops ends that a device begins no sooner than issued, one after the other from ``free_at``:
    the longest way from the issue of any op through all after it.
    """
    after = np.cumsum(seconds[::-1])[::-1]
    return max(free_at + float(after[0]), float((issued + after).max()))


def predicted_wall(queue: Queue, device_s: Float64, predicted: Predicted, host: Host) -> PredictedWall:
    """The wall time of a queue whose ops take ``device_s`` [ops] on the device, and ``predicted`` in all. Its interval
    is between the walls of a fast host beside a fast device and of a slow one beside a slow one.
    """
    shares = (predicted.low_s / predicted.time_s, predicted.high_s / predicted.time_s) if predicted.time_s else (1, 1)
    time_s = queue.wall_s(device_s, host)
    return PredictedWall(
        time_s=time_s,
        low_s=min(time_s, queue.wall_s(device_s * shares[0], host.scaled(host.low))),
        high_s=max(time_s, queue.wall_s(device_s * shares[1], host.scaled(host.high))),
        busy_s=predicted.time_s,
        host_s=host.first_s + (0.0 if host.replayed else float(queue.units.sum()) * host.launch_s),
        host=host,
    )


def without_host(predicted: Predicted) -> PredictedWall:
    """The wall time of a device whose ops are measured together with what launches them."""
    return PredictedWall(
        time_s=predicted.time_s,
        low_s=predicted.low_s,
        high_s=predicted.high_s,
        busy_s=predicted.time_s,
        host_s=0.0,
        host=IN_THE_OPS,
    )


def queue_of(session: Session, costs: Sequence[OpCost | Uncosted]) -> Queue:
    """The queue of a session's counted ops; ``costs`` go with its signatures."""
    counted = np.flatnonzero(session.counted)
    signature, direction = session.columns.signature[counted], session.columns.direction[counted]
    table = np.array(
        [[units_of(op, cost, way) for way in Direction] for op, cost in zip(session.signatures, costs, strict=True)]
    ).reshape(-1, len(Direction))
    names = [op.name for op in session.signatures]
    stays = np.array([ON_HOST in op.attributes for op in session.signatures], dtype=bool)
    is_idle = stays | np.array([isinstance(cost, OpCost) and cost.does_nothing for cost in costs], dtype=bool)
    is_send = np.array([kind_of(name) is not None for name in names], dtype=bool)
    is_sync = ~stays & np.array([name in SYNCS for name in names], dtype=bool)
    sends = is_send[signature] if names else np.zeros(0, dtype=bool)
    return Queue(
        units=table[signature, direction],
        launches=~is_idle[signature] if names else sends,
        sends=sends,
        waits_for=_waits(session, counted, sends),
        syncs=is_sync[signature] if names else sends,
    )


def _waits(session: Session, counted: Int64, sends: Flags) -> Int64:
    """For each counted op that computes, the last collective before it that wrote what it touches and that no op
    waited for yet.
    """
    found = np.full(len(counted), _NOTHING, dtype=np.int64)
    columns = session.columns
    pending: dict[int, int] = {}  # by storage, the collective that writes it
    if not sends.any():
        return found
    for place in range(int(np.flatnonzero(sends)[0]), len(counted)):
        record = counted[place]
        written = columns.written_ids[columns.written_offsets[record] : columns.written_offsets[record + 1]].tolist()
        if sends[place]:
            pending.update(dict.fromkeys(written, place))
        elif pending:
            read = columns.read_ids[columns.read_offsets[record] : columns.read_offsets[record + 1]].tolist()
            touched = [pending[storage] for storage in (*read, *written) if storage in pending]
            if touched:
                found[place] = max(touched)
                # collectives run in order: whoever waits for one has waited for those before it
                pending = {storage: number for storage, number in pending.items() if number > found[place]}
    return found
