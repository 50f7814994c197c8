"""How experts learn: which way of growing trees is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rooflight.prediction.fit import experts as teaching
from rooflight.prediction.model.trees import Leaves, Way


@pytest.mark.parametrize(("rows", "leaves"), [(100, 7), (6000, 100), (30_660, 511), (1_000_000, 511)])
def test_most_leaves_are_as_many_as_rows_pay_for(rows: int, leaves: int) -> None:
    assert Leaves.MOST.of(rows) == leaves


@pytest.mark.parametrize(
    ("rows", "with_most", "chosen"),
    [(20_000, 0.96, Leaves.MOST), (20_000, 0.98, Leaves.MANY), (9_000, 0.5, Leaves.MANY)],
)
def test_most_leaves_are_taken_where_rows_held_out_are_missed_by_less(
    rows: int, with_most: float, chosen: Leaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(_values: Any, _slowdown: Any, way: Way, _train: Any, test: Any) -> Any:
        loss = 1.0 if way.loss == "l1" else 1.1
        return np.full(test.sum(), loss * {Leaves.FEW: 2.0, Leaves.MANY: 1.0, Leaves.MOST: with_most}[way.leaves])

    monkeypatch.setattr(teaching, "_missed", missed)
    parts = [np.arange(rows) < rows // 3]
    way, held_out = teaching._best_way(np.zeros((rows, 2)), np.zeros(rows), parts, trees_only=True)
    assert way == Way("l1", chosen)
    assert (held_out == (with_most if chosen is Leaves.MOST else 1.0)).all()
