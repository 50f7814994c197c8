"""Calibrations and roofs that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.hardware.machine.environment import fingerprint, threads_here


def roofs_of(peak: float, dram: float, *, matrix: dict[str, float] | None = None, **more: Any) -> Roofs:
    """``peak`` for float32 matrix products (``matrix``: for others) and vectors, bytes per second of DRAM."""
    matrix = {"float32": peak} | (matrix or {})
    levels = (MemoryLevel(name="DRAM", bytes_per_s=dram),)
    given = {"source": "by hand", "vector_flops_per_s": {"float32": peak}, "memory": levels} | more
    return Roofs(matrix_flops_per_s=matrix, **given)


def calibration_of(
    roofs: Roofs,
    device: str = "a CPU",
    *,
    kind: Any = "cpu",
    key: str = "",
    at: str = "2026-01-01",
    **facts: str,
) -> Calibration:
    """Of this machine and of its threads where the roofs are of none, unless ``key`` is another's fingerprint."""
    if not key:
        key, roofs = fingerprint("cpu"), replace(roofs, threads=roofs.threads or threads_here())
    return Calibration(fingerprint=key, device_name=device, kind=kind, roofs=roofs, measured_at=at, environment=facts)
