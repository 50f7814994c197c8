"""``rooflight devices``: what is known of each device, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rooflight.devices import DeviceSpec, MemoryLevel

_PIPE_WIDTH = 120

app = typer.Typer(help="List the devices known and show every figure of one, with its source.")

# Of an SI unit, the one that people read: its size and its name.
_READABLE: Final[dict[str, tuple[float, str]]] = {
    "FLOP/s": (1e12, "TFLOP/s"),
    "OP/s": (1e12, "TOP/s"),
    "B/s": (1e9, "GB/s"),
    "s": (1e-6, "µs"),
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, in SI units.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One line of ``show``, in SI units. ``key`` is the figure's place in the device's TOML."""

    figure: str
    unit: str = ""
    datasheet: float | None = None
    calibrated: float | None = None
    key: str = ""


@app.callback(invoke_without_command=True)
def devices(context: typer.Context, as_json: AsJson = False) -> None:
    """List the devices known."""
    if context.invoked_subcommand is None:
        _list(as_json)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A device, or a path to a TOML.")], as_json: AsJson = False) -> None:
    """Show every figure of one device: datasheet beside calibration, sources and doubts."""
    from rooflight.cli.progress import spinner
    from rooflight.front.device import find_device

    with spinner() as progress:
        spec = find_device(name, progress=progress)
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


def _figures(spec: DeviceSpec) -> Iterator[_Figure]:
    from rooflight.records.dtypes import PRECISIONS

    printed, measured = replace(spec, calibrated=None), replace(spec, datasheet=None)
    with_matrix, with_vector = _listed(spec)
    for precision in PRECISIONS:
        on_vector_units = precision not in with_matrix and spec.matrix_peak(precision) is not None
        yield _Figure(
            figure=f"matrix {precision}" + (" (vector units)" if on_vector_units else ""),
            unit="OP/s" if precision == "int8" else "FLOP/s",
            datasheet=printed.matrix_peak(precision),
            calibrated=measured.matrix_peak(precision),
            key=f"{'vector' if on_vector_units else 'matrix'}_tflops.{precision}",
        )
    for precision in PRECISIONS:
        if precision in ("float64", "float32") or precision in with_vector:
            yield _Figure(
                figure=f"vector {precision}",
                unit="FLOP/s",
                datasheet=printed.vector_peak(precision),
                calibrated=measured.vector_peak(precision),
                key=f"vector_tflops.{precision}",
            )
    for level in spec.memory[:-1]:
        yield from _level_figures(level.name, _cache(printed, level.name), _cache(measured, level.name))
    if spec.memory:
        yield from _level_figures(spec.memory[-1].name, _main_memory(printed), _main_memory(measured))
    for link in spec.links:
        yield _Figure(
            figure=f"{link.name} per direction", unit="B/s", datasheet=link.bytes_per_s, key=f"links.{link.name}"
        )
    yield _Figure(figure="launch latency", unit="s", calibrated=spec.launch_latency_s)
    yield _Figure(figure="units (SM, CU, core)", datasheet=spec.unit_count, key="unit_count")
    yield _Figure(figure="boost clock", unit="MHz", datasheet=spec.boost_clock_mhz, key="boost_clock_mhz")
    if spec.matrix_peak_clock_mhz is not None:
        clock = spec.matrix_peak_clock_mhz
        yield _Figure(figure="clock of matrix peaks", unit="MHz", datasheet=clock, key="matrix_peak_clock_mhz")
    yield _Figure(figure="design power", unit="W", datasheet=spec.tdp_w, key="tdp_w")


def _listed(spec: DeviceSpec) -> tuple[set[str], set[str]]:
    """The precisions for which the device's own matrix and vector peaks are known."""
    sources = [roofs for roofs in (spec.datasheet, spec.calibrated) if roofs is not None]
    matrix = (roofs.matrix_flops_per_s for roofs in sources)
    vector = (roofs.vector_flops_per_s for roofs in sources)
    return set().union(*matrix), set().union(*vector)


def _level_figures(name: str, printed: MemoryLevel | None, measured: MemoryLevel | None) -> Iterator[_Figure]:
    is_main = name == "DRAM"
    yield _Figure(
        figure=f"{name} capacity",
        unit="B",
        datasheet=printed.capacity_bytes if printed else None,
        calibrated=measured.capacity_bytes if measured else None,
        key="memory.capacity_gib" if is_main else f"cache_mib.{name}",
    )
    yield _Figure(
        figure=f"{name} bandwidth",
        unit="B/s",
        datasheet=printed.bytes_per_s if printed else None,
        calibrated=measured.bytes_per_s if measured else None,
        key="memory.bandwidth_gb_per_s" if is_main else "",
    )


def _cache(spec: DeviceSpec, name: str) -> MemoryLevel | None:
    return next((cache for cache in spec.memory[:-1] if cache.name == name), None)


def _main_memory(spec: DeviceSpec) -> MemoryLevel | None:
    return spec.memory[-1] if spec.memory else None


def _summary(spec: DeviceSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "vendor": spec.vendor,
        "dram_capacity_bytes": spec.dram_capacity_bytes,
        "dram_bytes_per_s": spec.dram_bytes_per_s,
        "bf16_flops_per_s": spec.matrix_peak("bf16"),
        "fp8_flops_per_s": spec.matrix_peak("fp8"),
        "fp32_flops_per_s": spec.matrix_peak("fp32"),
        "link_bytes_per_s": spec.link_bytes_per_s,
        "confidence": spec.confidence,
    }


def _identity(spec: DeviceSpec) -> dict[str, Any]:
    texts = ("name", "vendor", "architecture", "kind", "form_factor", "compute_capability", "memory_type", "confidence")
    lists = ("match", "unverified", "notes", "sources", "checked_against")
    return {field: getattr(spec, field) for field in texts} | {field: list(getattr(spec, field)) for field in lists}


def _figure_json(figure: _Figure, spec: DeviceSpec) -> dict[str, Any]:
    return {
        "figure": figure.figure,
        "unit": figure.unit,
        "datasheet": figure.datasheet,
        "calibrated": figure.calibrated,
        "verified": figure.key not in spec.unverified,
    }


def _print_json(content: object) -> None:
    import json

    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def _print_list(specs: tuple[DeviceSpec, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("device", no_wrap=True)
    for heading in ("memory\nGiB", "DRAM\nGB/s", "bf16\nTFLOP/s", "fp8\nTFLOP/s", "fp32\nTFLOP/s", "link\nGB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("confidence", no_wrap=True)
    for spec in specs:
        row = _summary(spec)
        table.add_row(
            spec.name,
            _scaled(row["dram_capacity_bytes"], 2**30),
            _scaled(row["dram_bytes_per_s"], 1e9),
            *(_scaled(row[f"{precision}_flops_per_s"], 1e12) for precision in ("bf16", "fp8", "fp32")),
            _scaled(row["link_bytes_per_s"], 1e9),
            spec.confidence or "–",
        )
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)  # a pipe has no edge to wrap at
    console.print(table)
    console.print("\nDense peaks; links per direction; – unknown.\nSources and doubts: rooflight devices show NAME")


def _print_device(spec: DeviceSpec, figures: tuple[_Figure, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)  # a pipe has no edge to wrap at
    about = (spec.vendor, spec.architecture, spec.compute_capability, spec.form_factor, spec.memory_type)
    console.print(" · ".join((spec.name, *filter(None, about))))
    console.print(f"confidence: {spec.confidence or 'unknown'}\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("datasheet", justify="right", no_wrap=True)
    with_calibration = spec.calibrated is not None
    if with_calibration:
        table.add_column("calibrated", justify="right", no_wrap=True)
    table.add_column("doubt")
    for figure in figures:
        measured = (_readable(figure.calibrated, figure.unit),) if with_calibration else ()
        doubt = "not verified" if figure.key in spec.unverified else ""
        table.add_row(figure.figure, _readable(figure.datasheet, figure.unit), *measured, doubt)
    console.print(table)
    for heading, lines in (("notes", spec.notes), ("source", spec.sources), ("checked against", spec.checked_against)):
        if lines:
            console.print(f"\n{heading}")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
    if spec.calibrated is not None and spec.datasheet is not None:
        console.print(f"\ncalibration\n  {spec.calibrated.source}")


def _scaled(figure: float | None, unit: float) -> str:
    return "–" if figure is None else f"{figure / unit:.7g}"


def _readable(figure: float | None, unit: str) -> str:
    if figure is None:
        return "unknown"
    if unit == "B":
        scale: tuple[float, str] = (2**30, "GiB") if figure >= 2**30 else (2**20, "MiB")
    else:
        scale = _READABLE.get(unit, (1, unit))
    return f"{figure / scale[0]:.7g} {scale[1]}".rstrip()
