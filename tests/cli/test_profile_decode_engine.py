"""``rooflight profile-decode`` on an engine of the user."""

from __future__ import annotations

import msgspec
import pytest

from rooflight.studies.inference.result import SummaryDocument
from rooflight.studies.inference.saving import read_summary

pytestmark = pytest.mark.usefixtures("one_thread")


ENGINE = """
import os, signal
import torch
from rooflight.inference import get_active_profiler

class Engine:
    def __init__(self):
        self.runs = 0
        self.model = torch.nn.Linear(4, 4)
    def run(self, batch, prompt_tokens, new_tokens):
        self.runs += 1
        prof = get_active_profiler()
        for token in range(new_tokens):
            with prof.step_timing_ctx():
                prof.set_step_tokens(batch)
                with prof.cpu_bucket_timer("decode"):
                    self.model(torch.ones(batch, 4))
            if self.runs == 3 and token == 1:
                LAST

def make_engine():
    print("hello from the engine")
    return Engine()
"""


def engine_file(tmp_path, last="pass", text=ENGINE):
    path = tmp_path / "engine.py"
    path.write_text(text.replace("LAST", last))
    return f"{path}:make_engine"


def test_an_engine_of_the_user(profile, tmp_path):
    out = profile(engine_file(tmp_path), "--new", 4, "--runs", 2, "--json", "-")
    found = msgspec.json.decode(out, type=SummaryDocument)
    assert found.stats.steps == 8
    assert found.buckets_engine_avg_ms.keys() == {"decode"}
    assert found.workload is not None
    assert found.workload.target.endswith("engine.py:make_engine")
    assert found.workload.parameters == 20
    assert "The engine opens its steps itself: " in found.workload.notes[0]


GENERATES = """
import torch, transformers

def make_engine():
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, max_position_embeddings=64, pad_token_id=0,
                                      eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    def run(batch, prompt_tokens, new_tokens):
        model.generate(torch.ones(batch, prompt_tokens, dtype=torch.long), max_new_tokens=new_tokens, do_sample=False)
    return model, run
"""


def test_generate_of_transformers_is_an_engine(profile, tmp_path):
    """attach_engine knows its methods: the prefill makes the first of 5 tokens, 4 steps the others."""
    words = engine_file(tmp_path, text=GENERATES), "--batch", 2, "--prompt", 8, "--new", 5, "--runs", 2
    out = profile(*words, "--json", "-")
    found = msgspec.json.decode(out, type=SummaryDocument)
    assert found.stats.steps == 2 * 4
    assert found.stats.tokens_total == 2 * 2 * 4
    assert "attn.compute" in found.buckets_model_avg_ms
    assert found.workload is not None
    assert found.workload.model_class == "LlamaForCausalLM"
    assert not found.workload.notes


@pytest.mark.usefixtures("calibrated")
def test_the_model_of_an_engine_has_bounds(profile, tmp_path):
    words = engine_file(tmp_path, text=GENERATES), "--batch", 2, "--prompt", 8, "--new", 5, "--runs", 2
    profile(*words, "--bounds")
    found = read_summary(tmp_path / "out" / "r")
    (whole,) = found.bounds.steps
    assert (whole.batch, whole.kv_length, whole.steps) == (2, 9, 8)  # 8 to 11 tokens are in the cache: 9.5
    assert all(row.op_bound_ms is not None for row in found.buckets.model)
    assert found.bounds.none_because["engine"].startswith("add_bounds() records the model alone")


@pytest.mark.usefixtures("calibrated")
def test_an_engine_without_a_known_model_has_no_bounds(profile, profile_ends, tmp_path):
    code, _, err = profile_ends(engine_file(tmp_path), "--new", 4, "--runs", 2, "--bounds")
    assert code == 0, err
    assert not read_summary(tmp_path / "out" / "r").bounds.recorded
    known = ENGINE.replace("prof.set_step_tokens(batch)", "prof.set_step_tokens(batch); prof.set_step_seq_len(token)")
    profile(engine_file(tmp_path, text=known), "--new", 4, "--runs", 2, "--bounds", name="known")
    assert any(
        "no bounds: Linear cannot be called" in text for text in read_summary(tmp_path / "out" / "known").problems
    )


def test_sigint_in_an_engine(profile_ends, tmp_path):
    words = engine_file(tmp_path, "os.kill(os.getpid(), signal.SIGINT)"), "--new", 4, "--runs", 2
    code, _, err = profile_ends(*words)
    assert code == 130
    assert f"6 measured steps are in {tmp_path / 'out' / 'r'}" in err
    assert read_summary(tmp_path / "out" / "r").stats.steps == 6


def test_an_engine_that_breaks(profile_ends, tmp_path):
    code, _, err = profile_ends(engine_file(tmp_path, "raise OverflowError('too much')"), "--new", 4, "--runs", 2)
    assert code == 1
    assert "the run failed: OverflowError: too much (engine.py:" in err
    assert f"6 measured steps are in {tmp_path / 'out' / 'r'}" in err
    assert read_summary(tmp_path / "out" / "r").stats.steps == 6
