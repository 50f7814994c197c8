"""Times of budgets, and lists of some operators."""

from __future__ import annotations

import json

import pytest

from rooflight.sampling.request import seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (".5s", 0.5),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),  # 3600 + 1800
        ("1m30s", 90.0),
        ("1h0m1s", 3601.0),
    ],
)
def test_budgets(text, found):
    assert seconds(text) == found


NONE = ("", "0", "0s", "-5m", "nan", "inf", "1e400", "1e3", "5min", "1d", "5 m", "1m1h", "1h30", "s", "٣s", "1s1s")


@pytest.mark.parametrize("text", [*NONE, "9" * 400], ids=lambda text: text[:9])
def test_no_budgets(text):
    with pytest.raises(ValueError, match="is no time: write 90s, 5m, 2h or 1h30m"):
        seconds(text)


def test_a_list_of_some_operators(ok):
    out = ok("sample", "--list", "gemm", "relu", "gemm", "--json", "-")
    assert [each["name"] for each in json.loads(out)["operators"]] == ["gemm", "relu"]
