"""The collectives of an analysis as a table, as facts and as data."""

from __future__ import annotations

from typing import Any

from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Table
from rooflight.roofline.communication import Collective, Communication


def collectives_table(communication: Communication, top: int) -> Table:
    """One row a kind of collective and group of ranks; without times where nothing was measured."""
    measured = communication.measured_s is not None
    found = communication.collectives
    columns = ["collective", "ranks", "calls", "payload", "sent", "bound"]
    columns += ["measured", "exposed", "overlapped", "alg bw", "bus bw", "efficiency"] if measured else ["ring", "tree"]
    return Table(
        title="Collectives",
        columns=tuple(columns),
        rows=tuple(_row(collective, measured) for collective in found[:top]),
        optional=("calls", "overlapped", "alg bw"),
        left_out=max(0, len(found) - top),
        note=(
            "Payload and bandwidths as nccl-tests counts them; exposed: no computing op of this rank ran meanwhile. "
            "The wait for slower ranks is part of a collective's time."
            if measured
            else "Payload as nccl-tests counts it; ring and tree without latency."
        ),
    )


def exposure_text(communication: Communication) -> str | None:
    """How much of a step's communication nothing hid, in words; None where it is not known."""
    if communication.measured_s is None or communication.exposed_step_s is None:
        return None
    exposed, measured = Quantity(communication.exposed_step_s, "s"), Quantity(communication.measured_s, "s")
    return f"{measured} of collectives, {exposed} of the step with nothing else running"


def communication_data(communication: Communication) -> dict[str, Any]:
    """The collectives in plain dicts and lists, SI units, None where unknown."""
    return {
        "bytes_sent": communication.bytes_sent,
        "measured_s": communication.measured_s,
        "exposed_s": communication.exposed_s,
        "overlapped_s": communication.overlapped_s,
        "exposed_step_s": communication.exposed_step_s,
        "untimed_calls": communication.untimed_calls,
        "collectives": [
            {
                "kind": collective.kind.value,
                "group_size": collective.group.size,
                "group_ranks": list(collective.group.ranks) or None,
                "group_description": collective.group.description or None,
                "calls": collective.calls,
                "timed_calls": collective.timed_calls,
                "bytes_sent": collective.bytes_sent,
                "payload_bytes": collective.payload_bytes,
                "bound_s": collective.bound_s,
                "ring_s": collective.ring_s,
                "tree_s": collective.tree_s,
                "measured_s": collective.measured_s,
                "exposed_s": collective.exposed_s,
                "overlapped_s": collective.overlapped_s,
                "algorithm_bytes_per_s": collective.algorithm_bytes_per_s,
                "bus_bytes_per_s": collective.bus_bytes_per_s,
                "efficiency": collective.efficiency,
            }
            for collective in communication.collectives
        ],
    }


def _row(collective: Collective, measured: bool) -> tuple[Cell, ...]:
    row: list[Cell] = [collective.kind.value, collective.group.label, collective.calls]
    row += [Quantity(collective.payload_bytes, "B"), Quantity(collective.bytes_sent, "B")]
    row.append(_quantity(collective.bound_s, "s"))
    if not measured:
        return (*row, _quantity(collective.ring_s, "s"), _quantity(collective.tree_s, "s"))
    times = collective.measured_s, collective.exposed_s, collective.overlapped_s
    speeds = collective.algorithm_bytes_per_s, collective.bus_bytes_per_s
    row += [_quantity(seconds, "s") for seconds in times]
    row += [_quantity(speed, "B/s") for speed in speeds]
    return (*row, _quantity(collective.efficiency, "%"))


def _quantity(value: float | None, unit: str) -> Quantity | None:
    return None if value is None else Quantity(value, unit)
