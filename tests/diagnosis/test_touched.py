"""Storages by call and calls by storage, against lists."""

from __future__ import annotations

import numpy as np
import pytest

from rooflight.diagnosis.touched import Touched

COUNT = 9


@pytest.fixture(params=range(20))
def lists(request) -> list[list[int]]:
    rng = np.random.default_rng(request.param)
    return [rng.integers(0, COUNT, rng.integers(0, 4)).tolist() for _ in range(rng.integers(0, 12))]


def touched_by(lists: list[list[int]]) -> Touched:
    """With an entry before the first and after each that belong to no call, as records have that are not counted."""
    apart = [[7], *(each for some in lists for each in (some, [3, 5]))]
    ends = np.cumsum([len(each) for each in apart])
    rows = 1 + 2 * np.arange(len(lists))
    begins = np.concatenate([[0], ends])[rows]
    return Touched(begins, ends[rows], np.array([each for some in apart for each in some], dtype=np.int32))


def test_it_is_the_lists(lists):
    touched = touched_by(lists)
    assert list(touched) == lists == [touched[row] for row in range(len(touched))]


def test_what_rows_touch_is_listed_once(lists):
    rows = np.flatnonzero(np.random.default_rng(1).random(len(lists)) < 0.5)
    wanted = sorted({each for row in rows for each in lists[row]})
    assert touched_by(lists).of(rows).tolist() == wanted


def test_rows_are_found_by_what_they_touch(lists):
    wanted = {2, 4, 7, COUNT + 100}
    assert touched_by(lists).by(wanted).tolist() == [bool(wanted & set(each)) for each in lists]


def test_the_inverse_has_the_rows_in_order(lists):
    wanted = [[row for row, each in enumerate(lists) for touched in each if touched == at] for at in range(COUNT)]
    assert list(touched_by(lists).inverse(COUNT)) == wanted
