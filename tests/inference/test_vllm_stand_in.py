"""attach_engine on what stands in for vLLM's engine: real vLLM never ran here."""

from __future__ import annotations

import pytest
from measured_runs import run_of, samples
from vllm_stand_in import LLM, EngineCore, LLMEngine, Request


def core_of(bench, **settings) -> EngineCore:
    core = EngineCore(bench.spend, **settings)
    core.add_request(Request("a", prompt=6, max_tokens=4))
    core.add_request(Request("b", prompt=20, max_tokens=3))
    return core


def served(bench, core, engine) -> dict[str, int]:
    prof = bench.profiler
    prof.attach_engine(engine)
    with run_of(prof):
        return LLM(core).generate(core)


@pytest.mark.parametrize("kind", [LLM, LLMEngine, None], ids=["LLM", "LLMEngine", "EngineCore"])
def test_prefill_mixed_and_decode_steps(bench, kind):
    core = core_of(bench)
    assert served(bench, core, core if kind is None else kind(core)) == {"a": 4, "b": 3}
    # 16 tokens a step: 6 of a, 10 of b | 1 of a, 10 of b | decode, until each has its tokens
    assert samples(bench.profiler) == [
        (8, 1, 0.0),  # prefill: a's first token
        (9, 2, 8.0),  # mixed: 6 and 10 are in the cache
        (0, 2, 13.5),  # 7 and 20
        (0, 2, 14.5),
    ]
    assert bench.profiler.results.samples.columns()["batch"].tolist() == [2, 2, 2, 2]
    summary = bench.summary()
    assert not summary["problems"]
    assert summary["stats"]["mean_ms"] == 8
    assert summary["buckets_engine_avg_ms"] == {
        "schedule": 1, "inputs": 0.5, "decode": 5, "sampler": 0.25, "postproc": 1.25, "others": 0
    }  # fmt: skip
    assert summary["others_detail"]["engine"] == {"grammar": 0}
    assert summary["other_phases"]["prefill"]["mean_ms"] == 8


def test_drafts_and_what_is_accepted_of_them(bench):
    core = core_of(bench, budget=64, drafts=3, accepts=2)
    assert served(bench, core, core) == {"a": 4, "b": 3}
    # Both prompts at once | two of three draft tokens and one more: 3 tokens for a, and for b 2 of them until it ends.
    assert [tokens for _, tokens, _ in samples(bench.profiler)] == [2, 5]
    summary = bench.summary()
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (6, 4)
    assert summary["buckets_engine_avg_ms"]["draft"] == 2


def test_a_tree_of_drafts_has_more_nodes_than_can_be_accepted(bench):
    tree = "[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"  # six nodes, three levels
    core = core_of(bench, budget=64, drafts=6, accepts=3, tree=tree)
    assert served(bench, core, core) == {"a": 4, "b": 3}
    summary = bench.summary()
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (12, 6)
    assert len(summary["speculative"]["acceptance_by_position"]) == 3


def test_steps_that_find_no_request_are_none(bench, prof):
    core = core_of(bench)
    prof.attach_engine(core)
    with run_of(prof):
        while core.scheduler.has_requests():
            core.step_fn()
        steps = prof.unsaved_steps
        core.step_fn()
        core.step_fn()
    assert steps == 4
    assert prof.results.samples.seen == 4


def test_a_batch_in_flight_delivers_in_a_later_step(bench, prof):
    """As ``step_with_batch_queue``: the first call only fills the queue."""
    core = core_of(bench, budget=64)
    queue = []

    def step_with_batch_queue():
        if core.scheduler.has_requests() and not queue:
            scheduled = core.scheduler.schedule(False)
            core.model_executor.execute_model(scheduled, non_block=True)
            queue.append((scheduled, core.model_executor.sample_tokens(None)))
            return None, True
        scheduled, output = queue.pop()
        return core.scheduler.update_from_output(scheduled, output), False

    core.step_fn = step_with_batch_queue
    prof.attach_engine(core)
    with run_of(prof):
        core.step_fn()
        core.step_fn()
    prof.detach()
    assert core.step_fn is step_with_batch_queue
    assert [tokens for _, tokens, _ in samples(prof)] == [-1, 2]


def test_a_core_in_another_process_is_refused_with_what_to_do(bench):
    core = core_of(bench)
    for kind in (LLM, LLMEngine):
        with pytest.raises(ValueError, match="in another process unless VLLM_ENABLE_V1_MULTIPROCESSING=0"):
            bench.profiler.attach_engine(kind(core, in_process=False))


def test_the_core_is_as_before_after_detach(bench):
    core = core_of(bench)
    owners = [core, core.scheduler, core.model_executor, core.model_executor.driver_worker.worker.model_runner]
    before = [dict(vars(owner)) for owner in owners]
    bench.profiler.attach_engine(core)
    assert [vars(owner).keys() for owner in owners] != [each.keys() for each in before]
    bench.profiler.detach()
    assert [vars(owner) for owner in owners] == before


def test_requests_from_their_arrival_to_their_last_token(bench, prof):
    core = core_of(bench)  # a and b arrive before the engine is attached, and are not measured
    prof.attach_engine(core)
    with run_of(prof):
        core.add_request(Request("c", prompt=10, max_tokens=2))
        core.add_request(Request("d", prompt=30, max_tokens=9))
        for _ in range(6):
            core.step_fn()
        core.scheduler.finish_requests(["d", "unknown"], "aborted")
    assert not prof.problems.counts
    assert prof.requests.unfinished == 0
    ended = {name: column.tolist() for name, column in prof.requests.ended.columns().items()}
    assert ended["prompt_tokens"] == [10, 30]
    assert ended["tokens"] == ended["deliveries"]
    assert ended["tokens"][0] == 2
    assert ended["ttft_ns"][0] < ended["last_ns"][0] == ended["e2e_ns"][0]
    assert bench.summary()["serving"]["requests"] == 2
    core.add_request(Request("e", prompt=1, max_tokens=1))
    assert any("outside of a run" in text for text in prof.problems.counts)
