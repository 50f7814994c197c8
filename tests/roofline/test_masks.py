"""Attention written out: what a mask hides, where the recording sees how it was made, is no work of the fused bound."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded_function import Calls
from torch import Tensor, nn
from torch.nn import functional

import rooflight as rl
from rooflight.roofline.analysis import Analysis
from rooflight.sources.capture.record.constants import noting_constants

H100 = "H100-SXM5-80GB"
N = 64
CAUSAL = (N + 1) / 2 / N  # share of pairs that are visible: N (N + 1) / 2 of N * N
LOWEST = torch.finfo(torch.float32).min


def analyzed(function: Callable[..., Any], *given: Tensor, grad: bool = False) -> Analysis:
    model = Calls(function)
    with torch.set_grad_enabled(grad), rl.record(model, memory=True) as recording:
        out = model(*given)
        if grad:
            out.sum().backward()
    return rl.analyze(recording.session, H100)


def shares(analysis: Analysis, name: str = "aten::bmm") -> list[float]:
    """Of each product's FLOPs, which the program must do."""
    session = analysis.session
    ops = [session.signatures[number] for number in session.columns.signature]
    return [analysis.fusion.work.get(number, 1.0) for number, op in enumerate(ops) if op.name == name]


def attention(masked: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = masked(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]))
        return functional.softmax(scores, dim=-1) @ v

    return run


def heads(device: str, num_queries: int = N, num_keys: int = N, *, grad: bool = False) -> list[Tensor]:
    return [torch.randn(2, 3, n, 8, device=device, requires_grad=grad) for n in (num_queries, num_keys, num_keys)]


def triangle(like: Tensor) -> Tensor:
    return torch.ones(N, N, dtype=torch.bool, device=like.device).triu(1)


def filled(scores: Tensor) -> Tensor:
    mask = torch.empty(N, N, device=scores.device)
    mask.fill_(float("-inf"))
    return mask.triu_(1)


def positions(scores: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(N, device=scores.device)
    return places[:, None], places[None, :]


def windowed(scores: Tensor) -> Tensor:
    """Each query sees its own key and three before it."""
    query, key = positions(scores)
    hidden = (key > query) | (key <= query - 4)
    return scores + torch.zeros(N, N, device=scores.device).masked_fill_(hidden, LOWEST).expand(2, 1, N, N)


MASKS = {
    "masked_fill": lambda scores: scores.masked_fill(triangle(scores), float("-inf")),
    "in place": lambda scores: scores.masked_fill_(triangle(scores)[None, None], -1e9),
    "where": lambda scores: torch.where(~triangle(scores), scores, LOWEST),
    "where of a full": lambda scores: torch.where(triangle(scores), torch.full((), -1e9, device=scores.device), scores),
    "added": lambda scores: scores + filled(scores),
    "subtracted": lambda scores: scores - 1e4 * (1 - torch.ones_like(scores[0, 0]).tril().view(1, 1, N, N)),
    "compared": lambda scores: scores.masked_fill(torch.tril(torch.ones(N, N, device=scores.device)) == 0, -1e9),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", MASKS)
def test_what_a_causal_mask_hides_is_no_work(kind, device):
    analysis = analyzed(attention(MASKS[kind]), *heads(device))
    assert shares(analysis) == pytest.approx([CAUSAL] * 2)
    assert analysis.coverage.upper_calls == 0
    assert analysis.totals.matrix_flops == 2 * 2 * 6 * N * N * 8  # counts stay as they are


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_window_leaves_few_keys_for_each_query(device):
    """4 keys each, fewer for the first three: 4 N - (3 + 2 + 1)."""
    analysis = analyzed(attention(windowed), *heads(device))
    assert shares(analysis) == pytest.approx([(4 * N - 6) / N**2] * 2)


def test_the_backward_pass_needs_no_hidden_pairs_either():
    analysis = analyzed(attention(MASKS["masked_fill"]), *heads("cpu", grad=True), grad=True)
    assert shares(analysis) == pytest.approx([CAUSAL] * 6)  # scores, output; dv, dp; dq, dk


def test_keys_that_no_query_sees_are_not_read():
    """One query, 16 of 64 keys: (16 + 16) rows of k and v, the query and the output."""
    late = lambda scores: scores.masked_fill(torch.arange(N) < N - 16, float("-inf"))  # noqa: E731
    analysis = analyzed(attention(late), *heads("cpu", num_queries=1))
    assert shares(analysis) == pytest.approx([0.25] * 2)
    assert analysis.fusion.bytes_in == 6 * 8 * 4 * (16 + 16 + 1)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(2 * N, 2 * N)).view(1, 1, 2 * N, 2 * N))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = self.bias[:, :, :N, :N] == 0
        return attention(lambda scores: scores.masked_fill(hidden, float("-inf")))(q, k, v)


@pytest.mark.parametrize(("device", "noted"), [("cpu", False), ("meta", True), ("meta", False)])
def test_a_buffer_is_what_it_holds_or_what_it_was_seen_made_of(device, noted):
    if noted:
        with noting_constants(), torch.device(device):
            model = Buffered()
    else:
        with torch.device(device):
            model = Buffered()
    with torch.no_grad(), rl.record(model) as recording:
        model(*heads(device))
    analysis = rl.analyze(recording.session, H100)
    known = device == "cpu" or noted
    assert shares(analysis) == pytest.approx([CAUSAL if known else 1.0] * 2)
    assert analysis.coverage.upper_calls == (not known)  # the product of the scores


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_mask_that_is_data_counts_as_an_assumption(device):
    given = torch.zeros(2, 1, 1, N, device=device)
    for masked in (
        lambda scores: scores + given,
        lambda scores: scores.masked_fill(given > 0, -1e9),
        lambda scores: torch.where(given > 0, -1e9, scores),
    ):
        analysis = analyzed(attention(masked), *heads(device))
        assert shares(analysis) == [1.0, 1.0]
        assert analysis.coverage.upper_calls == 1


def test_what_was_written_over_is_no_constant():
    def masked(scores: Tensor) -> Tensor:
        mask = triangle(scores)
        mask.random_(0, 2)
        return scores.masked_fill(mask, -1e9)

    analysis = analyzed(attention(masked), *heads("cpu"))
    assert shares(analysis) == [1.0, 1.0]


def test_a_fill_that_a_softmax_sees_hides_nothing():
    analysis = analyzed(attention(lambda scores: scores.masked_fill(triangle(scores), 0.0)), *heads("cpu"))
    assert shares(analysis) == [1.0, 1.0]
    assert analysis.coverage.upper_calls == 0


def test_two_masks_may_hide_different_pairs():
    """A window of half of all keys on top of a causal mask: what both leave is not known, nothing may be left."""

    def masked(scores: Tensor) -> Tensor:
        query, key = positions(scores)
        return MASKS["masked_fill"](scores).masked_fill(key < query, -1e9)

    assert shares(analyzed(attention(masked), *heads("cpu"))) == pytest.approx([1 / N] * 2, abs=1e-9)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "of", [lambda mask: ~mask, lambda mask: torch.zeros(N, N).to(mask.device).masked_fill(mask, -1e9)]
)
def test_a_known_mask_of_sdpa_bounds_what_it_leaves(of, device):
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=of(triangle(q)))

    analysis = analyzed(run, *heads(device, grad=True), grad=True)
    flops = {each.name: each.matrix_flops for each in analysis.operations if "attention" in each.name}
    # 6 heads of 8 channels: 2 products forward, 5 backward, 2 FLOPs a pair and channel, of the pairs that are visible
    one = 2 * 6 * 8 * (N * (N + 1) // 2)
    assert flops == {
        "aten::scaled_dot_product_attention": 2 * one,
        "rooflight::scaled_dot_product_attention_backward": 5 * one,
    }
    assert analysis.coverage.upper_calls == 0


@pytest.mark.parametrize("most", [N * N // 4, 3 * N, N * N // 64])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_large_mask_is_looked_at_part_by_part(monkeypatch, most, batch):
    """The mask of transformers with a window: rows of 4 keys, made of positions; too large to be made at once."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key = (each[None, None] for each in positions(q))
        seen = q.new_ones((), dtype=torch.bool) & (key > query - 4) & (key <= query)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen.expand(batch, -1, N, N))

    def attributes() -> dict[str, Any]:
        (op,) = [op for op in analyzed(run, *heads("meta")).operations if "attention" in op.name]
        return dict(op.signature.attributes)["hidden"]

    whole = attributes()
    assert whole[:4] == (N * N - (4 * N - 6), N * N, 0, N)
    monkeypatch.setattr("rooflight.sources.capture.record.constants._MOST_ELEMENTS", most)
    monkeypatch.setattr("rooflight.sources.capture.record.constants._MOST_PARTS", 64)
    assert attributes() == whole


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_eager_attention_of_transformers_with_a_sliding_window(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, attn_implementation="eager",
    )  # fmt: skip
    with torch.device(device):
        model = transformers.MistralModel(config).eval()
        ids = torch.zeros(2, N, dtype=torch.int64)
    with torch.no_grad(), rl.record(model) as recording:
        model(input_ids=ids, use_cache=False)
    analysis = rl.analyze(recording.session, H100)
    found = [share for share in shares(analysis) if share < 1]
    assert found == pytest.approx([(8 * N - 28) / N**2] * 4)
    assert analysis.coverage.upper_calls == 1  # the embedding: which rows it picks
