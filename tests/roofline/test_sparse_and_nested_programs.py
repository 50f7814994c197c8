"""Whole programs on sparse and nested tensors: nothing without a cost, and the three bounds in order."""

import pytest
import torch
from torch.nn import functional

import rooflight as rl
from rooflight.records.session import KEPT

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse|.*nested tensors is in prototype:UserWarning", "ignore:enable_nested_tensor is True:UserWarning"
)


def padded_encoder():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(4, 32, 64)
    mask = torch.arange(32)[None] >= torch.tensor([32, 20, 7, 1])[:, None]

    def step():
        with torch.inference_mode():
            model(x, src_key_padding_mask=mask)

    return step


def graph_network():
    adjacency = (torch.rand(100, 100) < 0.1).float().to_sparse_csr()
    x, w = torch.randn(100, 16), torch.randn(16, 16, requires_grad=True)

    def step():
        hidden = torch.relu(torch.sparse.mm(adjacency, x @ w))
        torch.sparse.mm(adjacency, hidden).sum().backward()

    return step


def sparse_embedding():
    table = torch.nn.Embedding(10_000, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())

    def step():
        optimizer.zero_grad()
        table(torch.randint(0, 10_000, (8, 5))).pow(2).sum().backward()
        optimizer.step()

    step()  # makes the optimizer's state
    return step


def jagged_attention():
    layer = torch.nn.Linear(32, 32)

    def step():
        x = torch.nested.nested_tensor([torch.randn(n, 32) for n in (3, 9, 14)], layout=torch.jagged)
        heads = layer(x).unflatten(-1, (4, 8)).transpose(1, 2)
        out = functional.scaled_dot_product_attention(heads, heads, heads)
        out.transpose(1, 2).flatten(-2).values().sum().backward()

    return step


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("program", [padded_encoder, graph_network, sparse_embedding, jagged_attention])
def test_everything_is_costed_and_bounded_in_order(program, memory):
    step = program()
    with rl.record(memory=memory) as recording:
        step()
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    assert analysis.coverage.uncosted == ()
    bounds = analysis.program
    assert 0 < bounds.program_bound_s <= bounds.fused_bound_s <= analysis.totals.op_bound_s * (1 + 1e-9)


def test_elements_of_a_sparse_tensor_are_memory_like_any_other():
    values = torch.ones(1_000)
    with rl.record(memory=True) as recording:
        a = torch.sparse_coo_tensor(torch.arange(1_000)[None], values, (2_000,), is_coalesced=True)
        kept = a * 2
        del a
    session = recording.session
    lifetimes = session.lifetimes
    # what was given stood before; the result's elements were made, and are kept
    made = [(size, freed) for size, freed in zip(session.storage_bytes, lifetimes.freed, strict=True) if size == 4_000]
    assert made == [(4_000, KEPT)] * 2
    assert kept._nnz() == 1_000
