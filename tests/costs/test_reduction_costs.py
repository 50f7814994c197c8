from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.families.reduction import REDUCTIONS

TABLE = {name: flops for flops, ops in REDUCTIONS.items() for name in ops.split()}


@given(rows=st.integers(0, 9), width=st.integers(0, 9))
def test_every_op_of_the_table_counts_per_input_element(rows, width):
    x, out = spec((rows, width)), spec((rows,))
    found = {name: cost(f"aten::{name}", {"self": x}, [out]).vector_flops for name in TABLE}
    assert found == {name: flops * rows * width for name, flops in TABLE.items()}


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_dimension_reduced_does_not_matter(rows, columns):
    x = {"self": spec((rows, columns))}
    assert cost("aten::sum", x, [spec((rows,))]).vector_flops == cost("aten::sum", x, [spec((columns,))]).vector_flops


test_costs = costs(
    """
    # sum reads in and writes out
    sum self=4x6:bfloat16 -> 4:bfloat16 = vector 24, read 48, written 8
    # max with indices: 4 * 4 + 4 * 8
    max self=4x6 -> 4 4:int64 = written 48
    # max into out reads only its input
    max self=4x6@0 max=4@1 max_values=4:int64@2 -> 4@1 4:int64@2 = read 96
    # complex sum is two
    sum self=6:complex64 -> ():complex64 = vector 12
    # sum of an expanded tensor reads it once
    sum self=4x6~0,0 -> () = read 4
    """
)
