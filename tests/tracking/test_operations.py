"""``OpRecord`` by hand: costed as the same operation is when it is recorded."""

import pytest
import torch
from torch.nn import functional
from tracked import CPU, calibrate_by_hand

import rooflight as rl
from rooflight import OpRecord, OpType, TensorShape
from rooflight.roofline.bound import Limiter
from rooflight.studies.tracking.operations import COLLECTIVES


def shape(*dims: int, dtype: str = "float32") -> TensorShape:
    return TensorShape(dims, dtype)


def test_a_tensor_shape_has_a_size():
    tensor = TensorShape((16, 512), "bf16")
    assert (tensor.dims, tensor.dtype) == ((16, 512), "bfloat16")
    assert tensor.numel == 8192
    assert tensor.nbytes == 16384  # 2 bytes each
    assert TensorShape([2, 3]) == TensorShape((2, 3), "bfloat16")
    assert TensorShape(()).numel == 1


def test_what_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="sizes are 0 or more"):
        TensorShape((4, -1))
    with pytest.raises(ValueError, match='unknown dtype "bf17"'):
        TensorShape((4,), "bf17")


def test_a_linear_layer_is_costed_as_on_paper():
    record = OpRecord(OpType.LINEAR, [shape(16, 64), shape(8, 64)], [shape(16, 8)], name="mlp.fc1")
    assert record.flops == 2 * 16 * 8 * 64
    assert record.bytes_moved == 4 * (16 * 64 + 8 * 64 + 16 * 8)
    assert record.arithmetic_intensity == record.flops / record.bytes_moved
    assert record.name == "mlp.fc1"


def test_a_collective_is_costed_by_its_ranks():
    record = OpRecord(OpType.ALLREDUCE, (shape(64),), (shape(64),), ranks=4)
    assert record.cost.bytes_sent == 2 * 256 * 3 // 4  # 64 floats; a ring passes on 3 of 4 shares twice
    gathered = OpRecord(OpType.ALLGATHER, (shape(16),), (shape(64),), ranks=4)
    assert gathered.cost.bytes_sent == 256 * 3 // 4
    assert gathered.flops == 0


def test_the_bound_is_the_roofline_s():
    large = shape(8192, 8192, dtype="bf16")
    record = OpRecord(OpType.MM, (large, large), (large,))
    bound = record.bound("H100-SXM5-80GB")
    assert bound.time_s == pytest.approx(2 * 8192**3 / 989.4e12)
    assert bound.limiter is Limiter.COMPUTE
    assert OpRecord(OpType.ADD, (large, large), (large,)).bound("H100-SXM5-80GB").limiter is Limiter.MEMORY


def test_without_a_device_it_is_the_one_at_hand(tmp_path, monkeypatch):
    calibrate_by_hand(tmp_path, monkeypatch)
    monkeypatch.setattr("rooflight.hardware.machine.hardware.cuda_name", lambda: None)
    assert rl.get_current_device_spec() == rl.current_device()
    wide = shape(1024, 1024)
    assert OpRecord(OpType.MM, (wide, wide), (wide,)).bound().compute_s == 2 * 1024**3 / CPU.matrix_peak("float32")


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "ranks", "message"),
    [
        (OpType.MM, 3, 1, None, "MM takes self, mat2, not 3 tensors"),
        (OpType.EXP, 0, 1, None, "EXP takes self, not 0 tensors"),
        (OpType.MM, 2, 0, None, "MM: give the shape of what it returns"),
        (OpType.ALLREDUCE, 1, 1, None, "ALLREDUCE: give the number of ranks"),
        (OpType.ALLREDUCE, 1, 1, 0, "ALLREDUCE: give the number of ranks"),
    ],
)
def test_a_record_that_cannot_be_is_refused(kind, inputs, outputs, ranks, message):
    with pytest.raises(ValueError, match=message):
        OpRecord(kind, [shape(4, 4)] * inputs, [shape(4, 4)] * outputs, ranks=ranks)


def test_shapes_that_do_not_belong_together_have_no_cost():
    with pytest.raises(ValueError, match="MM of these shapes has no cost"):
        OpRecord(OpType.MM, (shape(4), shape(4)), (shape(4),)).flops  # noqa: B018


INDICES = torch.ones(4, dtype=torch.int64, device="meta")
X, W, B = (torch.ones(*dims, device="meta") for dims in ((4, 8), (8, 8), (8,)))
HEADS = torch.ones(1, 2, 4, 8, device="meta")
CALLS = {
    OpType.LINEAR: (lambda: functional.linear(X, W, B), (X, W, B)),
    OpType.MATMUL: (lambda: X @ W, (X, W)),
    OpType.MM: (lambda: X.mm(W), (X, W)),
    OpType.BMM: (lambda: HEADS[0].bmm(HEADS[0].mT), (HEADS[0], HEADS[0].mT)),
    OpType.ATTENTION: (lambda: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS), (HEADS,) * 3),
    OpType.EMBEDDING: (lambda: functional.embedding(INDICES, W), (W, INDICES)),
    OpType.SOFTMAX: (lambda: X.softmax(-1), (X,)),
    OpType.LOG_SOFTMAX: (lambda: X.log_softmax(-1), (X,)),
    OpType.LAYER_NORM: (lambda: functional.layer_norm(X, (8,), B, B), (X, B, B)),
    OpType.RMS_NORM: (lambda: functional.rms_norm(X, (8,), B), (X, B)),
    OpType.GELU: (lambda: functional.gelu(X), (X,)),
    OpType.SILU: (lambda: functional.silu(X), (X,)),
    OpType.ADD: (lambda: X + X, (X, X)),
    OpType.MUL: (lambda: X * X, (X, X)),
    OpType.DIV: (lambda: X / X, (X, X)),
    OpType.EXP: (X.exp, (X,)),
    OpType.LOG: (X.log, (X,)),
    OpType.SUM: (X.sum, (X,)),
    OpType.MEAN: (X.mean, (X,)),
    OpType.MAX: (X.amax, (X,)),
    OpType.MIN: (X.amin, (X,)),
}


def test_every_kind_has_a_formula():
    assert {*CALLS, *COLLECTIVES} == set(OpType)


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.name)
def test_a_record_costs_what_the_recorded_operation_costs(kind):
    run, inputs = CALLS[kind]
    with rl.record() as recording:
        out = run()
    totals = rl.analyze(recording, "H100-SXM5-80GB").totals
    given = [TensorShape(tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs]
    cost = OpRecord(kind, given, [TensorShape(tuple(out.shape), str(out.dtype))]).cost
    assert (cost.matrix_flops, cost.vector_flops) == (totals.matrix_flops, totals.vector_flops)
