"""Padding tokens: what masks are seen to hide, and what a batch without them would spare, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from test_diagnose import OP_S, ids, recorded, timed

from rooflight.diagnosis.diagnose import diagnose
from rooflight.records.signature import HIDDEN, PADDED

BATCH, HEADS, KEYS = 3, 2, 16
LENGTHS = torch.tensor([2, 6, 4])
EMPTY = torch.arange(KEYS) >= LENGTHS[:, None]  # True where a token is padding
HELD = (BATCH, KEYS, 6, 12)
LOW = torch.zeros(BATCH, 1, 1, KEYS).masked_fill(EMPTY[:, None, None], float("-inf"))

Attend = Callable[[torch.Tensor], torch.Tensor]


def scores(x: torch.Tensor) -> torch.Tensor:
    return x @ x.transpose(-1, -2)


WAYS: dict[str, Attend] = {
    "sdpa, bool": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=~EMPTY[:, None, None]),
    "sdpa, spread": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=(~EMPTY)[:, None, None].expand(BATCH, HEADS, KEYS, KEYS)
    ),
    "sdpa, float": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=LOW),
    "sdpa, dense": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=(~EMPTY)[:, None, None].expand(BATCH, 1, KEYS, KEYS).contiguous()
    ),
    "masked_fill": lambda x: scores(x).masked_fill(EMPTY[:, None, None], -1e9).softmax(-1) @ x,
    "where": lambda x: torch.where(EMPTY[:, None, None], float("-inf"), scores(x)).softmax(-1) @ x,
    "added": lambda x: (scores(x) + LOW).softmax(-1) @ x,
    "added in place": lambda x: scores(x).add_(LOW).softmax(-1) @ x,
}


def seen(step: Callable[[], object], name: str) -> list[object]:
    return [op.attribute(name) for op in recorded(step).signatures if op.attribute(name)]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_mask_of_data_hides_is_seen(way: str) -> None:
    x = torch.randn(BATCH, HEADS, KEYS, 8)
    assert seen(lambda: WAYS[way](x), PADDED) == [HELD]
    assert not seen(lambda: WAYS[way](x), HIDDEN)


def test_the_backward_pass_knows_its_mask_too() -> None:
    x = torch.randn(BATCH, HEADS, KEYS, 8, requires_grad=True)
    session = recorded(lambda: WAYS["sdpa, bool"](x).sum().backward())
    assert len([op for op in session.signatures if op.attribute(PADDED) == HELD]) == 2


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(KEYS, KEYS, dtype=torch.bool).tril(),  # hides pairs, but no key from all
        torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool),
        torch.zeros(BATCH, HEADS, KEYS, KEYS),  # a bias
        torch.ones(0, 1, 1, KEYS, dtype=torch.bool),
    ],
)
def test_masks_that_hide_no_key_are_no_padding(mask: torch.Tensor) -> None:
    x = torch.randn(mask.shape[0] if mask.dim() > 2 else BATCH, HEADS, KEYS, 8)
    assert not seen(lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=mask), PADDED)


def test_a_bias_of_a_map_of_features_is_no_padding() -> None:
    x, bias = torch.randn(BATCH, HEADS, KEYS, 8), torch.randn(1, 1, 1, 8)
    assert not seen(lambda: (x + bias) * (x - bias), PADDED)


def test_masks_made_of_shapes_are_constants_not_data() -> None:
    x = torch.randn(BATCH, HEADS, KEYS, 8)

    def step() -> torch.Tensor:
        empty = (torch.arange(KEYS) >= 6).expand(BATCH, 1, 1, KEYS)
        return scores(x).masked_fill(empty, float("-inf")).softmax(-1) @ x

    assert seen(step, HIDDEN)
    assert not seen(step, PADDED)


def test_work_on_padding_is_promised_by_hand() -> None:
    """Three products over tokens, one softmax and one mask over pairs; cut at 6 of 16 tokens."""
    x = torch.randn(BATCH, HEADS, KEYS, 8)
    out = diagnose(timed(recorded(lambda: WAYS["masked_fill"](x))))
    found = next(each for each in out.findings if each.id == "padding-tokens")
    pairs = 1 - (6 / KEYS) ** 2
    assert found.predicted_gain_s == pytest.approx(
        4 * (OP_S - 1e-5) * pairs, rel=0.02
    )  # product, mask, softmax, product
    assert "75.0% of the tokens are padding" in found.evidence
    assert "the longest of 3 rows has 6 of 16 tokens" in found.evidence


def test_a_long_row_among_short_ones_is_to_be_packed() -> None:
    x = torch.randn(BATCH, HEADS, KEYS, 8)
    empty = torch.arange(KEYS) >= torch.tensor([2, 16, 2])[:, None]
    out = diagnose(timed(recorded(lambda: scores(x).masked_fill(empty[:, None, None], -1e9).softmax(-1) @ x)))
    assert "padding-tokens" in ids(out)
    few = torch.arange(KEYS) >= torch.tensor([14, 16, 14])[:, None]
    out = diagnose(timed(recorded(lambda: scores(x).masked_fill(few[:, None, None], -1e9).softmax(-1) @ x)))
    assert "padding-tokens" not in ids(out)
