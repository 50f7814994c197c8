"""Kernels of a GPU far from their bound, by what makes them slow: few tiles, sizes, layouts, the kernel itself."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost
from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.account import Regime
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import GIVEN, OF_MODULES
from rooflight.records.session import Int64
from rooflight.records.signature import OpSignature
from rooflight.roofline.distinct import distinct

FEW_TILES: Final = Remedy(
    id="few-tiles",
    title="products whose results are too small to fill the device",
    short="a larger batch, or several products in one",
    rest="or the sum split (split-K)",
    waste=False,
)
TILES: Final = Remedy(
    id="tile-padding",
    title="products that miss the tile",
    short="pad sizes to a multiple of 64",
    rest="vocabulary and hidden sizes",
    verify="the padded product is faster though it computes more",
)
ATTENTION: Final = Remedy(
    id="attention-kernel",
    title="attention far from its bound",
    short="another kernel of attention (flash, cuDNN)",
    rest="torch.nn.attention.sdpa_kernel, or FlexAttention",
    waste=False,
)
SHORT_ATTENTION: Final = Remedy(
    id="short-attention",
    title="attention over short sequences: launch and set-up, not work",
    short="more sequences at once",
    rest="packed (varlen) sequences, CUDA graphs",
    waste=False,
)
BANDWIDTH: Final = Remedy(
    id="poor-bandwidth",
    title="kernels that only move data, far below the memory's speed",
    short="contiguous tensors, torch.compile",
    rest="one layout, fusion with neighbours, sizes that vector loads fit",
    waste=False,
)
DEPTHWISE: Final = Remedy(
    id="depthwise",
    title="depthwise convolutions: each weight meets one channel, so that memory decides",
    short="channels-last and torch.compile",
    rest="fusion with the norm and activation around them, fewer of them",
    waste=False,
)
DILATION: Final = Remedy(
    id="dilation",
    title="dilated convolutions, for which there are no fast kernels",
    short="channels-last",
    rest="a smaller dilation on pooled input, or space-to-batch",
    waste=False,
)
FEW_CHANNELS: Final = Remedy(
    id="few-channels",
    title="convolutions of few input channels leave the matrix units idle",
    short="pad channels to 4 or 8, channels-last",
    rest="or space-to-depth before the first layer",
    waste=False,
)
LAYOUT: Final = Remedy(
    id="channels-last",
    title="images channel by channel, which convolutions transpose and CPUs pool slowly",
    short=".to(memory_format=torch.channels_last)",
    rest="the model, and the images too",
    verify="no transposing kernels (nchwToNhwc) in a profile; on a CPU, pooling takes less",
    waste=False,
)
FEW_TOKENS: Final = Remedy(
    id="few-tokens",
    title="experts read all their weights for few tokens",
    short="more tokens at once",
    rest="fewer or shared experts, weights in fp8 or int4",
    waste=False,
)
EXPERTS: Final = Remedy(
    id="experts",
    title="experts' products take most of the time",
    short="grouped products (torch._grouped_mm)",
    rest="fp8; a lower capacity or top-k",
    waste=False,
)
_TILE: Final = 128
UNITS: Final = 100  # of a large GPU whose number is not known
_ALIGNED: Final = 8
_SHORT: Final = 512
FAR: Final = 0.5  # an efficiency below it is far from the bound
_MUCH: Final = 0.15  # of the step
_IN_LANES: Final = (
    "aten::max_pool2d_with_indices", "aten::avg_pool2d", "aten::avg_pool2d_backward", "aten::upsample_bilinear2d",
    "aten::upsample_bilinear2d_backward",
)  # fmt: skip
"""On a CPU torch computes these for as many channels at once as a vector holds, where channels lie together. Where they
do not, they took 6 to 23 times as long on an EPYC (``benchmarks/channels_last_cpu.py``): mostly over 20 times their
bound, instead of 3 to 8.
"""
_FAR_FROM_LANES: Final = 20.0
_IN_LANES_SAVES: Final = 0.9


def kernels(facts: Facts) -> Iterable[Draft]:
    """Ops of a GPU that take much of the step, each with what makes such an op slow."""
    of = facts.of
    if of.on_cpu:
        return
    found: dict[Remedy, list[int]] = {}
    took, bounds = (np.bincount(of.signature, each, len(of.analysis.costs)) for each in (of.seconds, of.bound_s))
    elsewhere = distinct(of.signature[of.collectives | of.crosses])[0]
    for number in np.flatnonzero((took >= 0.01 * of.step_s) & (took > 0)).tolist():
        efficiency = float(bounds[number] / took[number]) if bounds[number] else None
        op, cost = of.session.signatures[number], of.analysis.costs[number]
        remedy = _why(op, cost, efficiency, of.analysis.device.unit_count or UNITS)
        if remedy is not None and number not in elsewhere:
            found.setdefault(remedy, []).append(number)
    for remedy, those in found.items():
        calls = np.flatnonzero(np.isin(of.signature, those))
        took_s, bound_s = float(of.seconds[calls].sum()), float(of.bound_s[calls].sum())
        if took_s < _MUCH * of.step_s:
            continue
        share = f", {percent(bound_s / took_s)} of their bound" if bound_s else ""
        odd = sorted({size for number in those for size in _odd(of.session.signatures[number])}, reverse=True)
        sizes = f" with {', '.join(f'{size:,}' for size in odd[:3])}" if remedy is TILES else ""
        text = f"{count_of(len(calls), 'call')} of {of.names(calls)}{sizes}: {Quantity(took_s, 's')}{share}"
        text += of.places(calls)
        gain_s = of.gain(took_s - bound_s / 0.7) if bound_s else of.gain(0.3 * took_s)
        regime = Regime.LATENCY if remedy in (FEW_TILES, SHORT_ATTENTION) else None
        yield from facts.draft(remedy, calls, text, gain_s=gain_s, regime=regime, low=0.3, high=1.4)


def _why(op: OpSignature, cost: object, efficiency: float | None, units: int) -> Remedy | None:
    """What makes an op slow on a device of so many units; None where nothing does that shapes show."""
    far = efficiency is None or efficiency < FAR
    flops = cost.matrix_flops if isinstance(cost, OpCost) else 0
    if "moe" in op.name or "expert" in op.name:
        return _of_experts(op)
    if "attention" in op.name and op.inputs:
        short = max(op.inputs[0].shape[-2:][:1], default=0) <= _SHORT
        return (SHORT_ATTENTION if short else ATTENTION) if far else None
    if "convolution" in op.name:
        return _of_convolution(op) if far else None
    if flops and len(op.inputs) >= 2 and far:
        return _of_product(op, units)
    moves = isinstance(cost, OpCost) and cost.bytes_moved > 1 << 20
    return BANDWIDTH if not flops and moves and efficiency is not None and far else None


def _of_product(op: OpSignature, units: int) -> Remedy | None:
    if not op.outputs or len(op.outputs[0].shape) < 2 or len(op.inputs[-1].shape) < 2:
        return None
    if _odd(op) and {tensor.dtype for tensor in op.inputs} & {"float16", "bfloat16"}:
        return TILES
    return FEW_TILES if _tiles(op) < units and op.inputs[-1].shape[-2] > _TILE else None


def _odd(op: OpSignature) -> list[int]:
    """The large sizes of a product whose rows are not aligned."""
    if not op.outputs or len(op.outputs[0].shape) < 2 or len(op.inputs[-1].shape) < 2:
        return []
    sizes = (*op.outputs[0].shape[-2:], op.inputs[-1].shape[-2])
    return [size for size in sizes if size > _TILE and size % _ALIGNED]


def _tiles(op: OpSignature) -> int:
    *batch, m, n = op.outputs[0].shape
    return prod(batch) * ceil(m / _TILE) * ceil(n / _TILE)


def fill_of(op: OpSignature, units: int) -> float:
    """Share of a device's units that the tiles of a product keep busy, of 1: its last wave is rarely full."""
    if "convolution" in op.name or not op.outputs or len(op.outputs[0].shape) < 2:
        return 1.0
    tiles = max(1, _tiles(op))
    return tiles / (ceil(tiles / units) * units)


def _of_convolution(op: OpSignature) -> Remedy | None:
    weight = op.input("weight") or next(iter(op.inputs[1:]), None)
    if weight is None or len(weight.shape) < 2:
        return None  # of a trace without shapes
    groups, dilation = op.attribute("groups", 1), op.attribute("dilation", (1,))
    if isinstance(groups, int) and groups > 1 and weight.shape[1] == 1:
        return DEPTHWISE
    if isinstance(dilation, tuple) and max(dilation, default=1) > 1:
        return DILATION
    return FEW_CHANNELS if weight.shape[1] < _ALIGNED else None


def _of_experts(op: OpSignature) -> Remedy | None:
    """Tokens, and experts' weights: the inputs of a fused op."""
    weights = [tensor.shape for tensor in op.inputs if len(tensor.shape) == 3]
    if not weights or not op.inputs[0].shape:
        return None
    return FEW_TOKENS if op.inputs[0].shape[0] < 16 * weights[0][0] else EXPERTS


def channels_last(facts: Facts) -> Iterable[Draft]:
    """Images that lie channel by channel, which convolutions on matrix units transpose, and which a CPU pools number by
    number.
    """
    if facts.of.on_cpu:
        yield from _without_lanes(facts)
        return
    of, gain_s = facts.of, gain_of_layout(facts)
    if gain_s is None:
        return
    calls = np.flatnonzero(of.where_op("convolution" in op.name for op in of.session.signatures))
    text = f"{count_of(len(calls), 'convolution')}: the device would take {Quantity(gain_s, 's')} less"
    yield from facts.draft(LAYOUT, calls, text, gain_s=of.gain(gain_s), low=0.3, high=1.8)


def _without_lanes(facts: Facts) -> Iterable[Draft]:
    of = facts.of
    pools = of.where_op(
        op.name in _IN_LANES and any(len(each.shape) == 4 and each.shape[1] >= _ALIGNED for each in op.inputs[:1])
        for op in of.session.signatures
    )  # fmt: skip
    calls = np.flatnonzero(pools & (of.seconds > _FAR_FROM_LANES * np.maximum(of.bound_s, of.floor_s)))
    if not of.measured or not of.bound_s[calls].all():
        return
    took = f"{Quantity(facts.spared(calls), 's')}{of.places(calls)}"
    text = f"{count_of(len(calls), 'op')} ({of.names(calls)}) of images, number by number: {took}"
    yield from facts.draft(LAYOUT, calls, text, gain_s=facts.spared(calls, _IN_LANES_SAVES), high=1.1)


def gain_of_layout(facts: Facts) -> float | None:
    """Seconds that the device takes less with channels-last images, None where that is not predicted. A group norm
    copies what a convolution wrote back, channel by channel, in about the time that it takes itself: the convolution
    before it gains nothing, and the copy is lost.
    """
    of, laid, now = facts.of, facts.of.analysis.channels_last, facts.of.analysis.totals.predicted
    if laid is None or now is None or of.source != "predicted":
        return None
    convolutions, norms = back_again(facts)
    return (now.time_s - laid.time_s) * (1 - norms.size / max(1, convolutions)) - float(of.seconds[norms].sum())


def back_again(facts: Facts) -> tuple[int, Int64]:
    """How many convolutions there are, and the group norms of what those wrote. A weight that the step computes is laid
    channel by channel, and so is what is written with it.
    """
    of, names = facts.of, [op.name for op in facts.of.session.signatures]
    if not facts.values.known:
        return 0, np.array((), dtype=np.int64)
    kept = {number for number, kind in enumerate(of.kinds) if kind in (*OF_MODULES, *GIVEN)}
    written: set[int] = set()
    convolutions, norms = 0, []
    for call, (signature, reads, writes) in enumerate(zip(of.signature.tolist(), of.reads, of.writes, strict=True)):
        if names[signature] == "aten::_to_copy":  # autocast keeps the order
            for laid in (kept, written):
                laid.update(writes if laid.issuperset(reads) else ())
        elif "convolution" in names[signature]:
            convolutions += 1
            written.update(writes if reads[1:2] and reads[1] in kept else ())
        elif names[signature] == "aten::native_group_norm" and written.intersection(reads):
            norms.append(call)
    return convolutions, np.array(norms, dtype=np.int64)


RULES: Final = (kernels, channels_last)
