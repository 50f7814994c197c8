import pytest
import torch
from builders import cost, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost, recorded_costs

from rooflight.costs.families.copying import FILLS, QUESTIONS, UNINITIALIZED, VIEWS

SIZES = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(SIZES)
def test_metadata_moves_nothing(sizes):
    rows, width = sizes
    x, turned = spec((rows, width), storage=0), spec((width, rows), strides=(1, width), storage=0)
    for name in (*VIEWS.split(), *QUESTIONS.split(), *UNINITIALIZED.split()):
        c = cost(f"aten::{name}", {"self": x}, [turned])
        assert c.bytes_moved == c.vector_flops == c.matrix_flops == 0, name


@given(SIZES)
def test_fills_write_and_read_nothing(sizes):
    x = spec(sizes)
    for name in FILLS.split():
        c = cost(f"aten::{name}", {"self": x}, [x])
        assert (c.bytes_read, c.bytes_written) == (0, 4 * x.numel), name


@pytest.mark.parametrize("name", ["zero_", "fill_", "normal_", "uniform_", "exponential_", "bernoulli_", "random_"])
def test_overwriting_does_not_read(name):
    x = spec((4, 6), storage=0)
    c = cost(f"aten::{name}", {"self": x}, [x])
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (0, 96, 0)


def test_copy_of_a_view_onto_itself_moves_nothing():
    """``x[:1000] += 1`` ends with it, and torch returns at once where memory, shape and strides are the same."""
    x = torch.zeros(4096)

    def program():
        x[:1000] += 1

    found = recorded_costs(program)
    assert [(c.bytes_read, c.bytes_written) for c in found["add_"]] == [(4000, 4000)]
    assert [c.bytes_moved for c in found["copy_"]] == [0]
    assert only_cost(lambda: x[:1000].copy_(x[1000:2000]), "copy_").bytes_moved == 8000


@pytest.mark.parametrize(
    ("program", "name", "bytes_read"),
    [
        (torch.diag, "diagonal_copy", 16),
        (lambda x: torch.select_copy(x, 0, 1), "select_copy", 24),
        (lambda x: torch.slice_copy(x, 0, 0, 2), "slice_copy", 48),
        (lambda x: torch.as_strided_copy(x, (5,), (1,)), "as_strided_copy", 20),
        (lambda x: torch.as_strided_copy(x, (9, 9), (0, 0)), "as_strided_copy", 4),
        (lambda x: torch.unfold_copy(x, 1, 2, 4), "unfold_copy", 64),  # 4 rows, 2 windows of 2
        (torch.trace, "trace", 16),
    ],
)
def test_copies_of_parts_read_no_more_than_the_part(program, name, bytes_read):
    x = torch.zeros(4, 6)
    assert only_cost(lambda: program(x), name).bytes_read == bytes_read


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-10, 10))
def test_triangles_read_what_they_keep(rows, columns, diagonal):
    x = spec((2, rows, columns))
    lower = cost("aten::tril", {"self": x}, [x], diagonal=diagonal)
    kept = sum(j - i <= diagonal for i in range(rows) for j in range(columns))
    assert lower.bytes_read == 8 * kept  # 2 matrices * 4 bytes
    upper = cost("aten::triu", {"self": x}, [x], diagonal=diagonal + 1)
    assert lower.bytes_read + upper.bytes_read == x.nbytes
    shared = spec((2, rows, columns), storage=0)
    in_place = cost("aten::tril_", {"self": shared}, [shared], diagonal=diagonal)
    assert (in_place.bytes_read, in_place.bytes_written) == (0, upper.bytes_read)


def test_fsdp_copies_in_only_its_shard():
    buffer = spec((80,), storage=0)
    shard = spec((10,), storage=0, offset=20)
    c = cost(
        "fsdp::all_gather_copy_in",
        {"all_gather_inputs": [spec((6,)), spec((4,))], "all_gather_output": buffer},
        [shard, buffer],
    )
    assert (c.bytes_read, c.bytes_written) == (40, 40)
    out = [spec((6,), storage=1), spec((4,), storage=2)]
    c = cost("fsdp::split_with_sizes_copy", {"all_gather_output": spec((10,), storage=0), "out": out}, out)
    assert (c.bytes_read, c.bytes_written) == (40, 40)


def test_bernoulli_with_one_probability_reads_nothing():
    x = torch.rand(10, 10)
    drawn = only_cost(lambda: torch.bernoulli(x, 0.5), "bernoulli")
    assert (drawn.bytes_read, drawn.bytes_written) == (0, 400)
    assert only_cost(lambda: torch.bernoulli(x), "bernoulli").bytes_read == 400


def test_lists_copied_onto_themselves_move_nothing():
    x, y = torch.zeros(10), torch.zeros(20)
    assert only_cost(lambda: torch._foreach_copy_([x], [x]), "_foreach_copy_").bytes_moved == 0
    # y is copied, 80 bytes read and written; x is not
    mixed = only_cost(lambda: torch._foreach_copy_([x, y], [x, torch.ones(20)]), "_foreach_copy_")
    assert (mixed.bytes_read, mixed.bytes_written) == (80, 80)


test_costs = costs(
    """
    # bernoulli reads its probabilities
    bernoulli_ self=4x6@0 p=4x6 -> 4x6@0 = read 96
    bernoulli self=4x6 -> 4x6 = read 96
    # copy reads the source alone
    copy_ self=4x6:bfloat16@0 src=4x6 -> 4x6:bfloat16@0 = read 96, written 48, vector 0
    # conversion is no flops
    _to_copy self=4x6 -> 4x6:bfloat16 | dtype='bfloat16' = read 96, written 48, vector 0
    # cat reads all and writes all
    cat tensors=4x6 tensors=2x6 -> 6x6 | dim=0 = read 144, written 144
    # contiguous moves nothing where it aliases
    contiguous self=4x6@0 -> 4x6@0 = moved 0
    contiguous self=4x6@0 -> 4x6@1 = moved 192
    # padding reads no more than it keeps
    constant_pad_nd self=4 -> 6 = read 16
    constant_pad_nd self=4 -> 2 = read 8
    # dropout
    native_dropout input=4x6 -> 4x6 4x6:bool | train=True = vector 48, read 96, written 120
    native_dropout_backward grad_output=4x6 mask=4x6:bool -> 4x6 = vector 48, read 120, written 96
    # clone of an expanded tensor reads it once
    clone self=4x6~0,1 -> 4x6 = read 24, written 96
    """
)
