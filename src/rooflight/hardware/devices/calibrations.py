"""Keeps measured roofs on disk, one JSON file per machine, so that a calibration serves every later run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Final, Literal

import msgspec

from rooflight.hardware.devices.catalog import find_by_torch_name
from rooflight.hardware.devices.spec import DeviceSpec, Roofs
from rooflight.records.files import cache_folder, write_kept
from rooflight.records.visible import visible

DeviceKind = Literal["cpu", "cuda"]
"""What can be at hand and measured."""


DISTURBED: Final = ", beside other programs"
"""In the source of roofs: they were measured while other programs ran."""
_RATES: Final = (1e6, 1e21)  # FLOP/s and B/s: below is no computer, above no device for decades
_LATENCIES: Final = (1e-9, 1.0)
_LARGEST: Final = 1 << 24  # bytes


class CalibrationWarning(UserWarning):
    """The roofs in use may be too low, could not be read or kept, or are only the datasheet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Roofs measured on one machine, which ``fingerprint`` identifies; a CPU's are those of ``roofs.threads``."""

    fingerprint: str
    device_name: str
    kind: DeviceKind
    roofs: Roofs
    measured_at: str  # ISO 8601
    environment: Mapping[str, str] = field(default_factory=dict)
    schema: Literal["rooflight.calibration/1"] = "rooflight.calibration/1"


def save(calibration: Calibration) -> Path:
    """Write a calibration, in the place of an earlier one of this machine and its threads. A reader never sees half a
    file. Raises OSError where it cannot be kept.
    """
    path = _path(calibration.fingerprint, calibration.roofs.threads)
    write_kept(path, msgspec.json.format(msgspec.json.encode(calibration), indent=2))
    return path


def load(fingerprint: str, threads: int | None = None) -> Calibration | None:
    """The calibration of the machine with this fingerprint, of a CPU for that many threads; None where there is none.
    Raises ValueError for a file that is broken.
    """
    try:
        path = _path(fingerprint, threads)
    except FileNotFoundError:
        return None
    if not path.is_file():
        return None
    calibration = _read(path)
    if (calibration.fingerprint, calibration.roofs.threads) != (fingerprint, threads):
        raise ValueError(_broken(path, "it belongs to another machine"))
    return calibration


def load_for(environment: Mapping[str, str]) -> Calibration | None:
    """The calibration of the machine and the threads that a measurement ran on, by its facts. Raises as ``load``."""
    threads = environment.get("torch_threads", "") if environment.get("device_kind") == "cpu" else ""
    return load(environment.get("fingerprint", ""), int(threads) if threads.isdecimal() else None)


def saved() -> tuple[Calibration, ...]:
    """Every calibration on this machine, newest first. A file that is broken is left out, with a CalibrationWarning:
    of most devices nothing is wrong.
    """
    calibrations = []
    try:
        for path in cache_folder().glob("calibration-*.json"):
            try:
                calibrations.append(_read(path))
            except ValueError as error:
                warnings.warn(visible(str(error)), CalibrationWarning, stacklevel=1)  # told once
    except FileNotFoundError:
        return ()
    return tuple(sorted(calibrations, key=lambda calibration: calibration.measured_at, reverse=True))


def device_of(calibration: Calibration) -> DeviceSpec:
    """The device that was measured: its catalog entry with the calibration, or the calibration alone."""
    known = find_by_torch_name(calibration.device_name) if calibration.kind == "cuda" else None
    if known is not None:
        return known.with_calibration(calibration.roofs)
    return DeviceSpec(
        name=calibration.device_name,
        vendor="",
        architecture="",
        kind=calibration.kind,
        match=(calibration.device_name,),
        calibrated=calibration.roofs,
        notes=("not in the catalog: every figure is measured",),
        sources=(calibration.roofs.source,),
    )


def _path(fingerprint: str, threads: int | None) -> Path:
    # The digest distinguishes machines and threads; the readable part is for people who look into the folder.
    whole = fingerprint if threads is None else f"{fingerprint} {threads}"
    readable = re.sub(r"[^A-Za-z0-9]+", "-", whole)[:48].strip("-")
    digest = sha256(whole.encode()).hexdigest()[:12]
    return cache_folder() / f"calibration-{readable}-{digest}.json"


def _read(path: Path) -> Calibration:
    """Each file is read once, until it changes: devices are found by name again and again."""
    try:
        found = path.stat()
    except OSError as error:
        raise ValueError(_broken(path, error.strerror or "cannot be read")) from None
    if not S_ISREG(found.st_mode) or found.st_size > _LARGEST:
        raise ValueError(_broken(path, "it is no file, or too large"))
    return _read_once(path, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=64)
def _read_once(path: Path, version: tuple[int, ...]) -> Calibration:  # noqa: ARG001
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=Calibration)
        _refuse_impossible(found.roofs)
        if b'"disturbed"' not in content:  # a file from before there was this field
            found = replace(found, roofs=replace(found.roofs, disturbed=DISTURBED in found.roofs.source))
        return found
    except OSError as error:
        raise ValueError(_broken(path, error.strerror or "cannot be read")) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(_broken(path, str(error))) from None


def _refuse_impossible(roofs: Roofs) -> None:
    rates = {f"memory {level.name}": level.bytes_per_s for level in roofs.memory}
    for kind, peaks in (("matrix", roofs.matrix_flops_per_s), ("vector", roofs.vector_flops_per_s)):
        rates |= {f"{kind} {precision}": peak for precision, peak in peaks.items()}
    limits = {name: (rate, _RATES) for name, rate in rates.items()}
    for name, (figure, (least, most)) in (limits | {"launch latency": (roofs.launch_latency_s, _LATENCIES)}).items():
        if figure is not None and not least <= figure <= most:
            raise ValueError(f"{name} is {figure:g}, which nothing reaches")


def _broken(path: Path, reason: str) -> str:
    return f"calibration {path} cannot be used ({reason}): delete it, or run rooflight calibrate --force on its machine"
