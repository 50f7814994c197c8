from builders import cost, spec
from cost_table import costs
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


@given(st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
def test_bytes_are_those_of_the_tensors(shape, dtype):
    x = spec(shape, dtype)
    c = cost("aten::sqrt", {"self": x}, [x])
    assert c.bytes_read == c.bytes_written == x.nbytes
    assert c.vector_flops == x.numel


test_costs = costs(
    """
    # add reads two and writes one
    add self=4x6 other=4x6 -> 4x6 = read 192, written 96, matrix 0, vector_on float32
    # in place reads and writes
    add_ self=4x6@0 other=4x6 -> 4x6@0 = read 192, written 96, vector 24
    # square of a tensor reads it once
    mul self=4x6@0 other=4x6@0 -> 4x6@1 = read 96
    # a sign is free
    neg self=4x6 -> 4x6 = read 96, written 96, vector 0
    abs self=4x6 -> 4x6 = vector 0
    # what all operands repeat is computed once
    exp self=4x6~0,1 -> 4x6 = read 24, written 96, vector 6
    add self=4x6~0,1 other=4x6 -> 4x6 = read 120, vector 24
    # powers and products by 0 and 1
    pow self=4x6 -> 4x6 | number=0 = read 0, written 96, vector 0
    pow self=4x6 -> 4x6 | number=1 = read 96, written 96, vector 0
    pow_ self=4x6@0 -> 4x6@0 | number=1 = read 0, written 0, vector 0
    mul self=4x6 -> 4x6 | number=0 = read 0, written 96
    mul_ self=4x6@0 -> 4x6@0 | number=0 = read 0, written 96
    mul_ self=4x6@0 -> 4x6@0 | number=1 = read 0, written 0
    div self=4x6 -> 4x6 | number=1 = read 96, written 96, vector 0
    div self=4x6 -> 4x6 | number=0 = read 96, written 96
    native_dropout input=4x6 -> 4x6 4x6:bool | number=1 = read 0, written 120
    native_dropout input=4x6 -> 4x6 4x6:bool | number=0 = read 96, written 120, vector 0
    # out is not read
    add self=4x6 other=4x6 out=4x6@0 -> 4x6@0 = read 192
    # backward reads its saved output
    tanh_backward grad_output=4x6 output=4x6 -> 4x6 = read 192
    # complex multiplication is six
    mul self=5:complex64 other=5:complex64 -> 5:complex64 = vector 30
    add self=5:complex64 other=5:complex64 -> 5:complex64 = vector 10
    # comparison writes booleans
    gt self=4x6 -> 4x6:bool = vector 24, written 24
    # gated linear unit works on halves: 4 * 24
    glu self=4x12 -> 4x6 = vector 96
    glu_backward grad_output=4x6 self=4x12 -> 4x12 = vector 192
    # masked fill: in place nothing need be masked and written, elsewhere everything masked and not read
    masked_fill_ self=4x6@0 mask=4x6:bool -> 4x6@0 = upper True, read 24, written 96, least_written 4
    masked_fill self=4x6@0 mask=6:bool -> 4x6 = upper True, read 102, least_read 10
    # where: all can be of one of the two: 24 + 96 + 4
    where condition=4x6:bool self=4x6 other=4x6 -> 4x6 = read 216, least_read 124, least_written 96
    where condition=4x6:bool self=4x6 other=1 -> 4x6 = read 124, least_read 32
    # broadcast operand is read at its own size: 4 * (24 + 6)
    add self=4x6 other=6 -> 4x6 = read 120
    add self=4x6 other=4x6~0,1 -> 4x6 = read 120
    """
)
