import pytest
import torch
from builders import cost, spec
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


def test_bernoulli_reads_its_probabilities():
    x = spec((4, 6), storage=0)
    assert cost("aten::bernoulli_", {"self": x, "p": spec((4, 6))}, [x]).bytes_read == 96
    assert cost("aten::bernoulli", {"self": spec((4, 6))}, [spec((4, 6))]).bytes_read == 96


def test_copy_reads_the_source_alone():
    x = spec((4, 6), "bfloat16", storage=0)
    c = cost("aten::copy_", {"self": x, "src": spec((4, 6))}, [x])
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (96, 48, 0)


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
        (lambda x: torch.as_strided_copy(x, (9, 9), (0, 0)), "as_strided_copy", 96),
        (lambda x: torch.unfold_copy(x, 1, 2, 4), "unfold_copy", 64),  # 4 rows, 2 windows of 2
        (torch.trace, "trace", 16),
    ],
)
def test_copies_of_parts_read_no_more_than_the_part(program, name, bytes_read):
    x = torch.zeros(4, 6)
    assert only_cost(lambda: program(x), name).bytes_read == bytes_read


def test_conversion_is_no_flops():
    c = cost("aten::_to_copy", {"self": spec((4, 6))}, [spec((4, 6), "bfloat16")], dtype="bfloat16")
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (96, 48, 0)


def test_cat_reads_all_and_writes_all():
    c = cost("aten::cat", {"tensors": [spec((4, 6)), spec((2, 6))]}, [spec((6, 6))], dim=0)
    assert (c.bytes_read, c.bytes_written) == (144, 144)


def test_clone_of_an_expanded_tensor_reads_it_once():
    c = cost("aten::clone", {"self": spec((4, 6), strides=(0, 1))}, [spec((4, 6))])
    assert (c.bytes_read, c.bytes_written) == (24, 96)


def test_contiguous_moves_nothing_where_it_aliases():
    x = spec((4, 6), storage=0)
    assert cost("aten::contiguous", {"self": x}, [x]).bytes_moved == 0
    assert cost("aten::contiguous", {"self": x}, [spec((4, 6), storage=1)]).bytes_moved == 192


def test_padding_reads_no_more_than_it_keeps():
    assert cost("aten::constant_pad_nd", {"self": spec((4,))}, [spec((6,))]).bytes_read == 16
    assert cost("aten::constant_pad_nd", {"self": spec((4,))}, [spec((2,))]).bytes_read == 8


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


def test_dropout():
    x, mask = spec((4, 6)), spec((4, 6), "bool")
    c = cost("aten::native_dropout", {"input": x}, [x, mask], train=True)
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (48, 96, 120)
    c = cost("aten::native_dropout_backward", {"grad_output": x, "mask": mask}, [x])
    assert (c.vector_flops, c.bytes_read, c.bytes_written) == (48, 120, 96)


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
