"""benchmarks/speculative_speedup.py: which steps it times. The prefill is a step too, and no round of drafts."""

from __future__ import annotations

import csv
import importlib
import sys
from itertools import count
from pathlib import Path

import pytest
from measured_runs import quiet
from test_generation_loops import built, config_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NEW = 12


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("speculative_speedup")
    monkeypatch.setattr(module, "VOCABULARY", 64)
    monkeypatch.setattr(module, "PROMPT", 4)
    yield module
    sys.modules.pop("speculative_speedup", None)


def test_rounds_are_the_steps_that_draft_gamma_tokens(benchmark, tmp_path):
    readings = count(0, 1_000_000)  # each reading of the clock is 1 ms after the one before it

    def clock():
        next_ns = next(readings)
        return next_ns + 10**9 * (next_ns > 5_000_000)  # the prefill takes a second more

    model = built(config_of("llama"), dtype="float32")
    prof = quiet(tmp_path, engine_profiling=True, clock=clock)
    setting = benchmark.Setting(batch=2, gamma=3, noise=0.0, temperature=1.0)
    found = [benchmark.speculative_run(prof, model, model, setting, NEW, seed) for seed in (1, 2)]
    rows = list(csv.DictReader((prof.save_all() / "steps.csv").read_text().splitlines()))
    assert [row["phase"] for row in rows if row["step"] == "0"] == ["prefill"] * 2
    assert int(rows[0]["step_ns"]) > 10**9
    for number, each in enumerate(found):
        full = [row for row in rows if row["run"] == str(number) and row["phase"] == "decode"
                and row["proposed"] == str(2 * 3)]  # fmt: skip
        # the draft is the target: all is accepted, and 2 sequences get 4 tokens; 11 are asked for after the prefill's
        assert [row["tokens"] for row in full] == ["8", "8"]
        assert (each.tokens, each.tested, each.accepted) == (16, 12, 12)
        assert each.time_s == sum(int(row["step_ns"]) for row in full) / 1e9 < 1
        assert 0 < each.overhead_s < 0.1


def test_alpha_and_prediction_by_hand(benchmark):
    def measured_round(tokens, accepted):
        run = benchmark.Speculative(tokens=tokens, time_s=1.0, tested=10, accepted=accepted, overhead_s=0.5)
        return benchmark.Round(
            plain_s=1.0, plain_tok_s=2.0, speculative=run, other=run, draft_s={1: 1.0, 2: 2.0}, verify_s=1.25
        )

    setting = benchmark.Setting(batch=1, gamma=1, noise=0.0, temperature=1.0)
    rounds = [measured_round(1, 4), measured_round(1, 6)]
    # alpha = 10/20; E = 1 + 0.5; the draft reads two tokens after half of the rounds: 1.5 / (1.5 + 1.25 + 0.5)
    assert benchmark.prediction(setting, rounds) == pytest.approx(1.5 / 3.25)
    assert benchmark.error(setting, rounds) == pytest.approx(1.5 / 3.25 / 0.5 - 1)
    low, high = benchmark.error_interval(setting, rounds)
    # two rounds with alpha 0.4: 1.4 / (1.4 + 1.75); with 0.6: 1.6 / (1.6 + 1.75)
    assert (low, high) == (pytest.approx(1.4 / 3.15 / 0.5 - 1), pytest.approx(1.6 / 3.35 / 0.5 - 1))
