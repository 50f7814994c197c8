"""The wall time of a step: a host that issues, a device that runs; sums by hand, and a slow oracle."""

from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.costs.registry import cost_of
from rooflight.devices import get
from rooflight.records.estimate import Estimate, Source
from rooflight.records.record import Direction
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.host import Host, units_of
from rooflight.roofline.predicted import QUEUE, Queue
from rooflight.roofline.tables.report import analysis_facts, conclusion

H100 = get("H100-SXM5-80GB")
X = spec((1_000_000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
VIEW = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
REDUCE = op("c10d::allreduce_", {"tensors": [X]}, [X], group_size=8)
US = 1e-6
FREE = Host(launch_s=0.0, first_s=0.0, low=1.0, high=1.0, source="none")


def queue_with(units, *, sends=(), waits=None, syncs=()) -> Queue:
    count = len(units)
    places = np.arange(count)
    waits_for = np.full(count, -1)
    for place, collective in (waits or {}).items():
        waits_for[place] = collective
    return Queue(
        units=np.array(units, dtype=float),
        launches=np.ones(count, dtype=bool),
        sends=np.isin(places, list(sends)),
        waits_for=waits_for,
        syncs=np.isin(places, list(syncs)),
    )


def host(launch_s: float, first_s: float = 0.0) -> Host:
    return Host(launch_s=launch_s, first_s=first_s, low=1.0, high=1.0, source="by hand")


def test_the_longer_of_host_and_device_wins_op_by_op():
    queue = queue_with([1, 1, 1])
    # issued at 5, 10, 15 µs; a device that takes 1 µs each ends at 16
    assert queue.wall_s(np.array([1, 1, 1]) * US, host(5 * US)) == pytest.approx(16 * US)
    # the first runs from 5 to 105, the others wait for it
    assert queue.wall_s(np.array([100, 1, 1]) * US, host(5 * US)) == pytest.approx(107 * US)
    # the last begins when it is issued
    assert queue.wall_s(np.array([1, 1, 100]) * US, host(5 * US)) == pytest.approx(115 * US)
    assert queue.wall_s(np.array([1, 1, 100]) * US, host(5 * US, first_s=7 * US)) == pytest.approx(122 * US)


def test_a_graph_costs_the_host_one_launch():
    queue = queue_with([1, 4, 1], syncs=[1])
    graph = Host.of_graph()
    assert queue.wall_s(np.array([1, 2, 3]) * US, graph) == pytest.approx(graph.first_s + 6 * US)


def test_the_host_waits_for_a_value():
    device_s = np.array([100, 1, 1]) * US
    # issued at 5 and 10; the device is done with both at 106; then the host issues the third, at 111
    assert queue_with([1, 1, 1], syncs=[1]).wall_s(device_s, host(5 * US)) == pytest.approx(112 * US)
    assert queue_with([1, 1, 1]).wall_s(device_s, host(5 * US)) == pytest.approx(107 * US)


def test_collectives_run_beside_what_does_not_read_them():
    device_s = np.array([10, 50, 20, 10]) * US
    # compute 10, then the collective until 60 beside compute until 30; the last op reads what was reduced
    assert queue_with([1] * 4, sends=[1], waits={3: 1}).wall_s(device_s, FREE) == pytest.approx(70 * US)
    # nobody reads it: 10 + 20 + 10 beside 10 + 50
    assert queue_with([1] * 4, sends=[1]).wall_s(device_s, FREE) == pytest.approx(60 * US)


def test_a_host_is_no_further_ahead_than_the_queue_is_long():
    # one op of 1 s, QUEUE - 1 of nothing, then 1,000 that the host could have issued meanwhile, did they fit
    count = QUEUE + 1000
    device_s = np.zeros(count)
    device_s[0] = 1.0
    wall_s = queue_with([1] * count).wall_s(device_s, host(10 * US))
    assert 1.0 < wall_s <= 1.0 + 1001 * 10 * US
    device_s[0], device_s[QUEUE // 2] = 0.0, 1.0
    # the device waits from QUEUE ops before it until it is done: the rest of them is issued after that
    assert queue_with([1] * count).wall_s(device_s, host(10 * US)) > 1.0 + 400 * 10 * US


def slow_wall_s(queue: Queue, device_s: np.ndarray, issuing: Host) -> float:
    """Op by op, for fewer ops than the queue holds."""
    at, compute, network, done = issuing.first_s, 0.0, 0.0, {}
    for number, seconds in enumerate(device_s.tolist()):
        at += queue.units[number] * issuing.launch_s
        if queue.waits_for[number] >= 0:
            compute = max(compute, done[queue.waits_for[number]])
        if queue.sends[number]:
            network = max(at, network, compute) + seconds
            done[number] = network
        elif queue.launches[number]:
            compute = max(at, compute) + seconds
        if queue.syncs[number]:
            at = max(at, compute)
    return max(at, compute, network)


@st.composite
def queues(draw) -> tuple[Queue, np.ndarray]:
    count = draw(st.integers(1, 12))
    kinds = [draw(st.sampled_from(["op", "op", "op", "view", "send", "sync", "wait"])) for _ in range(count)]
    waits, last = {}, None
    for place, kind in enumerate(kinds):
        if kind == "wait" and last is not None:
            waits[place] = last
        last = place if kind == "send" else last
    made = queue_with(
        draw(st.lists(st.floats(0, 5), min_size=count, max_size=count)),
        sends=[place for place, kind in enumerate(kinds) if kind == "send"],
        syncs=[place for place, kind in enumerate(kinds) if kind == "sync"],
        waits=waits,
    )
    launches = np.array([kind != "view" for kind in kinds])
    queue = Queue(units=made.units, launches=launches, sends=made.sends, waits_for=made.waits_for, syncs=made.syncs)
    return queue, np.array(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))


@given(given_queue=queues(), launch_s=st.floats(0, 1), first_s=st.floats(0, 1))
def test_it_agrees_with_an_op_by_op_clock(given_queue, launch_s, first_s):
    queue, device_s = given_queue
    issuing = host(launch_s, first_s)
    wall_s = queue.wall_s(device_s, issuing)
    assert wall_s == pytest.approx(slow_wall_s(queue, device_s, issuing))
    computing = float(device_s[queue.launches & ~queue.sends].sum())
    assert wall_s >= max(computing, first_s + launch_s * float(queue.units.sum())) - 1e-9
    assert wall_s <= queue.wall_s(device_s, host(2 * launch_s, first_s)) + 1e-9


def analysis_of(calls, *, device=H100, issuing=None, seconds=1e-3) -> Analysis:
    session = session_of(calls)
    known = Estimate(
        time_s=seconds, low_s=seconds / 2, high_s=2 * seconds, bound_s=1e-9, source=Source.REGRESSED, extrapolated=False
    )
    estimates = [None if one.name == "aten::view" else known for one in session.signatures]
    return analyze(session, device, "a test", estimates, issuing)


def test_both_totals_are_there_and_the_interval_holds_host_and_device():
    issuing = Host(launch_s=1e-3, first_s=0.0, low=0.5, high=3.0, source="by hand")
    totals = analysis_of([Call(op=ADD), Call(op=VIEW), Call(op=ADD)], issuing=issuing).totals
    assert totals.predicted.time_s == pytest.approx(2e-3)
    wall = totals.predicted_wall
    # issued at 1 and 2.34 ms; the second ends at 3.34
    assert wall.time_s == pytest.approx(3.34e-3)
    # at 0.5 and 1.17, each half as long: 1.67; at 3 and 7.02, each twice as long: 9.02
    assert (wall.low_s, wall.high_s) == pytest.approx((1.67e-3, 9.02e-3))
    assert wall.host is issuing
    assert wall.host_s == pytest.approx(2.34e-3)
    assert wall.host_bound


def test_a_step_of_views_takes_the_hosts_time_only():
    wall = analysis_of([Call(op=VIEW)] * 3, issuing=host(1e-3)).totals.predicted_wall
    assert (wall.low_s, wall.time_s, wall.high_s) == pytest.approx([3 * 0.34e-3] * 3)


def test_a_cpus_ops_are_measured_with_what_launches_them():
    cpu = replace(H100, name="a CPU", kind="cpu")
    totals = analysis_of([Call(op=ADD), Call(op=VIEW)], device=cpu).totals
    assert totals.predicted_wall.time_s == totals.predicted.time_s == pytest.approx(1e-3)
    assert totals.predicted_wall.host_s == 0


def test_what_an_op_of_each_kind_costs_a_host():
    lists = op("aten::_foreach_add_", {"self": [X] * 30, "scalar": spec(())}, [])
    assert units_of(ADD, cost_of(ADD)) == 1.0
    assert units_of(VIEW, cost_of(VIEW)) == 0.34
    assert units_of(ADD, cost_of(ADD), Direction.BACKWARD) == 0.8
    # 2 for a list, 0.1 for each of its tensors
    assert units_of(lists, cost_of(lists)) == pytest.approx(5.0)


@pytest.mark.parametrize("launch_s", [-1.0, float("nan"), float("inf")])
def test_impossible_hosts_are_refused(launch_s):
    with pytest.raises(ValueError, match="at least 0"):
        Host.of(launch_s)
    with pytest.raises(ValueError, match="enclose 1"):
        Host(launch_s=1.0, first_s=0.0, low=1.5, high=2.0, source="")


@pytest.mark.parametrize("launch_s", [True, "fast", "6e-6", [1], None])
def test_what_is_no_number_is_no_host(launch_s):
    with pytest.raises(TypeError, match="seconds per launch, such as 6e-6, or what fit_host found, not"):
        Host.of(launch_s)


@pytest.mark.parametrize("launch_s", [1, np.float32(1), np.int64(1), np.float64(1)])
def test_any_number_of_seconds_is_a_host(launch_s):
    assert Host.of(launch_s).launch_s == 1.0
    assert type(Host.of(launch_s).launch_s) is float


def test_a_gradients_all_reduce_hides_behind_backward():
    calls = [
        Call(op=ADD, writes=(0,), reads=(5, 6)),
        Call(op=REDUCE, reads=(0,), writes=(0,)),
        Call(op=ADD, writes=(1,), reads=(5, 6)),
        Call(op=ADD, writes=(2,), reads=(0, 1)),
    ]
    # 1 ms each: the all-reduce beside the second sum, the third waits for both
    assert analysis_of(calls, issuing=FREE).totals.predicted_wall.time_s == pytest.approx(3e-3)
    calls[3] = Call(op=ADD, writes=(2,), reads=(1, 5))
    assert analysis_of(calls, issuing=FREE).totals.predicted_wall.time_s == pytest.approx(3e-3)
    calls[2] = Call(op=ADD, writes=(1,), reads=(0, 6))
    assert analysis_of(calls, issuing=FREE).totals.predicted_wall.time_s == pytest.approx(4e-3)


def test_a_wall_shorter_than_its_device_names_the_collectives_and_nothing_else_makes_it_so():
    alone = [Call(op=ADD, writes=(0,), reads=(5, 6)), Call(op=ADD, writes=(1,), reads=(5, 6))]
    hosts = op("aten::add", {"self": X, "other": X}, [X], on_host=True)
    for calls in (alone, [*alone, Call(op=hosts, writes=(2,), reads=(5, 6))]):
        totals = analysis_of(calls, issuing=FREE).totals
        assert totals.predicted_wall.time_s >= totals.predicted.time_s - 1e-12
    analysis = analysis_of([alone[0], Call(op=REDUCE, reads=(0,), writes=(0,)), alone[1]], issuing=FREE)
    predicted, wall = analysis.totals.predicted, analysis.totals.predicted_wall
    assert (predicted.time_s, wall.time_s, wall.sends_s) == pytest.approx((3e-3, 2e-3, 1e-3))
    assert wall.time_s >= predicted.time_s - wall.sends_s
    said = "1.00 ms of it collectives, which may run beside other ops and shorten the wall time"
    assert said in conclusion(analysis)
    assert said in dict(analysis_facts(analysis))["predicted device time"]
    assert "collectives" not in conclusion(analysis_of(alone, issuing=FREE))


def test_a_recurrent_network_is_issued_step_by_step():
    x, state = spec((512, 10, 128)), spec((12, 10, 256))
    gru = op("aten::gru", {"input": x, "hx": state}, [x], num_layers=6, bidirectional=True, batch_first=False)
    # 512 steps of 6 layers in 2 directions
    assert units_of(gru, cost_of(gru)) == pytest.approx(1.25 * 512 * 6 * 2)
    first = op("aten::gru", {"input": x, "hx": state}, [x], num_layers=6, bidirectional=False, batch_first=True)
    assert units_of(first, cost_of(first)) == pytest.approx(1.25 * 10 * 6)
    cell = op("aten::lstm", {"input": x, "hx": state}, [x], num_layers=6, bidirectional=False, batch_first=False)
    assert units_of(cell, cost_of(cell)) == pytest.approx(1.1 * 512 * 6)
