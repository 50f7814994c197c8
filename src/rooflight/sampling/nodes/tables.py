"""The roofs of a cluster's nodes as a report: which are slow, which could not be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rooflight.hardware.machine.calibration import busy_share
from rooflight.records.document import Document, Fields
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity
from rooflight.records.report import Report, Table, table
from rooflight.sampling.nodes.calibrate import ClusterCalibration
from rooflight.sampling.nodes.roofs import SLOW, SLOW_LATENCY, Comparison, Roof, compare, differences, named

_ROWS: Final = 40
_SEE: Final = "--json has all"


class NodeData(Fields, frozen=True, kw_only=True):
    """A device of a node that was measured; ``gpu`` is its number, None for a CPU."""

    node: str
    gpu: int | None
    device: str
    fingerprint: str
    measured_at: str
    roofs: tuple[Roof, ...]


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
    failed = [each for each in found.measured if each.calibration is None]
    slow = [each for each in compared if each.slow]
    columns = ("node", "", lambda each: each.name), ("reason", "", lambda each: each.reason)
    tables = (_devices(compared), _slow(slow), table("failed", "Not calibrated", failed, *columns, wraps=("reason",)))
    return Report(
        title=title,
        data=ClusterDocument.view(found, nodes=tuple(map(_node, compared)), failed=failed),
        tables=tuple(each for each in tables if each.rows),
        notes=(*notes, *_notes(found, compared)),
        conclusion=_conclusion(compared, slow),
    )


def _devices(compared: Sequence[Comparison]) -> Table:
    return table(
        "roofs",
        "Roofs",
        compared,
        ("node", "", lambda each: each.measured.name),
        ("device", "", lambda each: each.calibration.device_name),
        ("matrix peak", "FLOP/s", lambda each: max(each.calibration.roofs.matrix_flops_per_s.values(), default=None)),
        ("of", "", _fastest),
        ("vector peak", "FLOP/s", lambda each: each.calibration.roofs.vector_flops_per_s.get("float32")),
        ("memory", "B/s", _main_memory),
        ("launch latency", "s", lambda each: each.calibration.roofs.launch_latency_s),
        ("below median", "%", lambda each: None if each.worst is None else max(0.0, each.worst.below)),
        ("in", "", lambda each: each.worst.roof if each.worst is not None and each.worst.below > 0 else None),
        top=_ROWS,
        see=_SEE,
        optional=("launch latency", "vector peak", "of"),
        note="Matrix peak: of the fastest precision. Vector peak: float32. Memory: main memory. "
        "Below median: the roof furthest below the median of the nodes with the same device, and which it is.",
    )


def _main_memory(each: Comparison) -> float | None:
    memory = each.calibration.roofs.memory
    return memory[-1].bytes_per_s if memory else None


def _fastest(each: Comparison) -> str | None:
    peaks = each.calibration.roofs.matrix_flops_per_s
    return max(peaks, key=lambda name: peaks[name], default=None)


def _slow(slow: Sequence[Comparison]) -> Table:
    return table(
        "slow",
        "Slow",
        [(each.measured.name, roof) for each in slow for roof in each.slow],
        ("node", "", lambda row: row[0]),
        ("roof", "", lambda row: row[1].roof),
        ("measured", "", lambda row: Quantity(row[1].value, row[1].unit)),
        ("median", "", lambda row: Quantity(row[1].median, row[1].unit)),
        ("below", "%", lambda row: row[1].below),
        ("of devices", "", lambda row: row[1].devices),
        top=_ROWS,
        see=_SEE,
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
    if alone := [each.measured.name for each in compared if each.worst is None]:
        notes.append(f"No other node with the same device to compare with: {named(alone)}.")
    return (*notes, *differences(compared))


def _conclusion(compared: Sequence[Comparison], slow: Sequence[Comparison]) -> str:
    if slow:
        worst = [(each.measured.name, each.slow[0]) for each in slow]
        names = [
            f"{name} ({roof.roof} {Quantity(roof.below, '%')} below the median of {roof.devices})"
            for name, roof in worst
        ]
        return f"Slow: {named(names)}."
    if all(each.worst is None for each in compared):
        return ""
    return f"No node is slow: every roof is within {SLOW * 100:.0f} % of its model's median, or above it."


def _node(each: Comparison) -> NodeData:
    calibration, node = each.calibration, each.measured
    gpu = node.number if calibration.kind == "cuda" else None
    return NodeData.view(calibration, node=node.node, gpu=gpu, device=calibration.device_name, roofs=each.roofs)
