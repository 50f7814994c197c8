"""Times of named events: nested, together, outermost, on a CPU and with kernels."""

from __future__ import annotations

import json

import pytest

from rooflight.sampling.event_times import NoSuchEventError, read, times_s

MAIN, BACKWARD = 1, 2


def host(name, start, end, thread=MAIN, category="cpu_op"):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "tid": thread}


def step(number, start, end):
    return host(f"ProfilerStep#{number}", start, end, category="user_annotation")


def launch(number, at, thread=MAIN):
    return {**host("cudaLaunchKernel", at, at + 1, thread, "cuda_runtime"), "args": {"correlation": number}}


def kernel(number, start, end):
    return {**host("kernel", start, end, 7, "kernel"), "args": {"correlation": number}}


@pytest.fixture
def trace(tmp_path):
    def write(*events):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
        return read(path)

    return write


STEPS = (step(2, 0, 100), step(3, 100, 200))


def test_a_step_s_time_is_the_sum_of_its_events(trace):
    made = trace(*STEPS, host("mul", 10, 15), host("mul", 20, 30), host("mul", 110, 117), host("add", 130, 190))
    assert times_s(made, ("mul",)) == pytest.approx((15e-6, 7e-6))  # 5 + 10, then 7


def test_names_are_looked_for_within_each_other(trace):
    made = trace(*STEPS, host("outer", 10, 50), host("mul", 20, 30), host("mul", 60, 90), host("mul", 110, 120))
    assert times_s(made, ("outer", "mul")) == pytest.approx((10e-6,))  # the others lie in no "outer"


def test_a_list_of_names_is_timed_together_gaps_included(trace):
    inside = [host("mul", 20, 30), host("add", 40, 50), host("div", 60, 90)]
    made = trace(step(2, 0, 100), host("backward", 10, 95), *inside)
    assert times_s(made, ("backward", ("mul", "add"))) == pytest.approx((30e-6,))  # from 20 to 50


def test_a_name_may_be_part_of_an_event_s_but_an_equal_one_wins(trace):
    made = trace(step(2, 0, 100), host("aten::addmm", 10, 30), host("aten::add", 40, 45))
    assert times_s(made, ("aten::add",)) == pytest.approx((5e-6,))
    assert times_s(made, ("addmm",)) == pytest.approx((20e-6,))


def test_of_events_inside_each_other_the_outermost_counts(trace):
    made = trace(step(2, 0, 100), host("norm", 10, 50), host("norm", 20, 40))
    assert times_s(made, ("norm",)) == pytest.approx((40e-6,))


def test_kernels_are_timed_from_the_first_one_s_start_to_the_last_one_s_end(trace):
    events = (host("mul", 10, 20), launch(1, 12), launch(2, 15), host("add", 30, 40), launch(3, 35))
    made = trace(step(2, 0, 100), *events, kernel(1, 500, 510), kernel(2, 520, 545), kernel(3, 600, 601))
    assert times_s(made, ("mul",)) == pytest.approx((45e-6,))  # from 500 to 545
    assert times_s(made, ("add",)) == pytest.approx((1e-6,))


def test_a_backward_pass_on_another_thread_is_found(trace):
    below = (host("MulBackward0", 40, 50, BACKWARD), launch(1, 45, BACKWARD), kernel(1, 300, 303))
    made = trace(step(2, 0, 100), host("run_backward", 30, 90, category="python_function"), *below)
    assert times_s(made, ("run_backward", "MulBackward0")) == pytest.approx((3e-6,))
    assert times_s(made, ("run_backward",)) == pytest.approx((3e-6,))


def test_events_outside_of_steps_are_warm_up(trace):
    made = trace(host("mul", 0, 50), step(2, 100, 200), host("mul", 110, 120))
    assert times_s(made, ("mul",)) == pytest.approx((10e-6,))


def test_a_target_that_names_nothing_tells_what_there_is(trace):
    made = trace(step(2, 0, 100), host("mul", 10, 20), host("aten::gelu", 30, 90))
    with pytest.raises(
        NoSuchEventError, match=r"no event of the profile is named mul > add or div: there are aten::ge"
    ):
        times_s(made, ("mul", ("add", "div")))
    many = trace(step(2, 0, 100), *(host(f"op{number}", number, number + 1) for number in range(50)))
    with pytest.raises(NoSuchEventError, match="and 30 more"):
        times_s(many, ("gelu",))


def test_events_that_launch_nothing_have_no_time_on_a_gpu(trace):
    made = trace(step(2, 0, 100), host("view", 10, 20), host("mul", 30, 40), launch(1, 35), kernel(1, 50, 51))
    with pytest.raises(NoSuchEventError):
        times_s(made, ("view",))
