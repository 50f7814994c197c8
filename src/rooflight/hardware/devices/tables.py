"""The known devices, and every figure of one, as reports: what ``rooflight devices`` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel
from rooflight.records.document import Document, Fields
from rooflight.records.dtypes import PRECISIONS
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Report, table

_READABLE: Final = {"FLOP/s": "TFLOP/s", "OP/s": "TOP/s", "B/s": "GB/s", "s": "µs"}
"""Of an SI unit, the one that people read."""
_GIB: Final = 2**30


class DeviceSummary(Fields, frozen=True, kw_only=True):
    """A device in a line: dense peaks, the fastest link per direction, how sure the figures are."""

    name: str
    vendor: str
    dram_capacity_bytes: int | None
    dram_bytes_per_s: float | None
    bf16_flops_per_s: float | None
    fp8_flops_per_s: float | None
    fp32_flops_per_s: float | None
    link_bytes_per_s: float | None
    confidence: str


class DevicesDocument(Document, frozen=True, kw_only=True, tag="rooflight.devices/1"):
    """The known devices."""

    devices: tuple[DeviceSummary, ...]


class Figure(Fields, frozen=True, kw_only=True):
    """A figure of a device in ``unit``: as on the datasheet, as measured; ``verified`` unless it is doubted."""

    figure: str
    unit: str = ""
    datasheet: float | None = None
    calibrated: float | None = None
    verified: bool = True


class DeviceDocument(Document, frozen=True, kw_only=True, tag="rooflight.device/1"):
    """Every figure of a device, with sources and doubts."""

    name: str
    what_if_precision: str | None
    what_if_clock_hz: float | None
    vendor: str
    architecture: str
    kind: str
    form_factor: str
    compute_capability: str
    memory_type: str
    confidence: str
    match: tuple[str, ...]
    unverified: tuple[str, ...]
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    checked_against: tuple[str, ...]
    figures: tuple[Figure, ...]
    reached_bytes_per_s: float | None
    reached_matrix_flops_per_s: dict[str, float]
    reached_sources: tuple[str, ...]


def list_report(specs: Sequence[DeviceSpec]) -> Report:
    """One row per device."""
    peaks = {f"{short}_flops_per_s": short for short in ("bf16", "fp8", "fp32")}
    summaries = tuple(
        DeviceSummary.view(spec, **{name: spec.matrix_peak(short) for name, short in peaks.items()}) for spec in specs
    )
    found = table(
        "devices",
        "Figures of each",
        summaries,
        ("device", "", lambda each: each.name),
        ("memory", "B GiB", lambda each: each.dram_capacity_bytes),
        ("DRAM", "B/s GB/s", lambda each: each.dram_bytes_per_s),
        ("bf16", "FLOP/s TFLOP/s", lambda each: each.bf16_flops_per_s),
        ("fp8", "FLOP/s TFLOP/s", lambda each: each.fp8_flops_per_s),
        ("fp32", "FLOP/s TFLOP/s", lambda each: each.fp32_flops_per_s),
        ("link", "B/s GB/s", lambda each: each.link_bytes_per_s),
        ("confidence", "", lambda each: each.confidence or None),
        optional=("confidence", "link"),
        note="Dense peaks; links per direction; – unknown. Sources and doubts: rooflight devices show NAME",
    )
    return Report(title="Devices known", data=DevicesDocument(devices=summaries), tables=(found,))


def device_report(spec: DeviceSpec) -> Report:
    """Every figure of one device: datasheet beside calibration, sources and doubts."""
    figures, reached = tuple(_figures(spec)), spec.reached
    calibrated = ("calibrated", "", lambda each: _readable(each.calibrated, each.unit))
    shown = table(
        "figures",
        "Figures",
        figures,
        ("figure", "", lambda each: each.figure),
        ("datasheet", "", lambda each: _readable(each.datasheet, each.unit)),
        *([calibrated] if spec.calibrated is not None else []),
        ("doubt", "", lambda each: "" if each.verified else "not verified"),
        unknown="unknown",
    )
    document = DeviceDocument.view(
        spec,
        figures=figures,
        reached_bytes_per_s=reached.bytes_per_s if reached else None,
        reached_matrix_flops_per_s=reached.matrix_flops_per_s if reached else {},
        reached_sources=reached.sources if reached else (),
    )
    return Report(title=spec.name, data=document, facts=tuple(_facts(spec)), tables=(shown,), notes=spec.notes)


def _facts(spec: DeviceSpec) -> Iterable[tuple[str, Cell]]:
    texts = ("vendor", "architecture", "compute_capability", "form_factor", "memory_type")
    yield from ((name.replace("_", " "), text) for name in texts if (text := getattr(spec, name)))
    if spec.name != spec.part_name:
        yield "what if", "matrix products in fewer bits, or a locked clock: no figure of a datasheet"
    yield "confidence", spec.confidence or "unknown"
    yield from (("source", source) for source in spec.sources)
    yield from (("checked against", source) for source in spec.checked_against)
    if (reached := spec.reached) is not None:
        if reached.bytes_per_s is not None:
            yield "bandwidth reached", Quantity(reached.bytes_per_s, "B/s", "GB/s")
        for precision, figure in reached.matrix_flops_per_s.items():
            yield f"{precision} products reach", Quantity(figure, "FLOP/s", "TFLOP/s")
        yield from (("measured by", source) for source in reached.sources)
    if spec.calibrated is not None and spec.datasheet is not None:
        yield "calibration", spec.calibrated.source


def _readable(value: float | None, unit: str) -> Cell:
    if value is None:
        return None
    if unit == "B":
        return Quantity(value, unit, "GiB" if value >= _GIB else "MiB")
    return Quantity(value, unit, _READABLE.get(unit, unit)) if unit else int(value)


def _figures(spec: DeviceSpec) -> Iterator[Figure]:
    printed, measured = replace(spec, calibrated=None), replace(spec, datasheet=None)

    def figure(
        name: str, unit: str, key: str, datasheet: float | None = None, calibrated: float | None = None
    ) -> Figure:
        verified = key not in spec.unverified  # ``key`` is its place in the device's TOML
        return Figure(figure=name, unit=unit, datasheet=datasheet, calibrated=calibrated, verified=verified)

    def level(name: str, on_sheet: MemoryLevel | None, here: MemoryLevel | None) -> Iterator[Figure]:
        is_main = name == "DRAM"
        capacities = (each.capacity_bytes if each else None for each in (on_sheet, here))
        bandwidth = (on_sheet.bytes_per_s or on_sheet.peak_bytes_per_s) if on_sheet else None
        yield figure(f"{name} capacity", "B", "memory.capacity_gib" if is_main else f"cache_mib.{name}", *capacities)
        key = "memory.bandwidth_gb_per_s" if is_main else f"cache_gb_per_s.{name}"
        yield figure(f"{name} bandwidth", "B/s", key, bandwidth, here.bytes_per_s if here else None)

    sources = [roofs for roofs in (spec.datasheet, spec.calibrated) if roofs is not None]
    with_matrix = {precision for roofs in sources for precision in roofs.matrix_flops_per_s}
    with_vector = {precision for roofs in sources for precision in roofs.vector_flops_per_s}
    for precision in PRECISIONS:
        used = spec.computed_as(precision)
        on_vector_units = used not in with_matrix and spec.matrix_peak(used) is not None
        how = f" (what if: in {used})" if used != precision else " (vector units)" if on_vector_units else ""
        key = f"{'vector' if on_vector_units else 'matrix'}_tflops.{used}"
        unit = "OP/s" if precision == "int8" else "FLOP/s"
        yield figure(f"matrix {precision}{how}", unit, key, printed.matrix_peak(used), measured.matrix_peak(used))
    for precision in PRECISIONS:
        if precision in ("float64", "float32") or precision in with_vector:
            peaks = printed.vector_peak(precision), measured.vector_peak(precision)
            yield figure(f"vector {precision}", "FLOP/s", f"vector_tflops.{precision}", *peaks)
    for cache in spec.memory[:-1]:
        yield from level(cache.name, _cache(printed, cache.name), _cache(measured, cache.name))
    if spec.memory:
        yield from level(spec.memory[-1].name, _main_memory(printed), _main_memory(measured))
    for link in spec.links:
        yield figure(f"{link.name} per direction", "B/s", f"links.{link.name}", link.bytes_per_s)
    yield figure("launch latency", "s", "", calibrated=spec.launch_latency_s)
    yield figure("units (SM, CU, core)", "", "unit_count", spec.unit_count)
    boost = "boost clock" if spec.what_if_clock_hz is None else "locked clock (what if)"
    yield figure(boost, "MHz", "boost_clock_mhz", spec.boost_clock_mhz)
    if spec.matrix_peak_clock_mhz is not None:
        yield figure("clock of matrix peaks", "MHz", "matrix_peak_clock_mhz", spec.matrix_peak_clock_mhz)
    yield figure("design power", "W", "tdp_w", spec.tdp_w)
    if spec.least_kernel_s is not None:
        yield figure("shortest kernel", "s", "least_kernel_us", spec.least_kernel_s)


def _cache(spec: DeviceSpec, name: str) -> MemoryLevel | None:
    return next((cache for cache in spec.memory[:-1] if cache.name == name), None)


def _main_memory(spec: DeviceSpec) -> MemoryLevel | None:
    return spec.memory[-1] if spec.memory else None
