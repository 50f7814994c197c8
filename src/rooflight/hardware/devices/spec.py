"""DeviceSpec: what a piece of hardware can do at best, and where each figure comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from rooflight.hardware.network.topology import Interconnect
from rooflight.records.dtypes import FLOAT_BITS, PRECISIONS, dtype_name, precision_of
from rooflight.records.visible import visible

# Products in these formats need no matrix unit: the vector units do them where no matrix rate is listed.
_VECTOR_PRODUCTS = ("float32", "float64")
_HALF = ("float16", "bfloat16")

THREE_TF32: Final = "3xtf32"
"""float32 products as three TF32 ones, which lose nothing that float32 keeps (CUTLASS calls it 3xTF32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """One level of memory. ``bytes_per_s`` is what a calibration measured, or a datasheet lists of main memory; None
    where it is unknown. ``peak_bytes_per_s`` of a cache is the most that can be read of it, as its vendor prints it.

    The two are apart because they bound different things: an op whose data are in main memory, and one that finds in a
    cache all that this can hold.
    """

    name: str
    capacity_bytes: int | None = None
    bytes_per_s: float | None = None
    peak_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        _refuse_unless_positive(f"{self.name} peak", self.peak_bytes_per_s)
        _refuse_unless_positive(f"{self.name} capacity", self.capacity_bytes)
        _refuse_unless_positive(f"{self.name} bandwidth", self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection to other devices of a node. ``bytes_per_s`` is per direction: half of what datasheets print.
    ``joins``: how many devices it joins where these may be on several nodes, as in a rack. ``adds``: its switches add
    what passes them (NVLink SHARP), so that an all-reduce sends each byte once.
    """

    name: str
    bytes_per_s: float | None = None
    joins: int = 0
    adds: bool = False

    def __post_init__(self) -> None:
        _refuse_unless_positive(f"{self.name} bandwidth", self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What joins a device to other nodes. ``bytes_per_s`` is its share of its node's ports, per direction; ``adds``:
    its switches add what passes them (SHARP), so that an all-reduce sends each byte once.
    """

    name: str
    bytes_per_s: float
    adds: bool = False

    def __post_init__(self) -> None:
        _refuse_unless_positive(f"{self.name} bandwidth", self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Ceilings of a device from one source: a datasheet or a calibration.

    ``matrix_flops_per_s`` and ``vector_flops_per_s`` map a precision (``records.dtypes.PRECISIONS``) to dense FLOP/s;
    a missing key is unknown or unsupported, never zero. ``memory`` runs from the level nearest to the arithmetic to
    main memory, which is last. ``threads`` of a CPU reached them together; None for what has no threads of torch's.
    ``disturbed``: other programs ran while they were measured, so that they may be several times too low.
    Raises ValueError for an unknown precision and for figures that are not positive.
    """

    source: str
    matrix_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    vector_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    memory: tuple[MemoryLevel, ...] = ()
    launch_latency_s: float | None = None
    threads: int | None = None
    disturbed: bool = False

    def __post_init__(self) -> None:
        _check_peaks("matrix", self.matrix_flops_per_s)
        _check_peaks("vector", self.vector_flops_per_s)
        _refuse_unless_positive("launch latency", self.launch_latency_s)
        _refuse_unless_positive("threads", self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What others measured that a device sustains: ``bytes_per_s`` of main memory in a stream, and FLOP/s by precision
    in large products of matrices. No roof: predictions for a device that nobody sampled start from it.
    """

    sources: tuple[str, ...]
    bytes_per_s: float | None = None
    matrix_flops_per_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_unless_positive("reached bandwidth", self.bytes_per_s)
        _check_peaks("reached", self.matrix_flops_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device: identity, datasheet roofs and, where measured, calibrated roofs.

    Bounds use, figure by figure, the higher of the two roofs, so that nothing real beats them.
    """

    name: str
    vendor: str
    architecture: str
    kind: str  # "cuda", "cpu", "other": which torch backend drives it
    match: tuple[str, ...] = ()  # the names its driver prints
    datasheet: Roofs | None = None
    calibrated: Roofs | None = None
    links: tuple[Link, ...] = ()
    network: Network | None = None  # of the cluster it is in; no datasheet has it
    memory_type: str = ""
    unit_count: int | None = None  # streaming multiprocessors, compute units, cores
    boost_clock_mhz: float | None = None
    matrix_peak_clock_mhz: float | None = None  # listed where the matrix peaks belong to another clock than the boost
    tdp_w: float | None = None
    least_kernel_s: float | None = None  # the shortest kernel in any profile of it
    reached: Reached | None = None  # None where no measurement is published
    confidence: str = ""
    unverified: tuple[str, ...] = ()  # doubtful figures, by their key in the device's TOML
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    checked_against: tuple[str, ...] = ()
    compute_capability: str = ""
    form_factor: str = ""
    part: str = ""  # the device's own name where ``name`` has what-if roofs in it (``devices.what_if``)
    what_if_precision: str | None = None
    what_if_clock_hz: float | None = None
    memory: tuple[MemoryLevel, ...] = field(init=False, repr=False, compare=False)
    """Levels from nearest to main memory, each with the higher bandwidth of datasheet and calibration. Caches are the
    same when their names are; main memory is last in both, whatever its name. A measured capacity takes the place of
    the datasheet's."""
    _roofs: tuple[Roofs, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # computed once: a table of a million rows needs them a million times
        roofs = tuple(each for each in (self.datasheet, self.calibrated) if each is not None)
        object.__setattr__(self, "_roofs", roofs)
        object.__setattr__(self, "memory", _levels(roofs))

    def __repr__(self) -> str:
        roofs = [name for name in ("datasheet", "calibrated") if getattr(self, name) is not None]
        return visible(f"DeviceSpec({self.name!r}, {' and '.join(roofs) or 'no roofs'})")

    def with_calibration(self, roofs: Roofs) -> DeviceSpec:
        """This device with ``roofs`` as its calibrated figures."""
        return replace(self, calibrated=roofs)

    @property
    def as_listed(self) -> DeviceSpec:
        """This device with the figures that its file lists, its calibration's for others: what models learn and answer
        by, so that a calibration changes no measured time over its bound.
        """
        listed, measured, known = self.datasheet, self.calibrated, self.reached
        if listed is None or measured is None:
            return self
        dram = measured.memory[-1].bytes_per_s if measured.memory else None
        roofs = replace(
            listed,
            matrix_flops_per_s={**measured.matrix_flops_per_s, **listed.matrix_flops_per_s},
            vector_flops_per_s={**measured.vector_flops_per_s, **listed.vector_flops_per_s},
            memory=listed.memory or measured.memory,
        )
        reached = Reached(
            sources=(*(known.sources if known else ()), measured.source),
            bytes_per_s=(known and known.bytes_per_s) or dram,
            matrix_flops_per_s={**measured.matrix_flops_per_s, **(known.matrix_flops_per_s if known else {})},
        )
        return replace(self, datasheet=roofs, calibrated=None, reached=reached)

    def with_network(self, network: Network) -> DeviceSpec:
        """This device in a cluster of which the network is known."""
        return replace(self, network=network)

    @property
    def part_name(self) -> str:
        """The device's own name, without what-if roofs."""
        return self.part or self.name

    def computed_as(self, precision: str) -> str:
        """The precision at whose peak matrix work of ``precision`` is bounded: the what-if precision where that has
        fewer bits and a higher peak, otherwise its own.
        """
        supposed = self.what_if_precision
        bits = FLOAT_BITS["float32"] if precision == THREE_TF32 else FLOAT_BITS.get(precision, 0)
        if supposed is None or bits <= FLOAT_BITS[supposed]:
            return precision
        own, other = self.matrix_peak(precision), self.matrix_peak(supposed)
        return supposed if own is None or (other is not None and other > own) else precision

    def matrix_peak(self, precision: str) -> float | None:
        """Dense matrix FLOP/s for a precision or dtype (``"bf16"``, ``"tf32"``, THREE_TF32), None where unknown.

        float32 and float64 products run on the vector units of parts that list no matrix rate for them.
        """
        if precision == THREE_TF32:
            once = self.matrix_peak("tfloat32")
            return _highest((self.matrix_peak("float32"), None if once is None else once / 3))
        wanted = precision_of(dtype_name(precision))
        if wanted is None:
            return None
        peaks = [roofs.matrix_flops_per_s.get(wanted) for roofs in self._roofs]
        if wanted in _VECTOR_PRODUCTS:
            peaks += [roofs.vector_flops_per_s.get(wanted) for roofs in self._roofs]
        return _highest(peaks)

    def vector_peak(self, precision: str) -> float | None:
        """Vector FLOP/s for a precision or dtype, None where unknown.

        Integers, and half precision on a CPU, are computed at the rate of float32. A GPU whose half precision nobody
        lists may compute it several times as fast, so there it is unknown. Narrower floats are computed as halves.
        """
        wanted = precision_of(dtype_name(precision)) or "float32"
        wanted = "float16" if wanted in ("float8", "float4") else wanted
        own = _highest(roofs.vector_flops_per_s.get(wanted) for roofs in self._roofs)
        if wanted in ("float64", "float32") or (own is None and wanted in _HALF and self.kind != "cpu"):
            return own
        return _highest((own, self.vector_peak("float32")))

    @property
    def roofs_used(self) -> str:
        """Where the roofs come from: ``"datasheet"``, or which calibration, or both, or ``"unknown"``."""
        if not self._roofs:
            return "unknown"
        if self.calibrated is None:
            clock_hz = self.what_if_clock_hz
            return "datasheet" if clock_hz is None else f"datasheet, arithmetic at {clock_text(clock_hz)}"
        if self.datasheet is None:
            return self.calibrated.source
        return f"datasheet, or {self.calibrated.source}: the higher of the two, figure by figure"

    @property
    def threads(self) -> int | None:
        """Of how many CPU threads the roofs are; None where they are of no number of threads, or it is not known."""
        return self.calibrated.threads if self.calibrated else None

    @property
    def matrix_clock_headroom(self) -> float | None:
        """Boost clock over the clock of the matrix peaks: what a kernel may honestly reach of them. None: not known."""
        if self.boost_clock_mhz is None:
            return None
        return self.boost_clock_mhz / (self.matrix_peak_clock_mhz or self.boost_clock_mhz)

    @property
    def dram_bytes_per_s(self) -> float | None:
        """Bandwidth of main memory (HBM, GDDR, DDR), bytes read and written together."""
        return _highest(roofs.memory[-1].bytes_per_s for roofs in self._roofs if roofs.memory)

    @property
    def reached_bandwidth(self) -> float | None:
        """The share of its bandwidth that the device sustains, at most 1: as its calibration found, otherwise as
        published; None where it is unknown, or where a calibration is the only roof.
        """
        measured = self.calibrated.memory[-1].bytes_per_s if self.calibrated and self.calibrated.memory else None
        if measured is None or self.datasheet is None:
            measured = self.reached.bytes_per_s if self.reached else None
        return _share(measured, self.dram_bytes_per_s)

    def reached_products(self, precision: str) -> float | None:
        """The share of its matrix peak that large products sustain, as ``reached_bandwidth`` has it."""
        wanted = precision_of(dtype_name(precision))
        if wanted is None:
            return None
        measured = self.calibrated.matrix_flops_per_s.get(wanted) if self.calibrated else None
        if measured is None or self.datasheet is None:
            measured = self.reached.matrix_flops_per_s.get(wanted) if self.reached else None
        return _share(measured, self.matrix_peak(wanted))

    @property
    def dram_capacity_bytes(self) -> int | None:
        """Size of main memory: as measured, otherwise as on the datasheet."""
        return self.memory[-1].capacity_bytes if self.memory else None

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth of the fastest link per direction. None where one is unknown, as that may be the fastest."""
        speeds = [link.bytes_per_s for link in self.links]
        return None if None in speeds else _highest(speeds)

    @property
    def interconnect(self) -> Interconnect:
        """How fast it reaches other devices. Between nodes of a GPU whose network is unknown: the fastest port there
        is; of other kinds of device, whose nodes have ports of every kind, unknown.
        """
        link, joins = self.link_bytes_per_s, max((link.joins for link in self.links), default=0)
        alone = Interconnect(link_bytes_per_s=link, link_ranks=joins, link_adds=any(link.adds for link in self.links))
        if self.network is not None:
            return replace(
                alone,
                network_bytes_per_s=self.network.bytes_per_s,
                network_source=self.network.name,
                network_adds=self.network.adds,
            )
        return alone.in_the_best_network if self.kind == "cuda" else alone

    @property
    def launch_latency_s(self) -> float | None:
        """Seconds to launch one kernel: measured, never on datasheets."""
        return self.calibrated.launch_latency_s if self.calibrated else None


def clock_text(clock_hz: float) -> str:
    """``"1.41 GHz"``, ``"210 MHz"``."""
    return f"{clock_hz / 1e9:.7g} GHz" if clock_hz >= 1e9 else f"{clock_hz / 1e6:.7g} MHz"


def roofs_used_by(devices: Iterable[DeviceSpec]) -> str:
    """``roofs_used`` of several devices: those that were calibrated each by name, the others together."""
    distinct = {device.name: device for device in devices}
    calibrated = [f"{name}: {device.roofs_used}" for name, device in distinct.items() if device.calibrated is not None]
    others = dict.fromkeys(device.roofs_used for device in distinct.values() if device.calibrated is None)
    return "; ".join([*others, *calibrated])


def _levels(roofs: Iterable[Roofs]) -> tuple[MemoryLevel, ...]:
    caches: dict[str, MemoryLevel] = {}
    main: MemoryLevel | None = None
    for each in roofs:
        for cache in each.memory[:-1]:
            caches[cache.name] = _merged(caches.get(cache.name), cache)
        if each.memory:
            main = _merged(main, each.memory[-1])
    nearest_first = sorted(caches.values(), key=lambda cache: cache.capacity_bytes or 0)
    return (*nearest_first, main) if main else ()


def _share(measured: float | None, roof: float | None) -> float | None:
    return None if measured is None or roof is None else min(1.0, measured / roof)


def _highest(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _merged(datasheet: MemoryLevel | None, measured: MemoryLevel) -> MemoryLevel:
    if datasheet is None:
        return measured
    return MemoryLevel(
        name=datasheet.name,
        capacity_bytes=measured.capacity_bytes or datasheet.capacity_bytes,
        bytes_per_s=_highest((datasheet.bytes_per_s, measured.bytes_per_s)),
        peak_bytes_per_s=_highest((datasheet.peak_bytes_per_s, measured.peak_bytes_per_s)),
    )


def _check_peaks(unit: str, peaks: Mapping[str, float]) -> None:
    for precision, peak in peaks.items():
        if precision not in PRECISIONS:
            raise ValueError(f'unknown {unit} precision "{precision}": use one of {", ".join(PRECISIONS)}')
        _refuse_unless_positive(f"{unit} {precision}", peak)


def _refuse_unless_positive(what: str, figure: float | None) -> None:
    if figure is not None and not 0 < figure < inf:
        raise ValueError(f"{what} is {figure}: give a positive number, or nothing where it is unknown")
