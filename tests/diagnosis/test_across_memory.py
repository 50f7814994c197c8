"""Memory that is read across its order: by strides, and only where the time shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import op
from sessions import Call, session_of

from rooflight.diagnosis.diagnose import diagnose
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.analysis import analyze

N = 1024
ROWS = TensorSpec((N, N), "float32")
COLUMNS = replace(ROWS, strides=(1, N))
EVERY_SECOND = replace(ROWS, strides=(2 * N, 2))
BIAS = TensorSpec((N, N), "float32", strides=(0, 1))
LAST = TensorSpec((4, 64, 64, 64), "float32", strides=(64**3, 1, 64 * 64, 64))
SMALL = TensorSpec((8, 8), "float32")
CPU = DeviceSpec(
    name="slow", vendor="", architecture="", kind="cpu",
    datasheet=Roofs(
        source="by hand", memory=(MemoryLevel(name="DRAM", bytes_per_s=1e9),),
        matrix_flops_per_s={"float32": 1e12}, vector_flops_per_s={"float32": 1e12},
    ),
)  # fmt: skip


def found(signature, times_bound: float) -> dict[str, float]:
    bound_s = sum(tensor.nbytes for tensor in (*signature.inputs, *signature.outputs)) / 1e9
    took_s = bound_s * times_bound
    environment = {"device_kind": "cpu"}
    session = session_of([Call(op=signature)], times=[[took_s]], walls=[took_s], environment=environment)
    return {each.id: each.predicted_gain_s / bound_s for each in diagnose(analyze(session, CPU)).findings}


@pytest.mark.parametrize(
    ("signature", "goes_across"),
    [
        (op("aten::add", {"self": COLUMNS, "other": ROWS}, [ROWS]), True),
        (op("aten::add", {"self": ROWS, "other": ROWS}, [ROWS]), False),
        (op("aten::exp", {"self": COLUMNS}, [COLUMNS]), False),
        (op("aten::add", {"self": ROWS, "other": BIAS}, [ROWS]), False),
        (op("aten::exp", {"self": EVERY_SECOND}, [ROWS]), True),
        (op("aten::relu", {"self": LAST}, [LAST]), False),
        (op("aten::relu", {"self": LAST}, [replace(LAST, strides=None)]), True),
        (op("aten::cumsum", {"self": ROWS}, [ROWS], dim=0), True),
        (op("aten::cumsum", {"self": ROWS}, [ROWS], dim=-1), False),
        (op("aten::_softmax", {"self": COLUMNS}, [COLUMNS], dim=0, half_to_float=False), False),
        (op("aten::mm", {"self": COLUMNS, "mat2": ROWS}, [ROWS]), False),
        (op("aten::clone", {"self": COLUMNS}, [ROWS]), False),
        (op("aten::add", {"self": replace(SMALL, strides=(1, 8)), "other": SMALL}, [SMALL]), False),
    ],
)
def test_unlike_orders_steps_and_outer_dimensions_go_across_memory(signature, goes_across: bool) -> None:
    assert ("across-memory" in found(signature, 20)) is goes_across
    assert "across-memory" not in found(signature, 3)


def test_what_is_gained_is_what_exceeds_a_few_times_the_bound() -> None:
    assert found(op("aten::add", {"self": COLUMNS, "other": ROWS}, [ROWS]), 20)["across-memory"] == pytest.approx(15)
