"""What few rows of a device teach on top of a model, and how they join tables."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.prediction.fit.experts import learn
from rooflight.prediction.fit.few_rows import correction
from rooflight.prediction.fit.fitting import learn_beside
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.work.facts import (
    FACTS,
    OTHER_REDUCTIONS_KEY,
    OTHERS_KEY,
    PRODUCT_KEY,
    WorkKind,
    key_of_others,
    product_facts,
)
from rooflight.prediction.work.floors import small_kernel_s, usual_slowdown, with_launch, without_launch

A100, H100, MI300X = get("A100-SXM4-80GB"), get("H100-SXM5-80GB"), get("MI300X")


def values(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3))


def products(device, slowdown: float, rows: int = 40) -> Shown:
    m = 2.0 ** np.random.default_rng(1).integers(6, 12, rows)
    facts = product_facts(m, np.full(rows, 8192.0), np.full(rows, 8192.0), "fp16", device)
    return Shown(key=PRODUCT_KEY, device=device, facts=facts, slowdown=np.full(rows, log(slowdown)))


def test_five_rows_teach_a_factor_drawn_to_one():
    found = correction(H100, values(5), np.full(5, log(2.0)))
    # 5 rows beside the 3 of doubt: 5 / 8 of log 2
    assert found.predict(values(9)) == pytest.approx(np.full(9, log(2.0) * 5 / 8))


@pytest.mark.parametrize("rows", [0, 4])
def test_fewer_than_five_rows_teach_nothing(rows):
    assert correction(H100, values(rows), np.full(rows, log(2.0))) is None


def test_rows_that_are_right_teach_nothing():
    assert correction(H100, values(30), np.zeros(30)) is None


def test_a_correction_fades_far_from_its_rows():
    where = values(60)
    found = correction(H100, where, 0.5 + 0.3 * where[:, 0], fades=True)
    assert found.predict(where) == pytest.approx(0.5 + 0.3 * where[:, 0], abs=0.15)
    assert found.predict(np.full((1, 3), 1e4)) == pytest.approx([0.0], abs=0.01)


def test_rows_of_another_device_correct_what_tables_taught():
    table, ops = products(A100, 1.5), products(H100, 3.0, rows=10)
    expert = learn([table]).experts[0]
    (model,) = learn_beside([(expert, table)], [table], [ops]).models
    assert model.devices == (A100.name,)
    assert [each.device for each in model.corrections] == [H100.name]
    answered = np.exp(model.answer(ops.facts, H100).slowdown)
    assert (answered > 2.0).all()  # 1.5 without the rows; not 3: 10 of 13 rows tell
    assert np.exp(model.answer(table.facts, A100).slowdown) == pytest.approx(np.full(40, 1.5), rel=0.02)


def test_a_corrected_model_is_read_as_it_was_written():
    table, ops = products(A100, 1.5), products(H100, 3.0, rows=10)
    (model,) = learn_beside([(learn([table]).experts[0], table)], [table], [ops]).models
    again = decode(encode(model))
    assert again.answer(ops.facts, H100).slowdown == pytest.approx(model.answer(ops.facts, H100).slowdown, abs=1e-3)


def test_two_corrections_of_one_device_are_refused():
    table, ops = products(A100, 1.5), products(H100, 3.0, rows=10)
    (model,) = learn_beside([(learn([table]).experts[0], table)], [table], [ops]).models
    with pytest.raises(ValueError, match="two of one device"):
        replace(model, corrections=model.corrections * 2)


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
