"""A KeyboardInterrupt at any moment: whole records, and torch as it was."""

import linecache
import subprocess
import sys
import time
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from alarms import alarm_clock
from recorded_model import aligned, model, raiser, recorded, x
from torch.nn.functional import scaled_dot_product_attention
from torch_state import torch_state

import rooflight as rl
from rooflight.records.record import Direction
from rooflight.records.session import KEPT
from rooflight.roofline.memory.use import memory_use


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may hit a callback of gc
@pytest.mark.parametrize("memory", [False, True])
def test_an_interrupt_at_any_moment_leaves_whole_records_and_lifetimes(memory: bool) -> None:
    net = model()

    def step() -> None:
        net.zero_grad()
        net(x()).sum().backward()

    whole = recorded(step, net, memory=memory)
    names = [op.signature.name for op in whole.records]
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    recorded(step, net, memory=memory)
    seconds = time.perf_counter() - start
    interrupts = 0
    while interrupts < 20:
        with alarm_clock() as alarm, rl.record(net, memory=memory) as recording:
            try:
                alarm.set(float(rng.uniform(1e-6, seconds)))
                step()
                alarm.off()
            except KeyboardInterrupt:
                interrupts += 1
            step()
        session = aligned(recording.session)
        assert [op.signature.name for op in session.records][-len(whole) :] == names
        # the step after it is recorded as if nothing had been
        assert [op.module.path for op in session.records if op.signature.name == "aten::addmm"][-4:] == [
            "0", "1.0.project", "1.1.project", "2"]  # fmt: skip
        assert session.record(len(session) - 1).direction is Direction.BACKWARD
        if memory:
            made, freed = session.lifetimes.made, session.lifetimes.freed
            assert len(made) == len(session.storage_bytes)
            assert (freed[freed != KEPT] >= made[freed != KEPT]).all()
            assert memory_use(session).peak_bytes >= sum(p.nbytes for p in net.parameters())


def test_an_interrupt_at_any_line_of_a_composite_leaves_the_next_one_whole() -> None:
    def attend() -> None:
        scaled_dot_product_attention(x(), x(), x())

    stops = 0

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal stops
        if frame.f_code.co_name not in ("_call", "_calling") or not frame.f_code.co_filename.endswith("composites.py"):
            return None
        # Python looks for signals after calls and at the ends of loops: not between a finally and its first call
        if event == "line" and "mark.clear()" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            stops += 1
            if stops == at:
                raise KeyboardInterrupt
        return watch

    whole, before = [op.signature.name for op in recorded(attend).records], sys.gettrace()
    for at in range(1, 1000):
        stops = 0
        with rl.record() as outer, rl.record() as inner:
            sys.settrace(watch)
            try:
                attend()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            attend()
        for recording in (outer, inner):
            names = [op.signature.name for op in recording.session.records]
            assert names[-len(whole) :] == whole, at
        if stops < at:
            break
    assert at > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_a_recording_begins_or_ends() -> None:
    rng = np.random.default_rng(0)
    before = torch_state()
    start = time.perf_counter()
    for _ in range(20):
        with rl.record():
            pass
    seconds = (time.perf_counter() - start) / 20
    interrupts = 0
    with alarm_clock() as alarm:
        while interrupts < 300:
            try:
                alarm.set(float(rng.uniform(1e-6, 1.2 * seconds)))
                with rl.record():
                    pass
                alarm.off()
            except KeyboardInterrupt:
                interrupts += 1
            assert torch_state() == before


def test_an_interrupt_from_a_tensor_hook() -> None:
    net = model()
    with rl.record(net) as recording:
        out = net(x())
        out.register_hook(lambda grad: raiser(KeyboardInterrupt)())
        with pytest.raises(KeyboardInterrupt):
            out.sum().backward()
        torch.ones(3).neg()
    last = aligned(recording.session).record(len(recording.session) - 1)
    assert (last.direction, last.module.path) == (Direction.FORWARD, "")


@pytest.mark.slow
def test_nothing_is_printed_where_the_interpreter_ends_inside_a_recording():
    """Modules lose their names then, before the last objects are deleted."""
    code = """
import rooflight as rl
from rooflight.sources.capture.record import recorder
recording = rl.record()
recording.__enter__()
recorder.sys = None
import sys
def ending(): return True
type(recording).__del__(recording, ending)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
