"""Bad rows: what makes all that a table says useless, refused in a line that says what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.lint.findings import Finding, RowBounds, Rule
from rooflight.prediction.read.measured import MeasuredTable
from rooflight.prediction.work.facts import WorkKind, kind_of
from rooflight.prediction.work.features import features_of, size_features
from rooflight.prediction.work.floors import least_kernel_s
from rooflight.records.quantity import Quantity

_FEWEST: Final = 5
"""Rows from which a unit can be told to be wrong, and shapes from which two devices can."""
_TYPICAL_SLOWDOWN, _TYPICAL_S = 2.0, 5e-6
"""What a time is compared with: a multiple of the bound, and a kernel's start."""
_IMPOSSIBLE: Final = 0.25
"""Of the bound, or of a GPU's shortest kernel. Caches make work faster than its bound, but not by so much."""
_SHORT, _LONG = 1 / 30, 200.0
"""What a time over that comparison is where its unit is wrong by a factor of 1,000."""
_MIXED: Final = (
    "rows of two devices, or of two ways to measure, under one name: fit each alone, or pass --keep-flagged to learn "
    "from both"
)
_UNITS: Final = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
_APART: Final = np.log(1.3)
"""By how much, as a logarithm, times of one and the same shape are apart where two devices took them. Of
the shipped tables no kind's are more than 1.12 times apart."""
_LIKE, _OTHER = 0.3, 0.2
"""Rows whose times, over their bounds, are nearer than this share of what two groups are apart are of one group; those
that are as far apart as the groups, give or take this share, are not."""
_NEAREST, _FARTHEST = 1.5, 6.0
"""How many times apart two groups are looked for: a GPU that changes its clock makes groups that are nearer."""
_MOST_STRAY: Final = 0.2
"""Which share of rows may be as far from the row of most alike work as the groups are apart, while as many are near. In
137 kinds of tables of one device it was at most 0.13, in 24 mixtures of an A100's with a GH200's 0.15 to 0.49."""
_FEWEST_OF_GROUPS: Final = 30
_SAME, _MOST_SAME = 0.01, 0.9
"""How near the middle time others are that are the same, and the share of rows from which this is no chance."""
_GROWN, _AT_WORK = 4.0, 0.2
"""By what factor bounds grow, and to what share of the time, where it cannot stay the same within 1 %."""


def refuse_wrong_unit(table: MeasuredTable, bounds: RowBounds) -> None:
    """Raises ValueError for times that are about 1,000, or a million, times shorter or longer than the work takes.

    Collectives are not looked at: their bound is that of the fastest network there is.
    """
    if any(kind_of(each.key) is WorkKind.NETWORK for facts in bounds.facts for each in facts):
        return
    known = (bounds.bound_s > 0) & np.isfinite(table.seconds)
    if known.sum() < _FEWEST:
        return
    seconds, bound_s = table.seconds[known], bounds.bound_s[known]
    off = float(np.median(seconds / (_TYPICAL_SLOWDOWN * bound_s + _TYPICAL_S)))
    impossible = float(np.median(seconds / np.maximum(bound_s, least_kernel_s(table.device)))) < _IMPOSSIBLE
    if not (off > _LONG or (off < _SHORT and impossible)):
        return
    factor = 1000.0 ** max(1, round(abs(np.log10(off)) / 3))
    how, remedy, unit_s = ("short", "multiply", factor) if off < 1 else ("long", "divide", 1 / factor)
    right = _UNITS.get(float(f"{table.unit_s * unit_s:.0e}"))
    probably = f": they are probably {right}, not {_UNITS[table.unit_s]}" if right else ""
    middle, bound = (Quantity(float(np.median(each)), "s") for each in (seconds, bound_s))
    raise ValueError(
        f"{table.source}: times of {table.kernel} are about {factor:,.0f} times too {how} against the bound on "
        f"{table.device.name} (the middle of them is {middle}, of their bounds {bound}){probably}: {remedy} them by "
        f"{factor:,.0f}, or pass --keep-flagged to learn from them as they are"
    )


def refuse_two_devices(whole: Iterable[Shown]) -> None:
    """Raises ValueError for rows, all of a kind on a device together, in which the same work takes different times."""
    for each in whole:
        apart = twins_apart(each)
        if len(apart) >= _FEWEST and np.median(apart) > _APART:
            raise ValueError(
                f"{each.key} on {each.device.name}: {len(apart)} shapes are there several times, with times that are "
                f"{np.exp(np.median(apart)):.1f} times apart in the middle: {_MIXED}"
            )


def refuse_constant(table: MeasuredTable, bounds: RowBounds) -> None:
    """Raises ValueError for times that are one and the same whatever the work, in some direction. Small work does take
    one time, which the device does next to nothing for.
    """
    for direction, column, bound in zip(table.directions, table.seconds.T, bounds.bound_s.T, strict=True):
        known = (bound > 0) & np.isfinite(column)
        seconds, bound_s = column[known], bound[known]
        if len(seconds) < _FEWEST:
            continue
        middle = float(np.median(seconds))
        same = int((np.abs(seconds / middle - 1) < _SAME).sum())
        low, high = (float(each) for each in np.quantile(bound_s, (0.05, 0.95)))
        if same >= _MOST_SAME * len(seconds) and high > max(_GROWN * low, _AT_WORK * middle):
            raise ValueError(
                f"{table.source}: {same} of {len(seconds)} times of {table.kernel} ({direction}) are "
                f"{Quantity(middle, 's')}, while their bounds grow from {Quantity(low, 's')} to {Quantity(high, 's')}: "
                "such times are not of these shapes: measure them again, or pass --keep-flagged to learn from them as "
                "they are"
            )


def refuse_two_groups(whole: Iterable[Shown]) -> None:
    """Raises ValueError for rows of tables, all of a kind on a device together, in which about the same work takes
    either one time or a multiple of it: rows of two devices that have no shape in common.
    """
    for each in whole:
        share, apart = groups_apart(each)
        if share > _MOST_STRAY:
            raise ValueError(
                f"{each.key} on {each.device.name}: times of like shapes fall into two groups, about "
                f"{np.exp(apart):.1f} times apart: {_MIXED}"
            )


def refuse_impossible(tables: Iterable[tuple[Sequence[MeasuredTable], Sequence[Finding]]]) -> None:
    """Raises ValueError for tables, with what lint found in them, of whose times at least half beat their bounds."""
    times, flagged, devices = 0, 0, set()
    for each, findings in tables:
        times += sum(int(np.isfinite(table.seconds).sum()) for table in each)
        flagged += sum(found.rule is Rule.FASTER_THAN_LIGHT and found.row is not None for found in findings)
        devices |= {table.device.name for table in each}
    if flagged and 2 * flagged >= times:
        raise ValueError(
            f"{flagged} of {times} times are faster than light on {', '.join(sorted(devices))}, which leaves too few "
            "to learn from: were they measured on another device? rooflight lint lists them"
        )


def groups_apart(shown: Shown) -> tuple[float, float]:
    """The share of rows that belong to another group than the row of most alike work, and how far the groups are apart,
    as a logarithm; (0, 0) of few rows.
    """
    from scipy.spatial import cKDTree

    sizes = features_of(shown.key, shown.facts, shown.device)[:, list(size_features(shown.key))]
    sizes, first = np.unique(sizes, axis=0, return_index=True)
    unit = sizes.std(axis=0)
    if len(sizes) < _FEWEST_OF_GROUPS or not unit.any():
        return 0.0, 0.0
    places = sizes[:, unit > 0] / unit[unit > 0]
    _, near = cKDTree(places).query(places, k=2)
    slowdown = np.maximum(0.0, shown.slowdown[first])
    taken = slowdown + np.log(shown.facts[first, 0])
    # small work takes as long as twice of it, over half the bound: only what differs in both is of two devices
    away = np.minimum(*(np.abs(each - each[near[:, 1]]) for each in (slowdown, taken)))
    return max(
        (float(min(np.mean(np.abs(away - apart) < _OTHER * apart), np.mean(away < _LIKE * apart))), float(apart))
        for apart in np.linspace(np.log(_NEAREST), np.log(_FARTHEST), 40)
    )


def twins_apart(shown: Shown) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """log(longest / shortest time) of each piece of work that has several rows."""
    _, work, counts = np.unique(shown.facts, axis=0, return_inverse=True, return_counts=True)
    work = work.reshape(-1)
    longest, shortest = np.full(len(counts), -np.inf), np.full(len(counts), np.inf)
    np.maximum.at(longest, work, shown.slowdown)
    np.minimum.at(shortest, work, shown.slowdown)
    return np.asarray((longest - shortest)[counts > 1])
