from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 8))
def test_a_lookup_never_reads_more_than_table_and_indices(rows, indices, width):
    table, picks = spec((rows, width)), spec((indices,), "int64")
    c = cost("aten::embedding", {"weight": table, "indices": picks}, [spec((indices, width))])
    assert c.bytes_read <= table.nbytes + picks.nbytes


def test_indices_that_may_repeat_leave_an_upper_count():
    table, rows = spec((100, 8)), spec((3, 8))
    three, one, mask = spec((3,), "int64"), spec((1,), "int64"), spec((100,), "bool")
    for indices, upper in ((three, True), (one, False)):
        picked = spec((indices.numel, 8))
        assert cost("aten::embedding", {"weight": table, "indices": indices}, [picked]).upper is upper
        assert cost("aten::index_select", {"self": table, "index": indices}, [picked], dim=0).upper is upper
        assert cost("aten::index", {"self": table, "indices": [indices]}, [picked]).upper is upper
        kept = spec((100, 8), storage=0)
        inputs = {"self": kept, "index": indices, "source": picked}
        assert cost("aten::index_copy_", inputs, [kept], dim=0).upper is upper
    # a mask names no element twice, and what it picks is as large as the result
    assert not cost("aten::index", {"self": table, "indices": [mask]}, [rows]).upper
    # out of place the whole is written; the rows that repeated indices leave alone are read besides
    assert not cost("aten::index_copy", {"self": table, "index": three, "source": rows}, [table], dim=0).upper


test_costs = costs(
    """
    # embedding reads only the rows picked: 6 * 8 of indices, 6 rows of 8 * 4
    # tokens that repeat read one row: the least counts one number of it
    embedding weight=1000x8 indices=2x3:int64 -> 2x3x8 = read 240, written 192, vector 0, upper True, least_read 52
    embedding weight=1000x8 indices=1:int64 -> 1x8 = read 40, upper False, least_read 40
    # what is reduced may leave out what was there
    scatter_reduce self=10 index=4:int64 src=4 -> 10 | reduce="sum" = read 88
    scatter_reduce self=10 index=4:int64 src=4 -> 10 | reduce="sum", include_self=False = read 72
    scatter_reduce_ self=10@0 index=4:int64 src=4 -> 10@0 | reduce="sum", include_self=False = read 48, written 16,
        least_written 4
    scatter_add_ self=10@0 index=4:int64 src=4 -> 10@0 = read 64, written 16, least_read 52, least_written 4
    # embedding reads no row twice: 400 of indices, 2 rows
    embedding weight=2x8 indices=50:int64 -> 50x8 = read 464
    # embedding backward writes the table
    embedding_dense_backward grad_output=6x8 indices=6:int64 -> 1000x8 | num_weights=1000 = read 240, written 32000,
        vector 48
    # embedding bag adds rows: 48 + 16 of integers, 192 of rows
    _embedding_bag weight=1000x8 indices=6:int64 offsets=2:int64 -> 2x8 = vector 48, read 256
    # gather and index select: 24 * 8 + 24 * 4; 24 + 96
    gather self=100x8 index=3x8:int64 -> 3x8 | dim=0 = read 288, written 96
    index_select self=100x8 index=3:int64 -> 3x8 | dim=0 = read 120
    index self=100x8 indices=3:int64 -> 3x8 = read 120
    # masked select reads the mask and the picks: 100 + 7 * 4
    masked_select self=100 mask=100:bool -> 7 = read 128
    # scatter add in place touches what it is given: 192 of indices, 96 of src, 96 of x
    scatter_add_ self=100x8@0 index=3x8:int64 src=5x8 -> 100x8@0 | dim=0 = vector 24, read 384, written 96
    # scatter in place reads nothing of its target
    scatter_ self=100x8@0 index=3x8:int64 -> 100x8@0 | dim=0 = read 192, written 96, vector 0
    # scatter out of place copies the rest: 192 + 96 + 3200 - 96
    scatter self=100x8 index=3x8:int64 src=3x8 -> 100x8 | dim=0 = read 3392, written 3200
    # index put
    index_put_ self=100x8@0 indices=3:int64 values=3x8 -> 100x8@0 | accumulate=False = read 120, written 96
    index_put_ self=100x8@0 indices=3:int64 values=3x8 -> 100x8@0 | accumulate=True = read 216, written 96, vector 24
    index_put_ self=100x8@0 indices=100x8:bool values=() -> 100x8@0 | accumulate=False = upper True
    # index fill and diagonal: 2 * 100 elements; 8 * 4
    index_fill_ self=100x8@0 index=2:int64 -> 100x8@0 | dim=1 = read 16, written 800
    fill_diagonal_ self=100x8@0 -> 100x8@0 = moved 32
    # slice scatter copies around the source: 6 rows and 4 rows
    slice_scatter self=10x8 src=4x8 -> 10x8 = read 320, written 320
    # index add reads what it adds to, index copy does not
    index_add_ self=100x8@0 index=3:int64 source=3x8 -> 100x8@0 | dim=0 = read 216, written 96, vector 24
    index_copy_ self=100x8@0 index=3:int64 source=3x8 -> 100x8@0 | dim=0 = read 120, written 96, vector 0
    # item reads one element
    _local_scalar_dense self=():int64 -> = moved 8
    # searching halves: 10 halvings for each of 5; 5 values, 50 of the sequence
    searchsorted sorted_sequence=1000 self=5 -> 5:int64 = vector 50, read 220
    # sorting is bytes only
    topk self=4x100 -> 4x5 4x5:int64 | k=5 = vector 0, read 1600, written 240
    """
)
