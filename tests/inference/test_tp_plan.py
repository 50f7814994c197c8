"""Transformers' own tensor parallelism (``tp_plan="auto"``) of real ranks over gloo, profiled and merged."""

from __future__ import annotations

import json

import pytest

from rooflight.roofline.time_by_place import UNATTRIBUTED

WORKER = "tp_plan_worker.py"
pytestmark = pytest.mark.slow  # test_collective_buckets.py has ranks of its own in the quick run


def test_its_collectives_have_buckets_and_the_model_computes_the_same(ranks):
    for found in ranks:
        assert found["same"]
        assert found["undone"]
        assert not found["summary"]["problems"]
        # attention and MLP of two layers end with a synchronous all-reduce; the functional ones are of the embedding,
        # whose vocabulary is divided, and of the logits
        assert found["ops"]["c10d::allreduce_"] == 4
        assert (
            found["ops"]["_c10d_functional::all_reduce"]
            == found["ops"]["_c10d_functional::all_gather_into_tensor"]
            == 1
        )
        rows = {row["name"]: row for row in found["summary"]["buckets"]["model"]}
        assert rows["comm.all_reduce"]["calls_per_step"] == 4 + 2  # a functional one is issued and waited for
        assert rows["comm.all_gather"]["calls_per_step"] == 1  # waited for where it is issued: it gathers columns
        assert {"embed", "attn.qkv_proj", "attn.compute", "attn.o_proj", "mlp.down_proj", "norm", "lm_head"} <= set(
            rows
        )
        assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
        assert found["summary"]["buckets_model_avg_ms"].keys() == rows.keys() - {UNATTRIBUTED}  # no others


def test_bounds_are_of_the_part_that_a_rank_has(ranks):
    halves = {"q_proj": [16, 32], "o_proj": [32, 16], "down_proj": [32, 24]}
    for found in ranks:
        weights = {name.split(".")[-2]: shape for name, shape in found["weights"].items()}
        assert {name: weights[name] for name in halves} == halves
        (whole,) = found["summary"]["bounds"]["steps"]
        layer = 4 * 16 * 32 + 3 * 24 * 32 + 2 * 32  # half of q, k, v, o, half of the MLP, two norms
        parts = 4 * (2 * layer + 32 + 32 * 32)  # the last norm, half of the head
        # and ids, up to 12 rows of embeddings, RoPE's frequencies, logits of half and of all of the vocabulary
        assert parts < whole["compulsory_bytes"] < parts + 12 * (8 + 4 * 32 + 4 * (32 + 64)) + 100


def test_both_ranks_are_in_the_summary_of_rank_0(folder):
    merged = json.loads((folder / "out" / "tp_plan" / "summary.json").read_text())["ranks"]
    assert merged["world"] == 2
    assert not merged["missing"]
    assert set(merged["buckets_model"]) >= {"comm.all_reduce", "comm.all_gather"}
