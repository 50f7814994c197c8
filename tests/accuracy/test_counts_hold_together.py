"""Properties of any recording: parts sum to the whole, and no bound is beaten by the peak alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from counting import DEVICE, analyse, rand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight as rl
from rooflight.devices import get

SIZES = st.integers(min_value=1, max_value=9)
quickly = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quickly
@given(sizes=st.lists(SIZES, min_size=3, max_size=8))
def test_chain_of_products_costs_their_sum(sizes):
    matrices = [rand(*shape) for shape in itertools.pairwise(sizes)]

    def chain():
        product = matrices[0]
        for matrix in matrices[1:]:
            product = product @ matrix

    rows = sizes[0]
    expected = sum(2 * rows * k * n for k, n in itertools.pairwise(sizes[1:]))
    assert analyse(chain).totals.matrix_flops == expected


@quickly
@given(batch=SIZES, widths=st.lists(SIZES, min_size=2, max_size=5), grad=st.booleans())
def test_training_a_stack_of_layers(batch, widths, grad):
    layers = nn.Sequential(*(nn.Linear(k, n) for k, n in itertools.pairwise(widths)))
    x = rand(batch, widths[0], grad=grad)
    analysis = analyse(lambda: layers(x).sum().backward(), layers)
    products = [2 * batch * k * n for k, n in itertools.pairwise(widths)]
    assert analysis.totals.matrix_flops == 3 * sum(products) - (0 if grad else products[0])


@quickly
@given(
    batch=SIZES,
    heads=st.sampled_from([(2, 1), (4, 2), (3, 3)]),
    lengths=st.tuples(SIZES, SIZES),
    width=st.sampled_from([4, 8]),
    causal=st.booleans(),
)
def test_attention_counts_the_pairs_of_its_mask(batch, heads, lengths, width, causal):
    num_queries, num_keys = lengths
    q = rand(batch, heads[0], num_queries, width)
    k, v = (rand(batch, heads[1], num_keys, width) for _ in range(2))
    visible = torch.ones(num_queries, num_keys)
    pairs = int((visible.tril() if causal else visible).sum())
    analysis = analyse(
        lambda: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads[0] != heads[1])
    )
    assert analysis.totals.matrix_flops == 2 * batch * heads[0] * pairs * 2 * width


@quickly
@given(
    channels=st.tuples(SIZES, SIZES),
    groups=st.integers(1, 3),
    size=st.integers(3, 8),
    taps=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    transposed=st.booleans(),
)
def test_convolution_counts_the_taps_of_every_output(channels, groups, size, taps, stride, padding, transposed):
    channels_in, channels_out = channels[0] * groups, channels[1] * groups
    if transposed:
        padding = min(padding, taps - 1)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(channels_in, channels_out, taps, stride=stride, padding=padding, groups=groups)
    x = rand(2, channels_in, size, size)
    with torch.no_grad():
        out = layer(x)
        analysis = analyse(lambda: layer(x))
    if transposed:
        expected = 2 * x.numel() * (channels_out // groups) * taps**2
    else:
        expected = 2 * out.numel() * (channels_in // groups) * taps**2
    assert analysis.totals.matrix_flops == expected


@pytest.fixture(scope="module")
def step() -> rl.Analysis:
    """A training step with phases, modules, attention and an optimizer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
            self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.block(self.embed(ids)))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(2, 6, dtype=torch.long)
    with rl.record(model) as recording:
        with rl.phase("look"):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
    return rl.analyze(recording.session, DEVICE)


@pytest.mark.parametrize("key", ["phase", "module", "layer", "op", "direction"])
def test_groups_sum_to_the_totals(step, key):
    groups, totals = step.by(key), step.totals
    assert len(groups) > 1
    assert sum(group.calls for group in groups) == totals.calls
    assert sum(group.matrix_flops for group in groups) == totals.matrix_flops
    assert sum(group.vector_flops for group in groups) == totals.vector_flops
    assert sum(group.bytes_moved for group in groups) == totals.bytes_moved
    assert sum(group.bytes_sent for group in groups) == totals.bytes_sent
    assert math.isclose(sum(group.bound_s for group in groups), totals.op_bound_s, rel_tol=1e-12)


def test_operations_sum_to_the_totals(step):
    totals = step.totals
    assert sum(op.calls for op in step.operations) == totals.calls
    assert math.isclose(sum(op.bound_s for op in step.operations), totals.op_bound_s, rel_tol=1e-12)
    assert step.coverage.uncosted == ()


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "A100-SXM4-80GB"])
def test_the_bound_is_no_less_than_its_parts(step, name):
    device = get(name)
    analysis = rl.analyze(step.session, device)
    totals = analysis.totals
    least_bytes = sum(op.calls * (op.cost.least_read + op.cost.least_written) for op in analysis.operations)
    assert totals.bytes_moved * 0.9 < least_bytes <= totals.bytes_moved
    assert totals.op_bound_s >= totals.matrix_flops / device.matrix_peak("float32")
    assert totals.op_bound_s >= totals.vector_flops / device.vector_peak("float32")
    assert totals.op_bound_s >= least_bytes / device.dram_bytes_per_s * (1 - 1e-12)


def test_a_saved_session_counts_the_same(step, tmp_path):
    loaded = rl.load(step.session.save(tmp_path / "step.rfl"))
    assert rl.analyze(loaded, DEVICE).totals == step.totals
