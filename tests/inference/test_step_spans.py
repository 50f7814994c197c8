"""Traces: when the buckets of the last steps were open, by hand, on the host's clock and on a device's."""

from __future__ import annotations

import json

import pytest
from fake_clock import FakeClock
from fake_device import FakeDevice
from measured_runs import quiet, run_of

from rooflight.studies.inference.generation.trace import StepSpans


class Program:
    """A profiler with spans, and a program that takes the nanoseconds that a test says."""

    def __init__(self, folder, device=None, most=64):
        self.clock, self.device, self.spans = FakeClock(), device, StepSpans(most)
        on = {"device": device or "cpu", "clock": self.clock.now_ns, "on_step": self.spans.add}
        self.prof = quiet(folder, **on, model_profiling=True, engine_profiling=True, strict_sync=False)

    def work(self, nanoseconds, on_device=None):
        self.clock.time_ns += nanoseconds
        if self.device is not None:
            self.device.work(nanoseconds if on_device is None else on_device)

    def rows(self):
        """Spans by row: name, begin and duration in ns."""
        if self.device is not None:
            self.device.finish()
        self.prof.end_run()
        events = json.loads(self.spans.chrome_trace("a test"))["traceEvents"]
        names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
        found = {name: [] for name in names.values()}
        for each in events:
            if each["ph"] == "X":
                found[names[each["tid"]]].append((each["name"], round(each["ts"] * 1e3), round(each["dur"] * 1e3)))
        return {name: sorted(spans, key=lambda span: span[1:]) for name, spans in found.items()}


def test_nested_buckets_of_two_domains_on_one_clock(tmp_path):
    program = Program(tmp_path)
    prof, work = program.prof, program.work
    prof.begin_run(bsz=2)
    work(1000)  # before the first step kept: not in the trace
    for _ in range(2):
        with prof.step_timing_ctx():
            work(10)
            with prof.cpu_bucket_timer("decode"):
                work(20)
                with prof.cuda_bucket_timer("attn.compute"), prof.cuda_bucket_timer("attn.rope"):
                    work(30)
                work(5)
        work(100)  # between steps
    assert program.rows() == {
        "steps (host)": [("step 0", 0, 65), ("step 1", 165, 65)],
        "model buckets (host)": [("attn.compute", 30, 30), ("attn.rope", 30, 30),
                                 ("attn.compute", 195, 30), ("attn.rope", 195, 30)],
        "engine buckets (host)": [("decode", 10, 55), ("decode", 175, 55)],
    }  # fmt: skip


def test_overlapping_buckets_are_cut_so_that_they_nest(tmp_path):
    """a opens, b opens in it, a closes first: b goes on, as a second span."""
    program = Program(tmp_path)
    prof, work = program.prof, program.work
    prof.begin_run()
    first, second = prof.cuda_bucket_timer, prof.cuda_bucket_timer
    with prof.step_timing_ctx():
        a, b = first("a"), second("b")
        a.__enter__()
        work(1)
        b.__enter__()
        work(2)
        a.__exit__(None, None, None)
        work(4)
        b.__exit__(None, None, None)
    assert program.rows()["model buckets (host)"] == [("a", 0, 3), ("b", 1, 2), ("b", 3, 4)]


def test_on_a_device_each_clock_has_rows_of_its_own(tmp_path):
    """The host queues 10 ns of work that takes the device 50."""
    program = Program(tmp_path, FakeDevice())
    prof = program.prof
    prof.begin_run()
    with prof.step_timing_ctx(), prof.cpu_bucket_timer("decode"), prof.cuda_bucket_timer("mlp.act"):
        program.work(10, on_device=50)
    assert program.rows() == {
        "steps (device events)": [("step 0", 0, 50)],
        "model buckets (device events)": [("mlp.act", 0, 50)],
        "steps (host)": [("step 0", 0, 10)],
        "engine buckets (host)": [("decode", 0, 10)],
    }


def test_the_last_steps_are_kept_and_no_others(tmp_path):
    program = Program(tmp_path, most=3)
    program.prof.begin_run()
    for _ in range(100):
        with program.prof.step_timing_ctx():
            program.work(7)
    assert program.rows()["steps (host)"] == [("step 97", 0, 7), ("step 98", 7, 7), ("step 99", 14, 7)]
    assert len(program.spans) == 3


@pytest.mark.parametrize("device", [None, FakeDevice()], ids=["host", "device"])
def test_a_trace_changes_no_figure(tmp_path, device):
    """The statistics of a profiler with spans are those of one without."""

    def run(spans):
        clock, on = FakeClock(), FakeDevice() if device is not None else "cpu"
        kept = {"clock": clock.now_ns, "on_step": StepSpans().add if spans else None}
        prof = quiet(tmp_path / f"{spans}", device=on, **kept, model_profiling=True)
        with run_of(prof):
            for number in range(50):
                with prof.step_timing_ctx():
                    for name in ("a", "b", "a"):
                        with prof.cuda_bucket_timer(name):
                            clock.time_ns += number
                            if device is not None:
                                on.work(number)
                                on.finish()
        return prof.results.runs[0]

    with_spans, without = run(True), run(False)
    assert with_spans.stats == without.stats
    assert with_spans.buckets == without.buckets


def test_a_baseline_counts_in_speed_ups_alone(tmp_path):
    """Plain steps of 10 ns for 2 tokens, speculative ones of 15 for 6: 0.2 against 0.4 tokens per ns, twice as fast."""
    program = Program(tmp_path)
    prof, work = program.prof, program.work
    with run_of(prof, bsz=2, label="baseline", baseline=True):
        for _ in range(4):
            prof.begin_request("a")
            with prof.step_timing_ctx():
                work(10)
                prof.set_step_tokens(2)
            prof.request_tokens("a")
            prof.end_request("a")
    with run_of(prof, bsz=2):
        for _ in range(3):
            with prof.step_timing_ctx():
                work(15)
                prof.set_step_speculation([2, 2], [2, 2])
                prof.set_step_tokens(6)
    folder = prof.save_all()
    assert folder is not None
    found = json.loads((folder / "summary.json").read_text())
    assert (found["stats"]["steps"], found["stats"]["tokens_total"]) == (3, 18)
    assert found["stats"]["p50_ms"] == found["runs_aggregate"]["latency_ms"]["mean"] == 15e-6
    assert found["samples"]["steps"] == 3
    assert found["wall"]["wall_total_ms"] == 45e-6
    assert {each["steps"] for each in found["bucket_splits"]} == {3}
    assert found["speculative"]["speedup_measured"] == pytest.approx(2)
    assert [each["meta"]["baseline"] for each in found["runs"]] == [True, False]
    assert [each["stats"]["steps"] for each in found["runs"]] == [4, 3]
    assert not prof.requests.ended.kept
    assert not found["problems"]
