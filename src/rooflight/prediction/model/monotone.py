"""Monotone: times of work unlike what was measured do not fall where the work grows.

Trees answer such work in steps that go up and down. So it is not asked at its own sizes but at those of a lattice
around them, and what lies between is interpolated: linear in each size, as bytes and FLOPs are. And since a library can
pad, no work takes longer than larger work of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.work.facts import FACTS, Floats, Integers, WorkKind, kind_of

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Estimates of many pieces of work, each an array [works]: seconds, and whether they were extrapolated."""

    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats
    extrapolated: Mask

    def of(self, rows: Integers | Mask) -> Batch:
        """Those of some works, in this order."""
        return Batch(**{name: values[rows] for name, values in self.columns.items()})

    def where(self, which: Mask, others: Batch) -> Batch:
        """These where ``which`` [works] is true, elsewhere ``others``."""
        return Batch(**{name: np.where(which, each, others.columns[name]) for name, each in self.columns.items()})

    @property
    def columns(self) -> dict[str, Any]:
        """The arrays by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def scattered(count: int, parts: Iterable[tuple[Integers, Batch]]) -> Batch:
    """Estimates of some of ``count`` pieces of work, in their places among all; NaN and extrapolated elsewhere."""
    numbers = {name: np.full(count, np.nan) for name in ("time_s", "low_s", "high_s", "bound_s")}
    extrapolated = np.ones(count, dtype=bool)
    for rows, batch in parts:
        for name, values in numbers.items():
            values[rows] = getattr(batch, name)
        extrapolated[rows] = batch.extrapolated
    return Batch(**numbers, extrapolated=extrapolated)


SIZES: Final[Mapping[WorkKind, tuple[str, ...]]] = {
    WorkKind.PRODUCT: ("b", "m", "n", "k"),
    WorkKind.ATTENTION: ("heads", "queries", "keys", "width"),
    WorkKind.NETWORK: ("sent", "nodes"),
    WorkKind.ROWS: ("rows", "width"),
}
"""Facts that are sizes, by kind of work. Time grows with each of them."""
_OTHER_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "other b": ("b",),
    "other m": ("m", "n", "k"),
    "other n": ("n", "m", "k"),
}
"""Facts of the second product, and which size of the first each may be."""
_WEIGHTED, _WITH_STATISTICS = ("layer_norm", "rms_norm"), "layer_norm"
"""Parts of the names of norms that have weights, and that return what they normalized by."""


def sizes_of(key: str, facts: Floats) -> Floats:
    """Sizes [works, sizes] of works of facts [works, facts]; none of kinds that have no such sizes. Of collectives not
    the bytes that a rank sends, n - 1 of n ranks' parts, but n parts: they are as many on more nodes.
    """
    kind = kind_of(key)
    sizes = facts[:, [FACTS[kind].index(name) for name in SIZES.get(kind, ())]]
    if kind is WorkKind.NETWORK:
        sizes[:, 0] /= _sent_share(facts[:, FACTS[kind].index("ranks")])
    return sizes


def _sent_share(ranks: Floats) -> Floats:
    return np.asarray(1 - 1 / np.maximum(2.0, ranks))


def resized(key: str, facts: Floats, sizes: Floats) -> Floats:
    """Facts [works, facts] of works like these with other sizes [works, sizes]. What is counted (bytes, FLOPs) grows
    as in one plain op of that kind: exact of such an op, close to it where there is something beside it.
    """
    kind = kind_of(key)
    place = {name: at for at, name in enumerate(FACTS[kind])}
    was, now = dict(zip(SIZES[kind], sizes_of(key, facts).T, strict=True)), dict(zip(SIZES[kind], sizes.T, strict=True))
    fact = {name: facts[:, at] for name, at in place.items()}
    new = facts.copy()
    if kind is WorkKind.NETWORK:
        new[:, place["ranks"]] *= now["nodes"] / was["nodes"]
        new[:, place["nodes"]] = now["nodes"]
        new[:, place["sent"]] = now["sent"] * _sent_share(new[:, place["ranks"]])
        for name in ("bound_s", "memory_s"):
            new[:, place[name]] *= now["sent"] / was["sent"]
        return new
    all_grown = np.prod(sizes, axis=1) / np.prod(sizes_of(key, facts), axis=1)
    moved = _moved(key, fact, now) / _moved(key, fact, was)
    written = _written(kind, now) / _written(kind, was)
    for name, grown in (("matrix", all_grown), ("vector", written), ("bytes", moved), ("memory_s", moved)):
        new[:, place[name]] *= grown
    products = fact["matrix"] > 0
    new[:, place["compute_s"]] *= np.where(products, all_grown, written)
    roof = np.maximum(fact["compute_s"], fact["memory_s"])
    new[:, 0] = fact["bound_s"] * np.maximum(new[:, place["compute_s"]], new[:, place["memory_s"]]) / roof
    for name, size in now.items():
        new[:, place[name]] = size
    if kind is WorkKind.PRODUCT:
        for name, candidates in _OTHER_SIZES.items():
            is_one = [fact[name] == was[each] for each in candidates]
            new[:, place[name]] = np.select(is_one, [now[each] for each in candidates], fact[name])
    if kind is WorkKind.ROWS:
        new[:, place["fresh"]] *= _returned(key, fact, now) / _returned(key, fact, was)
    return new


def _moved(key: str, fact: Mapping[str, Floats], size: Mapping[str, Floats]) -> Floats:
    """Elements that an op of such sizes reads and writes, but for a factor that does not change with them."""
    kind = kind_of(key)
    if kind is WorkKind.PRODUCT:
        b, m, n, k = (size[name] for name in "bmnk")
        # whether all of a batch share the right operand, as in a linear layer
        elements = fact["bytes"] / fact["item"]
        own = {name: fact[name] for name in "bmnk"}
        apart = own["b"] * (own["m"] * own["k"] + own["n"] * own["k"] + own["m"] * own["n"])
        shared = apart - (own["b"] - 1) * own["n"] * own["k"]
        shares = np.abs(np.log(elements / shared)) < np.abs(np.log(elements / apart))
        return np.asarray(b * (m * k + m * n) + np.where(shares, 1.0, b) * n * k)
    if kind is WorkKind.ATTENTION:
        heads, queries, keys, width = (size[name] for name in SIZES[kind])
        return np.asarray(heads * width * (queries + keys / np.maximum(1.0, fact["group"])))
    elements = size["rows"] * size["width"]
    if any(name in key for name in _WEIGHTED):
        # beside the rows: weights, as long as a row each, about as many as there are tensors of rows
        elements = elements + size["width"]
    if _WITH_STATISTICS in key:
        # a mean and a deviation of 4 bytes, of two tensors of rows
        elements = elements + size["rows"] * 4 / fact["item"]
    return np.asarray(elements)


def _written(kind: WorkKind, size: Mapping[str, Floats]) -> Floats:
    """Elements of the result, to which vector FLOPs are proportional; of attention those of the scores."""
    if kind is WorkKind.PRODUCT:
        return np.asarray(size["b"] * size["m"] * size["n"])
    if kind is WorkKind.ATTENTION:
        return np.asarray(size["heads"] * size["queries"] * size["keys"])
    return np.asarray(size["rows"] * size["width"])


def _returned(key: str, fact: Mapping[str, Floats], size: Mapping[str, Floats]) -> Floats:
    """Elements of all results of an op on rows: of a layer norm with a mean and a deviation of 4 bytes for each."""
    elements = size["rows"] * size["width"]
    return np.asarray(elements + size["rows"] * 8 / fact["item"] if _WITH_STATISTICS in key else elements)


_HALVES, _QUARTERS = 16, 64
"""Sizes from which the lattice has two, and four points for each power of two."""
_OCTAVES: Final = 18
"""How many powers of two work is padded by at most."""
_NEAR, _JUST_OVER = 3, 1 + 2.0**-44
"""How many points of the lattice work is padded by at most; a factor that is more than nothing and less than a size."""
_MOST_TENSORS: Final = 8
"""Work on more of them is a list, whose sizes are not those of one tensor."""
_MOST_SIZE: Final = 2.0**40
_DIGITS: Final = 12
_AT_ONCE: Final = 512
Asked = Callable[[Floats], Batch]
"""Estimates of works of facts [works, facts], as the models answer them."""
Least = Callable[[Floats], Floats]
"""Seconds that works of facts [works, facts] take at least, whatever is answered."""
Groups = Sequence[tuple[int, ...]]
"""Places of sizes that grow one group at a time."""


def levelled(key: str, facts: Floats, answered: Batch, unlike: Integers, asked: Asked, least: Least) -> Batch:
    """Estimates of works of facts [works, facts], as ``answered``; but of those ``unlike`` [some] what was measured,
    interpolated between works that are ``asked``, and no longer than larger work. What has no sizes stays as it was
    answered.
    """
    unlike = unlike[has_sizes(key, facts[unlike])]
    if not len(unlike):
        return answered
    parts = []
    for places, groups in _alike(key, facts[unlike]):
        for start in range(0, len(places), _AT_ONCE):
            rows = unlike[places[start : start + _AT_ONCE]]
            some = facts[rows]
            found = _padded(key, some, groups, _between(key, some, groups, asked), asked, least)
            parts.append((rows, _not_under(found, answered.of(rows), least(some))))
    changed = np.isin(np.arange(len(facts)), unlike)
    return scattered(len(facts), parts).where(changed, answered)


def has_sizes(key: str, facts: Floats) -> Mask:
    """Which works of facts [works, facts] have sizes with which their time grows: not convolutions, not lists of
    tensors, nor chains of ops.
    """
    kind = kind_of(key)
    if kind not in SIZES:
        return np.zeros(len(facts), dtype=bool)
    sizes, names = sizes_of(key, facts), FACTS[kind]
    whole = ((sizes >= 1) & (sizes < _MOST_SIZE)).all(axis=1)
    if kind is not WorkKind.NETWORK:
        whole &= facts[:, names.index("bytes")] > 0
    if kind is WorkKind.ROWS:
        whole &= (facts[:, names.index("ops")] == 1) & (facts[:, names.index("tensors")] <= _MOST_TENSORS)
    return np.asarray(whole)


def _alike(key: str, facts: Floats) -> Iterator[tuple[Integers, Groups]]:
    """Rows, and which of their sizes grow together: queries and keys of attention of a sequence to itself. One
    node is no small number of them: its links are others.
    """
    alone: Groups = [(place,) for place in range(len(SIZES[kind_of(key)]))]
    together = np.zeros(len(facts), dtype=bool)
    if kind_of(key) is WorkKind.ATTENTION:
        _, queries, keys, _ = sizes_of(key, facts).T
        together = queries == keys
        yield np.flatnonzero(together), [(0,), (1, 2), (3,)]
    if kind_of(key) is WorkKind.NETWORK:
        together = sizes_of(key, facts)[:, 1] == 1
        yield np.flatnonzero(together), [(0,)]
    yield np.flatnonzero(~together), alone


def around(size: Floats) -> tuple[Floats, Floats]:
    """Points of the lattice below and above each size, the size itself where it is one: powers of two; from 16 on one
    point between two of them, from 64 on three.
    """
    power = 2.0 ** np.floor(np.log2(size))
    step = power / np.where(power >= _QUARTERS, 4, np.where(power >= _HALVES, 2, 1))
    below = power + np.floor((size - power) / step) * step
    return below, np.where(below < size, below + step, below)


def _between(key: str, facts: Floats, groups: Groups, asked: Asked) -> tuple[Batch, Floats]:
    """And seconds of the shortest work around with sizes that are powers of two, below which they never fall."""
    sizes = sizes_of(key, facts)
    logs = np.log2(sizes)
    row, weight, corners = _corners(key, facts, groups, *around(sizes))
    outer_row, _, outer = _corners(key, facts, groups, 2.0 ** np.floor(logs), 2.0 ** np.ceil(logs))
    times = _once(asked, np.concatenate([corners, outer]))
    inner = times.of(np.arange(len(row)))
    time_s, low_s, high_s = (
        np.bincount(row, weight * each, len(facts)).astype(np.float64)
        for each in (inner.time_s, inner.low_s, inner.high_s)
    )
    around_s = np.full(len(facts), np.inf)
    np.minimum.at(around_s, outer_row, times.time_s[len(row) :])
    time_s = np.maximum(time_s, around_s)
    unlike = np.ones(len(facts), dtype=bool)
    high_s = np.maximum(time_s, high_s)
    return Batch(time_s=time_s, low_s=low_s, high_s=high_s, bound_s=facts[:, 0], extrapolated=unlike), around_s


def _corners(key: str, facts: Floats, groups: Groups, below: Floats, above: Floats) -> tuple[Integers, Floats, Floats]:
    """Whose corner each is, what it weighs there (more than nothing), and its facts."""
    share = (sizes_of(key, facts) - below) / np.where(above > below, above - below, 1.0)
    rows, weights, points = [], [], []
    for corner in product((False, True), repeat=len(groups)):
        weight, at = np.ones(len(facts)), below.copy()
        for high, group in zip(corner, groups, strict=True):
            weight *= share[:, group[0]] if high else 1 - share[:, group[0]]
            if high:
                at[:, group] = above[:, group]
        used = np.flatnonzero(weight > 0)
        rows.append(used)
        weights.append(weight[used])
        points.append(resized(key, facts[used], at[used]))
    return np.concatenate(rows), np.concatenate(weights), np.concatenate(points)


def _padded(
    key: str, facts: Floats, groups: Groups, answers: tuple[Batch, Floats], asked: Asked, least: Least
) -> Batch:
    """No longer than larger work: all sizes powers of two, or, no less than those around, one padded on the lattice."""
    found, around_s = answers
    sizes = sizes_of(key, facts)
    rays, pairs, power = _rays(groups), _pairs(groups), np.ceil(np.log2(sizes))[:, None]
    points = 2.0 ** (power + np.maximum(0, np.concatenate([rays, pairs]) - 1))
    found = _capped(found, key, facts, points, asked, least)
    some = np.flatnonzero(found.time_s > around_s)
    if not len(some):
        return found
    padded = further = around(sizes[some])[1]
    points = np.where(rays > 0, 2.0 ** (power[some] + np.maximum(0, rays - 1)), padded[:, None])
    for _ in range(_NEAR):
        further = around(further * _JUST_OVER)[1]
        next_ones = rays[rays.max(axis=1) == 1] > 0
        points = np.concatenate([points, np.where(next_ones, further[:, None], padded[:, None])], axis=1)
    near = _capped(found.of(some), key, facts[some], points, asked, least)
    time_s = np.maximum(near.time_s, around_s[some])
    near = replace(near, time_s=time_s, high_s=np.maximum(time_s, near.high_s))
    return scattered(len(facts), [(some, near)]).where(np.isin(np.arange(len(facts)), some), found)


def _capped(found: Batch, key: str, facts: Floats, points: Floats, asked: Asked, least: Least) -> Batch:
    """No longer than these works at ``points`` [works, points, sizes]; those that cannot be shorter are not asked."""
    row = np.repeat(np.arange(len(facts)), points.shape[1])
    works = resized(key, facts[row], points.reshape(len(row), -1))
    shorter = least(works) < found.time_s[row]
    row, works = row[shorter], works[shorter]
    if not len(row):
        return found
    times = _once(asked, works)
    shortest = np.full(len(facts), -1)
    order = np.argsort(-times.time_s, kind="stable")
    shortest[row[order]] = order  # the last one written, of each row
    caps = times.of(shortest)
    capped = (shortest >= 0) & (caps.time_s < found.time_s)
    low_s = np.minimum(caps.low_s, found.low_s)
    return replace(caps, low_s=low_s, bound_s=found.bound_s, extrapolated=found.extrapolated).where(capped, found)


def _rays(groups: Groups) -> Integers:
    """Steps [points, sizes] of one group at a time: 0 for a size that stays, 1 for the next power of two, and so on."""
    return np.array([_steps(groups, {which: step}) for which in range(len(groups)) for step in range(1, _OCTAVES)])


def _pairs(groups: Groups) -> Integers:
    """The same of two groups at a time, of more than two groups beside the next power of two every other one."""
    every = range(1, _OCTAVES) if len(groups) == 2 else (1, *range(2, _OCTAVES, 2))
    found = [
        _steps(groups, {one: first, other: second})
        for one, other in combinations(range(len(groups)), 2)
        for first, second in product(every, every)
    ]
    return np.array(found, dtype=np.int64).reshape(-1, sum(map(len, groups)))


def _steps(groups: Groups, steps: Mapping[int, int]) -> list[int]:
    by_place = {place: steps.get(which, 0) for which, group in enumerate(groups) for place in group}
    return [by_place[place] for place in sorted(by_place)]


def _not_under(found: Batch, answered: Batch, least_s: Floats) -> Batch:
    time_s = np.maximum(found.time_s, least_s)
    low_s, high_s = np.minimum(found.low_s, time_s), np.maximum(found.high_s, time_s)
    return replace(answered, time_s=time_s, low_s=low_s, high_s=high_s)


def _once(asked: Asked, facts: Floats) -> Batch:
    """Each distinct work once. Works that differ in the last digits are one, whatever they were resized from."""
    magnitude = np.floor(np.log10(np.where(facts == 0, 1.0, np.abs(facts))))
    scale = 10.0 ** (_DIGITS - 1 - magnitude)
    distinct, places = np.unique(np.round(facts * scale) / scale, axis=0, return_inverse=True)
    return asked(distinct).of(places.reshape(-1))
