"""DeviceSpec: what a piece of hardware can do at best, and where each figure comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """One level of memory. ``bytes_per_s`` None: the bandwidth is unknown (datasheets give none for caches)."""

    name: str
    capacity_bytes: int | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection to other devices. ``bytes_per_s`` is per direction: half of what datasheets print."""

    name: str
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Ceilings of a device from one source: a datasheet or a calibration.

    ``matrix_flops_per_s`` and ``vector_flops_per_s`` map a precision (``records.dtypes.PRECISIONS``) to dense FLOP/s;
    a missing key is unknown or unsupported, never zero. ``memory`` runs from the level nearest to the arithmetic to
    main memory, which is last.
    """

    source: str
    matrix_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    vector_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    memory: tuple[MemoryLevel, ...] = ()
    launch_latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device: identity, datasheet roofs and, where measured, calibrated roofs.

    Bounds use, figure by figure, the higher of the two roofs, so that nothing real beats them.
    """

    name: str
    vendor: str
    architecture: str
    kind: str  # "cuda", "cpu", "other": which torch backend drives it
    match: tuple[str, ...] = ()
    datasheet: Roofs | None = None
    calibrated: Roofs | None = None
    links: tuple[Link, ...] = ()
    unit_count: int | None = None  # streaming multiprocessors, compute units, cores
    boost_clock_mhz: float | None = None
    tdp_w: float | None = None
    confidence: str = ""
    unverified: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    compute_capability: str = ""
    form_factor: str = ""

    def matrix_peak(self, precision: str) -> float | None:
        """Dense matrix FLOP/s for a precision or dtype (``"bf16"``, ``"tf32"``), None where unknown.

        float32 and float64 products run on the vector units of parts that list no matrix rate for them.
        """
        raise NotImplementedError

    def vector_peak(self, precision: str) -> float | None:
        """Vector FLOP/s for a precision or dtype, None where unknown. Half formats compute in float32, as torch does."""
        raise NotImplementedError

    @property
    def memory(self) -> tuple[MemoryLevel, ...]:
        """Levels from nearest to main memory, each with the higher bandwidth of datasheet and calibration."""
        raise NotImplementedError

    @property
    def dram_bytes_per_s(self) -> float | None:
        """Bandwidth of main memory (HBM, GDDR, DDR), bytes read and written together."""
        raise NotImplementedError

    @property
    def dram_capacity_bytes(self) -> int | None:
        raise NotImplementedError

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth of the fastest link per direction."""
        raise NotImplementedError
