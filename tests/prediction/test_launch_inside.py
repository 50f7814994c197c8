"""Sources that time a launch with every call, and what predictions make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from sessions import Call, session_of

import rooflight as rl
from rooflight.devices import get
from rooflight.prediction.fit.fitting import learn_all
from rooflight.prediction.fit.rows import Shown, launch_inside_s
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import facts_of
from rooflight.prediction.work.floors import SHORTEST_KERNEL_S, without_launch

A100 = get("A100-PCIe-40GB")
US = 1e-6


def relu(elements: int):
    return op("aten::relu", {"self": spec((elements,))}, [spec((elements,))])


def shown(floor_s: float, inside_s: float, device=A100) -> Shown:
    """Times of relu at 200 sizes: 1.2 times the bound and ``inside_s``, at least ``floor_s``."""
    found = [facts_of([relu(int(size))], device) for size in np.geomspace(1e3, 1e9, 200)]
    values = np.array([each.values for each in found])
    seconds = np.maximum(floor_s, 1.2 * values[:, 0] + inside_s)
    return Shown(key=found[0].key, device=device, facts=values, slowdown=np.log(seconds / values[:, 0]))


def test_a_floor_that_no_kernel_has_is_a_launch():
    # 0.55 of the floor
    assert launch_inside_s([shown(31e-6, 20e-6)]) == pytest.approx(0.55 * 31e-6, rel=0.01)
    assert launch_inside_s([shown(3e-6, 0.0)]) == 0.0
    assert launch_inside_s([shown(15e-6, 8e-6)]) == 0.0  # may be the device's own
    assert launch_inside_s([shown(31e-6, 20e-6), shown(3e-6, 0.0)]) == 0.0
    assert launch_inside_s([shown(31e-6, 20e-6, replace(A100, kind="cpu"))]) == 0.0
    assert launch_inside_s([]) == 0.0


def test_rows_of_one_size_are_no_floor():
    found = [facts_of([relu(int(size))], A100) for size in np.linspace(1e7, 1.1e7, 100)]
    values = np.array([each.values for each in found])
    alike = Shown(key=found[0].key, device=A100, facts=values, slowdown=np.full(len(values), 0.2))
    assert (values[:, 0] > 40e-6).all()
    assert launch_inside_s([alike]) == 0.0


def test_a_step_has_no_launch_in_its_device_time_but_an_op_asked_for_has():
    predictor = Predictor.of(learn_all([shown(31e-6, 17e-6)]).models)
    small = relu(1000)
    alone = predictor.predict(small, A100)
    assert alone.time_s == pytest.approx(31e-6, rel=0.1)
    # at the floor the host takes all of it
    assert alone.launch_s == pytest.approx(alone.time_s, rel=0.3)
    # but for the shortest kernel
    assert alone.time_s - alone.launch_s >= SHORTEST_KERNEL_S * (1 - 1e-9)
    step = rl.analyze(session_of([Call(op=small)] * 10), A100, predictor=predictor, host=0.0)
    assert step.totals.predicted.time_s == pytest.approx(10 * max(alone.bound_s, alone.time_s - alone.launch_s))
    large = relu(10**9)
    of_large = rl.analyze(session_of([Call(op=large)]), A100, predictor=predictor).totals.predicted
    assert of_large.time_s == pytest.approx(1.2 * of_large.bound_s, rel=0.05)


def test_a_device_time_is_no_faster_than_the_bound_and_its_kernels():
    found = Predictor.of(learn_all([shown(31e-6, 17e-6)]).models).predict(relu(1000), A100)
    faster = replace(found, launch_s=1.0).on_device
    assert faster.time_s == faster.low_s == faster.high_s == found.kernels_s > found.bound_s
    assert found.kernels_s == SHORTEST_KERNEL_S  # the catalog has none of this GPU
    unlimited = replace(found, launch_s=1.0, kernels_s=0.0).on_device
    assert unlimited.time_s == unlimited.low_s == unlimited.high_s == found.bound_s
    assert faster.launch_s == 0


def test_models_keep_it():
    model = learn_all([shown(31e-6, 17e-6)]).models[0]
    assert decode(encode(model)).experts[0].launch_s == model.experts[0].launch_s > 0


def test_an_unseen_device_has_no_launch_of_others_in_its_steps():
    predictor = Predictor.of(learn_all([shown(31e-6, 17e-6)]).models)
    step = rl.analyze(session_of([Call(op=relu(1000))]), "L40S", predictor=predictor).totals.predicted
    assert step.time_s < 31e-6 / 3
    large = rl.analyze(session_of([Call(op=relu(10**9))]), "L40S", predictor=predictor).totals.predicted
    assert 1.1 * large.bound_s < large.time_s < 1.5 * large.bound_s


def test_far_above_the_floor_a_launch_is_all_there_is_to_take_away():
    times = np.array([20e-6, 40e-6, 80e-6, 400e-6])
    left = without_launch(times, 20e-6)
    assert left[:2] == pytest.approx([0.0, 0.0], abs=1e-12)  # 1.1 x 20 / 0.55 = 40 µs is the floor
    # 80 - 20 - 20 e^-2 = 57.3
    assert left[2:] == pytest.approx([57.3e-6, 380e-6], rel=1e-3)
    assert without_launch(times, 0.0) is times
    assert without_launch(times, 9e-6) is times
