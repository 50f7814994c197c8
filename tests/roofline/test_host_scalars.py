"""Host scalars: which numbers of a recording stay with the host, and what reading them takes; sums by hand."""

import pytest
import torch
from builders import op, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Call, session_of

import rooflight as rl
from rooflight.costs.registry import cost_of
from rooflight.records.record import Direction
from rooflight.records.signature import ON_HOST
from rooflight.roofline.host import Host, on_host, units_of, with_host_scalars

STEP = Direction.OPTIMIZER
NUMBER = spec(())
READ = op("aten::_local_scalar_dense", {"self": NUMBER}, [])
COUNT = op("aten::add_", {"self": spec((), storage=0), "other": NUMBER}, [spec((), storage=0)])
NORM = op("aten::linalg_vector_norm", {"self": spec((64,))}, [NUMBER])
ROOT = op("aten::sqrt", {"self": NUMBER}, [NUMBER])
A100 = "A100-SXM4-80GB"


def step(op, reads, writes=(), direction=STEP) -> Call:
    return Call(op=op, reads=reads, writes=writes, direction=direction)


def test_counts_that_an_optimizer_adds_to_and_reads_stay_with_the_host():
    session = session_of([step(COUNT, (0, 1), (0,)), step(READ, (0,))])
    assert on_host(session).tolist() == [True, True]
    marked = with_host_scalars(session)
    assert [ON_HOST in marked.signatures[number].attributes for number in marked.columns.signature] == [True, True]
    assert on_host(marked).tolist() == [True, True]  # marking again changes nothing
    assert with_host_scalars(marked).signatures == marked.signatures


@pytest.mark.parametrize(
    "calls",
    [
        [step(NORM, (0,), (1,)), step(READ, (1,))],  # a norm of gradients
        [step(NORM, (0,), (1,)), step(ROOT, (1,), (2,)), step(READ, (2,))],  # the same by way of another number
        [step(READ, (0,), direction=Direction.FORWARD)],  # a loss
        [step(ROOT, (0,), (1,), Direction.FORWARD), step(READ, (0,))],  # the model's own number
        [step(COUNT, (0, 1), (0,))],  # nobody reads it: a parameter may be a single number
        [step(COUNT, (0, 1), (0,)), step(NORM, (0,), (2,)), step(READ, (1,))],  # a fused kernel reads the count
        [],
    ],
)
def test_numbers_of_the_device_do_not(calls):
    session = session_of(calls)
    assert not on_host(session).any()
    assert with_host_scalars(session) is session


def test_the_loss_and_the_counts_have_one_signature_and_are_told_apart():
    calls = [step(NORM, (0,), (1,), Direction.FORWARD), step(READ, (1,), direction=Direction.FORWARD), step(READ, (2,))]
    assert on_host(session_of(calls)).tolist() == [False, False, True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=12))
def test_groups_are_those_of_a_slow_oracle(ops):
    """Whatever is reached from a large tensor, over any shared number, is of the device."""
    calls = [step(NORM if large else ROOT, (a,), (b,)) for a, b, large in ops] + [step(READ, (0,))]
    touched = [{*call.reads, *call.writes} for call in calls]
    device = set().union(*(each for call, each in zip(calls, touched, strict=True) if call.op is NORM))
    read = {0}
    for _ in calls:
        device |= set().union(*(each for each in touched if each & device))
        read |= set().union(*(each for each in touched if each & read))
    assert on_host(session_of(calls)).tolist() == [bool(each & read) and not each & device for each in touched]


def test_host_time_of_host_scalars_by_hand():
    marked = with_host_scalars(session_of([step(COUNT, (0, 1), (0,)), step(READ, (0,))]))
    units = [units_of(marked.signatures[number], cost_of(COUNT)) for number in marked.columns.signature]
    assert units == [0.15, 0.05]
    three = op("aten::_foreach_add_", {"self": [NUMBER] * 3}, [], on_host=True)
    assert units_of(three, cost_of(three)) == pytest.approx(0.45)  # 3 x 0.15


def test_reading_a_count_takes_no_device_time_and_does_not_wait():
    big = op("aten::neg", {"self": spec((1 << 24,))}, [spec((1 << 24,))])
    host = Host(launch_s=10e-6, first_s=0.0, low=1.0, high=1.0, source="by hand")
    calls = [step(big, (0,), (1,)), step(COUNT, (2, 3), (2,)), *[step(READ, (2,))] * 100, step(big, (0,), (1,))]
    alone = session_of([calls[0], calls[-1]])
    wide, short = (
        rl.analyze(session, A100, predictor=rl.Predictor.empty(), host=host).totals
        for session in (session_of(calls), alone)
    )
    assert wide.predicted.time_s == pytest.approx(short.predicted.time_s, rel=1e-5)
    # 100 reads x 0.05 x 10 us + 0.15 x 10 us = 51.5 us: hidden behind the first kernel of 2 x 66 us, no sync
    assert wide.predicted_wall.time_s == pytest.approx(short.predicted_wall.time_s, rel=1e-5)
    assert wide.predicted_wall.host_s == pytest.approx(short.predicted_wall.host_s + 51.5e-6)


def test_a_read_of_the_device_is_waited_for():
    calls = [step(NORM, (0,), (1,)), step(READ, (1,))]
    totals = rl.analyze(session_of(calls), A100, predictor=rl.Predictor.empty(), host=10e-6).totals
    assert totals.predicted.time_s > 1e-6


@pytest.mark.parametrize(
    ("kind", "stays"), [({"foreach": True}, True), ({"foreach": False}, True), ({"fused": True}, False)]
)
def test_steps_of_adamw(kind, stays):
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), **kind)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with rl.record(layer) as recording:
        optimizer.step()
    session = recording.session
    names = [session.signatures[session.columns.signature[place]].name for place in on_host(session).nonzero()[0]]
    assert (names.count("aten::_local_scalar_dense") >= 2) is stays
    if not stays:
        assert not names
