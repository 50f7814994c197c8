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


ONE = step(2, 0, 100)
NAMED = [ONE, host("aten::addmm", 10, 30), host("aten::add", 40, 45)]
LAUNCHED = [ONE, host("mul", 10, 20), launch(1, 12), launch(2, 15), host("add", 30, 40), launch(3, 35),
            kernel(1, 500, 510), kernel(2, 520, 545), kernel(3, 600, 601)]  # fmt: skip
BELOW = [ONE, host("run_backward", 30, 90, category="python_function"), host("MulBackward0", 40, 50, BACKWARD),
         launch(1, 45, BACKWARD), kernel(1, 300, 303)]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "target", "microseconds"),
    [
        # a step's time is the sum of its events: 5 + 10, then 7
        (
            [*STEPS, host("mul", 10, 15), host("mul", 20, 30), host("mul", 110, 117), host("add", 130, 190)],
            ("mul",),
            (15, 7),
        ),
        # names are looked for within each other: the others lie in no "outer"
        (
            [*STEPS, host("outer", 10, 50), host("mul", 20, 30), host("mul", 60, 90), host("mul", 110, 120)],
            ("outer", "mul"),
            (10,),
        ),
        # a list of names is timed together, gaps included: from 20 to 50
        (
            [ONE, host("backward", 10, 95), host("mul", 20, 30), host("add", 40, 50), host("div", 60, 90)],
            ("backward", ("mul", "add")),
            (30,),
        ),
        (NAMED, ("aten::add",), (5,)),  # a name may be part of an event's, but an equal one wins
        (NAMED, ("addmm",), (20,)),
        ([ONE, host("norm", 10, 50), host("norm", 20, 40)], ("norm",), (40,)),  # inside each other: the outermost
        (LAUNCHED, ("mul",), (45,)),  # from 500 to 545: the first kernel's start to the last one's end
        (LAUNCHED, ("add",), (1,)),
        (BELOW, ("run_backward", "MulBackward0"), (3,)),  # on another thread
        (BELOW, ("run_backward",), (3,)),
        ([host("mul", 0, 50), step(2, 100, 200), host("mul", 110, 120)], ("mul",), (10,)),  # outside is warm-up
    ],
)
def test_times_of_a_step_are_those_of_the_events_named(trace, events, target, microseconds):
    assert times_s(trace(*events), target) == pytest.approx(tuple(each * 1e-6 for each in microseconds))


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
