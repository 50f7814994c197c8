"""Times that are faster than their bound without being flagged are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade_models import A100

from rooflight.operators import registry
from rooflight.prediction.lint.findings import beats_bound, beats_note, row_bounds
from rooflight.prediction.read.measured import MeasuredTable


def table(operator: str, shapes: list[list[int]], share: float, **changes: object) -> MeasuredTable:
    """Rows on an A100 in half precision that take a share of their bounds, forward."""
    found = registry.find(operator)
    whole = MeasuredTable(
        **{
            "operator": operator,
            "kernel": operator,
            "device": A100,
            "precision": "fp16",
            "parameters": tuple(found.parameters),
            "shapes": np.array(shapes),
            "seconds": np.ones((len(shapes), 1)),
            "directions": found.directions[:1],
            "source": Path("rows.csv"),
            "lines": np.arange(2, 2 + len(shapes)),
            **changes,
        }
    )
    bound_s = row_bounds(whole).bound_s
    return MeasuredTable(**{**{name: getattr(whole, name) for name in whole.__slots__}, "seconds": share * bound_s})


def beats(measured: MeasuredTable, flagged: frozenset = frozenset()) -> int:
    return beats_bound(measured, row_bounds(measured), flagged)


ADDS = [[rows, 4096, 0] for rows in (512, 777, 1024)]  # 12 to 25 MB: the A100's cache has 40 MiB


@pytest.mark.parametrize(("share", "count"), [(0.9, 3), (1.1, 0)])
def test_times_below_the_bound_are_counted(share: float, count: int):
    assert beats(table("add", ADDS, share)) == count


def test_flagged_times_are_not_counted():
    measured = table("add", ADDS, 0.9)
    place = (measured.source, "add", 3, measured.directions[0])
    assert beats(measured, frozenset([place])) == 2
    assert beats(measured, frozenset([(measured.source, "add", None, measured.directions[0])])) == 0


def test_the_note_counts_and_is_silent_about_none():
    assert beats_note(0) == ""
    assert beats_note(1202).startswith("1,202 times are faster than the bound without being flagged: ")
