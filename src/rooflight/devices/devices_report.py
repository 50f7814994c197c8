"""The known devices, and every figure of one, as reports: what ``rooflight devices`` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflight.devices.spec import DeviceSpec, MemoryLevel
from rooflight.records.document import Document, Fields
from rooflight.records.dtypes import PRECISIONS
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Column, Report, Table

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


class FigureData(Fields, frozen=True, kw_only=True):
    """A figure of a device in ``unit``: as on the datasheet, as measured; ``verified`` unless it is doubted."""

    figure: str
    unit: str
    datasheet: float | None
    calibrated: float | None
    verified: bool


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
    figures: tuple[FigureData, ...]
    reached_bytes_per_s: float | None
    reached_matrix_flops_per_s: dict[str, float]
    reached_sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A figure in SI units. ``key`` is its place in the device's TOML."""

    name: str
    unit: str = ""
    datasheet: float | None = None
    calibrated: float | None = None
    key: str = ""


def list_report(specs: Sequence[DeviceSpec]) -> Report:
    """One row per device."""
    summaries = tuple(map(_summary, specs))
    return Report(
        title="Devices known",
        data=DevicesDocument(devices=summaries),
        tables=(
            Table(
                id="devices",
                title="Figures of each",
                columns=(
                    Column("device"),
                    Column("memory", "B", "GiB"),
                    Column("DRAM", "B/s", "GB/s"),
                    Column("bf16", "FLOP/s", "TFLOP/s"),
                    Column("fp8", "FLOP/s", "TFLOP/s"),
                    Column("fp32", "FLOP/s", "TFLOP/s"),
                    Column("link", "B/s", "GB/s"),
                    Column("confidence"),
                ),
                rows=tuple(map(_summary_row, summaries)),
                optional=("confidence", "link"),
                note="Dense peaks; links per direction; – unknown. Sources and doubts: rooflight devices show NAME",
            ),
        ),
    )


def device_report(spec: DeviceSpec) -> Report:
    """Every figure of one device: datasheet beside calibration, sources and doubts."""
    figures = tuple(_figures(spec))
    with_calibration = spec.calibrated is not None
    return Report(
        title=spec.name,
        data=_document(spec, figures),
        facts=tuple(_facts(spec)),
        tables=(
            Table(
                id="figures",
                title="Figures",
                columns=(
                    Column("figure"),
                    Column("datasheet"),
                    *([Column("calibrated")] if with_calibration else []),
                    Column("doubt"),
                ),
                rows=tuple(_figure_row(figure, spec, with_calibration) for figure in figures),
                unknown="unknown",
            ),
        ),
        notes=spec.notes,
    )


def _summary(spec: DeviceSpec) -> DeviceSummary:
    return DeviceSummary(
        name=spec.name,
        vendor=spec.vendor,
        dram_capacity_bytes=spec.dram_capacity_bytes,
        dram_bytes_per_s=spec.dram_bytes_per_s,
        bf16_flops_per_s=spec.matrix_peak("bf16"),
        fp8_flops_per_s=spec.matrix_peak("fp8"),
        fp32_flops_per_s=spec.matrix_peak("fp32"),
        link_bytes_per_s=spec.link_bytes_per_s,
        confidence=spec.confidence,
    )


def _summary_row(each: DeviceSummary) -> tuple[Cell, ...]:
    peaks = each.bf16_flops_per_s, each.fp8_flops_per_s, each.fp32_flops_per_s
    memory = each.dram_capacity_bytes, each.dram_bytes_per_s
    return (each.name, *memory, *peaks, each.link_bytes_per_s, each.confidence or None)


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


def _figure_row(figure: _Figure, spec: DeviceSpec, with_calibration: bool) -> tuple[Cell, ...]:
    measured = (_readable(figure.calibrated, figure.unit),) if with_calibration else ()
    doubt = "not verified" if figure.key in spec.unverified else ""
    return (figure.name, _readable(figure.datasheet, figure.unit), *measured, doubt)


def _readable(value: float | None, unit: str) -> Cell:
    if value is None:
        return None
    if unit == "B":
        return Quantity(value, unit, "GiB" if value >= _GIB else "MiB")
    return Quantity(value, unit, _READABLE.get(unit, unit)) if unit else int(value)


def _document(spec: DeviceSpec, figures: Iterable[_Figure]) -> DeviceDocument:
    return DeviceDocument(
        name=spec.name,
        what_if_precision=spec.what_if_precision,
        what_if_clock_hz=spec.what_if_clock_hz,
        vendor=spec.vendor,
        architecture=spec.architecture,
        kind=spec.kind,
        form_factor=spec.form_factor,
        compute_capability=spec.compute_capability,
        memory_type=spec.memory_type,
        confidence=spec.confidence,
        match=spec.match,
        unverified=spec.unverified,
        notes=spec.notes,
        sources=spec.sources,
        checked_against=spec.checked_against,
        figures=tuple(
            FigureData(
                figure=figure.name,
                unit=figure.unit,
                datasheet=figure.datasheet,
                calibrated=figure.calibrated,
                verified=figure.key not in spec.unverified,
            )
            for figure in figures
        ),
        reached_bytes_per_s=spec.reached.bytes_per_s if spec.reached else None,
        reached_matrix_flops_per_s=dict(spec.reached.matrix_flops_per_s) if spec.reached else {},
        reached_sources=spec.reached.sources if spec.reached else (),
    )


def _figures(spec: DeviceSpec) -> Iterator[_Figure]:
    printed, measured = replace(spec, calibrated=None), replace(spec, datasheet=None)
    yield from _peaks(spec, printed, measured)
    for level in spec.memory[:-1]:
        yield from _level(level.name, _cache(printed, level.name), _cache(measured, level.name))
    if spec.memory:
        yield from _level(spec.memory[-1].name, _main_memory(printed), _main_memory(measured))
    for link in spec.links:
        yield _Figure(
            name=f"{link.name} per direction", unit="B/s", datasheet=link.bytes_per_s, key=f"links.{link.name}"
        )
    yield _Figure(name="launch latency", unit="s", calibrated=spec.launch_latency_s)
    yield _Figure(name="units (SM, CU, core)", datasheet=spec.unit_count, key="unit_count")
    boost = "boost clock" if spec.what_if_clock_hz is None else "locked clock (what if)"
    yield _Figure(name=boost, unit="MHz", datasheet=spec.boost_clock_mhz, key="boost_clock_mhz")
    if spec.matrix_peak_clock_mhz is not None:
        clock = spec.matrix_peak_clock_mhz
        yield _Figure(name="clock of matrix peaks", unit="MHz", datasheet=clock, key="matrix_peak_clock_mhz")
    yield _Figure(name="design power", unit="W", datasheet=spec.tdp_w, key="tdp_w")
    if spec.least_kernel_s is not None:
        yield _Figure(name="shortest kernel", unit="s", datasheet=spec.least_kernel_s, key="least_kernel_us")


def _peaks(spec: DeviceSpec, printed: DeviceSpec, measured: DeviceSpec) -> Iterator[_Figure]:
    with_matrix, with_vector = _listed(spec)
    for precision in PRECISIONS:
        used = spec.computed_as(precision)
        on_vector_units = used not in with_matrix and spec.matrix_peak(used) is not None
        how = f" (what if: in {used})" if used != precision else " (vector units)" if on_vector_units else ""
        yield _Figure(
            name=f"matrix {precision}" + how,
            unit="OP/s" if precision == "int8" else "FLOP/s",
            datasheet=printed.matrix_peak(used),
            calibrated=measured.matrix_peak(used),
            key=f"{'vector' if on_vector_units else 'matrix'}_tflops.{used}",
        )
    for precision in PRECISIONS:
        if precision in ("float64", "float32") or precision in with_vector:
            yield _Figure(
                name=f"vector {precision}",
                unit="FLOP/s",
                datasheet=printed.vector_peak(precision),
                calibrated=measured.vector_peak(precision),
                key=f"vector_tflops.{precision}",
            )


def _listed(spec: DeviceSpec) -> tuple[set[str], set[str]]:
    """The precisions for which the device's own matrix and vector peaks are known."""
    sources = [roofs for roofs in (spec.datasheet, spec.calibrated) if roofs is not None]
    matrix = (roofs.matrix_flops_per_s for roofs in sources)
    vector = (roofs.vector_flops_per_s for roofs in sources)
    return set().union(*matrix), set().union(*vector)


def _level(name: str, printed: MemoryLevel | None, measured: MemoryLevel | None) -> Iterator[_Figure]:
    is_main = name == "DRAM"
    yield _Figure(
        name=f"{name} capacity",
        unit="B",
        datasheet=printed.capacity_bytes if printed else None,
        calibrated=measured.capacity_bytes if measured else None,
        key="memory.capacity_gib" if is_main else f"cache_mib.{name}",
    )
    yield _Figure(
        name=f"{name} bandwidth",
        unit="B/s",
        datasheet=(printed.bytes_per_s or printed.peak_bytes_per_s) if printed else None,
        calibrated=measured.bytes_per_s if measured else None,
        key="memory.bandwidth_gb_per_s" if is_main else f"cache_gb_per_s.{name}",
    )


def _cache(spec: DeviceSpec, name: str) -> MemoryLevel | None:
    return next((cache for cache in spec.memory[:-1] if cache.name == name), None)


def _main_memory(spec: DeviceSpec) -> MemoryLevel | None:
    return spec.memory[-1] if spec.memory else None
