"""The roofs that were measured on this machine, as a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rooflight.devices.calibrations import Calibration
from rooflight.devices.spec import Roofs
from rooflight.machine.calibration import VERDICT
from rooflight.records.document import Document
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Column, Report, Table


class CalibrationDocument(Document, frozen=True, kw_only=True, tag="rooflight.calibration/1"):
    """A calibration as it is saved: roofs, and in ``environment`` the samples that each was computed from."""

    fingerprint: str
    device_name: str
    kind: str
    roofs: Roofs
    measured_at: str
    environment: Mapping[str, str]


def report_of(measured: Calibration, saved_at: Path | None) -> Report:
    """Every probe with the roof it led to; ``saved_at`` is None for rough figures, which are not saved."""
    return Report(
        title=f"Roofs of {measured.device_name}",
        data=CalibrationDocument(
            fingerprint=measured.fingerprint,
            device_name=measured.device_name,
            kind=measured.kind,
            roofs=measured.roofs,
            measured_at=measured.measured_at,
            environment=measured.environment,
        ),
        tables=(
            Table(
                id="roofs",
                title="Roofs",
                columns=(Column("figure"), Column("roof"), Column("measured", wraps=True)),
                rows=tuple(_rows(measured)),
                note="A roof is the best of all calibrations of this machine: it can be higher than this measurement.",
                unknown="unknown",
            ),
        ),
        conclusion=f"saved: {saved_at}" if saved_at else "nothing saved: --quick gives rough figures",
    )


def _rows(measured: Calibration) -> Iterator[tuple[Cell, ...]]:
    roofs, texts = measured.roofs, measured.environment.items()
    values = {f"matrix {name}": Quantity(peak, "FLOP/s") for name, peak in roofs.matrix_flops_per_s.items()}
    values |= {f"vector {name}": Quantity(peak, "FLOP/s") for name, peak in roofs.vector_flops_per_s.items()}
    values |= {
        f"memory {level.name}": Quantity(level.bytes_per_s, "B/s") for level in roofs.memory if level.bytes_per_s
    }
    verdicts = {key.removeprefix(VERDICT): text for key, text in texts if key.startswith(VERDICT)}
    for name in dict.fromkeys([*verdicts, *values]):
        if not name.startswith("launch"):
            yield name, values.get(name), verdicts.get(name, "")
    trials = "; ".join(f"{name}: {text}" for name, text in verdicts.items() if name.startswith("launch"))
    latency_s = roofs.launch_latency_s
    yield "launch latency", Quantity(latency_s, "s") if latency_s else None, trials
