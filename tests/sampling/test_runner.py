"""Timing and statuses: whatever a shape does, it is a row."""

from __future__ import annotations

import time

import pytest
import torch
from fake_clock import FakeClock

from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import STEP, Operator, Prepared, RefusedError, Work
from rooflight.costs.operators.sizes import Size
from rooflight.hardware.machine import timing as clocks
from rooflight.hardware.machine.timing import ColdClock, flush_caches
from rooflight.records.samples import Status, middle_s, undisturbed_s
from rooflight.sampling.runner import Repeats, Sampler, failure_of, needed_bytes
from rooflight.sampling.sweeps import small_shapes


def operator(forward, backward=None) -> Operator:
    return Operator(
        name="fake",
        summary="",
        sizes={"n": Size()},
        work=lambda shape, dtype: Work(forward=()),
        prepare=lambda torch, shape, dtype, device: Prepared(forward=forward, backward=backward),
        directions=("fwd", "bwd") if backward else STEP,
    )


def sampler(clock=None, **repeats) -> Sampler:
    return Sampler("cpu", "float32", Repeats(**repeats), clock=clock or FakeClock(call_s=0.25))


def test_samples_are_kept_and_forward_and_backward_are_apart():
    calls = []
    row = sampler(warmups=2, least=7).row(operator(lambda: calls.append("f") or "result", calls.append), {"n": 1})
    assert row.status is Status.OK
    assert row.samples_s == {"fwd": (0.25,) * 7, "bwd": (0.25,) * 7}
    # 2 warm-ups and 7 samples; a result for the backward; again 2 and 7
    assert calls == ["f"] * 9 + ["f"] + ["result"] * 9
    assert row.spent_s > 0
    assert row.when


def test_samples_end_when_they_agree_or_with_the_box():
    class Wavering(FakeClock):
        def time_s(self, run):
            self.call_s = 0.2 if self.calls % 2 else 0.1
            return super().time_s(run)

    for number, made in (
        (15, sampler(Wavering(), least=7, most=15)),
        (4, sampler(FakeClock(call_s=1.0), least=7, box_s=4.0)),
    ):
        assert len(made.row(operator(lambda: 0), {"n": 1}).samples_s["step"]) == number


def test_a_shape_beyond_its_time_box_is_a_row():
    row = sampler(box_s=0.001).row(operator(lambda: time.sleep(0.002)), {"n": 1})
    assert row.status is Status.TIME_BOX
    assert len(row.samples_s["step"]) == 1
    assert "3 samples take more than 0.001 s" in row.note


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedError("this torch has no such op"), Status.UNSUPPORTED),
        (NotImplementedError("no"), Status.UNSUPPORTED),
        (RuntimeError("\"addmm_impl\" not implemented for 'Half'"), Status.UNSUPPORTED),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), Status.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), Status.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("none left"), Status.OUT_OF_MEMORY),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (ZeroDivisionError("division by zero"), Status.FAILED),
    ],
)
def test_what_goes_wrong_is_a_status(error, status):
    def run():
        raise error

    row = sampler().row(operator(run), {"n": 1})
    assert row.status is status
    assert row.samples_s == {}
    assert row.note


def test_refused_and_too_large_shapes_never_run():
    gemm = registry.find("gemm")
    assert sampler().row(gemm, gemm.shape([0, 1, 1])).status is Status.REFUSED
    row = sampler().row(gemm, gemm.shape([10**7, 10**7, 8]))
    assert row.status is Status.OUT_OF_MEMORY
    assert "needs about 400000.6 GB" in row.note  # 4 (2 * 8e7 + 1e14) bytes


def test_interrupts_are_not_rows():
    def run():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler().row(operator(run), {"n": 1})


def test_memory_counts_inputs_results_and_gradients():
    linear = registry.find("linear2")
    work = linear.work(linear.shape([1, 2, 64, 128]), "float16")
    # inputs of the largest call: a gradient [128, 128] and the weight or x, as large; results y, dx, dw; gradient of y
    assert needed_bytes(work) == 2 * 128 * 128 * (2 + 3 + 1)


def test_caches_are_emptied_outside_of_the_timed_span():
    inner = FakeClock(call_s=1.0)
    clock = ColdClock(inner, lambda: inner.advance(100.0))
    assert clock.time_s(lambda: None) == 1.0
    assert clock.now_ns() == 101_000_000_000


def test_the_flush_is_larger_than_the_last_cache():
    last = max((cache.instance_bytes for cache in clocks.data_caches()), default=0)
    assert flush_caches().__self__.nbytes >= 2 * last


def test_the_statistics_of_samples():
    assert middle_s([9, 1, 2, 3, 4, 5, 6, 7, 8, 100]) == 5  # sorted, the 3rd to 7th: 3, 4, 5, 6, 7
    assert middle_s([3.0, 1.0]) == 2.0
    # the fast end is the run undisturbed: a tenth of the way from the 1st to the 11th
    assert undisturbed_s([9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 100]) == 2
    assert undisturbed_s([3.0, 1.0]) == pytest.approx(1.2)
    assert undisturbed_s([5.0]) == 5.0


@pytest.mark.parametrize("name", ["gemm", "flash_atten", "layernorm", "adamw"])
def test_real_operators_on_this_machine(name):
    found = registry.find(name)
    row = Sampler("cpu", "float32", Repeats(least=3, most=3)).row(found, small_shapes(found)[0])
    assert row.status is Status.OK, row.note
    assert set(row.samples_s) == set(found.directions)
    assert all(0 < sample < 1 for samples in row.samples_s.values() for sample in samples)


def test_a_failure_s_note_names_the_error_unless_it_is_a_sentence():
    assert failure_of(KeyError("boom\nline 2"), "cpu") == (Status.FAILED, r"KeyError: 'boom\nline 2'")
    assert failure_of(AssertionError(), "cpu") == (Status.FAILED, "AssertionError")
    assert failure_of(RuntimeError("mat1 and mat2 differ"), "cpu") == (Status.FAILED, "mat1 and mat2 differ")
