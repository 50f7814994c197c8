"""Storages that are read and written in parts: each byte counts once, however many ops touch it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from builders import op, spec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sessions import Call, session_of
from torch import nn

import rooflight as rl
from rooflight.costs.registry import cost_of
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.graph import visible_bytes
from rooflight.roofline.fusion.parts import Axis, Part, axis_of, part_of, strides_of, union_bytes
from rooflight.roofline.fusion.regions import Fusion, fuse

layouts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=3)


def places(start: int, tensor: TensorSpec) -> set[int]:
    """Elements of the storage that a tensor covers."""
    found = {start}
    for size, stride in zip(tensor.shape, strides_of(tensor), strict=True):
        found = {first + index * stride for first in found for index in range(size)}
    return found


def elements(part: Part) -> set[int]:
    """Elements of four bytes."""
    found = set(range(part.first // 4, (part.first + part.length) // 4))
    for count, step in part.repeats:
        found = {first + index * step // 4 for first in found for index in range(count)}
    return found


@st.composite
def parts(draw: st.DrawFn) -> Part:
    dims, start = draw(layouts), draw(st.integers(0, 30))
    tensor = TensorSpec(tuple(size for size, _ in dims), "float32", tuple(stride for _, stride in dims))
    part = part_of(start, tensor)
    assume(part is not None)
    assert elements(part) == places(start, tensor)
    assert part.nbytes == 4 * len(elements(part))
    return part


@settings(deadline=None)
@given(st.lists(parts(), min_size=2, max_size=5, unique=True))
def test_a_union_is_what_a_set_of_elements_says(found: list[Part]) -> None:
    assert union_bytes(found) == 4 * len(set().union(*map(elements, found)))


@settings(deadline=None)
@given(st.lists(parts(), min_size=1, max_size=4))
def test_visible_is_what_no_later_write_covers(found: list[Part]) -> None:
    sizes = visible_bytes([(part.nbytes, part) for part in found])
    # elements seen in the end, by the write that left them
    left: dict[int, int] = {}
    for number, part in enumerate(found):
        left |= dict.fromkeys(elements(part), number)
    assert sizes == [4 * list(left.values()).count(number) for number in range(len(found))]


def test_very_many_runs_are_bounded_by_the_largest_part() -> None:
    assert union_bytes([Part(0, 4, ((1 << 20, 12),)), Part(4, 4, ((1 << 20, 8),))]) == 4 << 20


def test_a_pattern_that_repeats_is_counted_once_and_multiplied():
    # three columns of 100 million rows: no list of runs would hold them
    rows = 100_000_000
    columns = [Part(first, length, ((rows, 192),)) for first, length in ((0, 64), (32, 64), (128, 16))]
    assert union_bytes(columns) == rows * (96 + 16)
    assert union_bytes([Part(first, 4, ((1 << 24, 8),)) for first in (0, 4)]) == 8 << 24


@st.composite
def views(draw: st.DrawFn) -> tuple[int, TensorSpec, Part]:
    """A tensor, dense in some order of its dimensions, and a slice of a reshaped view of its memory."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    strides, inner = [0] * len(sizes), 1
    for dim in draw(st.permutations(range(len(sizes)))):
        strides[dim], inner = inner, inner * sizes[dim]
    start = at = draw(st.integers(0, 3))
    shape, steps = [], []
    while inner > 1:
        size = draw(st.sampled_from([size for size in range(2, inner + 1) if inner % size == 0]))
        inner //= size
        first, by = draw(st.integers(0, size - 1)), draw(st.integers(1, 2))
        shape.append(draw(st.integers(1, (size - first - 1) // by + 1)))
        steps.append(by * inner)
        at += first * inner
    part = part_of(at, TensorSpec(tuple(shape), "float32", tuple(steps)))
    assume(part is not None)
    return start, TensorSpec(tuple(sizes), "float32", tuple(strides)), part


@settings(deadline=None, max_examples=300)
@given(views())
def test_indices_along_a_dimension_lie_in_the_part_that_they_are_of(found: tuple[int, TensorSpec, Part]) -> None:
    start, tensor, part = found
    whole = part_of(start, tensor)
    axis = axis_of(part, whole, tensor)
    if axis is None:
        return
    starts = [axis.first + number * axis.step for number in range(axis.repeats)]
    indices = {first + index for first in starts for index in range(axis.length)}
    assert (len(indices), max(indices) + 1) == (axis.size, axis.end)
    along = [indices if dim == axis.dim else range(size) for dim, size in enumerate(tensor.shape)]
    strides = strides_of(tensor)
    covered = {start + sum(i * stride for i, stride in zip(each, strides, strict=True)) for each in product(*along)}
    assert covered <= elements(part)
    assert elements(axis.part(whole, tensor)) == covered


@pytest.mark.parametrize(
    ("shape", "part", "expected"),
    [
        ((8, 6), Part(24, 48), Axis(0, 1, 2, 1, 8)),  # rows 1 and 2
        ((8, 6), Part(24, 24, ((2, 96),)), Axis(0, 1, 1, 2, 4)),  # rows 1 and 5: the last of two sequences of four
        ((8, 6), Part(8, 12, ((8, 24),)), Axis(1, 2, 3, 1, 6)),  # columns 2 to 4
        ((8, 6), Part(12, 60), Axis(0, 1, 2, 1, 8)),  # from within one row: the whole ones
        ((8, 6), Part(8, 12, ((4, 24),)), None),  # columns of some rows
    ],
)
def test_intervals_of_rows_and_columns(shape: tuple[int, int], part: Part, expected: Axis | None) -> None:
    tensor = TensorSpec(shape, "float32")
    assert axis_of(part, part_of(0, tensor), tensor) == expected


@given(st.integers(0, 5), st.integers(1, 5), st.integers(-3, 12), st.integers(0, 9))
def test_what_lies_within_is_counted_from_there(first: int, length: int, low: int, size: int) -> None:
    inside = Axis(0, first, length).within(low, size)
    found = [] if inside is None else list(range(inside.first, inside.end))
    assert found == [i - low for i in range(first, first + length) if low <= i < low + size]


# -- programs ----------------------------------------------------------------------------------------------------------


def fused(program: Callable[[], Any], *, memory: bool = False) -> Fusion:
    with rl.record(memory=memory) as recording:
        program()
    session = recording.session
    found = fuse(session, [cost_of(signature) for signature in session.signatures])
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    assert found.bytes_in + found.bytes_out <= sum(region.bytes_read + region.bytes_written for region in found.regions)
    assert analysis.program.fused_bound_s <= analysis.totals.op_bound_s * (1 + 1e-12)
    return found


x = torch.randn(6, 4, 8)  # 192 elements, 768 B; a slice x[t] 128 B
w, wide, tall = torch.randn(8, 8), torch.randn(8, 16), torch.randn(6, 8)  # 256, 512, 192 B
line = torch.randn(20)
table, rows, index = torch.randn(100, 8), torch.randn(10, 8), torch.arange(10)  # 3200, 320, 80 B
pieces = [torch.randn(4, 8) for _ in range(3)]  # 128 B each


def gate() -> torch.Tensor:
    first, second = (x[0] @ wide).chunk(2, dim=-1)
    return first.sigmoid() * second


def put_rows() -> torch.Tensor:
    copy = table.clone()
    copy[index] = rows
    return copy


def filled(*slices: tuple[int, int]) -> torch.Tensor:
    """A buffer of slices of x, each where another one goes."""
    buffer = torch.zeros(6, 4, 8)
    for target, source in slices:
        buffer[target] = x[source].exp()
    return buffer


def through_scratch() -> torch.Tensor:
    scratch = torch.empty(6, 4, 8)
    scratch.copy_(x)
    return scratch.exp().sum()


PROGRAMS: dict[str, tuple[Callable[[], Any], int | None, int | None]] = {
    # bytes read and written, once each
    "slices of rows": (lambda: [x[t] @ w for t in range(6)], 768 + 256, 768),
    "slices of columns": (lambda: [x[:, t] @ w for t in range(4)], 768 + 256, 768),
    "a slice that is read again": (lambda: [x[t % 2] @ w for t in range(6)], 2 * 128 + 256, None),
    "chunks": (lambda: [part.exp() for part in x.chunk(2)], 768, 768),
    "uneven chunks": (lambda: [part.exp() for part in x.chunk(3, dim=1)], 768, 768),
    "splits": (lambda: [part.exp() for part in x.split([1, 3, 2])], 768, 768),
    "the last dimension one by one": (lambda: [part.exp() for part in x.unbind(2)], 768, 768),
    "even and odd": (lambda: [part.exp() for part in (x[::2], x[1::2])], 768, 768),
    "a chain that reads both halves of a product": (gate, 128 + 512, 128),
    "of a product the part that is read": (lambda: (tall @ w)[-2:] @ w, 192 + 256, 64),
    "overlapping windows": (lambda: line.unfold(0, 5, 1).exp(), 80, None),
    "two windows": (lambda: [line[:8].exp(), line[4:12].exp()], 48, None),  # elements 0 to 7 and 4 to 11
    "gaps are not read": (lambda: line.as_strided((3, 2), (6, 1)).exp(), 24, None),
    "clone and index_put": (put_rows, 3200 + 320 + 80, 3200),
    "zeros that are written over": (lambda: filled((0, 0), (1, 1), (2, 2), (3, 3), (4, 4)), 5 * 128, 768),
    "a part that is written over in full": (lambda: filled((0, 0), (0, 1)), None, 768),
    "scratch memory is no result": (through_scratch, None, 4),
    "a cat of parts": (lambda: torch.cat([x[:2], x[3:]]), 640, 640),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_byte_counts_once(name: str) -> None:
    program, read, written = PROGRAMS[name]
    found = fused(program)
    assert read in (None, found.bytes_in)
    assert written in (None, found.bytes_out)


def test_rnn_by_hand_forward_and_backward() -> None:
    data, cell = torch.randn(6, 4, 8, requires_grad=True), nn.RNNCell(8, 8)

    def program() -> None:
        state = torch.zeros(4, 8)
        for t in range(6):
            state = cell(data[t], state)
        state.sum().backward()

    found = fused(program, memory=True)
    # x 768, two matrices of 256 and two biases of 32; nothing else is there before the step; gradients of all of them
    assert (found.bytes_in, found.bytes_out) == (768 + 2 * 256 + 2 * 32, 768 + 2 * 256 + 2 * 32)


def test_what_is_read_in_part_is_written_in_part() -> None:
    found = fused(lambda: (tall @ w)[-2:] @ w)  # two rows of 32 B of six
    assert sum(region.bytes_written for region in found.regions) == 64 + 64


def test_a_cache_that_is_written_by_slices() -> None:
    cache = torch.zeros(2, 6, 8)  # 384 B; a slice at one position 64 B
    keys = [torch.randn(2, 8) for _ in range(6)]

    def program() -> None:
        for position in range(3):
            cache[:, position] = keys[position]

    found = fused(program)
    assert (found.bytes_in, found.bytes_out) == (3 * 64, 3 * 64)


@pytest.mark.parametrize("queries", [1, 3])  # a chain, and a product
def test_a_cache_is_read_but_for_what_the_step_wrote(queries: int) -> None:
    cache, key, query = torch.randn(2, 6, 8), torch.randn(2, 1, 8), torch.randn(2, queries, 8)

    def program() -> torch.Tensor:
        cache[:, 2:3] = key
        return query @ cache.transpose(1, 2)

    found = fused(program)
    # the new key 64, the queries 64 each, and 384 - 64 of the cache
    assert (found.bytes_in, found.bytes_out) == (64 + 64 * queries + 320, 64 + 2 * 6 * 4 * queries)


def test_a_buffer_filled_by_slices_and_read_whole() -> None:
    def program() -> torch.Tensor:
        buffer = torch.empty(12, 8)
        for number, piece in enumerate(pieces):
            buffer[4 * number : 4 * number + 4] = piece.exp()
        return buffer @ w

    found = fused(program, memory=True)
    assert (found.bytes_in, found.bytes_out) == (3 * 128 + 256, 384)
    # all three slices are written for the product, then its result
    assert sum(region.bytes_written for region in found.regions) == 384 + 384


SIZE = 12  # elements of a storage of which programs touch slices
slices = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 4), st.sampled_from([1, 2, 3]))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, TensorSpec]]:
    found = []
    for kind in draw(st.lists(st.sampled_from(["read", "multiply", "write"]), min_size=1, max_size=8)):
        start, size, stride = draw(slices)
        size = min(size, (SIZE - 1 - start) // stride + 1)
        found.append((kind, start, TensorSpec((1, size), "float32", (SIZE, stride))))
    return found


@settings(deadline=None, max_examples=300)
@given(steps(), st.booleans())
def test_no_more_is_counted_than_any_order_of_kernels_must_move(
    program: list[tuple[str, int, TensorSpec]], from_before: bool
) -> None:
    """Storage 0 is touched by slices; 1, 2, ... are read whole or made. Multiply is a product, which is no chain."""
    calls: list[Call] = []
    sizes = [4 * SIZE]
    if not from_before:
        whole = TensorSpec((1, SIZE), "float32")
        calls.append(Call(op=op("aten::empty", {}, [whole]), writes=(0,), write_starts=(0,)))
    read_first: set[int] = set()
    written: set[int] = set()
    for kind, start, here in program:
        dense = TensorSpec(here.shape, "float32")
        sizes.append(4 * here.numel)
        other = len(sizes) - 1
        if kind == "write":
            target = replace(here, storage=0)
            call = op("aten::copy_", {"self": target, "src": dense}, [target])
            calls.append(Call(op=call, reads=(0, other), writes=(0,), read_starts=(start, 0), write_starts=(start,)))
            written |= places(start, here)
            continue
        read_first |= places(start, here) - written
        touched = {"reads": (0,), "writes": (other,), "read_starts": (start,), "write_starts": (0,)}
        if kind == "multiply":
            sizes.append(4 * here.numel * 5)
            weight, product = TensorSpec((5, here.numel), "float32"), TensorSpec((1, 5), "float32")
            sizes.append(20)
            touched = {
                "reads": (0, other + 1),
                "writes": (other + 2,),
                "read_starts": (start, 0),
                "write_starts": (0,),
            }
            calls.append(Call(op=op("aten::linear", {"input": here, "weight": weight}, [product]), **touched))
            continue
        calls.append(Call(op=op("aten::exp", {"self": here}, [dense]), **touched))
    session = session_of(calls, storage_bytes=sizes)
    found = fuse(session, [cost_of(signature) for signature in session.signatures])
    others_in = sum(sizes[storage] for call in calls for storage in call.reads if storage)
    made = sum(call.op.outputs[0].nbytes for call in calls if 0 not in call.writes)
    assert found.bytes_in <= others_in + 4 * len(read_first) * from_before
    assert found.bytes_out <= made + 4 * len(written)
    assert found.bytes_in <= sum(region.bytes_read for region in found.regions)
    assert found.bytes_out <= sum(region.bytes_written for region in found.regions)
    if not written and from_before:
        assert found.bytes_in == others_in + 4 * len(read_first)


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_records_say_where_their_tensors_begin() -> None:
    line = torch.zeros(20)
    with rl.record() as recording:
        line[5:10].add_(1)
        torch.add(line[3:5], line[7:9], out=line[11:13])
        line[4:6].exp()
    working = [record for record in recording.session.records if record.reads]
    assert [record.read_starts for record in working] == [(5,), (3, 7, 11), (4,)]
    assert [record.write_starts for record in working] == [(5,), (11,), (0,)]


def test_starts_survive_a_file(tmp_path: Any) -> None:
    with rl.record() as recording:
        for t in range(3):
            x[t].exp()
    loaded = rl.load(recording.session.save(tmp_path / "s.rooflight"))
    assert list(loaded.records) == list(recording.session.records)
    assert loaded.columns.read_starts.tolist() == [0, 32, 64]


def test_without_starts_a_storage_counts_its_largest_read() -> None:
    signature = op("aten::exp", {"self": spec((4, 8))}, [spec((4, 8))])
    calls = [Call(op=signature, reads=(0,), writes=(number + 1,)) for number in range(6)]
    session = session_of(calls, storage_bytes=[768, *[128] * 6])
    assert fuse(session, [cost_of(signature)]).bytes_in == 128
    calls = [
        Call(op=signature, reads=(0,), writes=(number + 1,), read_starts=(32 * number,), write_starts=(0,))
        for number in range(6)
    ]
    session = session_of(calls, storage_bytes=[768, *[128] * 6])
    assert fuse(session, [cost_of(signature)]).bytes_in == 768
