from math import prod

import pytest
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(min_value=1, max_value=64)


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


def test_adding_0_times_a_tensor_copies_the_other():
    x, inside = spec((3, 5)), spec((3, 5), storage=0)
    for name in ("add", "sub", "rsub"):
        c = cost(f"aten::{name}", {"self": x, "other": x}, [x], alpha=0)
        assert (c.vector_flops, c.bytes_read, c.bytes_written) == (0, 60, 60), name
    assert cost("aten::add_", {"self": inside, "other": x}, [inside], alpha=0).bytes_moved == 0


def scaled(name, value):
    """The settings and signatures recorded of calls with this alpha or beta."""
    import torch

    import rooflight as rl

    with rl.record() as recording:
        if name == "alpha":
            torch.add(torch.zeros(3), torch.ones(3), alpha=value)
            torch.rsub(torch.ones(3), torch.ones(3), alpha=value)
        else:
            torch.baddbmm(torch.zeros(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5), beta=value, alpha=3)
            torch.zeros(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5), beta=value)
    return [op for op in recording.session.signatures if op.name.endswith(("add", "sub", "mm", "mm_"))]


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("nothing", [0, 0.0, -0.0, False])
def test_a_recorded_factor_of_0_stays_and_no_other(name, nothing):
    if name == "beta" or nothing is not False:  # torch takes no boolean alpha for floats
        assert [op.attributes for op in scaled(name, nothing)] == [((name, 0),)] * 2
    assert [op.attributes for op in scaled(name, 1e-30)] == [()] * 2
    assert scaled(name, 0.5) == scaled(name, 2)


test_costs = costs(
    """
    # products: 2 * 4 * 6; 2 * 6; 2 * 6 * 5; 2 * 2 * 4 * 6 * 5; 2 * 4 * 5 * (6 + 3); 2 * 4 * (5 * 2 * 3 + 5 * 3)
    mv 4x6 6 -> 4 = matrix 48
    addmv 4 4x6 6 -> 4 = matrix 48
    dot 6 6 -> () = matrix 12
    vdot 6 6 -> () = matrix 12
    inner 4x6 5x6 -> 4x5 = matrix 240
    matmul 6 6x5 -> 5 = matrix 60
    matmul 2x4x6 6x5 -> 2x4x5 = matrix 480
    linear 2x4x6 5x6 -> 2x4x5 = matrix 480
    inductor::_mm_plus_mm 4x6 6x5 4x3 3x5 -> 4x5 = matrix 360
    bilinear 4x2 4x3 5x2x3 -> 4x5 = matrix 360
    _euclidean_dist 4x6 5x6 -> 4x5 = matrix 240
    # linear backward follows its output mask: 2 * 240, dy, x and w read; the first layer needs no dx, hence no w
    linear_backward self=4x6 grad_output=4x5 weight=5x6 -> 4x6 5x6 5 | output_mask=(True,True,True) = matrix 480, vector
        20, read 296
    linear_backward self=4x6 grad_output=4x5 weight=5x6 -> 5x6 5 | output_mask=(False,True,True) = matrix 240, vector
        20, read 176
    linear_backward self=4x6 grad_output=4x5 weight=5x6 -> 4x6 | output_mask=(True,False,False) = matrix 240, vector 0,
        read 200
    linear_backward self=4x6 grad_output=4x5 weight=5x6 -> 5 | output_mask=(False,False,True) = matrix 0, vector 20,
        read 80
    # mm: 2 * 4 * 6 * 5; 4 * (4 * 6 + 6 * 5); 4 * 4 * 5
    mm 4x6 6x5 -> 4x5 = matrix 240, on float32, vector 0, read 216, written 80
    # mm of a tensor with itself reads it once: 2 * 8 * 8
    mm 8x8:bfloat16@0 8x8:bfloat16@0 -> 8x8:bfloat16 = read 128
    # mm into out does not read it
    mm self=4x6 mat2=6x5 out=4x5@0 -> 4x5@0 = read 216, written 80
    # complex mm is four real ones: 4 * 240
    mm 4x6:complex64 6x5:complex64 -> 4x5:complex64 = matrix 960
    # addmm adds its bias on the vector unit: 216 + 4 * 5
    addmm 5 4x6 6x5 -> 4x5 = matrix 240, vector 20, read 236
    # addmm activation has one more epilogue op: 2 * 4 * 5
    _addmm_activation 5 4x6 6x5 -> 4x5 = vector 40
    # baddbmm and addbmm
    baddbmm 3x4x5 3x4x6 3x6x5 -> 3x4x5 = matrix 720, vector 60
    addbmm 4x5 3x4x6 3x6x5 -> 4x5 = matrix 720, vector 20, written 80
    # addr is vector work: a multiply and an add for 4 * 5
    addr 4x5 4 5 -> 4x5 = matrix 0, vector 40
    # linear counts its bias once per output
    linear input=4x6 weight=5x6 bias=5 -> 4x5 = vector 20
    # matmul backward is one forward per gradient
    matmul_backward grad=4x5 self=4x6 other=6x5 -> 4x6 6x5 | mask=(True,True) = matrix 480
    matmul_backward grad=4x5 self=4x6 other=6x5 -> 4x6 | mask=(True,False) = matrix 240
    # foreach mm sums its list: 240 + 2 * 2 * 3 * 2
    _foreach_mm self=4x6 self=2x3 mat2=6x5 mat2=3x2 -> 4x5 2x2 = matrix 264
    # chain matmul takes the cheapest order: 2 * (10 * 100 * 5 + 10 * 5 * 50)
    linalg_multi_dot tensors=10x100 tensors=100x5 tensors=5x50 -> 10x50 = matrix 15000
    # distances: 3*4*5*6; 3 * 6 pairs * 6
    _cdist_forward 4x6 5x6 -> 4x5 = vector 240
    _cdist_forward 4x6@0 4x6@0 -> 4x4 = vector 120
    _pdist_forward 4x6 -> 6 = vector 72
    # in place with beta 0 writes without reading: 4 * 32
    addmm_ self=3x5@0 mat1=3x4 mat2=4x5 -> 3x5@0 | beta=0 = read 128, written 60
    # alpha 0 multiplies nothing and reads no operand
    addmm self=3x5 mat1=3x4 mat2=4x5 -> 3x5 | alpha=0 = matrix 0, vector 0, read 60, written 60
    addmm self=3x5 mat1=3x4 mat2=4x5 -> 3x5 | alpha=0 beta=0 = read 0, written 60
    addr self=3x5 vec1=3 vec2=5 -> 3x5 | alpha=0 = vector 0, read 60
    # bmm reads an expanded batch once: 2 * 3 * 4 * 6 * 5; 4 * (4 * 6 + 3 * 6 * 5)
    bmm 3x4x6~0,6,1 3x6x5 -> 3x4x5 = matrix 720, read 456
    # einsum counts the joint index space
    einsum 3x4x6 3x6x5 -> 3x4x5 | equation='bij,bjk->bik' = matrix 720
    einsum 3 -> () | equation='i->' = uncosted
    """
)


def test_a_bilinear_layer_multiplies_two_of_three_first():
    settings = {"expand1": (1, 3), "expand2": (0,), "expand3": (1, 2), "sumdim": (2, 3), "unroll_dim": 1}
    made = {"i1": spec((10, 6)), "i2": spec((4, 6, 5)), "i3": spec((10, 5))}
    first, then = 10 * 4 * 6 * 5, 10 * 4 * 5  # x [10, 6] with w [4, 6, 5], then with y [10, 5]: or y first, then x
    other = 10 * 4 * 6
    found = cost("aten::_trilinear", made, [spec((10, 4))], **settings)
    assert found.matrix_flops == 2 * (first + min(then, other))
