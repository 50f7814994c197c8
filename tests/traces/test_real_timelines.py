"""Timelines of real traces: what is known of the programs that ran, and what TraceLens makes of them."""

import csv
import os
from functools import cache
from pathlib import Path

import pytest

import rooflight as rl
from rooflight.records.timeline import IdleCause

TRACES = Path(os.environ.get("ROOFLIGHT_DATA", "/nowhere")) / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="ROOFLIGHT_DATA is not set")

TRACELENS = {
    "busy_time": "busy_s",
    "computation_time": "compute_s",
    "exposed_comm_time": "exposed_communication_s",
    "exposed_memcpy_time": "exposed_copy_s",
    "idle_time": "idle_s",
    "total_time": "wall_s",
    "total_comm_time": "communication_s",
    "total_memcpy_time": "copy_s",
}
RECOMPUTED = "mi300x_resnet_checkpoint_ddp"
"""TraceLens splits this one into work that checkpointing repeats and other work, each as if the other did not exist."""


@cache
def session(name):
    return rl.read_trace(TRACES / f"{name}.json.gz")


SUFFIX = ".gpu_timeline.csv"
WITH_TIMELINE = sorted(path.name.removesuffix(SUFFIX) for path in (TRACES / "tracelens").glob(f"*{SUFFIX}"))


@pytest.mark.parametrize("name", WITH_TIMELINE)
def test_the_timeline_is_that_of_tracelens(name):
    with (TRACES / "tracelens" / f"{name}{SUFFIX}").open() as file:
        rows = {row["type"]: float(row["time ms"]) * 1e-3 for row in reversed(list(csv.DictReader(file)))}
    alike = ("total_time", "total_comm_time", "total_memcpy_time") if name == RECOMPUTED else TRACELENS
    found = session(name).measurement.timeline.launched
    for row, seconds in rows.items():
        if row in alike:
            assert getattr(found, TRACELENS[row]) == pytest.approx(seconds, rel=0.01, abs=1e-6), row


@pytest.mark.parametrize(
    "name",
    ["h100_bert-small", "mi300x_sglang_qwen3-8b_decode_graph", "b200_vllm_moe_eager", "mi210_device_events_only"],
)
def test_causes_sum_to_the_idle_time(name):
    timeline = session(name).measurement.timeline
    for each in (timeline, *timeline.steps):
        assert sum(seconds for _, seconds in each.idle.parts) == pytest.approx(each.idle_s)


def test_a_starved_loader_is_found():
    """The profiler tutorial's case: no workers."""
    found = session("v100_resnet50_loader_0_workers_2021")
    timeline = found.measurement.timeline
    first = timeline.idle_details[0]
    assert first.cause is IdleCause.DATA_LOADER
    assert first.count == 6  # one batch per step
    assert 0.7 < first.seconds / timeline.idle_s < 0.8
    assert [step.in_session for step in timeline.steps] == [True] * 6
    assert found.measurement.op_samples_s.shape == (6, len(found))
    assert min(step.idle.data_loader_s for step in timeline.steps) > 0.04
    # the loader's device work is a copy: steps differ in time by what the loader took, not in work
    busy = [step.busy_s for step in timeline.steps]
    assert max(busy) - min(busy) < 0.005 * min(busy)


@pytest.mark.slow
def test_batches_of_other_sizes_are_other_steps():
    timeline = session("a100_recommender_training").measurement.timeline
    assert [step.name for step in timeline.steps] == [f"ProfilerStep#{number}" for number in range(1009, 1015)]
    assert sum(step.in_session for step in timeline.steps) == 1
    (backward,) = [phase for phase in timeline.phases if phase.name == "## backward ##"]
    assert backward.count == 6
    assert backward.idle_s > timeline.idle_s / 2


def test_equal_steps_are_samples_and_sum_to_the_wall_time():
    found = session(RECOMPUTED)
    timeline = found.measurement.timeline
    assert [step.in_session for step in timeline.steps] == [True] * 3
    # the exposed part of the collectives, from the ops of a step, is that of the step's timeline
    exposed = rl.analyze(found).communication.exposed_step_s
    assert exposed == pytest.approx(sorted(step.exposed_communication_s for step in timeline.steps)[1], rel=0.02)
    assert timeline.before_trace_s > 0.02  # of steps before; none of it is in these
    assert [step.without_op_s for step in timeline.steps] == [0, 0, 0]


def test_a_step_that_runs_behind_has_its_own_work_alone():
    timeline = session("h100_qwen1.5-0.5b").measurement.timeline
    (step,) = timeline.steps
    assert step.busy_s == pytest.approx(timeline.launched.busy_s, rel=1e-3)
    assert step.without_op_s == 0
    assert timeline.before_trace_s == pytest.approx(13.74e-3, rel=1e-3)
