"""Hosts and times of ops from the wall times of whole steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from sessions import Call, session_of

import rooflight as rl
from rooflight.devices import get
from rooflight.prediction.fit.wall_times import attributed
from rooflight.records.estimate import Estimate, Source
from rooflight.records.timeline import HostOp, Launches, Timeline
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.host import Host

H100 = get("H100-SXM5-80GB")
X = spec((1000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
MM = op("aten::mm", {"self": spec((64, 64)), "mat2": spec((64, 64))}, [spec((64, 64))])
US = 1e-6


def estimate(time_s: float, factor: float) -> Estimate:
    """An estimate that may be off by a factor."""
    about = {"bound_s": 1e-9, "source": Source.REGRESSED, "extrapolated": False}
    return Estimate(time_s=time_s, low_s=time_s / factor, high_s=time_s * factor, **about)


def program(*ops, device_s: float = 1e-6, device=H100) -> Analysis:
    session = session_of([Call(op=one) for one in ops])
    return analyze(session, device, "a test", [estimate(device_s, 1.0)] * len(session.signatures))


def measured_on(host: rl.Host, programs: list[Analysis]) -> list[tuple[Analysis, float]]:
    return [(each, each.queue.wall_s(each.predicted_op_s, host)) for each in programs]


PROGRAMS = [program(*[ADD] * 3), program(*[ADD, MM] * 4), program(*[MM] * 9), program(*[ADD] * 20), program(*[MM, ADD])]


@pytest.mark.parametrize("launch_s", [2 * US, 6.3 * US, 40 * US])
def test_the_host_that_measured_is_found(launch_s):
    found = rl.fit_host(measured_on(rl.Host.of(launch_s), PROGRAMS))
    assert found.launch_s == pytest.approx(launch_s, rel=0.03)  # one step of those tried
    assert found.low <= 0.75
    assert found.high >= 1.35
    assert "5 programs" in found.source


def test_one_program_whose_device_was_slow_does_not_settle_the_host():
    measured = measured_on(rl.Host.of(6 * US), PROGRAMS)
    measured[2] = (measured[2][0], 1.0)
    found = rl.fit_host(measured)
    assert found.launch_s == pytest.approx(6 * US, rel=0.03)
    assert found.high == pytest.approx(3.0)  # the farthest that counts


def test_programs_that_their_device_limits_leave_a_typical_host():
    slow = [program(ADD, device_s=1.0) for _ in range(5)]
    found = rl.fit_host([(each, 1.0) for each in slow])
    assert found.launch_s == pytest.approx(9 * US, rel=0.5)


def test_what_cannot_settle_a_host_is_refused():
    two = measured_on(rl.Host.of(6 * US), PROGRAMS[:2])
    with pytest.raises(ValueError, match="2 programs for a host: measure at least 3"):
        rl.fit_host(two)
    unpredicted = analyze(session_of([Call(op=ADD)]), H100)
    for without in (unpredicted, program(ADD, device=replace(H100, kind="cpu"))):
        with pytest.raises(ValueError, match="with predicted times"):
            rl.fit_host([(without, 1.0)] * 3)
    for wall_s in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="give the seconds"):
            rl.fit_host([*two, (PROGRAMS[3], wall_s)])
    with pytest.raises(ValueError, match="read it from a trace"):
        rl.fit_host(session_of([Call(op=ADD)]))


def test_a_trace_has_the_times_between_ops():
    calls = [Call(op=each) for each in [ADD] * 30 + [MM] * 10]
    session = session_of(calls, times=[[1e-6] * 40])
    # 8 µs after each sum, 2.1 times that after each product; once the host waited for a second
    gaps = np.array([8e-6] * 30 + [8e-6 * 2.1] * 10)
    gaps[5] = 1.0
    starts = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    traced = session.with_measurement(replace(session.measurement, op_starts_s=starts[None]))
    found = rl.fit_host(traced)
    assert found.launch_s == pytest.approx(8e-6)
    assert "40 traced ops" in found.source
    few = session_of(calls[:5], times=[[1e-6] * 5])
    with pytest.raises(ValueError, match="too few"):
        rl.fit_host(few.with_measurement(replace(few.measurement, op_starts_s=starts[None, :5])))


def traced(calls: int, *, wall_s: float, busy_s: float, host_s: float, graphs: int = 0):
    """A session of additions whose work began 30 µs apart, and a timeline with the host's time in all of them."""
    session = session_of([Call(op=ADD)] * calls, times=[[1e-6] * calls])
    additions = HostOp(name="aten::add", calls=calls, host_s=host_s, launched=calls, device_s=busy_s)
    launches = Launches(
        kernels=calls, kernels_s=busy_s, short_kernels=0, short_s=0.0, launches=calls, graphs=graphs, captures=0,
        compiled=False, delay_median_s=0.0, delay_p90_s=0.0, queue_median=0, queue_p90=0, queue_max=0, queue_empty=0.0,
        host_per_launch_s=host_s / calls, ops=(additions,),
    )  # fmt: skip
    timeline = Timeline(
        wall_s=wall_s, busy_s=busy_s, compute_s=busy_s, copy_s=0.0, communication_s=0.0, exposed_communication_s=0.0,
        exposed_copy_s=0.0, idle_s=wall_s - busy_s, before_trace_s=0.0, no_host_op_s=0.0, no_shapes_s=0.0,
        launches=launches,
    )  # fmt: skip
    starts = np.arange(calls) * 30e-6
    return session.with_measurement(replace(session.measurement, op_starts_s=starts[None], timeline=timeline))


def test_where_the_device_was_busy_the_starts_say_nothing():
    # 30 µs from start to start, of which the host spent 7 in each op
    idle = rl.fit_host(traced(40, wall_s=1.2e-3, busy_s=0.2e-3, host_s=40 * 7e-6))
    assert idle.launch_s == pytest.approx(30e-6)
    busy = rl.fit_host(traced(40, wall_s=1.2e-3, busy_s=1.1e-3, host_s=40 * 7e-6))
    assert busy.launch_s == pytest.approx(7e-6)
    assert "the host's time in 40 traced ops" in busy.source
    assert idle.low == busy.low < 0.5  # a profiler slows a host
    with pytest.raises(ValueError, match="5 ops that launched: too few"):
        rl.fit_host(traced(5, wall_s=1.0, busy_s=0.9, host_s=1e-6))
    with pytest.raises(ValueError, match="graphs were replayed"):
        rl.fit_host(traced(40, wall_s=1.2e-3, busy_s=0.2e-3, host_s=1e-6, graphs=3))


def test_an_analysed_trace_has_its_own_host():
    predictor = rl.Predictor.empty()
    session = traced(40, wall_s=1.2e-3, busy_s=0.2e-3, host_s=40 * 7e-6)
    wall = rl.analyze(session, H100, predictor=predictor).totals.predicted_wall
    assert wall.time_s == pytest.approx(30e-6 * (1.2 + 40), rel=0.01)
    assert "40 traced ops" in wall.host.source
    given = rl.analyze(session, H100, predictor=predictor, host=5e-6).totals.predicted_wall
    assert given.host.launch_s == 5e-6
    replayed = traced(40, wall_s=1.2e-3, busy_s=0.2e-3, host_s=1e-6, graphs=3)
    assert "typical" in rl.analyze(replayed, H100, predictor=predictor).totals.predicted_wall.host.source


RELU = op("aten::relu", {"self": X}, [X])
FREE = Host(launch_s=0.0, first_s=0.0, low=1.0, high=1.0, source="none")


def analysis_of(ops, estimates, host=FREE) -> Analysis:
    session = session_of([Call(op=one) for one in ops])
    return analyze(session, H100, "a test", [estimates.get(one) for one in session.signatures], host)


@pytest.mark.parametrize(("launch_s", "wall_s"), [(0.0, 3e-3), (1e-3, 5.1e-3)])  # issued at 2.1 ms: 3 on the device
def test_the_one_op_of_a_step_took_its_time_less_the_hosts(launch_s, wall_s):
    host = replace(FREE, launch_s=launch_s)
    found = attributed(analysis_of([MM], {MM: estimate(1e-3, 2.0)}, host), wall_s)
    assert found.measurement.op_s == pytest.approx([3e-3], rel=1e-3 if launch_s else None)
    assert found.measurement.wall_s == wall_s


def test_the_op_that_is_least_sure_takes_the_difference():
    estimates = {MM: estimate(1e-3, 3.0), ADD: estimate(1e-3, 1.02)}
    mm_s, add_s = attributed(analysis_of([MM, ADD], estimates), 3e-3).measurement.op_s
    assert mm_s + add_s == pytest.approx(3e-3, rel=1e-3)
    assert mm_s > 1.9e-3
    assert add_s == pytest.approx(1e-3, rel=0.06)


def test_calls_of_one_signature_take_the_same():
    times = attributed(analysis_of([MM, ADD, MM], {MM: estimate(1e-3, 3.0), ADD: estimate(1e-4, 1.05)}), 5e-3)
    first, small, last = times.measurement.op_s
    assert first == pytest.approx(last)
    assert np.isnan(small)  # 2 % of the step: nothing was learned of it
    assert first == pytest.approx(2.45e-3, rel=0.02)


@pytest.mark.parametrize(("wall_s", "launch_s"), [(1e-10, 0.0), (1e-3, 1e-2)])
def test_a_time_that_no_ops_explain_teaches_nothing(wall_s, launch_s):
    host = replace(FREE, launch_s=launch_s)
    with pytest.raises(ValueError, match="no times of its ops explain it"):
        attributed(analysis_of([MM, RELU], {MM: estimate(1e-3, 2.0), RELU: estimate(1e-5, 2.0)}, host), wall_s)


def test_a_step_that_beats_its_bound_from_a_cache_teaches_the_bound():
    known = Estimate(time_s=3e-3, low_s=2e-3, high_s=4e-3, bound_s=1e-3, source=Source.REGRESSED, extrapolated=False)
    analysis = analysis_of([MM], {MM: known})
    bound_s = analysis.operations[0].bound.time_s
    assert attributed(analysis, 0.7 * bound_s).measurement.op_s == pytest.approx([bound_s])
    with pytest.raises(ValueError, match="with every op at its bound"):
        attributed(analysis, 0.4 * bound_s)


def test_a_step_of_many_kinds_of_small_ops_tells_of_none():
    kinds = [op("aten::add", {"self": spec((n,)), "other": spec((n,))}, [spec((n,))]) for n in range(1000, 1020)]
    with pytest.raises(ValueError, match="no op takes 8 %"):
        attributed(analysis_of(kinds, {kind: estimate(1e-3, 2.0) for kind in kinds}), 30e-3)


def test_a_host_that_takes_the_step_tells_only_what_the_device_does_not():
    host = replace(FREE, launch_s=1e-3)
    # 2.1 ms on the host, 20 predicted on the device, 2.2 measured: it takes no more than 2.2 - 0.85 x 2.2
    found = attributed(analysis_of([MM], {MM: estimate(20e-3, 3.0)}, host), 2.2e-3)
    assert found.measurement.op_s == pytest.approx([0.15 * 2.2e-3], rel=1e-3)
    # 0.01 predicted: nothing is known of what the device does in the 2.1 ms
    with pytest.raises(ValueError, match="on the host alone"):
        attributed(analysis_of([MM], {MM: estimate(1e-5, 3.0)}, host), 2.2e-3)
