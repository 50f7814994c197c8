"""A decode step with weights and cached keys and values of fewer bits: how fast, how much memory, how large a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflight.records.document import Fields
from rooflight.records.dtypes import SHORT_PRECISIONS, precision_of
from rooflight.records.record import StorageKind
from rooflight.records.report import Table, table
from rooflight.records.session import DECODED
from rooflight.roofline.bound import memory_time
from rooflight.roofline.costed import CostedSession

_BITS: Final = {"fp8": 8, "int8": 8, "int4": 4}
_OWN_BITS: Final = 16
_PEAKS: Final = {"fp8": ("float8",), "int8": ("int8",), "int4": ("float8", "int8", "float4")}
"""The peaks at which a device may compute products of each format: activations are taken to have as few bits."""
_OF_CACHE: Final = ("fp8", "int8")


class DecodeFormat(Fields, frozen=True, kw_only=True):
    """A decode step with weights and KV cache in these formats, ``None`` where unknown.

    ``program_bound_s``: the program bound of the step that moves so many bits less, its arithmetic at the highest peak
    of the formats. ``memory_bytes``: its peak; scales and zero points of quantized formats are not counted.
    ``largest_batch``: at most so many sequences fit, each as long. ``predicted_s``, of the formats that the program has
    alone, is the device's time, as if replayed from a graph.
    """

    weights: str
    cache: str
    program_bound_s: float
    tokens_per_s: float
    predicted_s: float | None
    weight_bytes: int
    cache_bytes: int
    memory_bytes: int
    largest_batch: int | None


def decode_formats(analysis: CostedSession) -> tuple[DecodeFormat, ...]:
    """The formats of the program first; none of other steps than a preset's or config's decode in half precision."""
    tokens = int(analysis.session.environment.get(DECODED, 0))
    dtypes = {dtype for _, dtype in analysis.products}
    if not tokens or analysis.session.lifetimes is None or len(dtypes) != 1 or not analysis.program.program_bound_s:
        return ()
    (dtype,) = dtypes
    own = SHORT_PRECISIONS.get(precision_of(dtype) or "", "")
    if own not in ("bf16", "fp16"):
        return ()
    pairs = ((weights, cache) for weights in (own, *_BITS) for cache in (own, *_OF_CACHE))
    return tuple(_format(analysis, dtype, tokens, own, *pair) for pair in pairs)


def _format(analysis: CostedSession, dtype: str, tokens: int, own: str, weights: str, cache: str) -> DecodeFormat:
    device, fusion, memory, predicted = analysis.device, analysis.fusion, analysis.memory, analysis.totals.predicted
    shares = {StorageKind.PARAMETER: weights, StorageKind.INPUT: cache}
    kept = {kind: _BITS.get(name, _OWN_BITS) / _OWN_BITS for kind, name in shares.items()}
    less = sum(int(nbytes * (1 - kept[kind])) for kind, nbytes in fusion.stood_by_kind.items())
    peak = device.matrix_peak(device.computed_as(dtype)) or 0.0
    fastest = max(
        [peak, *(device.matrix_peak(name) or 0.0 for each in shares.values() for name in _PEAKS.get(each, ()))]
    )
    everything = analysis.program.everything
    nearest = [level for level in device.memory if level.bytes_per_s is not None][:1]
    bound_s = max(
        everything.compute_s * (peak / fastest if fastest else 1.0),
        everything.network_s,
        memory_time(max(0, fusion.stood_bytes - less), fusion.kept_bytes, device.memory),
        memory_time(max(0, fusion.bytes_in - less), fusion.bytes_out, nearest),
    )
    held = {kind: int(memory.by_kind[kind] * share) for kind, share in kept.items()}
    needed = memory.peak_bytes - sum(memory.by_kind[kind] - nbytes for kind, nbytes in held.items())
    cached, capacity = held[StorageKind.INPUT], memory.device_bytes
    room = None if capacity is None else max(0, capacity - (needed - cached))
    return DecodeFormat(
        weights=weights,
        cache=cache,
        program_bound_s=bound_s,
        tokens_per_s=tokens / bound_s,
        predicted_s=predicted.time_s if predicted is not None and (weights, cache) == (own, own) else None,
        weight_bytes=held[StorageKind.PARAMETER],
        cache_bytes=cached,
        memory_bytes=needed,
        largest_batch=None if room is None or not cached else int(room * tokens / cached),
    )


def formats_table(formats: tuple[DecodeFormat, ...]) -> Iterator[Table]:
    """The formats, a row each; nothing without any."""
    if not formats:
        return
    predicts = any(each.predicted_s is not None for each in formats)
    yield table(
        "decode_formats",
        "Decode with fewer bits",
        formats,
        ("weights", "", lambda each: each.weights),
        ("KV cache", "", lambda each: each.cache),
        ("program bound", "s", lambda each: each.program_bound_s),
        ("tokens/s", "", lambda each: round(each.tokens_per_s)),
        *((("predicted", "s", lambda each: each.predicted_s),) if predicts else ()),
        ("weights are", "B", lambda each: each.weight_bytes),
        ("cache is", "B", lambda each: each.cache_bytes),
        ("memory", "B", lambda each: each.memory_bytes),
        ("largest batch", "", lambda each: each.largest_batch),
        optional=("cache is", "weights are", "memory"),
        note="What if weights and cached keys and values had these formats, without their scales, and products ran at "
        "the highest peak of these. At most so large a batch fits, each sequence as long. Kernels of other formats "
        "were not measured.",
    )
