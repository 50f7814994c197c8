"""Which numbers there are, as numpy's sort has it."""

from __future__ import annotations

import numpy as np
import pytest

from rooflight.roofline.distinct import distinct, distinct_rows


@pytest.mark.parametrize("most", [1, 5, 1000, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_numbers_are_found_as_by_sorting(most, count):
    numbers = np.random.default_rng(count).integers(0, most, count)
    wanted = np.unique(numbers, return_inverse=True, return_counts=True)
    assert all(np.array_equal(each, one) for each, one in zip(distinct(numbers), wanted, strict=True))


def test_rows_are_found_as_by_sorting():
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 3, 400), rng.integers(0, 1 << 40, 2)[rng.integers(0, 2, 400)], rng.random(400) < 0.5]
    rows, place, counts = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True, return_counts=True)
    found = distinct_rows(columns)
    assert np.array_equal(found[0], rows)
    assert np.array_equal(found[1], place.reshape(-1))
    assert np.array_equal(found[2], counts)
