"""Calibration: the roofs of this machine, each the best of many trials, and their report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rooflight.hardware.devices import calibrations
from rooflight.hardware.devices.calibrations import DISTURBED, Calibration, DeviceKind
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.hardware.machine import cpu, cuda, environment
from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.hardware.machine.hardware import data_caches, kind_here, memory_bytes, usable_cores
from rooflight.hardware.machine.probes import Figure, Progress, search
from rooflight.hardware.machine.timing import Clock, CudaEvents, SteadyClock
from rooflight.records.document import Document
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Report, table

# Keys of a calibration's environment, beside those of environment.describe()
VERDICT = "calibration: "  # then a probe's name: the figure, and the pattern that reached it
SAMPLES = "samples: "  # then a probe's name: what the figure was computed from
LATENCY = "launch latency"
BUSY = "busy with other programs"  # a share of the CPU, as "12 %"
_BUDGET_S: dict[DeviceKind, float] = {"cpu": 16.0, "cuda": 30.0}
_QUICK_BUDGET_S = 1.0


def calibrate(
    device: DeviceKind | None = None,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    quick: bool = False,
    clock: Clock | None = None,
) -> Calibration:
    """Measure the roofs of ``device`` (None: CUDA where there is one, otherwise the CPU) in about 20 or 40 seconds.

    Saves nothing. Leaves torch's threads, precision, random and gradient state as they were. ``progress`` is called
    with the name of what is being measured and the fraction done. A CPU's roofs are those of ``threads`` threads (None:
    as many as torch runs on). ``quick`` measures less in about 2 seconds: for tests, not for roofs. Raises ValueError
    for a device that is not present and for a number of threads that it cannot have, RuntimeError if nothing could be
    measured.
    """
    kind = device or kind_here()
    with _on_threads(kind, threads):
        return _calibrate(kind, progress, quick=quick, clock=clock)


@contextmanager
def _on_threads(kind: DeviceKind, threads: int | None) -> Iterator[None]:
    import torch

    if threads is None:
        yield
        return
    if kind != "cpu" or not 1 <= threads <= len(usable_cores()):
        raise ValueError(f"{threads} threads: a CPU is calibrated on 1 to {len(usable_cores())} here, a GPU on none")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _calibrate(kind: DeviceKind, progress: Progress | None, *, quick: bool, clock: Clock | None) -> Calibration:
    import torch

    fingerprint = environment.fingerprint(kind)  # refuses an unknown or absent device
    random_devices = [torch.cuda.current_device()] if kind == "cuda" else []
    with torch.no_grad(), cuda.matmul_precision("highest"), torch.random.fork_rng(random_devices):
        if kind == "cuda":
            cuda.warm_up()
        probes = cuda.probes(quick=quick) if kind == "cuda" else cpu.probes(quick=quick)
        bystander = Bystander()
        clock = clock or (CudaEvents() if kind == "cuda" else SteadyClock())
        budget_s = _QUICK_BUDGET_S if quick else _BUDGET_S[kind]
        figures = search(probes, clock=clock, budget_s=budget_s, progress=progress)
        others = bystander.others()
    if all(figure.rate is None for figure in figures.values()):
        raise RuntimeError(f"nothing could be measured on {kind}: {next(iter(figures.values())).reason}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    name = torch.cuda.get_device_name() if kind == "cuda" else environment.cpu_model()
    facts = environment.describe(kind) | {VERDICT + figure.name: figure.verdict() for figure in figures.values()}
    facts |= {SAMPLES + figure.name: figure.samples() for figure in figures.values() if figure.timing is not None}
    if others is not None:
        facts[BUSY] = f"{others:.0%}".replace("%", " %")
    threads = "" if kind == "cuda" else f", {count_of(environment.threads_here(), 'thread')}"
    disturbed = others is not None and others >= BUSY_SHARE
    source = f"calibration on {name}{threads}, {now[:10]}{', quick' if quick else ''}{DISTURBED if disturbed else ''}"
    roofs = _cuda_roofs(figures, source) if kind == "cuda" else _cpu_roofs(figures, source)
    roofs = replace(roofs, disturbed=disturbed)
    return Calibration(
        fingerprint=fingerprint, device_name=name, kind=kind, roofs=roofs, measured_at=now, environment=facts
    )


def raised(measured: Calibration, earlier: Calibration) -> Calibration:
    """``measured`` with those roofs of ``earlier`` that are higher: a later, more disturbed trial lowers no roof."""
    new, old = measured.roofs, earlier.roofs
    if (measured.fingerprint, new.threads) != (earlier.fingerprint, old.threads):
        raise ValueError("these calibrations are of different machines: only trials on one machine can be compared")
    bandwidths = {level.name: level.bytes_per_s for level in old.memory}
    latencies = [latency for latency in (new.launch_latency_s, old.launch_latency_s) if latency is not None]
    roofs = replace(
        new,
        source=new.source if new.source == old.source else f"{new.source}; best of it and {old.source.split('; ')[0]}",
        matrix_flops_per_s=_higher(new.matrix_flops_per_s, old.matrix_flops_per_s),
        vector_flops_per_s=_higher(new.vector_flops_per_s, old.vector_flops_per_s),
        memory=tuple(
            replace(level, bytes_per_s=max(level.bytes_per_s or 0, bandwidths.get(level.name) or 0) or None)
            for level in new.memory
        ),
        launch_latency_s=min(latencies, default=None),
        disturbed=new.disturbed and old.disturbed,
    )
    reached, before = _rates_by_probe(new), _rates_by_probe(old)
    facts = dict(measured.environment)
    for name in (name for name, rate in before.items() if rate > reached.get(name, 0.0)):
        for key in (VERDICT + name, SAMPLES + name):  # the samples behind the roof that stays
            facts |= {key: earlier.environment[key]} if key in earlier.environment else {}
    return replace(measured, roofs=roofs, environment=facts)


def best_known(measured: Calibration) -> Calibration:
    """``measured`` with those saved roofs of the same machine that are higher."""
    earlier = calibrations.load(measured.fingerprint, measured.roofs.threads)
    return measured if earlier is None else raised(measured, earlier)


def busy_share(measured: Calibration) -> float:
    """The share of the CPU, of 1, that other programs took while a calibration ran."""
    return int(measured.environment.get(BUSY, "0 %").removesuffix("%")) / 100


def _cpu_roofs(figures: Mapping[str, Figure], source: str) -> Roofs:
    """The roofs of a CPU: what was measured, and two conclusions from how CPUs are built.

    Vector arithmetic and products run on the same units, so the product's peak, which is easier to reach, holds for
    both. And a kernel may convert narrow numbers to float32 and multiply those, so float32's peak holds for them too.
    """
    matrix = _rates(figures, "matrix", (*cpu.MATRIX_DTYPES, "int8"))
    vector = {name: peak for name, peak in matrix.items() if name in ("float32", "float64")}
    if (measured := figures["vector float32"].rate) is not None:
        vector["float32"] = max(vector.get("float32", 0.0), measured)
    if (floor := matrix.get("float32")) is not None:
        matrix |= {name: max(matrix.get(name, 0.0), floor) for name in ("bfloat16", "float16", "int8")}
    threads = environment.threads_here()
    levels = [
        MemoryLevel(
            name=cache.name,
            capacity_bytes=cache.capacity_bytes(threads),
            bytes_per_s=figures[f"memory {cache.name}"].rate,
        )
        for cache in data_caches()
    ]
    levels.append(MemoryLevel(name="DRAM", capacity_bytes=memory_bytes(), bytes_per_s=figures["memory DRAM"].rate))
    return Roofs(
        source=source,
        matrix_flops_per_s=matrix,
        vector_flops_per_s=vector,
        memory=_nearer_is_faster(levels),
        launch_latency_s=_latency_s(figures, "launch"),
        threads=threads,
    )


def _cuda_roofs(figures: Mapping[str, Figure], source: str) -> Roofs:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    l2_bytes = int(getattr(properties, "L2_cache_size", 0))
    levels = [
        MemoryLevel(name="HBM", capacity_bytes=int(properties.total_memory), bytes_per_s=figures["memory HBM"].rate)
    ]
    if l2_bytes:
        levels.insert(0, MemoryLevel(name="L2", capacity_bytes=l2_bytes, bytes_per_s=figures["memory L2"].rate))
    return Roofs(
        source=source,
        matrix_flops_per_s=_rates(figures, "matrix", cuda.MATRIX_PRECISIONS),
        vector_flops_per_s=_rates(figures, "vector", ("float32", "float64")),
        memory=_nearer_is_faster(levels),
        launch_latency_s=_latency_s(figures, "launch in a graph") or _latency_s(figures, "launch in a stream"),
    )


def _rates(figures: Mapping[str, Figure], unit: str, precisions: tuple[str, ...]) -> dict[str, float]:
    rates = {name: figures[f"{unit} {name}"].rate for name in precisions}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _nearer_is_faster(levels: list[MemoryLevel]) -> tuple[MemoryLevel, ...]:
    """Levels that are no slower than the farther ones, since all that a farther level delivered passed through them."""
    fastest: float | None = None
    out: list[MemoryLevel] = []
    for level in reversed(levels):
        known = [bandwidth for bandwidth in (fastest, level.bytes_per_s) if bandwidth is not None]
        if level.bytes_per_s is not None:  # an unknown level stays unknown: a farther one's speed is no roof for it
            level = replace(level, bytes_per_s=max(known))  # noqa: PLW2901
        fastest = max(known, default=None)
        out.append(level)
    return tuple(reversed(out))


def _latency_s(figures: Mapping[str, Figure], name: str) -> float | None:
    rate = figures[name].rate
    return None if rate is None else 1 / rate


def roofs_by_name(roofs: Roofs) -> dict[str, Quantity]:
    """The roofs that are known: those of ``matrix float32`` and the like, ``memory DRAM``, ``launch latency``."""
    found = {f"matrix {name}": Quantity(peak, "FLOP/s") for name, peak in roofs.matrix_flops_per_s.items()}
    found |= {f"vector {name}": Quantity(peak, "FLOP/s") for name, peak in roofs.vector_flops_per_s.items()}
    found |= {f"memory {each.name}": Quantity(each.bytes_per_s, "B/s") for each in roofs.memory if each.bytes_per_s}
    return found | ({LATENCY: Quantity(roofs.launch_latency_s, "s")} if roofs.launch_latency_s else {})


def _rates_by_probe(roofs: Roofs) -> dict[str, float]:
    rates = {name: each.value for name, each in roofs_by_name(roofs).items()}
    if latency_s := rates.pop(LATENCY, None):
        rates |= dict.fromkeys(("launch", "launch in a graph"), 1 / latency_s)
    return rates


def _higher(new: Mapping[str, float], old: Mapping[str, float]) -> dict[str, float]:
    return {name: max(new.get(name, 0.0), old.get(name, 0.0)) for name in (*new, *(set(old) - set(new)))}


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
        data=CalibrationDocument.view(measured),
        tables=(
            table(
                "roofs",
                "Roofs",
                _rows(measured),
                ("figure", "", lambda row: row[0]),
                ("roof", "", lambda row: row[1]),
                ("measured", "", lambda row: row[2]),
                wraps=("measured",),
                note="A roof is the best of all calibrations of this machine: it can be higher than this measurement.",
                unknown="unknown",
            ),
        ),
        conclusion=f"saved: {saved_at}" if saved_at else "nothing saved: --quick gives rough figures",
    )


def _rows(measured: Calibration) -> Iterator[tuple[str, Quantity | None, str]]:
    roofs = roofs_by_name(measured.roofs)
    latency = roofs.pop(LATENCY, None)
    texts = measured.environment.items()
    verdicts = {key.removeprefix(VERDICT): text for key, text in texts if key.startswith(VERDICT)}
    for name in dict.fromkeys([*verdicts, *roofs]):
        if not name.startswith("launch"):
            yield name, roofs.get(name), verdicts.get(name, "")
    yield LATENCY, latency, "; ".join(f"{name}: {text}" for name, text in verdicts.items() if name.startswith("launch"))
