"""attach_engine on continuous batching of transformers, as it is installed, on the CPU: its own thread runs prefill,
mixed and decode steps."""

from __future__ import annotations

import time

import pytest
import torch
import transformers
from measured_runs import quiet
from small_decoders import LLAMA
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

_PROMPTS = [[3, 4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]]
_GREEDY = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1)


def settings(**changes: object) -> ContinuousBatchingConfig:
    """A cache of a few blocks (else half of the memory is taken), and prompts in parts of at most eight tokens."""
    return ContinuousBatchingConfig(
        **({"num_blocks": 16, "max_batch_tokens": 8, "page_size": 16, "max_requests_per_batch": 4} | changes)
    )


@pytest.fixture
def model(one_thread):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | {"max_position_embeddings": 128})).eval()


def tokens_of(results) -> list[list[int]]:
    return [each.generated_tokens for each in results.values()]


def result_of(manager, name):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = manager.get_result(request_id=name, timeout=1)
        if found is not None:
            return found
    raise AssertionError(f"no result of {name}")


def batch(model, **changes: object):
    return model.generate_batch(
        _PROMPTS, generation_config=_GREEDY, continuous_batching_config=settings(**changes), warmup=False
    )


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("paged|eager", marks=pytest.mark.slow)])
def test_steps_of_a_batch_by_hand(host, model, attention, prof):
    model.set_attn_implementation(attention)
    plain = tokens_of(batch(model))
    before = set(vars(model))
    prof.attach_engine(model)
    assert tokens_of(batch(model)) == plain
    prof.detach()
    assert set(vars(model)) == before
    summary = host.summary()
    assert not summary["problems"]
    (run,) = summary["runs"]
    assert run["meta"]["label"] == "continuous batching"
    # The longest prompt comes first, eight tokens a step: 8 of 11 | 3, then 3 and 2 of 5 | 3 of 5 beside two that
    # decode | decode.
    rows = [column.tolist() for column in prof.results.samples.columns().values()]
    steps = list(zip(*rows[3:5], prof.results.samples.columns()["kv_length"].tolist(), strict=True))
    assert steps[:4] == [
        (8, 0, 0.0),  # prefill, no token yet
        (8, 2, 8 / 3),  # prefill: 8 of the first prompt are in the cache
        (9, 3, 16 / 3),  # mixed: 11, 3 and 2
        (0, 3, 7.0),  # 12, 4 and 5
    ]
    assert sum(tokens for _, tokens, _ in steps) == 18
    assert rows[2][:4] == [1, 3, 3, 3]  # sequences of each step
    assert summary["batch_sizes"][-1]["batch"] == 3
    held = prof.results.samples.columns()["kv_cache_bytes"]
    assert (held > 0).all()  # of the paged cache, in whole blocks: nobody lets go of one before the end
    assert (held[1:4] >= held[:3]).all()
    assert set(summary["other_phases"]) == {"prefill", "mixed"}
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["engine"]}
    assert {"schedule", "inputs", "decode", "sampler", "postproc"} <= set(calls)
    assert calls["decode"] == calls["sampler"] == calls["schedule"] == 1
    assert set(prof.results.totals.buckets["engine"].exclusive_ns) <= {
        "schedule", "inputs", "decode", "sampler", "postproc", "kv.swap", "wait", "prefill", "mixed"
    }  # fmt: skip


def test_requests_of_a_batch(model, tmp_path):
    prof = quiet(tmp_path)
    prof.attach_engine(model)
    batch(model)
    ended = {name: column.tolist() for name, column in prof.requests.ended.columns().items()}
    assert sorted(ended["prompt_tokens"]) == [3, 5, 11]
    assert ended["tokens"] == ended["deliveries"] == [6, 6, 6]
    times = zip(ended["ttft_ns"], ended["last_ns"], ended["e2e_ns"], strict=True)
    assert all(0 < first < last <= end for first, last, end in times)
    assert prof.requests.unfinished == 0
    assert not prof.problems.counts
    prof.save_all()


@pytest.mark.slow
def test_warm_up_runs_and_later_ones(make, model):
    bench = make(warmup_runs=1)
    prof = bench.profiler
    prof.attach_engine(model)
    batch(model)
    assert prof.results.totals.steps == 0
    batch(model)
    assert prof.results.total().tokens == 18
    assert len(prof.results.runs) == 1
    assert not prof.problems.counts


def test_a_manager_that_waits_for_requests(host, model, prof):
    """Passes with nothing to do are no steps."""
    manager = model.init_continuous_batching(
        generation_config=_GREEDY, continuous_batching_config=settings(allow_block_sharing=False)
    )
    before = set(vars(manager))
    prof.attach_engine(manager)
    with pytest.raises(ValueError, match="ContinuousBatchingManager is attached already"):
        prof.attach_engine(manager)
    manager.start()
    try:
        for prompt in _PROMPTS:
            name = manager.add_request(prompt, max_new_tokens=4)
            assert len(result_of(manager, name).generated_tokens) == 4
    finally:
        manager.stop(block=True)
    prof.detach()
    assert set(vars(manager)) - before == {"current_batch"}  # its own
    assert "put" not in vars(manager.input_queue)
    summary = host.summary()
    assert summary["other_phases"]["prefill"]["steps"] == 4  # 5, 3, and 8 and 3 of 11
    assert summary["stats"]["steps"] == 9  # three more tokens for each
    assert summary["stats"]["tokens_total"] == 9
    assert prof.requests.ended.columns()["tokens"].tolist() == [4, 4, 4]
    assert not summary["problems"]


def test_requests_that_are_cancelled_end(model, prof):
    manager = model.init_continuous_batching(generation_config=_GREEDY, continuous_batching_config=settings())
    prof.attach_engine(manager)
    manager.start()
    try:
        long = manager.add_request(_PROMPTS[0], max_new_tokens=100)
        until = time.monotonic() + 120
        while prof.unsaved_steps < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        manager.cancel_request(long)
        name = manager.add_request(_PROMPTS[1], max_new_tokens=2)
        result_of(manager, name)
    finally:
        manager.stop(block=True)
    assert prof.requests.unfinished == 0
    tokens = prof.requests.ended.columns()["tokens"].tolist()
    assert len(tokens) == 2
    assert 2 in tokens


def test_generate_and_continuous_batching_of_one_model(model, prof):
    prof.attach_engine(model)
    model.generate(torch.tensor(_PROMPTS[:1]), max_new_tokens=3, do_sample=False, eos_token_id=None)
    batch(model)
    assert [run.meta.label for run in prof.results.runs] == ["generate", "continuous batching"]
    assert not prof.problems.counts
