"""Reads one device TOML. The file has the units that datasheets use, in its key names; a DeviceSpec has SI units."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from rooflight.hardware.devices.spec import DeviceSpec, Link, MemoryLevel, Network, Reached, Roofs
from rooflight.records.dtypes import PRECISIONS

GIB: Final = 2**30
MIB: Final = 2**20
GIGA: Final = 1e9
TERA: Final = 1e12
MICRO: Final = 1e-6

Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]  # and finite


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TOML table that refuses keys it does not know."""


class _Memory(_Table, frozen=True):
    type: str = ""
    capacity_gib: Positive | None = None
    bandwidth_gb_per_s: Positive | None = None


class _Link(_Table, frozen=True):
    name: str
    per_direction_gb_per_s: Positive | None = None
    joins: Annotated[int, msgspec.Meta(gt=0)] | None = None
    adds: bool = False


class _Network(_Table, frozen=True):
    name: str
    per_direction_gb_per_s: Positive
    adds: bool = False


class _Peaks(_Table, frozen=True):
    float64: Positive | None = None
    float32: Positive | None = None
    tfloat32: Positive | None = None
    float16: Positive | None = None
    float16_accumulate: Positive | None = None
    bfloat16: Positive | None = None
    float8: Positive | None = None
    int8: Positive | None = None
    float4: Positive | None = None


class _Reached(_Table, frozen=True):
    """What was measured elsewhere; ``matrix_tflops`` of large square products."""

    source: tuple[str, ...]
    bandwidth_gb_per_s: Positive | None = None
    matrix_tflops: _Peaks = _Peaks()


class _Device(_Table, frozen=True):
    name: str
    vendor: str
    source: tuple[str, ...]
    architecture: str = ""
    kind: Literal["cuda", "cpu", "other"] = "cuda"
    match: tuple[str, ...] = ()
    compute_capability: str = ""
    form_factor: str = ""
    unit_count: Annotated[int, msgspec.Meta(gt=0)] | None = None
    boost_clock_mhz: Positive | None = None
    matrix_peak_clock_mhz: Positive | None = None
    tdp_w: Positive | None = None
    least_kernel_us: Positive | None = None  # the shortest kernel in any profile of it
    confidence: str = ""
    unverified: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    checked_against: tuple[str, ...] = ()
    memory: _Memory = _Memory()
    cache_mib: dict[str, Positive] = {}  # nearest first
    cache_gb_per_s: dict[str, Positive] = {}  # the most that its vendor says can be read
    matrix_tflops: _Peaks = _Peaks()  # dense
    vector_tflops: _Peaks = _Peaks()
    reached: _Reached | None = None
    links: tuple[_Link, ...] = ()
    network: _Network | None = None


_AS_IN_THE_FILE: Final = (
    *("name", "vendor", "architecture", "kind", "match", "compute_capability", "form_factor", "unit_count"),
    *("boost_clock_mhz", "matrix_peak_clock_mhz", "tdp_w", "confidence", "unverified", "notes", "checked_against"),
)


def read_device(path: Path) -> DeviceSpec:
    """The device described by a TOML file. Raises ValueError, in one line, naming the file and the key at fault."""
    try:
        return _spec(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Device))
    except OSError as error:
        raise ValueError(f"cannot read device file {path}: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"device file {path} is not valid: {error}") from None


def _spec(device: _Device) -> DeviceSpec:
    for name in device.cache_gb_per_s.keys() - device.cache_mib.keys():
        raise ValueError(f"cache_gb_per_s.{name} is of a cache that cache_mib does not list")
    if slow := [name for name, peak in device.cache_gb_per_s.items() if peak < (device.memory.bandwidth_gb_per_s or 0)]:
        raise ValueError(f"cache_gb_per_s.{slow[0]} is slower than main memory")
    _refuse_more_than_roofs(device)
    caches = (
        MemoryLevel(
            name=name,
            capacity_bytes=round(mib * MIB),
            peak_bytes_per_s=_si(device.cache_gb_per_s.get(name), GIGA),
        )
        for name, mib in device.cache_mib.items()
    )
    main = MemoryLevel(
        name="DRAM",
        capacity_bytes=None if device.memory.capacity_gib is None else round(device.memory.capacity_gib * GIB),
        bytes_per_s=_si(device.memory.bandwidth_gb_per_s, GIGA),
    )
    network, reached = device.network, device.reached
    return DeviceSpec(
        **{name: getattr(device, name) for name in _AS_IN_THE_FILE},
        datasheet=Roofs(
            source="; ".join(device.source),
            matrix_flops_per_s=_peaks(device.matrix_tflops),
            vector_flops_per_s=_peaks(device.vector_tflops),
            memory=(*caches, main),
        ),
        links=tuple(
            Link(
                name=link.name,
                bytes_per_s=_si(link.per_direction_gb_per_s, GIGA),
                joins=link.joins or 0,
                adds=link.adds,
            )
            for link in device.links
        ),
        network=None
        if network is None
        else Network(name=network.name, bytes_per_s=network.per_direction_gb_per_s * GIGA, adds=network.adds),
        memory_type=device.memory.type,
        least_kernel_s=None if device.least_kernel_us is None else device.least_kernel_us * MICRO,
        reached=None
        if reached is None
        else Reached(
            sources=reached.source,
            bytes_per_s=_si(reached.bandwidth_gb_per_s, GIGA),
            matrix_flops_per_s=_peaks(reached.matrix_tflops),
        ),
        sources=device.source,
    )


def _refuse_more_than_roofs(device: _Device) -> None:
    if (reached := device.reached) is None:
        return
    if reached.bandwidth_gb_per_s and reached.bandwidth_gb_per_s > (device.memory.bandwidth_gb_per_s or 0):
        raise ValueError("reached.bandwidth_gb_per_s is more than memory.bandwidth_gb_per_s")
    for precision in PRECISIONS:
        roof = max(getattr(peaks, precision) or 0 for peaks in (device.matrix_tflops, device.vector_tflops))
        if (getattr(reached.matrix_tflops, precision) or 0) > roof:
            raise ValueError(f"reached.matrix_tflops.{precision} is more than its peak")


def _peaks(tflops: _Peaks) -> dict[str, float]:
    in_si = ((precision, _si(getattr(tflops, precision), TERA)) for precision in PRECISIONS)
    return {precision: peak for precision, peak in in_si if peak is not None}


def _si(figure: float | None, unit: float) -> float | None:
    # rounded, so that 989.4 tera is the float nearest to 989.4e12
    return None if figure is None else float(round(figure * unit))
