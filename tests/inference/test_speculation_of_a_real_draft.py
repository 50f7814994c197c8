"""A real target, draft and generation loop under the profiler: what the summary says is what the loop did."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from measured_runs import quiet, run_of
from test_generation_loops import built, config_of, draft_like

from rooflight.inference import decode, speculative_decode

BATCH, NEW, GAMMA = 3, 24, 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What a loop with a draft generated, and the folder of its profile beside a plain run."""
    target = built(config_of("llama"), dtype="float32")
    draft = draft_like(target, config_of("llama"), 0.02, "float32")
    ids = torch.randint(64, (BATCH, 8), generator=torch.Generator().manual_seed(3))
    prof = quiet(tmp_path_factory.mktemp("out"), engine_profiling=True, slo_e2e_ms=1e6)
    with run_of(prof, bsz=BATCH, label="plain"):
        decode(target, ids, NEW, temperature=1.0, profiler=prof)
    with run_of(prof, bsz=BATCH, label="speculative"):
        found = speculative_decode(target, draft, ids, NEW, gamma=GAMMA, temperature=1.0, profiler=prof)
    folder = prof.save_all()
    alone = speculative_decode(target, draft, ids, NEW, gamma=GAMMA, temperature=1.0)
    assert torch.equal(alone.tokens, found.tokens)  # the profiler changes nothing
    return found, folder, json.loads((folder / "summary.json").read_text())


def test_rounds_are_those_of_the_loop(measured):
    found, _, summary = measured
    data = summary["speculative"]
    rounds = [
        (proposed, accepted, tokens)
        for step in zip(found.proposed, found.accepted, found.step_tokens, strict=True)
        for proposed, accepted, tokens in zip(*step, strict=True)
        if tokens  # a sequence that has all its tokens is in no round
    ]
    drafted = [(proposed, accepted) for proposed, accepted, _ in rounds if proposed]
    assert 0 < data["accepted"] < data["proposed"]
    assert data["proposed"] == sum(proposed for proposed, _ in drafted)
    assert data["accepted"] == sum(accepted for _, accepted in drafted)
    assert (data["rounds"], data["rounds_without_draft"]) == (len(drafted), len(rounds) - len(drafted))
    assert data["steps"] == found.steps
    assert data["acceptance_by_position"] == [
        pytest.approx(
            sum(accepted > at for _, accepted in drafted) / sum(proposed > at for proposed, _ in drafted)
        )
        for at in range(GAMMA)
    ]  # fmt: skip
    assert data["tokens_per_target_forward"] == pytest.approx(BATCH * (NEW - 1) / found.steps)


def test_parts_of_a_step_are_the_step(measured):
    _, run = measured[2]["runs"]
    assert set(run["buckets_engine_avg_ms"]) == {"draft", "verify", "sampler", "postproc"}
    data = measured[2]["speculative"]
    parts = [data[f"{name}_ms"] for name in ("draft", "verify", "overhead")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(data["step_ms"], rel=1e-9)


def test_the_speedup_is_that_of_the_raw_samples(measured):
    _, folder, summary = measured
    tokens, nanoseconds = [0, 0], [0, 0]
    cells = len(summary["meta"]["config"]["kv_bins"]) + 1  # of decode steps: the bins, and steps of unknown length
    for row in csv.DictReader((folder / "steps.csv").read_text().splitlines()):
        if int(row["kv_bin"]) >= cells:
            continue  # a prefill
        tokens[int(row["run"])] += int(row["tokens"])
        nanoseconds[int(row["run"])] += int(row["step_ns"])
    plain, speculative = (count / took for count, took in zip(tokens, nanoseconds, strict=True))
    data = summary["speculative"]
    assert data["speedup_measured"] == pytest.approx(speculative / plain)
    assert 0 < data["speedup_predicted"] < data["speedup_measured"] * 2
    assert data["reasons"] == {}


def test_requests_are_the_sequences(measured):
    found, _, summary = measured
    assert not summary["problems"]
    assert summary["runs"][1]["stats"]["tokens_total"] == BATCH * (NEW - 1)  # the first of each comes of the prefill
    serving = summary["serving"]
    assert (serving["requests"], serving["tokens"], serving["unfinished"]) == (2 * BATCH, 2 * BATCH * NEW, 0)
    assert serving["goodput"]["share"] == 1
    plain, speculative = (serving["by_label"][label] for label in ("plain", "speculative"))
    assert plain["tokens_per_delivery"] == 1
    assert plain["itl_ms"]["n"] == BATCH * (NEW - 1)
    deliveries = BATCH + sum(tokens > 0 for row in found.step_tokens for tokens in row)
    assert speculative["tokens_per_delivery"] == pytest.approx(BATCH * NEW / deliveries)
    for stats in (plain, speculative):
        assert 0 < stats["ttft_ms"]["p50"] <= stats["e2e_ms"]["p50"]
    # with one token per delivery the mean gap is the mean time per token
    assert plain["itl_ms"]["mean"] == pytest.approx(plain["tpot_ms"]["mean"])
    assert speculative["tpot_ms"]["mean"] < speculative["itl_ms"]["mean"]
