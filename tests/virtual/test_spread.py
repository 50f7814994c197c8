"""A preset's step on several GPUs that are not here: layouts, what is sharded, what is exchanged."""

from __future__ import annotations

import json

import pytest

from rooflight.sources.workloads.specs import checked_spec
from rooflight.sources.workloads.spread import Layout

EIGHT = ("--step", "train", "--small", "--device", "8xH100-SXM5-80GB")


@pytest.mark.parametrize(
    ("text", "ranks", "layout"),
    [
        ("fsdp", 8, Layout(fsdp=8)),
        ("ddp", 4, Layout(ddp=4)),
        ("tp=8", 8, Layout(tp=8)),
        ("fsdp=4,tp=2", 8, Layout(fsdp=4, tp=2)),
        ("fsdp,tp=2", 8, Layout(fsdp=4, tp=2)),
        ("", 1, Layout()),
    ],
)
def test_layouts(text, ranks, layout):
    assert Layout.read(text, ranks) == layout


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        ("pp=2", 2, "write ddp, fsdp"),
        ("fsdp,fsdp", 2, "write ddp, fsdp"),
        ("fsdp=x", 2, "write ddp, fsdp"),
        ("ddp,fsdp", 4, "not both"),
        ("tp=3", 8, "3 ranks, and there are 8"),
        ("fsdp=2,tp=2", 8, "4 ranks, and there are 8"),
        ("", 8, "1 ranks, and there are 8"),
        ("fsdp,tp=3", 8, "3 ranks, and there are 8"),
    ],
)
def test_layouts_that_cannot_be(text, ranks, says):
    with pytest.raises(ValueError, match=says):
        Layout.read(text, ranks)


@pytest.mark.slow
def test_fsdp_and_tp_together(ok, tmp_path):
    path = tmp_path / "a.json"
    ok("analyze", "llama-3.1-8b", *EIGHT, "--parallel", "fsdp=4,tp=2", "--precision", "mixed", "--json", path)
    found = json.loads(path.read_text())
    (row,) = found["run"]["on"]
    assert (row["device"], row["gpus"], row["fits"]) == ("H100-SXM5-80GB", 8, True)
    assert row["step_s"] > row["bound_s"] > 0
    kinds = {(each["kind"], each["group_size"]) for each in found["communication"]["collectives"]}
    assert kinds == {("all-gather", 4), ("reduce-scatter", 4), ("all-reduce", 2)}


def test_ddp_reduces_every_gradient_once(ok, tmp_path):
    path = tmp_path / "a.json"
    ok("analyze", "gpt2", *EIGHT, "--parallel", "ddp", "--json", path)
    found = json.loads(path.read_text())
    (reduced,) = found["communication"]["collectives"]
    assert reduced["kind"] == "all-reduce"
    memory = found["memory"]["by_kind"]
    assert reduced["payload_bytes"] == pytest.approx(memory["parameter"], rel=0.01)
    assert memory["optimizer_state"] == pytest.approx(2 * memory["parameter"], rel=0.01)
    weights = (
        checked_spec("gpt2", step="train", device="meta", dtype=None, small=True, batch=None, seq=None, optimizer=None)
        .build()
        .parameters()
    )
    assert memory["parameter"] == 2 * sum(each.numel() for each in weights)  # those of the embedding and head once


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gpt2", "--device", "8xH100-SXM5-80GB"], "say how the step is spread"),
        (["gpt2", "--device", "0xH100-SXM5-80GB", "--parallel", "fsdp"], "one GPU is the least"),
        (["gpt2", "--parallel", "fsdp"], "name GPUs that are not here"),
        (["gpt2", "--device", "8xH100-SXM5-80GB", "--parallel", "pp"], "write ddp, fsdp"),
        (["gpt2", "--device", "4xH100-SXM5-80GB", "--parallel", "tp=8"], "8 ranks, and there are 4"),
        (["gpt2", "--device", "2xH100-SXM5-80GB", "--parallel", "fsdp", "--step", "decode"], "take --step train"),
        (["gpt2", "--device", "2xH100-SXM5-80GB", "--parallel", "fsdp", "--clock", "1GHz"], "no effect beside it"),
        (["gpt2", "gpt2", "--device", "2xH100-SXM5-80GB", "--parallel", "fsdp"], "one preset or config"),
    ],
)
def test_refused(refused, words, says):
    assert says in refused("analyze", *words)
