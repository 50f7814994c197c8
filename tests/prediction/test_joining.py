"""How the ops of sessions and traces join tables, few rows of each kind of work on a device."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.prediction.blocks import small_kernel_s, usual_slowdown
from rooflight.prediction.correcting import correct
from rooflight.prediction.facts import FACTS, OTHER_REDUCTIONS_KEY, OTHERS_KEY, PRODUCT_KEY, WorkKind, key_of_others
from rooflight.prediction.fitting import learn_beside
from rooflight.prediction.floors import with_launch, without_launch
from rooflight.prediction.joining import correction_beside
from rooflight.prediction.model import Model
from rooflight.prediction.model_file import decode, encode
from rooflight.prediction.products import product_facts
from rooflight.prediction.teaching import Shown, learn

A100, H100, MI300X = get("A100-SXM4-80GB"), get("H100-SXM5-80GB"), get("MI300X")


def products(device, slowdown: float, rows: int = 40, depth: float = 8192.0) -> Shown:
    m = 2.0 ** np.random.default_rng(1).integers(6, 12, rows)
    facts = product_facts(m, np.full(rows, 8192.0), np.full(rows, depth), "fp16", device)
    return Shown(key=PRODUCT_KEY, device=device, facts=facts, slowdown=np.full(rows, log(slowdown)))


def joined(table: Shown, ops: Shown) -> Model:
    """The model of a table's device beside which an ops' was recorded."""
    return learn_beside([(learn([table]).experts[0], table)], [table], [ops]).models[0]


@pytest.mark.parametrize("rows", [1, 4])
def test_fewer_than_five_rows_teach_nothing(rows):
    assert joined(products(A100, 1.5), products(H100, 3.0, rows=rows)).corrections == ()


def test_rows_that_are_right_teach_nothing():
    ops, model = products(H100, 1.0, rows=30), learn([products(A100, 1.5)])
    right = replace(ops, slowdown=model.answer(ops.facts, H100).slowdown)
    assert correction_beside(model, right, trees_only=False) is None


def test_rows_of_another_device_correct_what_tables_taught():
    table, ops = products(A100, 1.5), products(H100, 3.0, rows=10)
    model = joined(table, ops)
    assert model.devices == (A100.name,)
    assert [(each.device, each.beside) for each in model.corrections] == [(H100.name, True)]
    answered = np.exp(model.answer(ops.facts, H100).slowdown)
    assert (answered > 2.0).all()  # 1.5 without the rows
    assert np.exp(model.answer(table.facts, A100).slowdown) == pytest.approx(np.full(40, 1.5), rel=0.02)


def test_ops_correct_only_what_is_strange_to_the_devices_own_expert():
    """Many rows of large products, and a trace's of small ones that take four times as long."""
    table, ops = products(A100, 1.5, rows=400), products(A100, 6.0, rows=10, depth=64.0)
    model = joined(table, ops)
    assert [(each.device, each.beside) for each in model.corrections] == [(A100.name, True)]
    assert np.exp(model.answer(table.facts, A100).slowdown) == pytest.approx(np.full(400, 1.5), rel=0.02)
    assert (np.exp(model.answer(ops.facts, A100).slowdown) > 3.0).all()
    between = products(A100, 1.0, rows=20, depth=8192.0 / 4)
    before = replace(model, corrections=()).answer(between.facts, A100).slowdown
    # e times larger than all rows, an e-th of what they taught is left; here 2048 / 64 = 32 times
    assert np.abs(model.answer(between.facts, A100).slowdown - before).max() < log(4.0) / 32 + 0.01


def test_rows_that_come_later_are_learned_on_top_of_a_traces():
    model = joined(products(A100, 1.5), products(H100, 3.0, rows=10))
    later = products(H100, 4.0, rows=12)
    found = correct(model, later)
    assert found.beside is False
    # what is left to learn is what the trace's rows left
    beside = replace(model, corrections=()).answer(later.facts, H100).slowdown
    assert found.error_before < float(np.mean(np.abs(np.expm1(beside - later.slowdown))))
    both = replace(model, corrections=(*model.corrections, found))
    answered = np.exp(both.answer(later.facts, H100).slowdown)
    assert answered == pytest.approx(np.full(12, 4.0), rel=0.1)
    again = decode(encode(both))
    assert np.array_equal(again.answer(later.facts, H100).slowdown, both.answer(later.facts, H100).slowdown)


def test_two_corrections_of_one_device_are_refused():
    model = joined(products(A100, 1.5), products(H100, 3.0, rows=10))
    with pytest.raises(ValueError, match="two of one device"):
        replace(model, corrections=model.corrections * 2)


def test_without_rows_kept_a_session_teaches_an_offset():
    table, ops = products(A100, 1.5), products(H100, 3.0, rows=10)
    model = learn([table])
    found = correction_beside(model, ops, trees_only=True)
    assert found is not None
    assert found.process is None
    missed = np.median(log(3.0) - model.answer(ops.facts, H100).slowdown)
    shapes = len(np.unique(ops.facts, axis=0))
    assert found.offset == pytest.approx(missed * shapes / (shapes + 2))  # as if two more had been missed by nothing


@settings(deadline=None)
@given(st.floats(1e-7, 1e-2), st.floats(12e-6, 20e-6))
def test_a_launch_goes_out_as_it_came_in(seconds, launch_s):
    inside = with_launch(np.array([seconds]), launch_s)
    assert inside[0] >= seconds
    assert without_launch(inside, launch_s) == pytest.approx([seconds], rel=1e-3, abs=1e-8)


def test_reductions_and_other_ops_are_learned_apart():
    assert key_of_others("aten::native_layer_norm") == OTHER_REDUCTIONS_KEY
    assert key_of_others("aten::relu") == OTHERS_KEY


def test_a_small_op_usually_takes_its_kernels_time():
    facts = np.zeros((1, len(FACTS[WorkKind.ROWS])))
    facts[0, 0] = 1e-9
    # 2 us and 1 ns over 85 % of the bandwidth
    assert np.exp(usual_slowdown("aten::relu", facts, H100)) * 1e-9 == pytest.approx([2.0e-6 + 1e-9 / 0.85])
    assert small_kernel_s("aten::relu", MI300X) == 4.0e-6
    assert small_kernel_s("aten::relu", get("H100-SXM5-80GB")) < small_kernel_s("aten::sum", H100)
