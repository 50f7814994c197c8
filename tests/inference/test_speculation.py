"""The formulas of speculative decoding: by hand, against simulated rounds, and against the paper's own table."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.inference import expected_tokens, predicted_speedup

probability = st.floats(0, 1)
seconds = st.floats(1e-6, 1e3)


def test_tokens_of_a_round_by_hand():
    assert expected_tokens(0.5, 2) == 1.75  # 1 + 1/2 + 1/4
    assert expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert expected_tokens(0.0, 7) == 1
    assert expected_tokens(1.0, 7) == 8
    assert expected_tokens(0.9, 0) == 1  # plain decoding


def test_speedup_by_hand():
    # 1.75 tokens in 2 + 12 + 1 = 15 ms, a token in 10 ms
    assert predicted_speedup(1.75, plain_s=0.01, draft_s=0.002, verify_s=0.012, overhead_s=0.001) == pytest.approx(
        1.75 * 10 / 15
    )
    assert predicted_speedup(1, plain_s=0.01, draft_s=0, verify_s=0.01) == 1


@pytest.mark.parametrize("call", [
    lambda: expected_tokens(-0.1, 3), lambda: expected_tokens(1.1, 3), lambda: expected_tokens(float("nan"), 3),
    lambda: expected_tokens(0.5, -1), lambda: predicted_speedup(1, plain_s=1, draft_s=0, verify_s=0),
    lambda: predicted_speedup(1, plain_s=-1, draft_s=1, verify_s=1),
    lambda: predicted_speedup(float("nan"), plain_s=1, draft_s=1, verify_s=1),
])  # fmt: skip
def test_what_cannot_be(call):
    with pytest.raises(ValueError, match="give"):
        call()


@given(probability, st.integers(0, 64))
def test_a_round_yields_between_one_token_and_all(acceptance, gamma):
    assert 1 <= expected_tokens(acceptance, gamma) <= gamma + 1
    assert expected_tokens(acceptance, gamma) <= expected_tokens(acceptance, gamma + 1)


@given(st.floats(1, 10), seconds, seconds, seconds, st.floats(0, 1))
def test_speedup_has_no_unit_and_falls_with_every_cost(tokens, plain_s, draft_s, verify_s, overhead_s):
    speedup = predicted_speedup(tokens, plain_s=plain_s, draft_s=draft_s, verify_s=verify_s, overhead_s=overhead_s)
    in_ms = {"plain_s": plain_s * 1e3, "draft_s": draft_s * 1e3, "verify_s": verify_s * 1e3}
    assert predicted_speedup(tokens, **in_ms, overhead_s=overhead_s * 1e3) == pytest.approx(speedup)
    assert predicted_speedup(tokens, plain_s=plain_s, draft_s=draft_s + 1, verify_s=verify_s) < tokens * plain_s


def test_simulated_rounds_yield_what_is_expected():
    draw = random.Random(0)
    for acceptance, gamma in ((0.3, 2), (0.7, 5), (0.95, 8)):
        rounds = 20_000
        tokens = 0
        for _ in range(rounds):
            accepted = 0
            while accepted < gamma and draw.random() < acceptance:
                accepted += 1
            tokens += accepted + 1
        assert tokens / rounds == pytest.approx(expected_tokens(acceptance, gamma), rel=0.02)


def _published():
    path = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "published_inference" / "speculative_leviathan_tables2_4.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []


@pytest.mark.skipif(not _published(), reason="needs ROOFLIGHT_DATA")
def test_the_papers_own_table():
    """Its theory is printed with one decimal, from inputs that are printed with two."""
    for row in _published():
        gamma, alpha, c = int(row["gamma"]), float(row["alpha"]), float(row["c"])
        low, high = (
            predicted_speedup(expected_tokens(alpha + off, gamma), plain_s=1, draft_s=gamma * (c - off), verify_s=1)
            for off in (-0.005, 0.005)
        )
        published = float(row["expected_speedup_theory"])
        assert low - 0.05 <= published <= high + 0.05, row
