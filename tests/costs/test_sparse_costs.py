"""Sparse tensors, recorded: how many elements they store is a fact of each call."""

import pytest
import torch
from builders import cost, op, spec
from hypothesis import given
from hypothesis import strategies as st
from recorded_costs import only_cost, recorded_costs, recorded_tensors

import rooflight as rl
from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of, formula
from rooflight.records.tensor import Packing, TensorSpec

pytestmark = pytest.mark.filterwarnings("ignore:Sparse|.*nested tensors is in prototype:UserWarning")

# Seven of the 24 elements of a [4, 6], in five of its columns, the last row empty.
DENSE = torch.zeros(4, 6)
for row, column in ((0, 0), (0, 1), (0, 5), (1, 1), (1, 2), (2, 0), (2, 4)):
    DENSE[row, column] = 1.0 + row + column
B = torch.ones(6, 5)

INDICES = {"coo": 2 * 7 * 8, "csr": (5 + 7) * 8, "csc": (7 + 7) * 8}  # int64: pairs; row or column offsets and places


def sparse(layout):
    return {"coo": DENSE.to_sparse, "csr": DENSE.to_sparse_csr, "csc": DENSE.to_sparse_csc}[layout]()


@pytest.mark.parametrize("layout", INDICES)
def test_sparse_times_dense_does_a_multiply_add_per_stored_element_and_column(layout):
    a = sparse(layout)
    c = only_cost(lambda: a @ B, "mm")
    assert c.matrix_flops == 2 * 7 * 5
    # 7 values, their indices, and the 6 rows of B, which 7 elements may all meet
    assert (c.bytes_read, c.bytes_written) == (4 * 7 + INDICES[layout] + 4 * 6 * 5, 4 * 4 * 5)
    assert c.upper  # column 3 is empty, which nobody looked for
    assert only_cost(lambda: torch.sparse.mm(a, B), "_sparse_addmm") == c  # zeros for an addend are not read
    assert only_cost(lambda: torch.addmm(torch.ones(4, 5), a, B), "addmm").bytes_read == c.bytes_read + 80
    assert only_cost(lambda: a @ B[:, 0].contiguous(), "mv").matrix_flops == 2 * 7


def test_few_elements_meet_few_rows_of_the_dense_operand():
    a = torch.sparse_coo_tensor(torch.tensor([[1], [3]]), torch.ones(1), (4, 1_000_000))
    b = torch.ones(1_000_000, 2)
    c = only_cost(lambda: a @ b, "mm")
    assert c.bytes_read == 4 + 16 + 8  # one value, its two coordinates, one row of two


@pytest.mark.parametrize("layout", INDICES)
def test_dense_times_sparse(layout):
    a = sparse(layout)
    c = only_cost(lambda: torch.ones(3, 4) @ a, "mm")
    assert c.matrix_flops == 2 * 3 * 7
    # every row of x [3, 4] whole: 7 elements lie in at most 4 of a's rows
    assert (c.bytes_read, c.bytes_written) == (48 + 28 + INDICES[layout], 4 * 3 * 6)


@given(rows=st.integers(1, 9), inner=st.integers(1, 9), columns=st.integers(1, 9), stored=st.integers(0, 81))
def test_a_sparse_product_never_counts_more_than_the_dense_one(rows, inner, columns, stored):
    stored = min(stored, rows * inner)
    packing = Packing(layout="sparse_csr", shape=(rows, inner), index_bytes=8 * (rows + 1 + stored))
    a, b, out = TensorSpec((stored,), "float32", packing=packing), spec((inner, columns)), [spec((rows, columns))]
    c, dense = cost("aten::mm", [a, b], out), cost("aten::mm", [spec((rows, inner)), b], out)
    assert c.matrix_flops == 2 * stored * columns <= dense.matrix_flops
    assert c.bytes_read - packing.index_bytes <= dense.bytes_read
    assert c.bytes_written == dense.bytes_written


def test_blocks_count_whole():
    a = DENSE.to_sparse_bsr((2, 2))  # of the six blocks the lower middle one is empty
    c = only_cost(lambda: a @ B, "mm")
    assert c.matrix_flops == 2 * 5 * 4 * 5
    assert c.bytes_read == 4 * 20 + 8 * (3 + 5) + 120


def test_batched_product_with_a_sparse_operand():
    a = torch.stack([DENSE, DENSE]).to_sparse()
    c = only_cost(lambda: torch.bmm(a, torch.ones(2, 6, 5)), "bmm")
    assert c.matrix_flops == 2 * 14 * 5
    assert c.bytes_read == 4 * 14 + 3 * 14 * 8 + 240


def test_sparse_times_sparse_counts_what_is_certain():
    a, b = sparse("csr"), DENSE.t().to_sparse_csr()
    out = (a @ b).values().numel()
    c = only_cost(lambda: a @ b, "mm")
    assert c.matrix_flops == 2 * out
    needed = 2 * int(((DENSE != 0).sum(0) * (DENSE != 0).sum(0)).sum())  # what the multiplication really does
    assert c.matrix_flops <= needed
    assert c.bytes_read == 4 * 14 + 8 * (5 + 7) + 8 * (7 + 7)
    assert c.bytes_written == 4 * out + 8 * (5 + out)
    assert "stored element" in c.note


def test_sampled_product_computes_only_what_the_pattern_stores():
    a = sparse("csr")
    c = only_cost(lambda: torch.sparse.sampled_addmm(a, torch.ones(4, 3), torch.ones(3, 6)), "sparse_sampled_addmm")
    assert c.matrix_flops == 2 * 7 * 3
    assert (c.bytes_read, c.bytes_written) == (28 + 96 + 48 + 72, 28)


def test_backward_of_a_sparse_product():
    a = sparse("csr").requires_grad_()
    b = B.clone().requires_grad_()
    costs = recorded_costs(lambda: torch.sparse.mm(a, b).sum().backward())
    # gradient of a: 7 dot products of 5; of b: a' [6, 4] @ dy [4, 5], a multiply-add per stored element and column
    assert costs["sparse_sampled_addmm"][0].matrix_flops == 2 * 7 * 5
    assert costs["mm"][0].matrix_flops == 2 * 7 * 5


def test_conversions_read_and_write_elements_and_indices():
    coo, csr = sparse("coo"), sparse("csr")
    to = only_cost(DENSE.to_sparse, "_to_sparse")
    assert (to.bytes_read, to.bytes_written) == (96, 28 + 112)
    assert only_cost(DENSE.to_sparse_csr, "_to_sparse_csr").bytes_written == 28 + 96
    back = only_cost(csr.to_dense, "_to_dense")
    assert (back.bytes_read, back.bytes_written) == (28 + 96, 96)
    over = only_cost(coo.to_sparse_csr, "_to_sparse_csr")
    assert over.bytes_written in (96, 28 + 96)  # indices, and the elements if they were not taken over


def test_copying_one_sparse_tensor_over_another():
    target, source = torch.ones(4, 6).to_sparse(), sparse("coo")
    c = only_cost(lambda: target.copy_(source), "copy_")
    assert (c.bytes_read, c.bytes_written) == (28 + 112, 28 + 112)


def test_coalescing_adds_what_disappears():
    a = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.ones(3), (4, 6))
    c = only_cost(a.coalesce, "_coalesce")
    assert c.vector_flops == 1
    assert (c.bytes_read, c.bytes_written) == (12 + 48, 8 + 32)


def test_elementwise_ops_meet_stored_elements_only():
    a = sparse("coo")
    big = torch.ones(4, 6)
    assert only_cost(lambda: a * 2.0, "mul").bytes_moved == 56  # values alone, in and out
    assert only_cost(a.sqrt, "sqrt").vector_flops == 7
    times = only_cost(lambda: a * big, "mul")
    assert (times.vector_flops, times.bytes_read, times.bytes_written) == (7, 28 + 112 + 28, 28)
    plus = only_cost(lambda: big + a, "add")
    assert (plus.vector_flops, plus.bytes_read, plus.bytes_written) == (7, 96 + 28 + 112, 96)
    into = only_cost(lambda: big.add_(a), "add_")
    assert (into.vector_flops, into.bytes_read, into.bytes_written) == (7, 28 + 28 + 112, 28)
    both = only_cost(lambda: a + a, "add")
    assert (both.vector_flops, both.bytes_read, both.bytes_written) == (7, 28 + 112, 28)
    assert only_cost(lambda: big.sparse_mask(a), "sparse_mask").bytes_read == 28 + 112


def test_softmax_and_sum_of_stored_elements():
    a = sparse("coo").requires_grad_()
    costs = recorded_costs(lambda: torch.sparse.softmax(a, 1).to_dense().sum().backward())
    assert costs["_sparse_softmax"][0].vector_flops == 35  # 5 a stored element
    assert costs["_sparse_softmax_backward_data"][0].vector_flops == 28
    assert costs["_sparse_softmax_backward_data"][0].bytes_read == 28 + 28 + 112
    total = only_cost(lambda: torch.sparse.sum(a.detach(), 1), "_sparse_sum")
    assert (total.vector_flops, total.bytes_read, total.bytes_written) == (7, 28, 3 * 4 + 3 * 8)


@pytest.mark.parametrize("optimizer", ["SparseAdam", "Adagrad", "SGD", "momentum"])
def test_a_step_on_sparse_gradients_touches_the_rows_that_were_used(optimizer):
    table = torch.nn.Embedding(100_000, 8, sparse=True)
    kinds = {
        "SparseAdam": torch.optim.SparseAdam,
        "Adagrad": torch.optim.Adagrad,
        "SGD": lambda p: torch.optim.SGD(p, 0.1),
        "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    }
    opt = kinds[optimizer](list(table.parameters()))

    def step():
        opt.zero_grad()
        table(torch.tensor([[1, 2, 1], [4, 4, 9]])).sum().backward()
        opt.step()

    step()
    costs = recorded_costs(step)
    # six rows of eight at the most in any op, never the table's 3.2 MB
    assert max(c.bytes_moved for calls in costs.values() for c in calls) < 2_000
    if optimizer == "SparseAdam":
        # of rows 1, 2, 4 and 9: [4, 8] of 4 bytes and 4 indices of 8; each add_ reads and writes rows of one table
        assert [(c.vector_flops, c.bytes_read, c.bytes_written) for c in costs["add_"] if c.upper] == [
            (32, 128 + 32 + 128, 128)
        ] * 3
        assert costs["_coalesce"][0].vector_flops == 16  # two rows of eight were hit twice
        assert [c.bytes_read for c in costs["sparse_mask"]] == [128 + 32] * 2


def test_bags_of_a_sparse_table_give_sparse_gradients():
    bags, grad = torch.nn.EmbeddingBag(1_000, 8, mode="sum", sparse=True), torch.ones(2, 8)
    indices, offsets = torch.tensor([1, 2, 3, 1]), torch.tensor([0, 3])
    c = only_cost(lambda: bags(indices, offsets).backward(grad), "_embedding_bag_backward")
    # two gradients of 8, for four indices: 4 rows of 8, at their indices
    assert (c.bytes_read, c.bytes_written) == (64 + 32, 128)


def test_signatures_differ_by_what_is_stored():
    few, many = sparse("coo"), torch.ones(4, 6).to_sparse()

    def program():
        for a in (few, many, few):
            a @ B
            a.t()

    assert [tensors[0].shape for tensors in recorded_tensors(program, "mm")] == [(7,), (24,), (7,)]
    assert [tensors[0].shape for tensors in recorded_tensors(program, "t")] == [(7,), (24,), (7,)]
    (packing,) = {tensors[0].packing for tensors in recorded_tensors(lambda: few @ B, "mm")}
    assert packing == Packing(layout="sparse_coo", shape=(4, 6), index_bytes=112)


def test_a_matrix_and_its_transpose_share_their_memory():
    a = sparse("csr")
    c = only_cost(lambda: a @ a.t(), "mm")
    assert c.bytes_read == 28 + 96  # elements and indices once: the transpose is the same memory as CSC


def test_sessions_keep_what_is_stored(tmp_path):
    with rl.record() as recording:
        sparse("csr") @ B
        torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]) * 2
    session = recording.session
    loaded = rl.load(session.save(tmp_path / "sparse.rl"))
    assert loaded.signatures == session.signatures


def test_every_op_of_a_layout_without_a_rule_is_uncosted():
    packed = TensorSpec((7,), "float32", packing=Packing(layout="sparse_coo", shape=(4, 6), index_bytes=112))
    for name in ("aten::embedding", "aten::gather", "aten::convolution", "aten::cumsum"):
        found = cost_of(op(name, [packed, spec((3,), "int64")], [spec((3, 6))]))
        assert found == Uncosted("no formula for sparse tensors")


def test_records_that_show_no_sparse_tensor_say_what_they_lack():
    found = cost_of(op("aten::_sparse_addmm", [spec((4, 5)), spec((4, 6)), spec((6, 5))], [spec((4, 5))]))
    assert found == Uncosted("how many elements a sparse tensor stores is not recorded")
    found = cost_of(op("aten::to_padded_tensor", [spec((48,))], [spec((3, 5, 4))]))
    assert found == Uncosted("the sizes of a nested tensor are not recorded")


def test_layouts_of_other_libraries_are_copied():
    x = torch.ones(4, 8)
    costs = recorded_costs(lambda: x.to_mkldnn().relu().to_dense())
    assert [c.bytes_moved for name in ("to_mkldnn", "_to_dense") for c in costs[name]] == [256, 256]


def test_gathering_with_sparse_gradients():
    x, index, grad = torch.ones(100, 8, requires_grad=True), torch.tensor([[1, 2], [3, 4]]), torch.ones(2, 2)
    costs = recorded_costs(lambda: torch.gather(x, 0, index, sparse_grad=True).backward(grad))
    assert max(c.bytes_moved for calls in costs.values() for c in calls) < 100  # nothing of the size of x


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match='no layout is called "csr"'):
        formula("mylib::op", layout="csr")
