"""torch's settings of precision are those with which a product ran, in the middle of a step too."""

import pytest
import torch
from torch import nn

import rooflight as rl

H100, GEFORCE = "H100-SXM5-80GB", "RTX-4090"


@pytest.fixture(autouse=True)
def restored():
    yield
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_fp16_accumulation = False
    torch.set_float32_matmul_precision("highest")


def meta(*size, dtype=torch.float32):
    return torch.empty(size, dtype=dtype, device="meta")


def analyzed(function, device=H100):
    with rl.record() as recording:
        function()
    return rl.analyze(recording.session, device)


def toggled(function):
    torch.backends.cuda.matmul.allow_tf32 = True
    function()
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("first", [True, False])
def test_a_switch_within_a_step_holds_for_what_runs_under_it(first):
    x = meta(4096, 4096)

    def step():
        if first:
            toggled(lambda: x @ x)
            x @ (x + 1)
        else:
            x @ (x + 1)
            toggled(lambda: x @ x)

    found = analyzed(step)
    work = 2 * 4096**3
    assert found.totals.op_bound_s == pytest.approx(work / 494.7e12 + work / 66.9e12 + 4096**2 * 8 / 3.35e12, rel=0.01)
    assert found.matrix_formats == ["float32", "tfloat32"]


def test_a_backward_pass_runs_under_its_own_settings():
    layer, x = nn.Linear(4096, 4096, bias=False, device="meta"), meta(4096, 4096)

    def step():
        loss = layer(x)
        toggled(lambda: loss.backward(meta(4096, 4096)))

    work = 2 * 4096**3
    assert analyzed(step).totals.matrix_flops == 2 * work
    assert analyzed(step).totals.op_bound_s == pytest.approx(work / 66.9e12 + work / 494.7e12, rel=0.03)


def test_convolutions_recurrent_networks_and_attention():
    image, kernel = meta(64, 1024, 56, 56), meta(1024, 1024, 1, 1)

    def convolution():
        nn.functional.conv2d(image, kernel)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            nn.functional.conv2d(image, kernel)

    work = 2 * 64 * 56 * 56 * 1024 * 1024
    assert analyzed(convolution).totals.op_bound_s == pytest.approx(work / 494.7e12 + work / 66.9e12, rel=0.01)
    query, key, value = (meta(8, 16, 2048, 64) for _ in range(3))

    def attention():
        nn.functional.scaled_dot_product_attention(query, key, value)
        toggled(lambda: nn.functional.scaled_dot_product_attention(query, key, value))

    work = 4 * 8 * 16 * 2048**2 * 64
    assert analyzed(attention).totals.op_bound_s == pytest.approx(work / (494.7e12 / 3) + work / 494.7e12, rel=0.03)


def test_sums_of_half_precision_are_a_setting_too():
    x = meta(8192, 8192, dtype=torch.float16)

    def step():
        x @ x
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
        x @ x
        torch.backends.cuda.matmul.allow_fp16_accumulation = False

    work = 2 * 8192**3
    assert analyzed(step, GEFORCE).totals.op_bound_s == pytest.approx(work / 165.2e12 + work / 330.3e12)
    assert analyzed(step).totals.op_bound_s == pytest.approx(2 * work / 989.4e12)


def test_a_step_under_one_setting_has_no_attributes():
    x = meta(8, 8)
    torch.backends.cuda.matmul.allow_tf32 = True
    with rl.record() as recording:
        x @ x
        x @ x
    torch.backends.cuda.matmul.allow_tf32 = False
    assert len(recording.session.signatures) == 1
    assert recording.session.environment["torch.backends.cuda.matmul.fp32_precision"] == "tf32"


def test_powers_and_products_by_0_and_1_are_told_apart():
    x = meta(64, 64)

    def step():
        x.pow(0)
        x.pow(2.5)
        x.pow_(1)
        x * 1.0
        x * 0
        x * 2
        torch.native_dropout(x, 1.0, True)

    with rl.record() as recording:
        step()
    found = [record.signature.attribute("number") for record in recording.session.records]
    assert found == [0, None, 1, 1, 0, None, 1]


@pytest.mark.parametrize(
    "gram",
    [
        lambda x: x @ x.T,
        lambda x: x[None] @ x[None].mT,
        lambda x: torch.bmm(x[None], x.T[None]),
        lambda x: torch.einsum("bi,bj->ij", x, x),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.cdist(x, x),
    ],
)
def test_a_product_with_itself_is_half_the_work_whatever_its_strides(gram):
    x = meta(512, 512)
    costs = [each.cost for each in analyzed(lambda: gram(x)).operations if each.cost.matrix_flops]
    assert [each.avoidable_flops for each in costs] == [each.matrix_flops * 511 // 1024 for each in costs]
