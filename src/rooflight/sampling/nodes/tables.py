"""The roofs of a cluster's nodes as a report: which are slow, which could not be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rooflight.devices.spec import Roofs
from rooflight.machine.calibration import busy_share
from rooflight.records.document import Document, Fields
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Column, Report, Table
from rooflight.sampling.nodes.calibrate import ClusterCalibration
from rooflight.sampling.nodes.roofs import LATENCY, SLOW, SLOW_LATENCY, Comparison, Roof, compare, differences

_MOST_ROWS: Final = 40
_MOST_NAMED: Final = 5


class RoofData(Fields, frozen=True, kw_only=True):
    """A roof of a node, in ``unit``. ``median`` is that of ``devices`` like it; ``below`` is the share it lacks."""

    roof: str
    value: float
    unit: str
    median: float
    below: float
    devices: int
    slow: bool


class NodeData(Fields, frozen=True, kw_only=True):
    """A device of a node that was measured; ``gpu`` is its number, None for a CPU."""

    node: str
    gpu: int | None
    device: str
    fingerprint: str
    measured_at: str
    roofs: tuple[RoofData, ...]


class FailedNode(Fields, frozen=True, kw_only=True):
    """A node without a result."""

    node: str
    reason: str


class ClusterDocument(Document, frozen=True, kw_only=True, tag="rooflight.cluster_calibration/1"):
    """The roofs of a cluster's nodes."""

    interrupted: bool
    nodes: tuple[NodeData, ...]
    failed: tuple[FailedNode, ...]


def report_of(found: ClusterCalibration, *, title: str, notes: Sequence[str] = ()) -> Report:
    """A table of the devices, the slowest first, one of slow roofs, and one of the nodes without a result."""
    compared = sorted(compare(found.measured), key=lambda each: -(each.worst.below if each.worst else 0.0))
    tables = [_devices(compared)] if compared else []
    if slow := [each for each in compared if each.slow]:
        tables.append(_slow(slow))
    if failed := [each for each in found.measured if each.calibration is None]:
        rows = tuple((each.name, each.reason) for each in failed)
        columns = (Column("node"), Column("reason"))
        tables.append(Table(id="failed", title="Not calibrated", columns=columns, rows=rows))
    return Report(
        title=title,
        data=_data(found, compared),
        tables=tuple(tables),
        notes=(*notes, *_notes(found, compared)),
        conclusion=_conclusion(compared, slow),
    )


def _devices(compared: Sequence[Comparison]) -> Table:
    return Table(
        id="roofs",
        title="Roofs",
        columns=(
            Column("node"),
            Column("device"),
            Column("matrix peak", "FLOP/s"),
            Column("of"),
            Column("vector peak", "FLOP/s"),
            Column("memory", "B/s"),
            Column("launch latency", "s"),
            Column("below median", "%"),
            Column("in"),
        ),
        rows=tuple(map(_device_row, compared)),
        top=_MOST_ROWS,
        optional=("launch latency", "vector peak", "of"),
        see="--json has all",
        note="Matrix peak: of the fastest precision. Vector peak: float32. Memory: main memory. "
        "Below median: the roof furthest below the median of the nodes with the same device, and which it is.",
    )


def _device_row(each: Comparison) -> tuple[Cell, ...]:
    roofs = each.calibration.roofs
    precision = _fastest(roofs)
    memory = roofs.memory[-1].bytes_per_s if roofs.memory else None
    worst = each.worst
    return (
        each.measured.name,
        each.calibration.device_name,
        None if precision is None else roofs.matrix_flops_per_s[precision],
        precision,
        roofs.vector_flops_per_s.get("float32"),
        memory,
        roofs.launch_latency_s,
        None if worst is None else max(0.0, worst.below),
        worst.name if worst is not None and worst.below > 0 else None,
    )


def _slow(slow: Sequence[Comparison]) -> Table:
    rows = [(each.measured.name, roof) for each in slow for roof in each.slow]
    return Table(
        id="slow",
        title="Slow",
        columns=(
            Column("node"),
            Column("roof"),
            Column("measured"),
            Column("median"),
            Column("below", "%"),
            Column("of devices"),
        ),
        rows=tuple(
            (
                node,
                roof.name,
                Quantity(roof.value, _unit(roof)),
                Quantity(roof.median, _unit(roof)),
                roof.below,
                roof.count,
            )
            for node, roof in rows
        ),
        top=_MOST_ROWS,
        see="--json has all",
        note=f"Slow is more than {SLOW:.0%} below the median of the same device model; "
        f"in launch latency, {SLOW_LATENCY:.0%}.".replace("%", " %"),
    )


def _notes(found: ClusterCalibration, compared: Sequence[Comparison]) -> tuple[str, ...]:
    notes = []
    if found.interrupted:
        notes.append("Interrupted: nodes that had not finished are missing.")
    for each in compared:
        if (share := busy_share(each.calibration)) >= BUSY_SHARE:
            notes.append(
                f"{each.measured.name}: other programs took {share * 100:.0f} % of the CPU, so its roofs may be low."
            )
    alone = [each.measured.name for each in compared if each.worst is None]
    if alone:
        notes.append(f"No other node with the same device to compare with: {_named(alone)}.")
    return (*notes, *differences(compared))


def _conclusion(compared: Sequence[Comparison], slow: Sequence[Comparison]) -> str:
    if slow:
        worst = [each.slow[0] for each in slow]
        named = [
            f"{each.measured.name} ({roof.name} {Quantity(roof.below, '%')} below the median of {roof.count})"
            for each, roof in zip(slow, worst, strict=True)
        ]
        return f"Slow: {_named(named)}."
    if sum(each.worst is not None for each in compared) == 0:
        return ""
    return f"No node is slow: every roof is within {SLOW * 100:.0f} % of its model's median, or above it."


def _data(found: ClusterCalibration, compared: Sequence[Comparison]) -> ClusterDocument:
    return ClusterDocument(
        interrupted=found.interrupted,
        nodes=tuple(map(_node_data, compared)),
        failed=tuple(
            FailedNode(node=each.node, reason=each.reason) for each in found.measured if each.calibration is None
        ),
    )


def _node_data(each: Comparison) -> NodeData:
    return NodeData(
        node=each.measured.node,
        gpu=each.measured.number if each.calibration.kind == "cuda" else None,
        device=each.calibration.device_name,
        fingerprint=each.calibration.fingerprint,
        measured_at=each.calibration.measured_at,
        roofs=tuple(
            RoofData(
                roof=roof.name,
                value=roof.value,
                unit=_unit(roof),
                median=roof.median,
                below=roof.below,
                devices=roof.count,
                slow=roof.slow,
            )
            for roof in each.roofs
        ),
    )


def _fastest(roofs: Roofs) -> str | None:
    peaks = roofs.matrix_flops_per_s
    return max(peaks, key=lambda name: peaks[name], default=None)


def _unit(roof: Roof) -> str:
    return "s" if roof.name == LATENCY else "B/s" if roof.name.startswith("memory") else "FLOP/s"


def _named(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
