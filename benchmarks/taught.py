"""What the tables and traces that the shipped models learn from teach, for benchmarks that hold out something else."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shipped_rows import tables, traces

import rooflight as rl
from rooflight.front.measured import find_measured, read_measured
from rooflight.prediction.fit.fitting import learn_all, learn_beside, read_for_fit, teach_tables, workers
from rooflight.prediction.fit.rows import Shown, shown_by_ops, together
from rooflight.prediction.lint.findings import lint_ops
from rooflight.prediction.model.model import Expert
from rooflight.prediction.read.measured import MeasuredOps

OURS = tuple(Path(__file__).parent / "results" / gpu / "learned" for gpu in ("h100", "h200"))
COARSE_ROWS = 600
"""Rows of each table that a coarse fit learns from."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Rows of the tables, by kind of work and device, and the experts that they taught."""

    rows: Sequence[Shown]
    taught: Sequence[tuple[Expert, Shown]]

    @classmethod
    def learned(cls, root: Path) -> Tables:
        rows = together(shown_by_tables(root))
        with workers(sum(len(each.facts) for each in rows), processes=True) as run:
            return cls(rows=rows, taught=teach_tables(rows, run=run))

    def with_ops(self, sessions: Sequence[MeasuredOps]) -> rl.Predictor:
        """What they teach beside these sessions, as ``rooflight fit`` has it."""
        return rl.Predictor.of(learn_beside(self.taught, self.rows, ops_of(sessions)).models)


def shown_by_tables(root: Path) -> list[Shown]:
    files = find_measured(tables(root)).tables
    return [shown for read in read_for_fit(files, processes=True) for shown in read.shown]


def measured_traces(root: Path) -> dict[str, MeasuredOps]:
    """The traces' ops by the names of their files."""
    return {path.name: read_measured([path], progress=lambda _: None)[0] for path in traces(root)}


@functools.cache
def ours() -> tuple[MeasuredOps, ...]:
    """Random ops that we measured on an H100 and an H200."""
    files = [path for folder in OURS for path in sorted(folder.glob("*.session"))]
    return tuple(read_measured(files, progress=lambda _: None))


def ops_of(sessions: Sequence[MeasuredOps]) -> tuple[Shown, ...]:
    """What sessions, and our own, teach, without what lint flags."""
    sessions = [*sessions, *ours()]
    return shown_by_ops(sessions, [finding for each in sessions for finding in lint_ops(each)]).shown


def coarse(root: Path, sessions: Sequence[MeasuredOps]) -> rl.Predictor:
    """Models of some rows of the tables and of these sessions: enough to divide the time of a step among its ops."""
    shown = learn_all(map(_some, shown_by_tables(root)), beside=ops_of(sessions), processes=True, trees_only=True)
    return rl.Predictor.of(shown.models)


def _some(shown: Shown) -> Shown:
    places = np.sort(np.random.default_rng(0).permutation(len(shown.facts))[:COARSE_ROWS])
    return Shown(key=shown.key, device=shown.device, facts=shown.facts[places], slowdown=shown.slowdown[places])
