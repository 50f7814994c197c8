"""``rooflight devices``: what is known of each device, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rooflight.devices import DeviceSpec

app = typer.Typer(help="List the devices known and show every figure of one, with its source.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in SI units.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One line of ``show``, in SI units. ``key`` is the figure's place in the device's TOML."""

    figure: str
    unit: str
    datasheet: float | None
    calibrated: float | None
    key: str = ""


@app.callback(invoke_without_command=True)
def devices(context: typer.Context, as_json: AsJson = False) -> None:
    """List the devices known."""
    if context.invoked_subcommand is None:
        _list(as_json)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A device, or a path to a TOML.")], as_json: AsJson = False) -> None:
    """Show every figure of one device: datasheet beside calibration, sources and doubts."""
    spec = _device(name)
    figures = tuple(_figures(spec))
    if as_json:
        _print_json(_identity(spec) | {"figures": [_figure_json(figure, spec) for figure in figures]})
    else:
        _print_device(spec, figures)


def _list(as_json: bool) -> None:
    from rooflight.devices import all_devices
    from rooflight.devices.calibrations import device_of, saved

    measured_only = {spec.name: spec for spec in map(device_of, saved()) if spec.datasheet is None}
    specs = (*all_devices(), *measured_only.values())
    if as_json:
        _print_json([_summary(spec) for spec in specs])
    else:
        _print_list(specs)


def _device(name: str) -> DeviceSpec:
    """The device called ``name``, with its newest calibration; a calibrated CPU answers to its name and to "cpu"."""
    from rooflight.devices import get
    from rooflight.devices.calibrations import device_of, saved

    calibrated = [device_of(calibration) for calibration in saved()]
    for spec in calibrated:
        if spec.datasheet is None and name.lower() in (spec.name.lower(), spec.kind):
            return spec
    spec = get(name)
    roofs = next((other.calibrated for other in calibrated if other.name == spec.name), None)
    return spec if roofs is None else spec.with_calibration(roofs)


def _figures(spec: DeviceSpec) -> Iterator[_Figure]:
    from rooflight.records.dtypes import PRECISIONS

    printed = replace(spec, calibrated=None)
    measured = replace(spec, datasheet=None)
    for precision in PRECISIONS:
        yield _Figure(
            figure=f"matrix {precision}",
            unit="OP/s" if precision == "int8" else "FLOP/s",
            datasheet=printed.matrix_peak(precision),
            calibrated=measured.matrix_peak(precision),
            key=f"matrix_tflops.{precision}",
        )
    for precision in ("float64", "float32"):
        yield _Figure(
            figure=f"vector {precision}",
            unit="FLOP/s",
            datasheet=printed.vector_peak(precision),
            calibrated=measured.vector_peak(precision),
            key=f"vector_tflops.{precision}",
        )
    yield from _memory_figures(printed, measured, spec)
    for link in spec.links:
        yield _Figure(
            figure=f"{link.name} per direction", unit="B/s", datasheet=link.bytes_per_s, calibrated=None, key="links"
        )
    yield _Figure(figure="launch latency", unit="s", datasheet=None, calibrated=spec.launch_latency_s)
    yield _Figure(figure="units (SM, CU, core)", unit="", datasheet=spec.unit_count, calibrated=None, key="unit_count")
    yield _Figure(figure="boost clock", unit="MHz", datasheet=spec.boost_clock_mhz, calibrated=None)
    yield _Figure(figure="clock of matrix peaks", unit="MHz", datasheet=spec.matrix_peak_clock_mhz, calibrated=None)
    yield _Figure(figure="design power", unit="W", datasheet=spec.tdp_w, calibrated=None, key="tdp_w")


def _memory_figures(printed: DeviceSpec, measured: DeviceSpec, spec: DeviceSpec) -> Iterator[_Figure]:
    for level in spec.memory:
        is_main = level is spec.memory[-1] or level.name == spec.memory[-1].name
        own = [
            next((other for other in source.memory if other.name == level.name), None) for source in (printed, measured)
        ]
        if is_main:
            own = [source.memory[-1] if source.memory else None for source in (printed, measured)]
        yield _Figure(
            figure=f"{level.name} capacity",
            unit="B",
            datasheet=own[0] and own[0].capacity_bytes,
            calibrated=own[1] and own[1].capacity_bytes,
            key="memory.capacity_gib" if is_main else f"cache_mib.{level.name}",
        )
        yield _Figure(
            figure=f"{level.name} bandwidth",
            unit="B/s",
            datasheet=own[0] and own[0].bytes_per_s,
            calibrated=own[1] and own[1].bytes_per_s,
            key="memory.bandwidth_gb_per_s" if is_main else "",
        )


