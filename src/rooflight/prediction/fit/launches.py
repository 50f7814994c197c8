"""Launches inside measured times: what a table's least times say of how its source measured.

Where a source times one call between two events and waits for it, the host's launch is in every time: work of any size
takes at least that, 31 µs for instance, and larger work takes its own time and about half of that more. Other sources
time many calls or the kernel alone. The time of a step is no sum of the former: its host launches while the device
works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.prediction.fit.experts import Shown
from rooflight.prediction.model.model import Expert
from rooflight.prediction.work.facts import WorkKind, is_plain, kind_of
from rooflight.prediction.work.floors import INSIDE, LEAST_S

_NEAR, _SHARE = 1.15, 0.1
"""A floor: so many of the rows of a kind are no slower than this factor times the 2 % quantile."""
_SPAN: Final = 16.0
"""By what factor, at least, the bounds of the rows at a floor differ: rows that are alike take as long without one."""
_QUANTILE: Final = 0.02
_LEAST_ROWS: Final = 30


def with_launches(taught: Sequence[tuple[Expert, Shown]]) -> list[tuple[Expert, Shown]]:
    """Experts that know how much of what they learned is a launch: on a GPU where some plain work takes the same
    time at all small sizes, part of the lowest of such times.
    """
    by_device: dict[str, list[Shown]] = {}
    for expert, shown in taught:
        by_device.setdefault(expert.device, []).append(shown)
    found = {device: launch_inside_s(each) for device, each in by_device.items()}
    return [
        (expert if kind_of(shown.key) is WorkKind.NETWORK else replace(expert, launch_s=found[expert.device]), shown)
        for expert, shown in taught
    ]


def launch_inside_s(device: Iterable[Shown]) -> float:
    """Seconds of a launch in the times of a device; 0 where its small work is fast, where none is known, on a CPU."""
    floors = []
    for shown in device:
        if shown.device.kind == "cpu" or not is_plain(shown.key, shown.facts) or len(shown.facts) < _LEAST_ROWS:
            continue
        seconds = shown.facts[:, 0] * np.exp(shown.slowdown)
        floor = float(np.quantile(seconds, _QUANTILE))
        near = seconds < _NEAR * floor
        bounds = shown.facts[near, 0]
        if near.mean() >= _SHARE and np.quantile(bounds, 0.95) >= _SPAN * np.quantile(bounds, 0.05):
            floors.append(floor)
    least = min(floors, default=0.0)
    return INSIDE * least if least >= LEAST_S else 0.0
