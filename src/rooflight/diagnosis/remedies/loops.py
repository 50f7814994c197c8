"""Loops: the same ops again and again on small parts, on one large tensor, or on a prefix that grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.values import levels
from rooflight.records.account import Regime
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction
from rooflight.records.session import Int64
from rooflight.roofline.account.times import USUAL_OP_S

VECTORISE: Final = Remedy(
    id="vectorise",
    title="a loop of small ops, part after part",
    short="one op on all parts at once",
    rest="a batch dimension, padding and masks, torch.vmap, torch._foreach_*",
    verify="the number of calls in the step falls by the length of the loop",
)
PRODUCTS: Final = Remedy(
    id="batch-products",
    title="many small products, one after the other",
    short="one bmm or einsum on stacked operands",
    rest="one Linear for several, grouped products for experts",
    verify="fewer mm, addmm and bmm in the step",
)
SCAN: Final = Remedy(
    id="scan",
    title="a loop reads a large tensor for each item",
    short="one pass for all items",
    rest="sort and split, bincount, scatter or index_add, a comparison by broadcasting",
    verify="the large tensor is read once or twice in the step",
)
KV_CACHE: Final = Remedy(
    id="kv-cache",
    title="each new token runs the whole sequence",
    short="keep keys and values of past tokens",
    rest="a KV cache: pass the new token only",
    verify="products have one row per sequence after the first token",
)

_LONG: Final = 8  # a loop has so many turns
_SMALL: Final = 6.0  # times what a call takes that does nothing
_MOST_GROUPS: Final = 40
_LARGE_BYTES: Final = 1 << 20
_MOSTLY: Final = 0.4
_EFFICIENCY: Final = 0.3  # of small products in one call
_KERNEL_S: Final = 3e-6  # what a GPU takes for a kernel beside its work


def _loops(facts: Facts) -> Iterable[tuple[Int64, float]]:
    """Calls of one op on equal shapes in the forward pass that do not all need each other, and how many of them could
    run together, those with most time first.
    """
    of = facts.of
    if not facts.values.known or not len(of.records):
        return
    level = levels(of)
    keys: dict[tuple[object, ...], int] = {}
    numbers = [keys.setdefault((op.name, op.input_shapes), len(keys)) for op in of.session.signatures]
    group = np.array(numbers, dtype=np.int64)[of.signature]
    fit = of.works & (of.direction == Direction.FORWARD) & ~facts.values.constant
    fit &= ~(of.collectives | of.crosses | of.on_host)
    counts = np.bincount(group[fit], minlength=len(keys))
    seconds = np.bincount(group[fit], (of.seconds + of.host_s)[fit], minlength=len(keys))
    for number in np.argsort(-seconds)[:_MOST_GROUPS].tolist():
        if counts[number] < _LONG:
            continue
        calls = np.flatnonzero(fit & (group == number))
        together = len(calls) / len(np.unique(level[calls]))
        if together >= _LONG:
            yield calls, together


def loops(facts: Facts) -> Iterable[Draft]:
    """Loops over rows, heads, experts and items."""
    of = facts.of
    if of.runs_eagerly:  # where it is compiled, mend that first
        return
    small: list[tuple[Int64, float]] = []
    products: list[tuple[Int64, float]] = []
    large: list[tuple[Int64, float]] = []
    nothing_s = max(of.floor_s + (float(of.host_s[of.works].mean()) if of.works.any() else 0.0), USUAL_OP_S)
    for calls, together in _loops(facts):
        mean_s = float((of.seconds + of.host_s)[calls].mean())
        if not of.on_cpu:  # calls that a GPU is faster with than the host launches them
            if float(of.seconds[calls].sum()) > float(of.host_s[calls].sum()):
                continue
            kind = products if of.products[calls[0]] else small
        elif of.products[calls[0]]:
            kind = products if mean_s < 10 * _SMALL * nothing_s else []
        elif mean_s < _SMALL * nothing_s:
            kind = small
        else:
            kind = large if _one_tensor(facts, calls) else []
        kind.append((calls, together))
    yield from _scans(facts, large, small)
    for begin, end in _spans([*products, *small]):
        many, tiny = ([each for each in kind if begin <= each[0][0] <= end] for kind in (products, small))
        yield from _as_one(facts, many, tiny, nothing_s)


def _spans(found: Iterable[tuple[Int64, float]]) -> list[list[int]]:
    """First and last calls of loops that run among each other, together."""
    spans: list[list[int]] = []
    for begin, end in sorted((int(calls[0]), int(calls[-1])) for calls, _ in found):
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([begin, end])
    return spans


def _as_one(
    facts: Facts, products: list[tuple[Int64, float]], small: list[tuple[Int64, float]], nothing_s: float
) -> Iterable[Draft]:
    of = facts.of
    for remedy, found in ((PRODUCTS, products), (VECTORISE, small)):
        if not found:
            continue
        named = np.concatenate([each for each, _ in (*found, *(products if remedy is VECTORISE else ()))])
        turns = max(len(each) for each, _ in found)
        mostly_small = remedy is PRODUCTS and _seconds(of, small) > _seconds(of, products)
        calls = named if mostly_small else _body(facts, named, turns)
        gain_s = _gain_of_one(facts, calls, found)
        text = (
            f"{count_of(len(calls), 'call')} of {len(found)} ops on equal shapes, up to {turns:,} of one, take "
            f"{Quantity(facts.spared(calls), 's')}{of.places(calls)}; "
            f"{Quantity(nothing_s, 's')} of each is dispatch"
        )
        yield from facts.draft(remedy, calls, text, gain_s=gain_s)


def _gain_of_one(facts: Facts, calls: Int64, found: Sequence[tuple[Int64, float]]) -> float:
    """What a loop saves as one call: together, n calls take the overhead of one, and the work of all."""
    of = facts.of
    share = 1 - sum(len(each) / together for each, together in found) / sum(len(each) for each, _ in found)
    work = of.bound_s / _EFFICIENCY if of.on_cpu else np.maximum(of.seconds - _KERNEL_S, of.bound_s)
    return max(0.0, facts.spared(calls, share) - of.gain(float(work[calls].sum()))) * _with_backward(facts, calls)


def _seconds(of: Evidence, found: Iterable[tuple[Int64, float]]) -> float:
    return sum(float((of.seconds + of.host_s)[calls].sum()) for calls, _ in found)


def _body(facts: Facts, named: Int64, turns: int) -> Int64:
    """The calls of a loop that some of its ops show: with them those that read their results once a turn; of the calls
    from the first to the last, those of ops that are called so often, or all, if most of the time is the loop's.
    """
    of = facts.of
    inside = np.arange(int(named.min()), int(named.max()) + 1)
    inside = inside[(of.direction[inside] == Direction.FORWARD) & (of.works & ~of.crosses)[inside]]
    names: dict[str, int] = {}
    kind = np.array([names.setdefault(op.name, len(names)) for op in of.session.signatures])[of.signature[inside]]
    recurs = inside[np.bincount(kind)[kind] >= turns / 2]
    reads = of.reads.by(of.writes.of(named))
    loop = np.union1d(named, recurs[(reads & ~of.products)[recurs]])
    for wider in (np.union1d(loop, recurs), inside):
        seconds = of.seconds + of.host_s
        loop = wider if float(seconds[loop].sum()) > _MOSTLY * float(seconds[wider].sum()) else loop
    return loop


def _with_backward(facts: Facts, calls: Int64) -> float:
    """What the forward pass spares, the backward pass spares too, which has none of what runs after it."""
    of = facts.of
    backward = np.flatnonzero(of.direction == Direction.BACKWARD)
    if not len(backward) or calls[0] > backward[-1]:
        return 1.0
    total = of.seconds + of.host_s
    forward_s = float(total[: backward[-1]][of.direction[: backward[-1]] == Direction.FORWARD].sum())
    return 1 + float(total[backward].sum()) / forward_s if forward_s else 1.0


def _one_tensor(facts: Facts, calls: Int64) -> bool:
    """Whether all calls read one storage."""
    size = facts.of.session.storage_bytes
    reads = [set(facts.of.reads[call]) for call in calls[:_LONG].tolist()]
    return any(size[storage] >= _LARGE_BYTES for storage in set.intersection(*reads))


def _scans(facts: Facts, large: list[tuple[Int64, float]], small: list[tuple[Int64, float]]) -> Iterable[Draft]:
    if not large:
        return
    turns = len(large[0][0])
    same = [calls for calls, _ in (*large, *small) if turns / 2 <= len(calls) <= 2 * turns]
    first = large[0][0]
    # what the loop makes of each scan belongs to it as well
    of = facts.of
    begin, end = int(first[0]), int(first[-1])
    inside = [call for call in range(begin, min(len(of.records), end + end // turns)) if of.works[call]]
    calls = np.unique(np.concatenate([*same, np.array(inside, dtype=np.int64)]))
    of_one = of.session.signatures[of.signature[first[0]]]
    text = (
        f"{of_one.name.removeprefix('aten::')} reads the same {Quantity(of_one.input_bytes, 'B')} {turns:,} times; the "
        f"loop takes {Quantity(facts.spared(calls), 's')}{of.places(calls)}"
    )
    yield from facts.draft(SCAN, calls, text, gain_s=facts.spared(calls, 0.9 * (1 - 2 / turns)))


def kv_cache(facts: Facts) -> Iterable[Draft]:
    """Products with one weight whose rows grow from call to call."""
    of = facts.of
    if of.trains or not facts.values.known:
        return
    by_weight: dict[tuple[int, str], list[int]] = {}
    for call in np.flatnonzero(of.products).tolist():
        weight = of.parameter_read(call)
        if weight is not None and of.op(call).outputs:
            by_weight.setdefault((weight, of.op(call).name), []).append(call)
    growing: list[tuple[list[int], list[int]]] = []
    for calls in by_weight.values():
        rows = [of.op(call).outputs[0].numel for call in calls]
        steps = {after - before for before, after in pairwise(rows)}
        if len(calls) >= 4 and len(steps) == 1 and min(steps) > 0:
            growing.append((calls, rows))
    if not growing:
        return
    calls, rows = growing[0]
    first, last, turns = calls[0], calls[-1], len(calls)
    new = (rows[1] - rows[0]) / (sum(rows[1:]) / (turns - 1))
    inside = np.array([call for call in range(first, min(len(of.records), last + last // turns)) if of.works[call]])
    work_s = float(np.maximum(of.seconds[inside] - of.floor_s, 0.0).sum())
    once = max(new, float(of.bound_s[inside].sum()) / turns / max(work_s / turns, 1e-12) * 0.2)
    gain_s = of.gain(work_s * (1 - 1 / turns) * max(0.0, 0.95 - once))
    text = (
        f"{count_of(len(growing), 'weight')} multiplied {turns:,} times a step, with {rows[0]:,} to {rows[-1]:,} "
        f"results: the rows of earlier tokens again"
    )
    yield from facts.draft(KV_CACHE, inside, text, gain_s=gain_s, regime=Regime.COMPUTE)


RULES: Final = (loops, kv_cache)
