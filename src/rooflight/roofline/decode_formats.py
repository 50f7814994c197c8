"""A decode step with weights and cached keys and values of fewer bits: how fast, how much memory, what fits in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.records.document import Fields
from rooflight.records.dtypes import SHORT_PRECISIONS, precision_of
from rooflight.records.record import GIVEN, OF_MODULES
from rooflight.records.report import Table, table
from rooflight.records.session import CACHED, DECODED
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import memory_time
from rooflight.roofline.costed import CostedSession

_BITS: Final = {"fp8": 8, "int8": 8, "int4": 4}
_OWN_BITS: Final = 16
_PEAKS: Final = {"fp8": ("float8",), "int8": ("int8",), "int4": ("float8", "int8", "float4")}
"""The peaks at which a device may compute products of each format: activations are taken to have as few bits."""
_OF_CACHE: Final = ("fp8", "int8")
_KEY: Final = 1
"""Attention takes queries, keys and values."""
_PREDICTED: Final = {"fp8": "float8_e4m3fn", "int8": "int8"}
"""The dtype of operands of each format whose kernels are predicted: none of four bits were learned, and those measured
take twice as long as products of as many bytes.
"""


class DecodeFormat(Fields, frozen=True, kw_only=True):
    """A decode step with weights and KV cache in these formats, ``None`` where unknown.

    ``program_bound_s``: the program bound of the step that moves so many bits less, its arithmetic at the highest peak
    of the formats. ``memory_bytes``: its peak; scales and zero points of quantized formats are not counted.
    ``largest_batch``: at most so many sequences fit, each as long. ``longest_context``: sequences of at most so many
    tokens fit, as many of them, None where all layers have a sliding window, which keeps no more of longer ones.
    ``predicted_s`` is the device's time, as if replayed from a graph, with products of operands in the weights' format
    and attention over keys and values in the cache's, without what quantizes activations.
    """

    weights: str
    cache: str
    program_bound_s: float
    tokens_per_s: float
    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    weight_bytes: int
    cache_bytes: int
    memory_bytes: int
    largest_batch: int | None
    longest_context: int | None


def decode_formats(analysis: CostedSession) -> tuple[DecodeFormat, ...]:
    """The formats of the program first; none of other steps than a preset's or config's decode in half precision."""
    dtype, own = _own(analysis)
    if not own or not analysis.program.program_bound_s:
        return ()
    pairs = ((weights, cache) for weights in (own, *_BITS) for cache in (own, *_OF_CACHE))
    return tuple(_format(analysis, dtype, own, *pair) for pair in pairs)


def _own(analysis: CostedSession) -> tuple[str, str]:
    """The dtype of a decode step in half precision, and its short name; empty for other steps."""
    dtypes = {dtype for _, dtype in analysis.products}
    if DECODED not in analysis.session.environment or analysis.session.lifetimes is None or len(dtypes) != 1:
        return "", ""
    (dtype,) = dtypes
    own = SHORT_PRECISIONS.get(precision_of(dtype) or "", "")
    return dtype, own if own in ("bf16", "fp16") else ""


def lighter_ops(analysis: CostedSession) -> dict[tuple[str, str], tuple[OpSignature, ...]]:
    """By formats of weights and cache for which the device lists a peak: the ops in the place of the session's."""
    session, (dtype, own) = analysis.session, _own(analysis)
    if not own or session.lifetimes is None:
        return {}
    columns = session.columns
    parameters = np.append(0, np.cumsum(np.isin(session.lifetimes.kind[columns.read_ids], OF_MODULES)))
    reading = parameters[columns.read_offsets[1:]] > parameters[columns.read_offsets[:-1]]
    weighted = set(columns.signature[reading & session.counted].tolist())

    def inside(number: int, op: OpSignature, weights: str, cache: str) -> OpSignature:
        cost = analysis.costs[number]
        if isinstance(cost, Uncosted) or not cost.matrix_flops:
            return op
        attends, other = _attends(op), _PREDICTED.get(cache if _attends(op) else weights)
        if other is None or not (attends or number in weighted):
            return op
        inputs = tuple(
            replace(each, dtype=other)
            if each.dtype == dtype and len(each.shape) > 1 and not (attends and place < _KEY)
            else each
            for place, each in enumerate(op.inputs)
        )
        return replace(op, inputs=inputs)

    known = [own, *(name for name in _PREDICTED if analysis.device.matrix_peak(_PREDICTED[name]))]
    return {
        pair: tuple(inside(number, op, *pair) for number, op in enumerate(session.signatures))
        for pair in ((weights, cache) for weights in known for cache in known)
        if pair != (own, own)
    }


def _attends(op: OpSignature) -> bool:
    return "attention" in op.name and len(op.inputs) > _KEY + 1


def _format(analysis: CostedSession, dtype: str, own: str, weights: str, cache: str) -> DecodeFormat:
    device, fusion, memory = analysis.device, analysis.fusion, analysis.memory
    predicted = analysis.totals.predicted if (weights, cache) == (own, own) else analysis.formats.get((weights, cache))
    tokens = int(analysis.session.environment[DECODED])
    shares = dict.fromkeys(OF_MODULES, weights) | dict.fromkeys(GIVEN, cache)
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
    cached, capacity = sum(held[kind] for kind in GIVEN), memory.device_bytes
    room = None if capacity is None or not cached else max(0, capacity - (needed - cached)) / cached
    return DecodeFormat(
        weights=weights,
        cache=cache,
        program_bound_s=bound_s,
        tokens_per_s=tokens / bound_s,
        predicted_s=predicted.time_s if predicted else None,
        predicted_low_s=predicted.low_s if predicted else None,
        predicted_high_s=predicted.high_s if predicted else None,
        weight_bytes=sum(held[kind] for kind in OF_MODULES),
        cache_bytes=cached,
        memory_bytes=needed,
        largest_batch=None if room is None else int(room * tokens),
        longest_context=None if room is None else _longest_context(analysis, room),
    )


def _longest_context(analysis: CostedSession, room: float) -> int | None:
    """The tokens of each sequence that fit where the cache may grow ``room`` times, None where it does not grow: a
    layer with a sliding window keeps as many keys however long the sequence is.
    """
    session = analysis.session
    tokens = int(session.environment.get(CACHED, 0))
    calls = np.bincount(session.columns.signature[session.counted], minlength=len(session.signatures))
    keys = ((op.inputs[_KEY], int(count)) for op, count in zip(session.signatures, calls, strict=True) if _attends(op))
    sizes = [(key.nbytes * count, key.shape[-2]) for key, count in keys]
    cached, growing = (sum(size for size, length in sizes if length >= least) for least in (0, tokens))
    length = max((length for size, length in sizes if size), default=0)
    return int(length * max(0.0, room * cached - (cached - growing)) / growing) if growing and tokens else None


_OF_PREDICTED: Final = (
    " Predicted: the device alone; 90 % of such times lie between from and to. What quantizes activations is left out; "
    "int4, and formats without a peak here, are not predicted."
)
_PREDICTED_COLUMNS: Final[tuple[tuple[str, str, Callable[[DecodeFormat], float | None]], ...]] = (
    ("predicted", "s", lambda each: each.predicted_s),
    ("from", "s", lambda each: each.predicted_low_s),
    ("to", "s", lambda each: each.predicted_high_s),
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
        *(_PREDICTED_COLUMNS if predicts else ()),
        ("weights are", "B", lambda each: each.weight_bytes),
        ("cache is", "B", lambda each: each.cache_bytes),
        ("memory", "B", lambda each: each.memory_bytes),
        ("largest batch", "", lambda each: each.largest_batch),
        ("longest context", "", lambda each: each.longest_context),
        optional=("cache is", "weights are", "memory", "tokens/s"),
        note="What if weights and cached keys and values had these formats, without their scales, and products ran at "
        "the highest peak of these. At most so large a batch fits, each sequence as long; or contexts of at most so "
        "many tokens, the batch as it is." + (_OF_PREDICTED if predicts else ""),
    )
