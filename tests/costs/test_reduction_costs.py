from builders import cost, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.reduction import REDUCTIONS

TABLE = {name: flops for flops, ops in REDUCTIONS.items() for name in ops.split()}


@given(rows=st.integers(0, 9), width=st.integers(0, 9))
def test_every_op_of_the_table_counts_per_input_element(rows, width):
    x, out = spec((rows, width)), spec((rows,))
    found = {name: cost(f"aten::{name}", {"self": x}, [out]).vector_flops for name in TABLE}
    assert found == {name: flops * rows * width for name, flops in TABLE.items()}


def test_sum_reads_in_and_writes_out():
    c = cost("aten::sum", {"self": spec((4, 6), "bfloat16")}, [spec((4,), "bfloat16")])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (24, 48, 8)


def test_sum_of_an_expanded_tensor_reads_it_once():
    assert cost("aten::sum", {"self": spec((4, 6), strides=(0, 0))}, [spec()]).bytes_read == 4


def test_max_with_indices():
    c = cost("aten::max", {"self": spec((4, 6))}, [spec((4,)), spec((4,), "int64")])
    assert c.bytes_written == 48  # 4 * 4 + 4 * 8


def test_max_into_out_reads_only_its_input():
    largest, where = spec((4,), storage=1), spec((4,), "int64", storage=2)
    c = cost("aten::max", {"self": spec((4, 6), storage=0), "max": largest, "max_values": where}, [largest, where])
    assert c.bytes_read == 96


def test_complex_sum_is_two():
    assert cost("aten::sum", {"self": spec((6,), "complex64")}, [spec((), "complex64")]).vector_flops == 12


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_dimension_reduced_does_not_matter(rows, columns):
    x = {"self": spec((rows, columns))}
    assert cost("aten::sum", x, [spec((rows,))]).vector_flops == cost("aten::sum", x, [spec((columns,))]).vector_flops
