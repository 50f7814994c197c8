"""Which memory an op reads and writes: producer to consumer, aliases once, freed memory under a new id."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight as rl
from rooflight.records.record import OpRecord


def records_of(program: Callable[[], Any]) -> tuple[list[OpRecord], rl.Session]:
    with rl.record() as recording:
        program()
    return list(recording.session.records), recording.session


def only(records: list[OpRecord], name: str) -> OpRecord:
    (found,) = [op for op in records if op.signature.name == f"aten::{name}"]
    return found


def test_what_one_op_writes_the_next_reads() -> None:
    x = torch.ones(2, 3)
    records, session = records_of(lambda: torch.sum(x.exp() @ x.t()))
    exp, mm, total = only(records, "exp"), only(records, "mm"), only(records, "sum")
    assert mm.reads == (exp.writes[0], exp.reads[0])
    assert total.reads == mm.writes
    assert session.storage_bytes[exp.writes[0]] == 2 * 3 * 4


def test_the_same_tensor_twice_is_one_storage() -> None:
    x = torch.ones(3, 3)
    records, _ = records_of(lambda: (torch.mm(x, x), x.add_(x)))
    mm, add = only(records, "mm"), only(records, "add_")
    assert len(set(mm.reads)) == 1
    assert mm.signature.input_bytes == 3 * 3 * 4
    assert add.writes == (add.reads[0],)
    # reads x once, writes x
    assert (add.signature.input_bytes, add.signature.output_bytes) == (36, 36)
    assert {tensor.storage for tensor in (*add.signature.inputs, *add.signature.outputs)} == {0}


def test_slices_of_a_fused_projection_count_separately() -> None:
    qkv = torch.ones(4, 6)
    q, k, _ = qkv.chunk(3, dim=-1)
    records, _ = records_of(lambda: q * k)
    op = only(records, "mul")
    assert len(set(op.reads)) == 1
    assert [tensor.offset for tensor in op.signature.inputs] == [0, 2]
    # two slices of 4 x 2, not the 4 x 6 they come from
    assert op.signature.input_bytes == 2 * 4 * 2 * 4


def test_views_of_views_keep_their_storage_and_distance() -> None:
    base = torch.ones(10, 10)
    view = base[2:, 3:].t()[1:4].reshape(3, 8)
    records, session = records_of(lambda: base.add_(view.mul_(2).sum()))
    mul, add = only(records, "mul_"), only(records, "add_")
    assert mul.reads[0] == add.reads[0]
    assert session.storage_bytes[mul.reads[0]] == 400


def test_views_touch_nothing() -> None:
    records, _ = records_of(lambda: torch.ones(2, 3).view(6).view(3, 2).t().expand(4, 2, 3).detach())
    assert [(op.reads, op.writes) for op in records[1:]] == [((), ())] * (len(records) - 1)


def test_expanded_memory_is_read_once() -> None:
    row = torch.ones(1, 8).expand(1000, 8)
    records, _ = records_of(lambda: row + 1)
    assert only(records, "add").signature.input_bytes == 8 * 4


def test_memory_that_was_freed_and_taken_again_has_a_new_id() -> None:
    def program() -> None:
        for _ in range(5):
            torch.ones(100).neg()

    records, session = records_of(program)
    written = [op.writes[0] for op in records]
    assert len(set(written)) == 10
    assert [op.reads for op in records if op.signature.name == "aten::neg"] == [(number,) for number in written[::2]]
    assert set(session.storage_bytes.tolist()) == {400}


def test_memory_that_torch_tensor_takes_is_new_too() -> None:
    def program() -> None:
        for _ in range(5):
            torch.ones(100).neg()
            torch.tensor([1.0] * 100).neg()

    records, _ = records_of(program)
    written = {number for op in records for number in op.writes}
    read = [op.reads[0] for op in records if op.signature.name == "aten::neg"]
    assert len(set(read)) == 10
    assert len(written & set(read)) == 5  # what torch.ones wrote


def test_an_op_that_mutates_and_returns_something_new_writes_both() -> None:
    norm = nn.BatchNorm1d(3)
    x = torch.ones(4, 3)

    def program() -> None:
        for _ in range(2):
            args = (x, norm.weight, norm.bias, norm.running_mean, norm.running_var, True, 0.1, 1e-5)
            out, *_ = torch.ops.aten._native_batch_norm_legit.default(*args)
            out.exp()

    with torch.no_grad():
        records, session = records_of(program)
    first, second = [op for op in records if "batch_norm" in op.signature.name]
    exps = [op for op in records if op.signature.name == "aten::exp"]
    # running mean and variance in place, then output, mean and inverse deviation
    assert first.writes[:2] == first.reads[3:5] == second.writes[:2]
    assert len(first.writes) == 5
    assert exps[0].reads == (first.writes[2],)
    assert exps[1].reads == (second.writes[2],)
    assert first.writes[2] != second.writes[2]
    assert session.storage_bytes[list(first.writes)].tolist() == [12, 12, 48, 12, 12]


def test_lists_of_tensors_and_of_optional_ones() -> None:
    tensors = [torch.ones(3) for _ in range(12)]
    records, _ = records_of(lambda: (torch._foreach_add_(tensors, tensors), torch._foreach_mul(tensors, 2.0)))
    add, mul = only(records, "_foreach_add_"), only(records, "_foreach_mul")
    assert add.reads[:12] == add.reads[12:] == add.writes
    assert len(set(mul.writes)) == 12
    assert add.signature.input_bytes == 12 * 3 * 4
    assert mul.signature.output_bytes == 12 * 3 * 4
    records, _ = records_of(lambda: torch.ones(4, 4)[:, torch.tensor([1, 2])])
    assert only(records, "index").signature.input_names == ("self", "indices")


def test_outputs_that_share_new_memory_are_one_storage() -> None:
    library = torch.library.Library("rooflight_tests", "DEF")
    library.define("halves(Tensor[] xs) -> (Tensor, Tensor)")

    def halves(xs):
        both = torch.cat(xs)
        return both[: len(both) // 2], both[len(both) // 2 :]

    library.impl("halves", halves, "CPU")
    xs = [torch.ones(2) for _ in range(10)]
    for some in (xs[:2], xs):
        records, _ = records_of(lambda some=some: torch.ops.rooflight_tests.halves(some))
        (op,) = [op for op in records if op.signature.name == "rooflight_tests::halves"]
        assert len(set(op.writes)) == 1
        assert op.writes[0] not in op.reads
        assert op.signature.output_bytes == sum(x.nbytes for x in some)
    library._destroy()


def test_out_arguments_are_written() -> None:
    x, out = torch.ones(3, 3), torch.ones(3, 3)
    records, _ = records_of(lambda: (torch.mm(x, x, out=out), out.exp()))
    assert only(records, "exp").reads == only(records, "mm").writes


def test_gradients_that_accumulate_are_written_in_place() -> None:
    weight = nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    records, _ = records_of(lambda: (weight * 2).sum().backward())
    add = only(records, "add_")
    assert add.writes == (add.reads[0],)


OPS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "mul_": lambda a, b: a.mul_(b),
    "copy_": lambda a, b: a.copy_(b),
    "view": lambda a, b: a.unsqueeze(0).squeeze(0),
    "t": lambda a, b: a.t(),
    "clone": lambda a, b: a.clone(),
    "half": lambda a, b: torch.cat([a[:2], b[2:]]),
    "free": lambda a, b: torch.zeros(4, 4),
}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=30
    )
)
def test_ids_are_those_of_a_slow_bookkeeper(steps: list[tuple[str, int, int, int]]) -> None:
    """Chains of ops over four registers, freed and reused at will, against ids kept by holding every tensor alive."""
    with rl.record() as recording:
        registers = [torch.zeros(4, 4) for _ in range(4)]
        owners = list(range(4))  # the storage that each register lies in, numbered by its making
        made = 4
        expected: list[tuple[set[int], set[int]]] = [(set(), {number}) for number in range(4)]
        for name, target, left, right in steps:
            try:
                out = OPS[name](registers[left], registers[right])
            except RuntimeError:  # in place on memory that overlaps
                continue
            a, b = owners[left], owners[right]
            if name in ("mul_", "copy_"):
                expected.append(({a, b}, {a}))
                owner = a
            elif name in ("view", "t"):
                owner = a
            else:
                reads = {"clone": {a}, "free": set()}.get(name, {a, b})
                expected.append((reads, {made}))
                owner, made = made, made + 1
            registers[target], owners[target] = out, owner
            del out
    found = [(set(op.reads), set(op.writes)) for op in recording.session.records if op.reads or op.writes]
    # ids may be given in another order, but always the same ones
    names: dict[int, int] = {}
    for (reads, writes), (expected_reads, expected_writes) in zip(found, expected, strict=True):
        assert {names[number] for number in reads} == expected_reads
        new = expected_writes - set(names.values())
        assert len(new) <= 1
        for number in writes:
            if number not in names:
                names[number] = new.pop()
        assert {names[number] for number in writes} == expected_writes
