"""attach_engine on what stands in for SGLang's scheduler: real SGLang never ran here."""

from __future__ import annotations

import pytest
from measured_runs import samples
from sglang_stand_in import EAGLEWorker, EAGLEWorkerV2, Req, Scheduler


def scheduler_of(bench, *requests: Req, **settings) -> Scheduler:
    requests = requests or (Req("a", 6, 3), Req("b", 10, 4))
    scheduler = Scheduler(bench.spend, requests, **({"passes": 7} | settings))
    bench.profiler.attach_engine(scheduler)
    return scheduler


@pytest.mark.parametrize("plan", [True, False], ids=["a plan", "a batch"])
def test_prefill_and_decode_steps_of_the_loop(bench, plan):
    scheduler = scheduler_of(bench, plan=plan)
    scheduler.event_loop_normal()
    bench.profiler.detach()
    assert samples(bench.profiler) == [
        (8, 1, 0.0),
        (8, 1, 0.0),
        (0, 2, 8.0),  # 6 and 10 in the cache
        (0, 2, 9.0),
        (0, 1, 12.0),  # a is done
    ]
    assert bench.profiler.results.samples.columns()["batch"].tolist() == [1, 1, 2, 2, 1]
    summary = bench.summary()
    assert not summary["problems"]
    (run,) = summary["runs"]
    assert (run["meta"]["label"], run["meta"]["bsz"]) == ("event loop", None)
    assert run["meta"]["batch_mean"] == 5 / 3  # of the decode steps
    assert [(each["batch"], each["stats"]["steps"]) for each in summary["batch_sizes"]] == [(1, 1), (2, 2)]
    assert summary["stats"]["mean_ms"] == 6.5  # 1 of scheduling, 4 and 0.5 of the model, 1 of results
    assert summary["buckets_engine_avg_ms"] == {"schedule": 1, "decode": 4, "sampler": 0.5, "postproc": 1}
    assert summary["unattributed_engine_ms"] == 0
    assert run["wall"]["gaps_total_ms"] == 40  # what the loop receives between five steps; two idle passes came after


def test_mixed_steps(bench):
    scheduler_of(bench, mixed=True).event_loop_normal()
    assert [row[0] for row in samples(bench.profiler)] == [8, 9, 0, 0, 0]
    assert samples(bench.profiler)[1] == (9, 2, 3.0)  # nothing of b, 6 of a


def test_the_overlapped_loop_delivers_a_step_later(bench):
    scheduler_of(bench, Req("a", 6, 3), passes=6).event_loop_overlap()
    summary = bench.summary()
    assert not summary["problems"]
    assert summary["decode_length_buckets"]["steps_without_length"] == 1  # the last one: nothing new runs in it
    # prefill | decode, with its token | decode | what was still in flight, beyond the end | its result
    assert [tokens for _, tokens, _ in samples(bench.profiler)] == [-1, 1, 1, 1, 0]
    assert summary["other_phases"]["prefill"]["steps"] == 1


@pytest.mark.parametrize("worker", [EAGLEWorker, EAGLEWorkerV2])
@pytest.mark.parametrize(("nodes", "steps", "topk"), [(4, 3, 1), (8, 3, 4)], ids=["chain", "tree"])
def test_drafts_of_both_workers(bench, worker, nodes, steps, topk):
    """Of the nodes that are verified one is the last token itself."""
    scheduler = scheduler_of(
        bench, Req("a", 6, 7), Req("b", 10, 7), worker=worker, accepts=2, nodes=nodes, steps=steps, topk=topk
    )
    scheduler.event_loop_normal()
    summary = bench.summary()
    assert not summary["problems"]
    assert samples(bench.profiler)[2:] == [(0, 6, 8.0), (0, 6, 11.0)]
    speculative = summary["speculative"]
    assert (speculative["proposed"], speculative["accepted"]) == (4 * (nodes - 1), 8)  # two steps of two sequences
    assert len(speculative["acceptance_by_position"]) == 3
    # schedule 1, draft 2 and 1 after verifying, verify 4, results 1
    assert summary["stats"]["mean_ms"] == 9
    assert summary["buckets_engine_avg_ms"] == {"schedule": 1, "decode": 0, "draft": 3, "verify": 4, "postproc": 1}


def test_a_loop_that_fails_ends_its_run(bench):
    scheduler = scheduler_of(bench)
    scheduler.tp_worker.model_runner.forward = None
    with pytest.raises(TypeError):
        scheduler.event_loop_normal()
    assert not bench.profiler.in_run
    assert not bench.profiler.step.is_open
    assert "run_batch" in vars(scheduler)
    bench.profiler.detach()
    assert "run_batch" not in vars(scheduler)


def test_requests_from_their_arrival_to_their_last_token(bench, prof):
    """Those that waited before the run have no arrival that was seen."""
    scheduler = scheduler_of(bench, Req("before", 4, 2), passes=6)
    scheduler.arriving = [Req("a", 6, 3), Req("b", 10, 1)]
    scheduler.event_loop_normal()
    prof.detach()
    assert not prof.problems.counts
    ended = {name: column.tolist() for name, column in prof.requests.ended.columns().items()}
    assert ended["prompt_tokens"] == [10, 6]  # b is done with its first token
    assert ended["tokens"] == ended["deliveries"] == [1, 3]
    assert prof.requests.unfinished == 0
    # a: the prefill of "before" 6.5 ms, 10 ms between steps, its own prefill 6.5 ms
    assert ended["ttft_ns"][1] == 23_000_000
