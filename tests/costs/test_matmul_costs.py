from math import prod

import pytest
from builders import cost, op, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of

sizes = st.integers(min_value=1, max_value=64)


def test_mm():
    c = cost("aten::mm", [spec((4, 6)), spec((6, 5))], [spec((4, 5))])
    assert c.matrix_flops == 240  # 2 * 4 * 6 * 5
    assert c.matrix_dtype == "float32"
    assert c.vector_flops == 0
    assert c.bytes_read == 216  # 4 * (4 * 6 + 6 * 5)
    assert c.bytes_written == 80  # 4 * 4 * 5


def test_mm_of_a_tensor_with_itself_reads_it_once():
    x = spec((8, 8), "bfloat16", storage=0)
    c = cost("aten::mm", [x, x], [spec((8, 8), "bfloat16")])
    assert c.bytes_read == 128  # 2 * 8 * 8


def test_mm_into_out_does_not_read_it():
    out = spec((4, 5), storage=0)
    c = cost("aten::mm", {"self": spec((4, 6)), "mat2": spec((6, 5)), "out": out}, [out])
    assert (c.bytes_read, c.bytes_written) == (216, 80)


def test_complex_mm_is_four_real_ones():
    c = cost("aten::mm", [spec((4, 6), "complex64"), spec((6, 5), "complex64")], [spec((4, 5), "complex64")])
    assert c.matrix_flops == 960  # 4 * 240


def test_addmm_adds_its_bias_on_the_vector_unit():
    c = cost("aten::addmm", [spec((5,)), spec((4, 6)), spec((6, 5))], [spec((4, 5))])
    assert (c.matrix_flops, c.vector_flops) == (240, 20)
    assert c.bytes_read == 236  # 216 + 4 * 5


def test_addmm_activation_has_one_more_epilogue_op():
    c = cost("aten::_addmm_activation", [spec((5,)), spec((4, 6)), spec((6, 5))], [spec((4, 5))])
    assert c.vector_flops == 40  # 2 * 4 * 5


def test_bmm_reads_an_expanded_batch_once():
    expanded = spec((3, 4, 6), strides=(0, 6, 1))
    c = cost("aten::bmm", [expanded, spec((3, 6, 5))], [spec((3, 4, 5))])
    assert c.matrix_flops == 720  # 2 * 3 * 4 * 6 * 5
    assert c.bytes_read == 456  # 4 * (4 * 6 + 3 * 6 * 5)


def test_baddbmm_and_addbmm():
    a, b = spec((3, 4, 6)), spec((3, 6, 5))
    whole = cost("aten::baddbmm", [spec((3, 4, 5)), a, b], [spec((3, 4, 5))])
    summed = cost("aten::addbmm", [spec((4, 5)), a, b], [spec((4, 5))])
    assert whole.matrix_flops == summed.matrix_flops == 720
    assert (whole.vector_flops, summed.vector_flops) == (60, 20)
    assert summed.bytes_written == 80


@pytest.mark.parametrize(
    ("name", "inputs", "out", "flops"),
    [
        ("aten::mv", [spec((4, 6)), spec((6,))], (4,), 48),  # 2 * 4 * 6
        ("aten::addmv", [spec((4,)), spec((4, 6)), spec((6,))], (4,), 48),
        ("aten::dot", [spec((6,)), spec((6,))], (), 12),  # 2 * 6
        ("aten::vdot", [spec((6,)), spec((6,))], (), 12),
        ("aten::inner", [spec((4, 6)), spec((5, 6))], (4, 5), 240),
        ("aten::matmul", [spec((6,)), spec((6, 5))], (5,), 60),  # 2 * 6 * 5
        ("aten::matmul", [spec((2, 4, 6)), spec((6, 5))], (2, 4, 5), 480),  # 2 * 2 * 4 * 6 * 5
        ("aten::linear", [spec((2, 4, 6)), spec((5, 6))], (2, 4, 5), 480),
        ("inductor::_mm_plus_mm", [spec((4, 6)), spec((6, 5)), spec((4, 3)), spec((3, 5))], (4, 5), 360),
        # 2 * 4 * 5 * (6 + 3)
        ("aten::bilinear", [spec((4, 2)), spec((4, 3)), spec((5, 2, 3))], (4, 5), 360),  # 2 * 4 * (5 * 2 * 3 + 5 * 3)
        ("aten::_euclidean_dist", [spec((4, 6)), spec((5, 6))], (4, 5), 240),
    ],
)
def test_products(name, inputs, out, flops):
    assert cost(name, inputs, [spec(out)]).matrix_flops == flops


def test_addr_is_vector_work():
    c = cost("aten::addr", [spec((4, 5)), spec((4,)), spec((5,))], [spec((4, 5))])
    assert (c.matrix_flops, c.vector_flops) == (0, 40)  # a multiply and an add for 4 * 5


def test_linear_counts_its_bias_once_per_output():
    inputs = {"input": spec((4, 6)), "weight": spec((5, 6)), "bias": spec((5,))}
    assert cost("aten::linear", inputs, [spec((4, 5))]).vector_flops == 20


@pytest.mark.parametrize(
    ("mask", "flops", "bias_flops", "read"),
    [
        ((True, True, True), 480, 20, 4 * (20 + 24 + 30)),  # 2 * 240; dy, x, w
        ((False, True, True), 240, 20, 4 * (20 + 24)),  # the first layer needs no dx, hence no w
        ((True, False, False), 240, 0, 4 * (20 + 30)),
        ((False, False, True), 0, 20, 4 * 20),
    ],
)
def test_linear_backward_follows_its_output_mask(mask, flops, bias_flops, read):
    outputs = [t for t, wanted in zip([spec((4, 6)), spec((5, 6)), spec((5,))], mask, strict=True) if wanted]
    inputs = {"self": spec((4, 6)), "grad_output": spec((4, 5)), "weight": spec((5, 6))}
    c = cost("aten::linear_backward", inputs, outputs, output_mask=mask)
    assert (c.matrix_flops, c.vector_flops, c.bytes_read) == (flops, bias_flops, read)


def test_matmul_backward_is_one_forward_per_gradient():
    inputs = {"grad": spec((4, 5)), "self": spec((4, 6)), "other": spec((6, 5))}
    outputs = [spec((4, 6)), spec((6, 5))]
    assert cost("aten::matmul_backward", inputs, outputs, mask=(True, True)).matrix_flops == 480
    assert cost("aten::matmul_backward", inputs, outputs[:1], mask=(True, False)).matrix_flops == 240


def test_foreach_mm_sums_its_list():
    inputs = {"self": [spec((4, 6)), spec((2, 3))], "mat2": [spec((6, 5)), spec((3, 2))]}
    assert cost("aten::_foreach_mm", inputs, [spec((4, 5)), spec((2, 2))]).matrix_flops == 264  # 240 + 2 * 2 * 3 * 2


def test_einsum_counts_the_joint_index_space():
    c = cost("aten::einsum", [spec((3, 4, 6)), spec((3, 6, 5))], [spec((3, 4, 5))], equation="bij,bjk->bik")
    assert c.matrix_flops == 720
    assert isinstance(cost_of(op("aten::einsum", [spec((3,))], [spec(())], equation="i->")), Uncosted)


def test_chain_matmul_takes_the_cheapest_order():
    chain = [spec((10, 100)), spec((100, 5)), spec((5, 50))]
    c = cost("aten::linalg_multi_dot", {"tensors": chain}, [spec((10, 50))])
    assert c.matrix_flops == 15_000  # 2 * (10 * 100 * 5 + 10 * 5 * 50)


def test_distances():
    assert cost("aten::_cdist_forward", [spec((4, 6)), spec((5, 6))], [spec((4, 5))]).vector_flops == 360  # 3*4*5*6
    assert cost("aten::_pdist_forward", [spec((4, 6))], [spec((6,))]).vector_flops == 108  # 3 * 6 pairs * 6


@given(sizes, sizes, sizes)
def test_transposing_a_product_changes_no_flops(m, k, n):
    one = cost("aten::mm", [spec((m, k)), spec((k, n))], [spec((m, n))])
    other = cost("aten::mm", [spec((n, k)), spec((k, m))], [spec((n, m))])
    assert one.matrix_flops == other.matrix_flops
    assert one.bytes_moved == other.bytes_moved


@given(sizes, sizes, sizes, sizes)
def test_a_batch_is_as_many_products(batch, m, k, n):
    single = cost("aten::mm", [spec((m, k)), spec((k, n))], [spec((m, n))])
    batched = cost("aten::bmm", [spec((batch, m, k)), spec((batch, k, n))], [spec((batch, m, n))])
    assert batched.matrix_flops == batch * single.matrix_flops
    assert batched.bytes_moved == batch * single.bytes_moved


@pytest.mark.parametrize(
    ("name", "left", "right", "added", "out", "elements"),
    [
        ("addmm", (3, 4), (4, 5), (3, 5), (3, 5), 15),
        ("_addmm_activation", (3, 4), (4, 5), (5,), (3, 5), 15),
        ("baddbmm", (2, 3, 4), (2, 4, 5), (2, 3, 5), (2, 3, 5), 30),
        ("addbmm", (2, 3, 4), (2, 4, 5), (3, 5), (3, 5), 15),
        ("addmv", (3, 4), (4,), (3,), (3,), 3),
        ("addr", (3,), (5,), (3, 5), (3, 5), 15),
    ],
)
def test_beta_0_reads_and_adds_nothing(name, left, right, added, out, elements):
    inputs = {"self": spec(added), "a": spec(left), "b": spec(right)}
    given, without = (cost(f"aten::{name}", inputs, [spec(out)], **beta) for beta in ({}, {"beta": 0}))
    assert without.matrix_flops == given.matrix_flops
    assert given.vector_flops - without.vector_flops == elements
    assert without.bytes_read == 4 * (prod(left) + prod(right))
    assert given.bytes_read == without.bytes_read + 4 * prod(added)
    assert without.bytes_written == given.bytes_written


def test_in_place_with_beta_0_writes_without_reading():
    self = spec((3, 5), storage=0)
    c = cost("aten::addmm_", {"self": self, "mat1": spec((3, 4)), "mat2": spec((4, 5))}, [self], beta=0)
    assert (c.bytes_read, c.bytes_written) == (4 * 32, 60)


def test_alpha_0_multiplies_nothing_and_reads_no_operand():
    added, left, right = spec((3, 5)), spec((3, 4)), spec((4, 5))
    c = cost("aten::addmm", {"self": added, "mat1": left, "mat2": right}, [added], alpha=0)
    assert (c.matrix_flops, c.vector_flops, c.bytes_read, c.bytes_written) == (0, 0, 60, 60)
    nothing = cost("aten::addmm", {"self": added, "mat1": left, "mat2": right}, [added], alpha=0, beta=0)
    assert (nothing.bytes_read, nothing.bytes_written) == (0, 60)
    outer = cost("aten::addr", {"self": added, "vec1": spec((3,)), "vec2": spec((5,))}, [added], alpha=0)
    assert (outer.vector_flops, outer.bytes_read) == (0, 60)


def test_adding_0_times_a_tensor_copies_the_other():
    x, inside = spec((3, 5)), spec((3, 5), storage=0)
    for name in ("add", "sub", "rsub"):
        c = cost(f"aten::{name}", {"self": x, "other": x}, [x], alpha=0)
        assert (c.vector_flops, c.bytes_read, c.bytes_written) == (0, 60, 60), name
    assert cost("aten::add_", {"self": inside, "other": x}, [inside], alpha=0).bytes_moved == 0


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0])
def test_recorded_alpha_of_0_is_kept_and_no_other(alpha):
    import torch

    import rooflight as rl

    def recorded(value):
        with rl.record() as recording:
            torch.add(torch.zeros(3), torch.ones(3), alpha=value)
            torch.rsub(torch.ones(3), torch.ones(3), alpha=value)
        return [op.attributes for op in recording.session.signatures if op.name.endswith(("add", "sub"))]

    assert recorded(alpha) == [(("alpha", 0),)] * 2
    assert recorded(2) == [()] * 2


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, False])
def test_recorded_beta_of_0_is_kept_and_no_other(beta):
    import torch

    import rooflight as rl

    def recorded(value):
        with rl.record() as recording:
            torch.baddbmm(torch.zeros(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5), beta=value, alpha=3)
            torch.zeros(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5), beta=value)
        return [op for op in recording.session.signatures if "mm" in op.name]

    assert [op.attributes for op in recorded(beta)] == [(("beta", 0),)] * 2
    assert [op.attributes for op in recorded(1e-30)] == [()] * 2
    assert recorded(0.5) == recorded(2)
