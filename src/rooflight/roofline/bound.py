"""The roofline of one operation: how fast a device could do what it must do, and at which precision float32 runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import Float32Kind, OpCost, Uncosted
from rooflight.costs.lanes import larger
from rooflight.costs.registry import traits_of
from rooflight.hardware.devices.spec import THREE_TF32, DeviceSpec, MemoryLevel, Roofs
from rooflight.records.account import Regime
from rooflight.records.dtypes import FLOAT16_SUMS, FLOAT32_PRECISIONS, float32_fact, float32_setting, precision_of
from rooflight.records.signature import COMPUTED_IN, SETTING, OpSignature

UNLISTED_CACHE_BYTES: Final = 64 * 2**20
"""What a cache may hold on a part of which none is listed."""

Floats = NDArray[np.float64]


class Limiter(StrEnum):
    """What an op's bound is set by. CACHE: moving data that fit a cache, whose speed the bound leaves out: it is the
    time from main memory. NOTHING: a view.
    """

    COMPUTE = "compute"
    MEMORY = "memory"
    CACHE = "cache"
    NETWORK = "network"
    NOTHING = "no work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Least times of one op. ``unknown`` names the peaks that the device's spec lacks; their terms count as 0, so the
    bound stays one. ``cache_resident``: the op's data fit a cache that was not measured, so that an op that finds them
    there may be faster than main memory allows (``program.warm_bound_s`` is what it cannot beat even then).
    """

    compute_s: float = 0.0
    memory_s: float = 0.0
    network_s: float = 0.0
    unknown: tuple[str, ...] = ()
    cache_resident: bool = False

    @property
    def time_s(self) -> float:
        """The largest of the three: they can overlap, none can be left out."""
        slower_s: float = larger(larger(self.compute_s, self.memory_s), self.network_s)
        return slower_s

    @property
    def limiter(self) -> Limiter:
        """Which of the three the bound is, and of memory which level may have the data."""
        if self.time_s == 0:
            return Limiter.NOTHING
        if self.compute_s == self.time_s:
            return Limiter.COMPUTE
        if self.memory_s < self.time_s:
            return Limiter.NETWORK
        return Limiter.CACHE if self.cache_resident else Limiter.MEMORY


class UnitTimes(NamedTuple):
    """Least seconds of one op on each unit of a device but memory. ``unknown`` names the peaks that the spec lacks."""

    matrix_s: float
    vector_s: float
    network_s: float
    unknown: tuple[str, ...]


def bound_of(cost: OpCost, device: DeviceSpec, products_at: str = "") -> Bound:
    """The bound of one op: max(matrix FLOPs / peak, vector FLOPs / peak, bytes / bandwidth, seconds to send), without
    the FLOPs and bytes that are avoidable.

    ``products_at`` is the precision at which the op's products run where a setting decides it (``Float32Rules``). The
    cost may be of many shapes at once (``costs.lanes``); so are the seconds then. Roofline model: Williams, Waterman,
    Patterson, CACM 52(4), 2009.
    """
    times = unit_times(cost, device, products_at)
    moved = cost.bytes_moved
    unknown = times.unknown
    if device.dram_bytes_per_s is None and moved:
        unknown = (*unknown, "memory bandwidth")
    return Bound(
        compute_s=larger(times.matrix_s, times.vector_s),
        memory_s=memory_time(cost.least_read, cost.least_written, device.memory),
        network_s=times.network_s,
        unknown=unknown,
        cache_resident=fits_unknown_cache(moved, device.memory),
    )


def unit_times(cost: OpCost, device: DeviceSpec, products_at: str = "") -> UnitTimes:
    """Seconds that matrix unit, vector unit and links need for one op. Arguments as ``bound_of`` has them."""
    unknown: list[str] = []
    matrix_s = vector_s = 0.0
    if cost.matrix_flops:
        dtype = cost.matrix_dtype or "unknown"
        precision = device.computed_as(products_at or precision_of(dtype) or dtype)
        flops = cost.matrix_flops - cost.avoidable_flops
        matrix_s = _over(flops, device.matrix_peak(precision), f"{precision} matrix peak", unknown)
    if cost.vector_flops:
        precision = precision_of(cost.vector_dtype or "") or "float32"  # integers run on the same lanes
        vector_s = _over(cost.vector_flops, device.vector_peak(precision), f"{precision} vector peak", unknown)
    network_s = _network_time(cost, device, unknown)
    return UnitTimes(matrix_s=matrix_s, vector_s=vector_s, network_s=network_s, unknown=tuple(unknown))


def _network_time(cost: OpCost, device: DeviceSpec, unknown: list[str]) -> float:
    traffic, interconnect = cost.traffic, device.interconnect
    if traffic is None or (traffic.group.nodes == 1 and not interconnect.link_adds):
        return _over(cost.bytes_sent, device.link_bytes_per_s, "link bandwidth", unknown) if cost.bytes_sent else 0.0
    unknown += traffic.unknown_speeds(interconnect)
    return traffic.least_s(interconnect)


@overload
def memory_time(bytes_read: int, bytes_written: int, levels: Sequence[MemoryLevel]) -> float: ...


@overload
def memory_time(bytes_read: Floats, bytes_written: Floats, levels: Sequence[MemoryLevel]) -> Floats: ...


def memory_time(bytes_read: Any, bytes_written: Any, levels: Sequence[MemoryLevel]) -> Any:
    """Least time to move so many bytes through a hierarchy, nearest level first; of one op, or of arrays of them.

    Each level must supply what the nearer one cannot have held when the op started, and take what it cannot still hold
    when the op ends. Only levels of known bandwidth take part: on a datasheet, which has none for caches, this is
    bytes / main memory bandwidth; on a calibrated machine it lets cached data come from the cache.
    """
    return _through((level for level in levels if level.bytes_per_s is not None), bytes_read, bytes_written, held=0)


def uncached_memory_time(bytes_read: int, bytes_written: int, levels: Sequence[MemoryLevel]) -> float:
    """Least time to move so many bytes where every cache holds all that it can when an op starts, and keeps all that it
    can when the op ends; UNLISTED_CACHE_BYTES where no cache is listed. ``memory_time`` is no less.

    A cache that was not measured is as fast as its vendor's peak for reading, in each direction at once since writing
    has lanes of its own; infinitely fast where no peak is printed.
    """
    listed = any(level.capacity_bytes for level in levels[:-1])
    held = 0 if listed else UNLISTED_CACHE_BYTES
    measured_s = _through(levels, bytes_read, bytes_written, held=held)
    least_s: float = larger(measured_s, _through_peaks(levels, bytes_read, bytes_written))
    return least_s


def _through_peaks(levels: Iterable[MemoryLevel], bytes_read: Any, bytes_written: Any) -> Any:
    slowest_s: Any = 0.0 * bytes_read
    held = 0
    for level in levels:
        if level.bytes_per_s is None and level.peak_bytes_per_s is not None:
            crossing = larger(0, larger(bytes_read, bytes_written) - held)
            slowest_s = larger(slowest_s, crossing / level.peak_bytes_per_s)
        held = max(held, level.capacity_bytes or 0)
    return slowest_s


def _through(levels: Iterable[MemoryLevel], bytes_read: Any, bytes_written: Any, *, held: int) -> Any:
    """Through levels of known bandwidth. ``held``: bytes that may lie nearer than the nearest level."""
    slowest_s: Any = 0.0 * bytes_read
    for level in levels:
        if level.bytes_per_s is not None:
            crossing = larger(0, bytes_read - held) + larger(0, bytes_written - held)
            slowest_s = larger(slowest_s, crossing / level.bytes_per_s)
        held = max(held, level.capacity_bytes or 0)
    return slowest_s


def fits_unknown_cache(bytes_moved: int, levels: Sequence[MemoryLevel]) -> bool:
    """Whether so many bytes fit a cache that was not measured, or one that may be there where none is listed."""
    caches = [level for level in levels[:-1] if level.capacity_bytes]
    unknown = [level.capacity_bytes or 0 for level in caches if level.bytes_per_s is None]
    largest = max(unknown, default=0) if caches else UNLISTED_CACHE_BYTES * bool(levels)
    return bool(largest) & (bytes_moved > 0) & (bytes_moved <= largest)


def _over(amount: int, rate: float | None, name: str, unknown: list[str]) -> float:
    if rate is None:
        unknown.append(name)
        return 0.0
    return amount / rate


LIBRARIES: Final[Mapping[Float32Kind, tuple[str, ...]]] = {
    Float32Kind.MATMUL: ("cuda.matmul", "mkldnn.matmul"),
    Float32Kind.CONV: ("cudnn.conv", "mkldnn.conv"),
    Float32Kind.RNN: ("cudnn.rnn", "mkldnn.rnn", "mkldnn.matmul"),
    Float32Kind.ATTENTION: ("cuda.matmul", "mkldnn.matmul"),
}
"""What computes each kind of op on a GPU and on a CPU, by the names of torch's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Rule:
    """The precision of one kind of float32 op, whose peak bounds it, and why it is that."""

    precision: str
    reason: str


@dataclass(frozen=True, slots=True)
class Float32Rules:
    """The rule of each kind of op, on one device under one session's settings, and under those that an op itself ran
    with where they were others. An op of which a trace shows what ran is bounded at that instead. ``has_tf32``: the
    device lists a TF32 peak; ``merged``: a compiler made attention of products, whose own kernels tell no more of it
    than that TF32 is allowed.
    """

    by_kind: Mapping[Float32Kind, Float32Rule]
    has_tf32: bool
    settings: Mapping[str, str]
    device: DeviceSpec
    merged: bool = False

    def rule_of(self, op: OpSignature) -> Float32Rule:
        """The rule of an op's float32 products."""
        kind, own = traits_of(op.name).float32, _settings_of(op)
        if self.merged and kind is Float32Kind.MATMUL:
            kind = Float32Kind.ATTENTION
        return _rule(kind, {**self.settings, **own}, self.device) if own else self.by_kind[kind]

    def precision_of(self, op: OpSignature) -> str:
        """The precision at which an op's float32 products are bounded."""
        ran = op.attribute(COMPUTED_IN)
        if ran == "tfloat32" and self.has_tf32:
            return "tfloat32"
        if ran is not None and not self.merged:
            return "float32"
        return self.rule_of(op).precision

    def matrix_precision(self, op: OpSignature, dtype: str) -> str:
        """The precision at which an op's products of ``dtype`` are bounded; the dtype itself where none is known."""
        precision = precision_of(dtype) or dtype
        if precision == "float16" and traits_of(op.name).float32 is Float32Kind.MATMUL:
            allowed = {**self.settings, **_settings_of(op)}.get(FLOAT16_SUMS) == "True"
            return "float16_accumulate" if allowed and self.device.matrix_peak("float16_accumulate") else precision
        return self.precision_of(op) if precision == "float32" else precision

    def products_at(self, op: OpSignature, cost: OpCost | Uncosted) -> str:
        """The precision at which an op's products are bounded, empty of one without any."""
        dtype = None if isinstance(cost, Uncosted) else cost.matrix_dtype
        return self.matrix_precision(op, dtype) if dtype else ""

    @property
    def as_attention(self) -> Float32Rules:
        """The same where a compiler makes attention of products."""
        return replace(self, merged=True)


def _settings_of(op: OpSignature) -> dict[str, str]:
    return {name: value for name, value in op.attributes if name.startswith(SETTING) and isinstance(value, str)}


def float32_rules(environment: Mapping[str, str], device: DeviceSpec) -> Float32Rules:
    """How float32 products run on ``device`` under a session's settings.

    NVIDIA: cuBLAS and cuDNN each have a setting of their own, and cuDNN's is TF32 unless switched off. Attention may
    run in a kernel that makes each float32 product of three TF32 ones whatever is set, from compute capability 8.0 on
    (CUTLASS's OpMultiplyAddFastF32, in torch's mem_eff_attention/gemm_kernel_utils.h). AMD: torch passes on only the
    setting of products, MIOpen computes in float32. Google: XLA makes a float32 product in one bfloat16 pass
    (``jax_default_matmul_precision``). CPUs: oneDNN's settings. A precision without a peak on the device is not used.
    """
    return Float32Rules(
        {kind: _rule(kind, environment, device) for kind in Float32Kind},
        has_tf32=device.matrix_peak("tfloat32") is not None,
        settings=environment,
        device=device,
    )


def _rule(kind: Float32Kind, environment: Mapping[str, str], device: DeviceSpec) -> Float32Rule:
    if device.vendor == "Google":
        return _if_known(Float32Rule(precision="bfloat16", reason="XLA's default"), device)
    if device.vendor == "AMD" and kind in (Float32Kind.CONV, Float32Kind.RNN):
        return Float32Rule(precision="float32", reason="MIOpen's precision")
    if kind is Float32Kind.ATTENTION:
        products = _rule(Float32Kind.MATMUL, environment, device)
        emulated = Float32Rule(precision=THREE_TF32, reason="memory-efficient attention's precision")
        wanted = products.precision == "float32" and device.vendor == "NVIDIA"
        return emulated if wanted and device.matrix_peak("tfloat32") else products
    if device.kind != "cpu":
        return _of_setting(LIBRARIES[kind][0], environment, device)
    found = _of_setting(LIBRARIES[kind][1], environment, device)
    if kind is Float32Kind.RNN and found.precision == "float32":  # oneDNN has no GRU: torch computes it by products
        return _of_setting(LIBRARIES[kind][2], environment, device)
    return found


def _of_setting(library: str, environment: Mapping[str, str], device: DeviceSpec) -> Float32Rule:
    setting = float32_setting(environment, library)
    reason = f"{float32_fact(library)} is {setting}"
    return _if_known(Float32Rule(precision=FLOAT32_PRECISIONS.get(setting, "float32"), reason=reason), device)


def _if_known(rule: Float32Rule, device: DeviceSpec) -> Float32Rule:
    if rule.precision == "float32" or device.matrix_peak(rule.precision):
        return rule
    return Float32Rule(precision="float32", reason=f"{device.name} lists no {rule.precision} peak")


def as_it_ran(device: DeviceSpec, precision: str) -> DeviceSpec:
    """The device with the peak at which float32 products ran, for who knows no settings: a predictor, say."""
    peak = device.matrix_peak(precision)
    if precision == "float32" or peak is None:
        return device

    def faster(roofs: Roofs | None) -> Roofs | None:
        return roofs and replace(roofs, matrix_flops_per_s={**roofs.matrix_flops_per_s, "float32": peak})

    return replace(device, datasheet=faster(device.datasheet), calibrated=faster(device.calibrated))


_OF_LIMITER: Final = {Limiter.COMPUTE: Regime.COMPUTE, Limiter.NETWORK: Regime.COMMUNICATION}
_MEET: Final = {True: 10, False: 150}  # FLOPs per byte at which the roofs of a CPU, and of a GPU, are about equal


def regime_of(bound: Bound | None, cost: OpCost | Uncosted, *, on_cpu: bool) -> Regime:
    """What limits an op: its bound's limiter; where no roof is known, by FLOPs per byte."""
    if bound is not None and bound.limiter is not Limiter.NOTHING:
        return _OF_LIMITER.get(bound.limiter, Regime.MEMORY)
    if isinstance(cost, OpCost) and cost.bytes_moved:
        return Regime.COMPUTE if cost.matrix_flops > _MEET[on_cpu] * cost.bytes_moved else Regime.MEMORY
    return Regime.UNKNOWN
