from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.pointwise import ACTIVATIONS, ELEMENTWISE, MULTIPLICATIVE

TABLES = [(name, flops) for table in (MULTIPLICATIVE, ELEMENTWISE, ACTIVATIONS) for flops, ops in table.items()
          for name in ops.split()]  # fmt: skip


@given(shape=st.lists(st.integers(0, 9), max_size=4).map(tuple))
def test_every_op_of_the_tables_counts_per_element(shape):
    x = spec(shape)
    found = {name: cost(f"aten::{name}", {"self": x}, [x]).vector_flops for name, _ in TABLES}
    assert found == {name: flops * x.numel for name, flops in TABLES}


def test_add_reads_two_and_writes_one():
    c = cost("aten::add", {"self": spec((4, 6)), "other": spec((4, 6))}, [spec((4, 6))])
    assert (c.bytes_read, c.bytes_written) == (192, 96)
    assert c.matrix_flops == 0
    assert c.vector_dtype == "float32"


def test_broadcast_operand_is_read_at_its_own_size():
    c = cost("aten::add", {"self": spec((4, 6)), "other": spec((6,))}, [spec((4, 6))])
    assert c.bytes_read == 120  # 4 * (24 + 6)
    expanded = spec((4, 6), strides=(0, 1))
    assert cost("aten::add", {"self": spec((4, 6)), "other": expanded}, [spec((4, 6))]).bytes_read == 120


def test_in_place_reads_and_writes():
    x = spec((4, 6), storage=0)
    c = cost("aten::add_", {"self": x, "other": spec((4, 6))}, [x])
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (192, 96, 24)


def test_square_of_a_tensor_reads_it_once():
    x = spec((4, 6), storage=0)
    assert cost("aten::mul", {"self": x, "other": x}, [spec((4, 6), storage=1)]).bytes_read == 96


def test_out_is_not_read():
    out = spec((4, 6), storage=0)
    assert cost("aten::add", {"self": spec((4, 6)), "other": spec((4, 6)), "out": out}, [out]).bytes_read == 192


def test_backward_reads_its_saved_output():
    y = spec((4, 6))
    assert cost("aten::tanh_backward", {"grad_output": y, "output": y}, [spec((4, 6))]).bytes_read == 192


def test_complex_multiplication_is_six():
    z = spec((5,), "complex64")
    assert cost("aten::mul", {"self": z, "other": z}, [z]).vector_flops == 30
    assert cost("aten::add", {"self": z, "other": z}, [z]).vector_flops == 10


def test_comparison_writes_booleans():
    c = cost("aten::gt", {"self": spec((4, 6))}, [spec((4, 6), "bool")])
    assert (c.vector_flops, c.bytes_written) == (24, 24)


def test_gated_linear_unit_works_on_halves():
    x, y = spec((4, 12)), spec((4, 6))
    assert cost("aten::glu", {"self": x}, [y]).vector_flops == 96  # 4 * 24
    assert cost("aten::glu_backward", {"grad_output": y, "self": x}, [x]).vector_flops == 192


def test_masked_fill_in_place_is_an_upper_count():
    x = spec((4, 6), storage=0)
    c = cost("aten::masked_fill_", {"self": x, "mask": spec((4, 6), "bool")}, [x])
    assert c.upper
    assert (c.bytes_read, c.bytes_written) == (24, 96)
    assert not cost("aten::masked_fill", {"self": x, "mask": spec((6,), "bool")}, [spec((4, 6))]).upper


@given(st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
def test_bytes_are_those_of_the_tensors(shape, dtype):
    x = spec(shape, dtype)
    c = cost("aten::neg", {"self": x}, [x])
    assert c.bytes_read == c.bytes_written == x.nbytes
    assert c.vector_flops == x.numel
