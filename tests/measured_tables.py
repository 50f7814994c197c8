"""Measured tables as files, whose times are their bounds times something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import PAIR
from rooflight.prediction.read import device_called
from rooflight.prediction.work.facts import facts_of

A100_FILE, H100_FILE = "NVIDIAA100-SXM4-80GB", "NVIDIAH10080GBHBM3"
GRID = tuple(product((256, 512, 1024, 2048), repeat=3))
VECTORS = tuple(product((512, 1024, 4096, 16384, 65536), (256, 768, 1024, 4096, 5120, 8192, 11008)))


def write_table(
    folder: Path,
    operator: str = "gemm",
    shapes: Iterable[Sequence[int]] = GRID,
    *,
    slowdown: float = 2.0,
    noise: float = 0.0,
    device: str = A100_FILE,
    precision: str = "fp16",
) -> Path:
    """A file of estimate-train-time: times that are ``slowdown`` times their bounds, give or take ``noise``."""
    found = registry.find(operator)
    times = ["F_dur(us)", "B_dur(us)"] if found.directions == PAIR else ["dur(us)"]
    rows = [tuple(values) for values in shapes]
    lines = [",".join([*found.parameters[: len(rows[0])], *times])]
    rng, spec = np.random.default_rng(1), device_called(device, folder)
    for values in rows:
        shape = found.shape(values)
        work = found.work(shape, {"fp16": "float16", "fp32": "float32"}[precision])
        cells: list[float] = [*values]
        for half in (work.forward, work.backward)[: len(times)]:
            facts = facts_of(half, spec)
            assert facts is not None
            cells.append(facts.bound_s * slowdown * np.exp(rng.normal(0, noise)) * 1e6)
        lines.append(",".join(map(str, cells)))
    path = folder / f"{device}_{operator}_{precision}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
