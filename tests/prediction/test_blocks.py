"""Norms of few long rows, each of which one block of threads reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec

from rooflight.devices import get
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import FACTS, WorkKind, facts_of
from rooflight.prediction.work.floors import beyond_read

H100 = get("H100-SXM5-80GB")
NOTHING = Predictor.empty()


def layer_norm(shape, over):
    x, each = spec(shape), spec(over)
    rows = spec((*shape[: len(shape) - len(over)], *[1] * len(over)))
    inputs = {"input": x, "weight": each, "bias": each}
    return op("aten::native_layer_norm", inputs, [x, rows, rows], normalized_shape=over, eps=1e-5)


def group_norm(shape, groups):
    x, each, stats = spec(shape), spec((shape[1],)), spec((shape[0], groups))
    n, c, *space = shape
    hxw = 1
    for side in space:
        hxw *= side
    settings = {"N": n, "C": c, "HxW": hxw, "group": groups, "eps": 1e-5}
    return op("aten::native_group_norm", {"input": x, "weight": each, "bias": each}, [x, stats, stats], **settings)


def rows_of(work) -> float:
    found = facts_of([work], H100)
    return dict(zip(FACTS[WorkKind.ROWS], found.values, strict=True))["rows"]


def test_rows_are_what_is_normalized_together():
    assert rows_of(layer_norm((16, 64, 256, 256), (64, 256, 256))) == 16
    assert rows_of(layer_norm((8, 512, 1024), (1024,))) == 8 * 512
    assert rows_of(group_norm((16, 64, 256, 256), 8)) == 16 * 8


def test_few_long_rows_do_not_fill_a_device():
    few = NOTHING.predict(layer_norm((16, 64, 256, 256), (64, 256, 256)), H100)
    # 16 x 4,194,304 numbers of 4 B: 16.8 MB a row, which a block reads at 4 GB/s, and parameters as long
    assert few.time_s == pytest.approx(16.8e6 / 4e9, rel=0.1)
    assert few.low_s < few.time_s < few.high_s
    many = NOTHING.predict(layer_norm((65536, 1024), (1024,)), H100)
    assert many.time_s == pytest.approx(2 * many.bound_s)  # typical, as without rows
    # 128 groups of 524,288 numbers: 2.1 MB each; KernelBench measured 0.675 ms
    groups = NOTHING.predict(group_norm((16, 64, 256, 256), 8), H100)
    assert groups.time_s == pytest.approx(2.1e6 / 4e9, rel=0.05)


def test_a_cpu_has_no_blocks():
    work = layer_norm((16, 64, 256, 256), (64, 256, 256))
    cpu = NOTHING.predict(work, replace(H100, name="a CPU", kind="cpu"))
    assert cpu.time_s == pytest.approx(2 * cpu.bound_s)


def test_reading_a_number_is_a_copy_and_no_kernel():
    facts = np.ones((1, len(FACTS[WorkKind.ROWS])))
    facts[:, 0] = 1e-12
    slow = np.log(np.array([18e-6 / 1e-12]))
    less = beyond_read("aten::_local_scalar_dense", facts, H100, slow)
    assert 1e-12 * np.exp(slow - less) == pytest.approx(2.2e-6)
    assert beyond_read("aten::_local_scalar_dense", facts, H100, np.zeros(1)) == 0  # never slower than was answered
    assert beyond_read("aten::sqrt", facts, H100, slow) == 0
