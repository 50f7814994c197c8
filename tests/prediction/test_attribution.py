"""What the wall time of a step says of its ops."""

from __future__ import annotations

import numpy as np
import pytest
from builders import op, spec
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.prediction.fit.wall_times import attributed
from rooflight.records.estimate import Estimate, Source
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.host import Host

H100 = get("H100-SXM5-80GB")
X = spec((1000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
MM = op("aten::mm", {"self": spec((64, 64)), "mat2": spec((64, 64))}, [spec((64, 64))])
RELU = op("aten::relu", {"self": X}, [X])
FREE = Host(launch_s=0.0, first_s=0.0, low=1.0, high=1.0, source="none")


def estimate(time_s: float, factor: float) -> Estimate:
    """An estimate that may be off by a factor."""
    return Estimate(
        time_s=time_s,
        low_s=time_s / factor,
        high_s=time_s * factor,
        bound_s=1e-9,
        source=Source.REGRESSED,
        extrapolated=False,
    )


def analysis_of(ops, estimates, host=FREE) -> Analysis:
    session = session_of([Call(op=one) for one in ops])
    return analyze(session, H100, "a test", [estimates.get(one) for one in session.signatures], host)


def test_the_one_op_of_a_step_took_its_time():
    found = attributed(analysis_of([MM], {MM: estimate(1e-3, 2.0)}), 3e-3)
    assert found.measurement.op_s == pytest.approx([3e-3])
    assert found.measurement.wall_s == 3e-3


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


def test_the_hosts_time_is_not_the_devices():
    host = Host(launch_s=1e-3, first_s=0.0, low=1.0, high=1.0, source="by hand")
    # issued at 2.1 ms: 5.1 ms are 3 on the device
    found = attributed(analysis_of([MM], {MM: estimate(1e-3, 2.0)}, host), 5.1e-3)
    assert found.measurement.op_s == pytest.approx([3e-3], rel=1e-3)


@pytest.mark.parametrize(("wall_s", "launch_s"), [(1e-10, 0.0), (1e-3, 1e-2)])
def test_a_time_that_no_ops_explain_teaches_nothing(wall_s, launch_s):
    host = Host(launch_s=launch_s, first_s=0.0, low=1.0, high=1.0, source="by hand")
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
    host = Host(launch_s=1e-3, first_s=0.0, low=1.0, high=1.0, source="by hand")
    # 2.1 ms on the host, 20 predicted on the device, 2.2 measured: it takes no more than 2.2 - 0.85 x 2.2
    found = attributed(analysis_of([MM], {MM: estimate(20e-3, 3.0)}, host), 2.2e-3)
    assert found.measurement.op_s == pytest.approx([0.15 * 2.2e-3], rel=1e-3)
    # 0.01 predicted: nothing is known of what the device does in the 2.1 ms
    with pytest.raises(ValueError, match="on the host alone"):
        attributed(analysis_of([MM], {MM: estimate(1e-5, 3.0)}, host), 2.2e-3)
