"""Collectives of real ranks over gloo, in every way a program calls them, are in buckets of their own."""

from __future__ import annotations

import json

import torch
from torch import nn

from rooflight.inference import Profiler
from rooflight.studies.inference.config import MODEL_BUCKET_ORDER
from rooflight.studies.inference.engines.collectives import _FUNCTIONAL, _METHODS
from rooflight.studies.inference.engines.graphs import StandIn, _shared

WORKER = "tensor_parallel_worker.py"


def calls(found: dict) -> dict[str, float]:
    return {name: count for name, (count, _) in found.items() if name != "other"}


def ms(found: dict, name: str) -> float:
    return found[name][1]


def test_a_tensor_parallel_llama(ranks):
    assert all(each["same"] for each in ranks)  # as the whole model computes
    for found in ranks:
        assert calls(found["tensor parallel"]) == {"comm.all_reduce": 4}  # after attention and MLP of two layers
    # rank 1 comes 150 ms late to that of each layer's attention
    assert ms(ranks[0]["tensor parallel"], "comm.all_reduce") >= 100


def test_synchronous_calls_are_one_call_each(ranks):
    for found in ranks:
        names = ("all_reduce", "broadcast", "all_gather", "barrier")
        assert calls(found["sync"]) == {f"comm.{name}": 1 for name in names}
        assert calls(found["into tensor"]) == {"comm.all_gather": 1, "comm.reduce_scatter": 1}


def test_of_an_asynchronous_call_issue_and_wait_are_timed_and_not_what_is_in_between(ranks):
    for found in ranks:
        assert calls(found["async"]) == {"comm.all_reduce": 2}
    # rank 1 issues 200 ms after rank 0, which sleeps 100 ms before it waits
    assert ms(ranks[0]["async"], "comm.all_reduce") >= 80
    assert ms(ranks[0]["async"], "other") >= 100
    assert ms(ranks[1]["async"], "other") >= 200


def test_functional_calls_are_timed_with_their_waits(ranks):
    for found in ranks:
        assert calls(found["functional"]) == {
            f"comm.{name}": 2 for name in ("all_reduce", "all_gather", "reduce_scatter")
        }
        assert calls(found["DTensor"]) == {"comm.all_reduce": 4}  # one a layer's MLP, issue and wait


def test_collectives_of_objects_lists_and_coalesced_ones(ranks):
    for found in ranks:
        assert calls(found["lists"]) == {"comm.all_to_all": 1, "comm.all_gather": 2}  # sizes, then pickled objects
        assert calls(found["coalesced"]) == {"comm.all_gather": 2}  # issued as one, and waited for


def test_the_report_of_all_ranks_names_who_waits(folder):
    found = json.loads((folder / "out" / "tp" / "summary.json").read_text())["ranks"]
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert found["missing"] == []
    # rank 1 sleeps 150 ms before the all-reduce of each layer, where rank 0 waits
    assert found["communication"]["least_rank"] == 1
    assert found["buckets_model"]["attn.o_proj"]["most_rank"] == 1
    assert "(waits least)" in (folder / "out" / "tp" / "report.md").read_text()


def test_all_is_undone(ranks):
    for found in ranks:
        assert found["undone"]
        assert found["undone again"]
        assert found["problems"] == {}


def test_several_profilers_share_a_stand_in_and_are_removed_in_any_order(tmp_path):
    class Owner:
        def call(self):
            return "called"

    seen = []

    def make(function, profilers):
        def stand_in(owner):
            seen.append(len(profilers))
            return function(owner)

        return stand_in

    before = Owner.call
    profilers = [Profiler({"output_dir": tmp_path, "run_name": str(number)}) for number in range(3)]
    put = [StandIn(Owner, "call", profiler, make) for profiler in profilers]
    for number in (1, 0, 2):
        assert Owner().call() == "called"
        put[number].remove()
    assert seen == [3, 2, 1]
    assert Owner.call is before


def test_two_models_of_a_profiler_have_their_collectives_timed_once(tmp_path):
    prof = Profiler({"model_profiling": True, "output_dir": tmp_path, "run_name": "x"})
    for _ in range(2):
        prof.attach_model(nn.Sequential(nn.Linear(2, 2)))
    served = _shared[torch.distributed.ProcessGroup, "allreduce"][2]
    assert served.count(prof.timers) == 1
    prof.detach()
    assert prof.timers not in served


def test_buckets_are_those_of_the_canonical_order():
    theirs = {name for name in MODEL_BUCKET_ORDER if name.startswith("comm.")}
    assert theirs <= {*_METHODS.values()}
    assert {*_FUNCTIONAL.values()} == theirs
    methods = vars(torch.distributed.ProcessGroup)
    assert {bucket for name, bucket in _METHODS.items() if name in methods} == {*_METHODS.values()}
