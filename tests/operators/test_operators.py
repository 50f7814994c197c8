"""Each operator's description against what the recorder sees when it runs: the same FLOPs, the same bytes."""

import subprocess
import sys
import warnings
from itertools import product
from math import prod

import pytest
import torch
import torch.distributed as dist

import rooflight as rl
from rooflight.costs.cost import OpCost
from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Operator, Shape, Work
from rooflight.costs.registry import cost_of
from rooflight.records.session import Session
from rooflight.sampling.sweeps import small_shapes

OPERATORS = [operator for operator in registry.every() if not operator.ranks]
COLLECTIVES = [operator for operator in registry.every() if operator.ranks]
ESTIMATE_TRAIN_TIME = {
    **dict.fromkeys(("embedding", "linear1", "linear2", "linear3", "linear4", "linear_final", "gelu"), "mp b l dim"),
    **dict.fromkeys(("layernorm", "RMSlayernorm", "res_add"), "b l dim"),
    **dict.fromkeys(("flash_atten", "RoPE", "fillmask", "baddbmm", "bmm"), "mp b h l dim"),
    **dict.fromkeys(("softmax", "ScaledUpperTriangMaskedSoftmax"), "mp b h l"),
    "parallel_cross_entropy_128": "mp b l",
    "moe": "mp b l dim moe_num_experts intermediate_size top_k",
    **dict.fromkeys(("firstStage_optimizer", "middleStage_optimizer", "lastStage_optimizer"), "mp dim encoders"),
}
"""What estimate-train-time's guide lists: operators and their shape parameters."""
DTYPES = ("bfloat16", "float32")
by_name = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def shapes_of(operator: Operator) -> list[dict[str, int]]:
    """Small shapes that between them use every parameter: the test sweep's, and one more for each parameter that the
    test sweep leaves at 0 or 1.
    """
    swept = small_shapes(operator)
    shapes = [swept[number] for number in range(swept.size)]
    first = shapes[0]
    changed = [{**first, name: 1 - first[name] if name in operator.flags else 2} for name in first if first[name] <= 1]
    tied = [operator.tie(shape) if operator.tie else shape for shape in changed]
    return shapes + [shape for shape in tied if operator.refusal(shape) is None]


FIELDS = ("matrix_flops", "bytes_read", "bytes_written", "bytes_sent")
Total = tuple[int, ...]
"""The sums of these fields over the ops of a run."""


def total(signatures) -> Total:
    costs = [(signature.name, cost_of(signature)) for signature in signatures]
    assert [(name, cost) for name, cost in costs if not isinstance(cost, OpCost)] == []
    return tuple(sum(getattr(cost, name) for _, cost in costs) for name in FIELDS)


def minus(one: Total, other: Total) -> Total:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def recorded(session: Session) -> Total:
    return total(record.signature for record in session.records if record.parent is None)


def seen(operator: Operator, shape: Shape, dtype: str, device: str) -> tuple[Total, Total | None]:
    """What a recording sees of a forward, and of a backward where there is one."""
    prepared = operator.prepare(torch, shape, dtype, device)
    with rl.record() as recording:
        prepared.forward()
    forward = recorded(recording.session)
    if prepared.backward is None:
        return forward, None
    with rl.record() as recording:
        prepared.backward(prepared.forward())
    return forward, minus(recorded(recording.session), forward)


def described(work: Work) -> tuple[Total, Total | None]:
    return total(work.forward), total(work.backward) if work.backward else None


def device_of(operator: Operator) -> str:
    """The meta device, where numbers do not matter; torch's fused optimizers have no kernel there."""
    try:
        operator.prepare(torch, small_shapes(operator)[0], DTYPES[0], "meta")
    except RuntimeError:
        return "cpu"
    return "meta"


def takes(operator: Operator, dtype: str, device: str) -> bool:
    """Whether torch has the operator in this precision."""
    try:
        operator.prepare(torch, small_shapes(operator)[0], dtype, device)
    except RuntimeError as error:
        if "Expected inputs of BF16 type" not in str(error):  # grouped_mm's
            raise
        return False
    return True


@by_name
def test_work_is_what_a_recording_sees(operator):
    device = device_of(operator)
    shapes = shapes_of(operator)
    assert len(shapes) > 1
    for dtype, shape in product(DTYPES, shapes if device == "meta" else (shapes[0], shapes[-1])):
        if not takes(operator, dtype, device):
            continue
        forward, backward = described(operator.work(shape, dtype))
        seen_forward, seen_backward = seen(operator, shape, dtype, device)
        assert forward == seen_forward, (shape, dtype)
        assert backward == seen_backward, (shape, dtype)
        assert (backward is not None) == (operator.directions == ("fwd", "bwd"))


@by_name
def test_operators_run_on_a_cpu(operator):
    shape = shapes_of(operator)[0]
    dtype = "float32" if takes(operator, "float32", "cpu") else "bfloat16"
    prepared = operator.prepare(torch, shape, dtype, "cpu")
    try:
        out = prepared.forward()
    except NotImplementedError:
        pytest.skip("torch has no such kernel on a CPU")
    gradients = prepared.backward(out) if prepared.backward else ()
    results = list(out) if isinstance(out, list | tuple) else [out] if isinstance(out, torch.Tensor) else []
    for result in (*results, *gradients):
        assert result.isfinite().all()
    ops = operator.work(shape, dtype).forward
    if len(ops) == 1:
        assert [result.numel() for result in results] == [prod(each.shape) for each in ops[0].outputs[: len(results)]]


@by_name
def test_what_an_operator_declares_fits_together(operator):
    assert tuple(operator.sizes) == operator.parameters
    for name, size in operator.sizes.items():
        assert (name in operator.defaults) == (size.default is not None)
        if size.flag:
            assert list(size.collect) == [0, 1]
        for value in size.smart.choices or (size.smart.low, size.smart.high):
            assert value >= 0
            assert size.smart.at(size.smart.place(value) * 0.999999) >= 0


@pytest.fixture
def four_ranks():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("operator", COLLECTIVES, ids=lambda operator: operator.name)
def test_collectives_send_what_a_recording_sees(operator, four_ranks):
    shape = operator.shape([640, 2, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forward, _ = seen(operator, shape, "float32", "cpu")
    assert described(operator.work(shape, "float32"))[0] == forward
    assert forward[-1] > 0  # bytes sent


def test_estimate_train_time_s_operators_have_its_parameters():
    assert {name: " ".join(registry.find(name).parameters) for name in ESTIMATE_TRAIN_TIME} == ESTIMATE_TRAIN_TIME


def test_linear1_is_the_product_it_says():
    operator = registry.find("linear1")
    forward, backward = described(operator.work(operator.shape([2, 4, 1024, 2048]), "float16"))
    assert forward[0] == 2 * 4096 * 2048 * 3072  # matrix FLOPs of [l b, dim] x [dim, 3 dim / mp]
    assert backward[0] == 2 * forward[0]


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("flash_atten", [16, 4, 24, 1024, 2048], "h=24 is not a multiple of mp=16"),
        ("flash_atten", [1, 4, 24, 1024, 2048], "dim=2048 is not a multiple of h=24"),
        ("linear1", [3, 2, 64, 64], "dim=64 is not a multiple of mp=3"),
        ("RoPE", [1, 2, 32, 64, 32], "dim/h=1 is odd"),
        ("gemm", [0, 1, 1], "m=0 is too small"),
        ("gemm", [1, 1, 1, 2], "transpose_a=2 must be 0 or 1"),
        ("sdpa", [1, 8, 8, 1, 96, 32, 1], "causal=1 with q=1 and kv=96"),
        ("moe", [1, 1, 8, 8, 2, 8, 3], "top_k=3 of moe_num_experts=2"),
        ("all_reduce", [8, 1, 1], "a collective needs at least 2 ranks"),
        ("conv2d", [1, 1, 2, 2, 1, 3], "kernel=3 is larger than height=2"),
        ("linear", [1, 1, 1, 2], "bias=2 must be 0 or 1"),
        ("linear", [1, 1, 1, -1], "bias=-1 is too small"),
        ("add", [1, 1, 2], "scalar=2 must be 0 or 1"),
        ("sdpa", [1, 8, 8, 1, 96, 32, 2], "causal=2 must be 0 or 1"),
        ("adamw", [1, 1, 2], "foreach=2 must be 0 or 1"),
    ],
)
def test_a_shape_that_cannot_be_says_why(name, values, why):
    operator = registry.find(name)
    assert why in (operator.refusal(operator.shape(values)) or "")


@pytest.mark.parametrize(
    ("name", "parameter", "most"),
    [
        ("firstStage_optimizer", "encoders", 1000),
        ("middleStage_optimizer", "encoders", 1000),
        ("lastStage_optimizer", "encoders", 1000),
        ("adamw", "tensors", 10_000),
        ("foreach_lerp", "tensors", 10_000),
        ("cat", "parts", 1024),
    ],
)
def test_parameters_that_make_many_tensors_have_a_limit(name, parameter, most):
    operator = registry.find(name)
    small = {each: operator.defaults.get(each, 1) for each in operator.parameters}
    assert operator.refusal({**small, parameter: most}) is None
    assert operator.refusal({**small, parameter: 10**12}) == f"{parameter}={10**12} is more than {most}"


@by_name
def test_no_parameter_makes_a_description_long_without_limit(operator):
    ones = {each: operator.defaults.get(each, 1) for each in operator.parameters}
    for parameter in operator.parameters:
        shape = {**ones, parameter: 10**12}
        if operator.refusal(shape) is None:
            work = operator.work(shape, "bfloat16")
            assert len(work.forward) + len(work.backward) < 100
            assert sum(len(op.inputs) for op in (*work.forward, *work.backward)) < 1000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 3, 4, 5, 6], "gemm has 5 parameters (m, n, k, transpose_a, transpose_b), not 6 values"),
        ([1, 2], "gemm needs k"),
        ({"m": 1, "n": 1, "k": 1, "q": 1}, "gemm has no parameter q"),
        ({"m": 1, "n": 1, "k": 1.5}, "k=1.5 must be integers"),
    ],
)
def test_a_shape_must_fit_its_operator(values, message):
    with pytest.raises(ValueError, match="gemm") as error:
        registry.find("gemm").shape(values)
    assert message in str(error.value)


def test_unknown_and_doubled_operators_are_refused():
    with pytest.raises(ValueError, match=r'unknown operator "flash_attn": did you mean flash_atten'):
        registry.find("flash_attn")
    with pytest.raises(ValueError, match=r'operator "gemm" is registered already'):
        registry.register(registry.find("gemm"))


@pytest.mark.parametrize(("name", "meant"), [("attention", "sdpa"), ("matmul", "gemm"), ("conv", "conv2d")])
def test_other_words_for_an_operator_are_understood(name, meant):
    with pytest.raises(ValueError, match=f'unknown operator "{name}": did you mean {meant}'):
        registry.find(name)


def test_all_suggestions_exist():
    assert {each for found in registry._SYNONYMS.values() for each in found} <= set(registry.names())


def test_operators_are_known_without_torch():
    code = (
        "import sys; from rooflight.costs.operators import registry; registry.names(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_backward_runs_any_number_of_times():
    for name in ("gelu", "fillmask", "flash_atten", "ScaledUpperTriangMaskedSoftmax"):
        operator = registry.find(name)
        prepared = operator.prepare(
            torch, operator.shape([1, 1, 2, 8, 8][: len(operator.parameters)]), "float32", "cpu"
        )
        assert prepared.backward is not None
        out = prepared.forward()
        first = prepared.backward(out)
        assert torch.equal(first[0], prepared.backward(out)[0])
