"""What is read off a convolution before anything is learned of it."""

from __future__ import annotations

import pytest
from builders import op, spec

from rooflight.devices import get
from rooflight.prediction.work.facts import (
    CONVOLUTION_BACKWARD_KEY,
    CONVOLUTION_KEY,
    FACTS,
    WorkKind,
    facts_of,
    kind_of,
)
from rooflight.prediction.work.features import features_of, names_of
from rooflight.records.signature import OpSignature

H100 = get("H100-SXM5-80GB")


def convolution(x, weight, out, *, name="aten::convolution", **settings) -> OpSignature:
    given = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "transposed": False} | settings
    return op(name, {"input": spec(x), "weight": spec(weight)}, [spec(out)], **given)


PLAIN = convolution((8, 16, 32, 32), (64, 16, 3, 3), (8, 64, 30, 30))
DEPTHWISE = convolution((8, 16, 32, 32), (16, 1, 3, 5), (8, 16, 30, 28), groups=16)
TRANSPOSED = convolution(
    (8, 16, 10, 10, 10), (16, 32, 3, 3, 3), (8, 32, 21, 21, 21), transposed=True, stride=(2, 2, 2), dilation=(1, 1, 1)
)


def facts(work: OpSignature) -> dict[str, float]:
    found = facts_of([work], H100)
    assert found is not None
    assert kind_of(found.key) is WorkKind.CONVOLUTION
    return dict(zip(FACTS[WorkKind.CONVOLUTION], found.values, strict=True))


def test_sizes_are_those_of_the_product_that_kernels_make_of_it():
    plain = facts(PLAIN)
    # 8 x 30 x 30 positions, 64 channels out, 16 in under 3 x 3 taps
    assert [plain[name] for name in ("positions", "out", "in", "taps", "groups")] == [7200, 64, 16, 9, 1]
    assert (plain["transposed"], plain["dims"], plain["stride"], plain["dilation"]) == (0, 2, 1, 1)
    depthwise = facts(DEPTHWISE)
    assert [depthwise[name] for name in ("positions", "out", "in", "taps", "groups")] == [6720, 1, 1, 15, 16]
    transposed = facts(TRANSPOSED)
    assert [transposed[name] for name in ("positions", "out", "in", "taps")] == [8 * 21**3, 32, 16, 27]
    assert (transposed["transposed"], transposed["dims"], transposed["stride"]) == (1, 3, 8)


def test_what_is_stuffed_between_strides_is_not_multiplied():
    names = names_of(CONVOLUTION_KEY)
    found = facts_of([TRANSPOSED], H100)
    values = dict(zip(names, features_of(CONVOLUTION_KEY, _row(found.values), H100)[0], strict=True))
    # 16 x 27 taps on 8 x 1,000 inputs make 8 x 9,261 results: 46.6 multiply-adds each
    import math

    assert math.exp(values["log depth"]) == pytest.approx(16 * 27 * 1000 / 9261)
    # 64 channels of a block for 32, 64 deep for 46.6
    assert math.exp(values["log waste"]) == pytest.approx(64 / 32 * 64 / (16 * 27 * 1000 / 9261))


def _row(values):
    import numpy as np

    return np.array([values])


def test_all_libraries_names_share_a_key_and_backward_has_its_own():
    named = convolution((8, 16, 32, 32), (64, 16, 3, 3), (8, 64, 30, 30), name="aten::cudnn_convolution")
    assert facts_of([named], H100).key == CONVOLUTION_KEY
    given = {"grad_output": spec((8, 64, 30, 30)), "input": spec((8, 16, 32, 32)), "weight": spec((64, 16, 3, 3))}
    backward = op(
        "aten::convolution_backward",
        given,
        [spec((8, 16, 32, 32)), spec((64, 16, 3, 3))],
        output_mask=(True, True, False),
        groups=1,
        transposed=False,
    )
    found = facts_of([backward], H100)
    assert found.key == CONVOLUTION_BACKWARD_KEY
    values = dict(zip(FACTS[WorkKind.CONVOLUTION], found.values, strict=True))
    assert (values["positions"], values["out"]) == (7200, 64)


def test_without_its_operands_it_is_no_convolution():
    odd = op("aten::convolution", [spec((8, 16, 32, 32)), spec((64, 16, 3, 3))], [spec((8, 64, 30, 30))])
    found = facts_of([odd], H100)
    assert found is None or kind_of(found.key) is WorkKind.ROWS
