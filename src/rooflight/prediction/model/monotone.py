"""Monotone: times of work unlike what was measured do not fall where the work grows.

Trees answer such work in steps that go up and down. So it is not asked at its own sizes but at those of a lattice
around them, which is kept, and what lies between is interpolated: as the bound where times grow with it, otherwise
linear in each size. And since a library can pad, no point takes longer than larger ones near it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
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

    def no_longer_than(self, rows: Integers, most_s: Floats, launches_s: Floats, *, launched: bool) -> Batch:
        """These, some of them shorter: where what is left without a launch is more than ``most_s``, that [rows]. A
        launch stays if it is ``launched``: measured on the device itself.
        """
        more = self.time_s[rows] - launches_s > most_s
        rows, most_s = rows[more], (most_s + launches_s * launched)[more]
        time_s, low_s = self.time_s.copy(), self.low_s.copy()
        time_s[rows], low_s[rows] = most_s, np.minimum(low_s[rows], most_s)
        return replace(self, time_s=time_s, low_s=low_s)

    def with_bound(self, bound_s: Floats) -> Batch:
        """These, not below these bounds [works]: they may have been made with others."""
        ends = {name: np.maximum(getattr(self, name), bound_s) for name in ("time_s", "low_s", "high_s")}
        apart = Batch(**ends, bound_s=bound_s, extrapolated=self.extrapolated)
        return apart.where(self.bound_s != bound_s, self)

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


def doubled(key: str, facts: Floats) -> Iterator[Floats]:
    """Facts [works, facts] of works twice as large as these, in each size in turn."""
    sizes = sizes_of(key, facts)
    for place in range(sizes.shape[1]):
        yield resized(key, facts, sizes * (1.0 + (np.arange(sizes.shape[1]) == place)))


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


_FINE: Final = 4
"""As a power of two, the size from which the lattice has points between powers of two."""
_POINTS: Final[Mapping[WorkKind, int]] = {WorkKind.ROWS: 4, WorkKind.NETWORK: 4}
"""Points of the lattice for each power of two from there on, one of other kinds."""
_BITS: Final = 10
"""Of a place on the lattice, a size each."""
_REFERENCE: Final[Mapping[WorkKind, tuple[int, ...]]] = {
    WorkKind.PRODUCT: (2, 9, 10, 11),
    WorkKind.ATTENTION: (5, 10, 11, 7),
    WorkKind.NETWORK: (20, 1),
    WorkKind.ROWS: (10, 11),
}
"""Sizes, as powers of two, at which works are compared in all but their sizes."""
_DIGITS: Final = 10
"""Of the logarithms of facts that are the same."""
_SMALL_SHARE: Final = 1 / 8
"""Of vector FLOPs and bytes of new outputs that plain ops have; less of them is all one."""
_AHEAD: Final = 6
"""Steps of the lattice over which is asked at once what its points take at least."""
_MOST_TENSORS: Final = 8
"""Work on more of them is a list, whose sizes are not those of one tensor."""
_MOST_SIZE: Final = 2.0**40
_MOST_NODES: Final = 2.0**10
"""No collective is compared with those among more: its bound does not grow with nodes, and nothing would end that."""
Groups = tuple[tuple[int, ...], ...]
"""Places of sizes that grow together."""
Asked = Callable[[Floats], Batch]
"""Estimates of works of facts [works, facts], as the models answer them."""
Least = Callable[[Floats], tuple[Floats, Floats]]
"""Seconds [works] that works of facts [works, facts] are answered to take at least, and so are any larger ones."""


def has_sizes(key: str, facts: Floats) -> Mask:
    """Which works of facts [works, facts] have sizes with which their time grows: not convolutions, not lists of
    tensors, nor chains of ops, nor embeddings, whose rows are those of the table.
    """
    kind = kind_of(key)
    if kind not in SIZES or "embedding" in key:
        return np.zeros(len(facts), dtype=bool)
    sizes, names = sizes_of(key, facts), FACTS[kind]
    whole = ((sizes >= 1) & (sizes < _MOST_SIZE)).all(axis=1)
    if kind is not WorkKind.NETWORK:
        whole &= facts[:, names.index("bytes")] > 0
    if kind is WorkKind.ROWS:
        whole &= (facts[:, names.index("ops")] == 1) & (facts[:, names.index("tensors")] <= _MOST_TENSORS)
    return np.asarray(whole)


class Points:
    """Times of points of a lattice, by code: [points, columns]."""

    def __init__(self, columns: int) -> None:
        self._codes: Integers = np.empty(0, dtype=np.int64)
        self._times: Floats = np.empty((0, columns))

    def has(self, codes: Integers) -> Mask:
        """Which points there are."""
        return self.found(codes)[1]

    def of(self, codes: Integers) -> Floats:
        """Of points that there are."""
        return self._times[np.searchsorted(self._codes, codes)]

    def found(self, codes: Integers) -> tuple[Floats, Mask]:
        """Of any points, and which of them there are: of others, the times are those of another point."""
        if not len(self._codes):
            return np.zeros((len(codes), self._times.shape[1])), np.zeros(len(codes), dtype=bool)
        place = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return self._times[place], self._codes[place] == codes

    def add(self, codes: Integers, times: Floats) -> None:
        """Points that there are not yet."""
        joined = np.concatenate([self._codes, codes])
        order = np.argsort(joined)
        self._codes, self._times = joined[order], np.concatenate([self._times, times])[order]


class Surface:
    """Times of works that are alike but for their sizes, on a lattice of sizes: powers of two, and of some kinds points
    between them. At each point they are the least that is answered of it or of any larger point, so that they never
    fall where work grows; between the points they are linear in each size, as bytes and FLOPs are. Points are asked
    when they are first needed, and kept.

    ``facts`` are those of one such work; ``groups`` are places of sizes that grow together.
    """

    def __init__(self, *, key: str, facts: Floats, groups: Groups, asked: Asked, least: Least) -> None:
        self._key, self._facts, self._groups, self._asked, self._least = key, facts, groups, asked, least
        # of each point seconds, the ends of their interval, and the bound; the least of it, and of any larger one
        self._own, self._settled, self._floors = Points(4), Points(4), Points(2)
        self._points = _POINTS.get(kind_of(key), 1)
        self._steps = 1 << _BITS * np.arange(len(groups))
        names = SIZES[kind_of(key)]
        self._most = np.array([_MOST_NODES if names[group[0]] == "nodes" else _MOST_SIZE for group in groups])

    def at(self, facts: Floats) -> Floats:
        """Seconds, and the ends of the interval [works, 3], of works of facts [works, facts]."""
        sizes = sizes_of(self._key, facts)
        place, share = self._places(sizes[:, [group[0] for group in self._groups]])
        codes, weights = np.zeros((1, len(facts)), dtype=np.int64), np.ones((1, len(facts)))
        for step, each, part in zip(self._steps, place.T, share.T, strict=True):
            # where a size is a point, the point above it counts for nothing and is not asked
            both = np.stack([each, each + (part > 0)]) * step
            codes = (codes[:, None] + both).reshape(-1, len(facts))
            weights = (weights[:, None] * np.stack([1 - part, part])).reshape(-1, len(facts))
        found, has = self._settled.found(codes.reshape(-1))
        if not has.all():
            self._settle(np.unique(codes.reshape(-1)[~has]))
            found = self._settled.of(codes.reshape(-1))
        found = found.reshape(*codes.shape, -1)
        like = resized(self._key, np.broadcast_to(self._facts, facts.shape), sizes)
        # as much of the bound as times grow with it is exact, the rest linear
        lowest, highest = found[0], found[-1]
        grown = np.maximum(0.0, highest[:, 3:] - lowest[:, 3:])
        share = np.divide(highest[:, :3] - lowest[:, :3], grown, out=np.zeros((len(facts), 3)), where=grown > 0)
        share = np.clip(share, 0.0, lowest[:, :3] / lowest[:, 3:])
        bound_s = np.einsum("cw,cw->w", weights, found[..., 3])
        times = np.einsum("cw,cwt->wt", weights, found[..., :3]) + share * (like[:, :1] - bound_s[:, None])
        # what this work has more than the one that was asked, as far as it has no size for that
        return np.asarray(np.clip(times, lowest[:, :3], highest[:, :3]) + (facts[:, :1] - like[:, :1]))

    def _places(self, sizes: Floats) -> tuple[Integers, Floats]:
        """Places [works, groups] of the points below sizes, and how far each size is on the way to the next."""
        points = self._points
        octave = np.floor(np.log2(sizes))
        beyond = (sizes / 2.0**octave - 1) * np.where(octave < _FINE, 1, points)
        step = np.floor(beyond)
        place = np.minimum(octave, _FINE) + np.maximum(0.0, octave - _FINE) * points + step
        return place.astype(np.int64), beyond - step

    def _sizes(self, codes: Integers) -> Floats:
        places = codes[:, None] // self._steps % (1 << _BITS)
        octave, step = np.divmod(np.maximum(0, places - _FINE), self._points)
        return np.asarray(2.0 ** (np.minimum(places, _FINE) + octave) * (1 + step / self._points))

    def _works(self, codes: Integers) -> Floats:
        sizes = np.ones((len(codes), len(SIZES[kind_of(self._key)])))
        for column, group in zip(self._sizes(codes).T, self._groups, strict=True):
            sizes[:, list(group)] = column[:, None]
        return resized(self._key, np.broadcast_to(self._facts, (len(codes), len(self._facts))), sizes)

    def _settle(self, fresh: Integers) -> None:
        """Ask for points, and for all larger ones that could be shorter, and settle all of which that is known then: in
        two batches, as models answer many points at once in a fraction of the time that they take for a few each.
        """
        reached, beat_s, could = self._reach(fresh, self._ask(fresh)[:, 0])
        own_s = np.full(len(reached), inf)
        own_s[could] = self._ask(reached[could])[:, 0]
        # what takes no longer than all that led to it is settled: all larger ones that could be shorter are asked
        settled = reached[own_s <= beat_s]
        self._settled.add(settled, self._least_of_larger(reached, settled))

    def _reach(self, fresh: Integers, fresh_s: Floats) -> tuple[Integers, Floats, Mask]:
        """Points, and all larger ones on the way to what could be shorter, in order; what each of them has to beat; and
        which could, as far as that is known before they are asked. From the smallest on, so that each is met once.
        """
        codes, beat_s, totals = np.empty(0, dtype=np.int64), np.empty(0), self._totals(fresh)
        found: list[tuple[Integers, Floats, Mask]] = []
        level = int(totals.min(initial=0))
        while len(codes) or level <= totals.max(initial=-1):
            own = totals == level
            codes, beat_s = _most_of(np.concatenate([codes, fresh[own]]), np.concatenate([beat_s, fresh_s[own]]))
            asked_s, beyond_s = self._floor(codes)
            found.append((codes, beat_s, (asked_s < beat_s) | np.isin(codes, fresh)))
            further = beyond_s < beat_s
            codes, beat_s = self._above(codes[further]), np.repeat(beat_s[further], len(self._steps))
            new = ~self._settled.has(codes) & self._is_point(codes)
            codes, beat_s, level = codes[new], beat_s[new], level + 1
        reached, beat_s, could = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(reached)
        return reached[order], beat_s[order], could[order]

    def _floor(self, codes: Integers) -> tuple[Floats, Floats]:
        """What points take at least, and any larger ones; found together with what will be asked for next."""
        if not self._floors.has(codes).all():
            shell = [codes]
            for _ in range(_AHEAD):
                above = np.unique(self._above(shell[-1]))
                shell.append(above[self._is_point(above)])
            ahead = np.unique(np.concatenate(shell))
            new = ahead[~self._floors.has(ahead)]
            self._floors.add(new, np.column_stack(self._least(self._works(new))))
        asked_s, beyond_s = self._floors.of(codes).T
        return asked_s, beyond_s

    def _above(self, codes: Integers) -> Integers:
        """The next larger points, one for each size."""
        return np.asarray((codes[:, None] + self._steps).reshape(-1))

    def _is_point(self, codes: Integers) -> Mask:
        return np.asarray((self._sizes(codes) <= self._most).all(axis=1))

    def _totals(self, codes: Integers) -> Integers:
        return np.asarray((codes[:, None] // self._steps % (1 << _BITS)).sum(axis=1))

    def _least_of_larger(self, reached: Integers, fresh: Integers) -> Floats:
        """Times [fresh, 3] of points, no longer than those of larger ones that were reached or settled."""
        own, is_own = self._own.found(reached)
        total = self._totals(reached)
        shortest, larger = np.where(is_own, own[:, 0], inf), reached[:, None] + self._steps
        settled = self._settled.has(larger.reshape(-1)).reshape(larger.shape)
        known = np.full(larger.shape, inf)
        known[settled] = self._settled.of(larger[settled])[:, 0]
        shortest = np.minimum(shortest, known.min(axis=1))
        place = np.minimum(np.searchsorted(reached, larger), len(reached) - 1)
        is_reached = reached[place] == larger
        for level in np.unique(total)[::-1]:
            rows = np.flatnonzero(total == level)
            beyond = np.where(is_reached[rows], shortest[place[rows]], inf).min(axis=1)
            shortest[rows] = np.minimum(shortest[rows], beyond)
        at = np.searchsorted(reached, fresh)
        return np.column_stack([own[at, :3] * (shortest[at] / own[at, 0])[:, None], own[at, 3]])

    def _ask(self, codes: Integers) -> Floats:
        new = codes[~self._own.has(codes)]
        if len(new):
            answers = self._asked(self._works(new))
            self._own.add(new, np.column_stack([answers.time_s, answers.low_s, answers.high_s, answers.bound_s]))
        return self._own.of(codes)


def _most_of(codes: Integers, seconds: Floats) -> tuple[Integers, Floats]:
    """Each code once, in order, with the most of its seconds."""
    distinct, place = np.unique(codes, return_inverse=True)
    most_s = np.zeros(len(distinct))
    np.maximum.at(most_s, place, seconds)
    return distinct, most_s


def alike(key: str, facts: Floats) -> Iterator[tuple[Integers, Floats, Groups]]:
    """Rows of works of facts [works, facts] that are alike but for their sizes, facts of one such work, and which of
    its sizes grow together: queries and keys of attention of a sequence to itself. One node is no small number of
    nodes: its links are others.
    """
    kind = kind_of(key)
    groups: list[Groups] = [tuple((place,) for place in range(len(SIZES[kind])))]
    sizes, other = sizes_of(key, facts), np.zeros(len(facts), dtype=bool)
    reference = np.tile(2.0 ** np.array(_REFERENCE[kind]), (len(facts), 1))
    if kind is WorkKind.ATTENTION:
        other = sizes[:, 1] == sizes[:, 2]
        reference[other, 2] = reference[other, 1]
        groups.append(((0,), (1, 2), (3,)))
    if kind is WorkKind.PRODUCT:
        other = sizes[:, 0] == 1
        reference[other, 0] = 1
        groups.append(((1,), (2,), (3,)))
    if kind is WorkKind.NETWORK:
        other = sizes[:, 1] == 1
        reference[other, 1] = 1
        groups.append(((0,),))
    same = _plain(key, resized(key, facts, reference), reference)
    rounded = np.where(same > 0, np.round(np.log10(np.where(same > 0, same, 1.0)), _DIGITS), -np.inf)
    told = np.column_stack([other, rounded[:, (rounded != rounded[0]).any(axis=0)]])  # what tells works apart
    _, first, which = np.unique(told, axis=0, return_index=True, return_inverse=True)
    for number, row in enumerate(first):
        representative = np.where(np.isfinite(rounded[row]), 10.0 ** rounded[row], same[row])
        yield np.flatnonzero(which.reshape(-1) == number), representative, groups[int(other[row])]


def _plain(key: str, facts: Floats, sizes: Floats) -> Floats:
    """Facts [works, facts] of works of such sizes [works, sizes] whose bytes, FLOPs and bounds are those of a plain op,
    or a round share more: what is beside an op, as a bias, changes little, and its works are alike.
    """
    kind, names = kind_of(key), FACTS[kind_of(key)]
    if kind is WorkKind.NETWORK:
        return facts
    new, size = facts.copy(), dict(zip(SIZES[kind], sizes.T, strict=True))
    fact = {name: facts[:, place] for place, name in enumerate(names)}
    written = _written(kind, size)
    plain = {"bytes": _moved(key, fact, size) * fact["item"], "matrix": np.prod(sizes, axis=1), "vector": written}
    plain["fresh"] = written * fact["item"]
    for name in plain.keys() & set(names):
        share = fact[name] / plain[name]
        little = (name in ("vector", "fresh")) & (share > 0) & (share < _SMALL_SHARE)
        new[:, names.index(name)] = plain[name] * np.where(little, _SMALL_SHARE, _rounded(share))
    was, now = ({name: each[:, place] for place, name in enumerate(names)} for each in (facts, new))
    for each in (was, now):
        each["compute"] = np.where(fact["matrix"] > 0, each["matrix"], each["vector"])
    for name, by in (("compute_s", "compute"), ("memory_s", "bytes")):
        new[:, names.index(name)] *= np.divide(now[by], was[by], out=np.ones(len(facts)), where=was[by] > 0)
    roofs = [np.maximum(each[:, 1], each[:, 2]) for each in (facts, new)]
    new[:, 0] = new[:, 0] / roofs[0]
    new[:, 0] = _rounded(new[:, 0]) * roofs[1]
    return new


def _rounded(shares: Floats) -> Floats:
    """To one and a quarter, a half or three quarters of a power of two, which plain ops have."""
    power = 2.0 ** np.floor(np.log2(np.where(shares > 0, shares, 1.0)))
    return np.asarray(np.round(4 * shares / power) / 4 * power)
