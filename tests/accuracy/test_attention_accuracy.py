"""Attention, recorded from real calls on the CPU and, where said, on the meta device.

Unless a test says otherwise: B = 2, Hq = Hkv = 4, Nq = Nk = 8, D = 16. Then one of q, k, v, o has 2 * 4 * 8 * 16 * 4 B
= 4096 bytes, the log-sum-exp 2 * 4 * 8 * 4 B = 256, and all 8 * 8 = 64 pairs of all 8 heads cost 2 * 8 * 64 * (16 + 16)
= 32768 FLOPs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from counting import analyse, analyse_training, bytes_of, cost, operation, rand
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.utils.checkpoint import checkpoint

from rooflight.sources.capture.record.kernels import ATTENTION_BACKWARD

FORWARD = "aten::scaled_dot_product_attention"
ALL_PAIRS = 32768
CAUSAL = 18432  # 2 * 8 * (8 * 9 / 2) * 32


class Case(NamedTuple):
    """A call, its FLOPs and the bytes its forward and backward move."""

    flops: int
    read: int
    written: int  # without the log-sum-exp that training keeps
    query: tuple[int, ...] = (2, 4, 8, 16)
    key: tuple[int, ...] = (2, 4, 8, 16)
    value: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    causal: bool = False
    hidden: int = 0  # bytes of keys and values that no query sees: not read, their gradients are zeros
    gqa: bool = False
    dropout: float = 0.0


CASES = {
    "square": Case(ALL_PAIRS, 3 * 4096, 4096),
    "causal": Case(CAUSAL, 3 * 4096, 4096, causal=True),
    # torch aligns top-left: query i sees keys 0..i, 1 + 2 + 3 + 4 = 10 pairs; 2 * 8 * 10 * 32
    "causal, more keys": Case(5120, 2048 + 2 * 2048, 2048, query=(2, 4, 4, 16), causal=True, hidden=2 * 2048),
    # 1 + 2 + 3 + 4 and then four queries that see all 4 keys: 26 pairs; 2 * 8 * 26 * 32
    "causal, more queries": Case(13312, 4096 + 2 * 2048, 4096, key=(2, 4, 4, 16), causal=True),
    # 2 * (2 * 8) * 36 * 32; k and v have 2 heads: 2048 B each
    "grouped query, causal": Case(
        36864, 8192 + 2 * 2048, 8192, query=(2, 8, 8, 16), key=(2, 2, 8, 16), causal=True, gqa=True
    ),
    # 2 * (2 * 8) * 64 * 32; one head of k and v: 1024 B each
    "multi query": Case(65536, 8192 + 2 * 1024, 8192, query=(2, 8, 8, 16), key=(2, 1, 8, 16), gqa=True),
    # 2 * 8 * (4 * 10) * 32; k and v 2 * 4 * 10 * 16 * 4 B
    "cross": Case(20480, 2048 + 2 * 5120, 2048, query=(2, 4, 4, 16), key=(2, 4, 10, 16)),
    # 2 * 8 * 64 * (16 + 8); v and o half as wide
    "narrow values": Case(24576, 2 * 4096 + 2048, 2048, value=(2, 4, 8, 8)),
    "bfloat16, causal": Case(CAUSAL, 3 * 2048, 2048, dtype=torch.bfloat16, causal=True),
    "three dimensions": Case(ALL_PAIRS, 3 * 4096, 4096, query=(8, 8, 16), key=(8, 8, 16)),
    # on the CPU dropout takes the path of bmm, softmax and bernoulli: still one op
    "dropout": Case(ALL_PAIRS, 3 * 4096, 4096, dropout=0.5),
    "dropout, causal": Case(CAUSAL, 3 * 4096, 4096, dropout=0.5, causal=True),
    # Nq = 1 against a cache of 33: 2 * 8 * 33 * 32; k and v 2 * 4 * 33 * 16 * 4 B = 16896 each
    "decode": Case(16896, 512 + 2 * 16896, 512, query=(2, 4, 1, 16), key=(2, 4, 33, 16)),
}


@pytest.fixture(params=["cpu", "meta"])
def device(request):
    return request.param


def inputs(case: Case, device: str, *, grad: bool = False) -> list[torch.Tensor]:
    shapes = (case.query, case.key, case.value or case.key)
    return [rand(*shape, dtype=case.dtype, device=device).detach().requires_grad_(grad) for shape in shapes]


def call(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v, is_causal=case.causal, enable_gqa=case.gqa, dropout_p=case.dropout)


@pytest.mark.parametrize("name", CASES)
def test_forward(name, device):
    case = CASES[name]
    q, k, v = inputs(case, device)
    analysis = analyse(lambda: call(case, q, k, v))
    found = cost(analysis, FORWARD)
    assert found.matrix_flops == case.flops == analysis.totals.matrix_flops  # no part of it is counted again
    assert (found.bytes_read, found.bytes_written) == (case.read, case.written)
    assert analysis.totals.bytes_moved == case.read + case.written
    assert not found.upper


@pytest.mark.parametrize("name", CASES)
def test_training(name, device):
    case = CASES[name]
    q, k, v = inputs(case, device, grad=True)
    analysis = analyse_training(lambda: call(case, q, k, v))
    width, value_width = q.shape[-1], v.shape[-1]
    # per pair 3 Dqk (scores again, dQ, dK) + 2 Dv (dV, dP) for Dqk + Dv forward: 2.5 times where they are equal
    backward = case.flops * (3 * width + 2 * value_width) // (width + value_width)
    assert cost(analysis, ATTENTION_BACKWARD).matrix_flops == backward
    assert analysis.totals.matrix_flops == case.flops + backward
    logsumexp = 4 * q.shape[:-1].numel()
    assert bytes_of(analysis, FORWARD) == (case.read, case.written + logsumexp)
    # reads q, k, v, o, do and the log-sum-exp, writes dq, dk, dv
    assert bytes_of(analysis, ATTENTION_BACKWARD) == (
        case.read + 2 * case.written + logsumexp,
        case.read + case.hidden,
    )


@pytest.mark.parametrize(
    ("mask", "size"),
    [
        (torch.zeros(8, 8), 256),  # float: 8 * 8 * 4 B
        (torch.ones(8, 8, dtype=torch.bool).tril(), 64),  # causal, but that is data
        (torch.ones(8, 8, dtype=torch.bool).tril().triu(-2), 64),  # a window of 3
    ],
    ids=["float", "causal", "window"],
)
def test_a_mask_leaves_an_upper_count(mask, size, device):
    q, k, v = inputs(CASES["square"], device)
    mask = mask.to(device)
    analysis = analyse(lambda: attention(q, k, v, attn_mask=mask))
    found = cost(analysis, FORWARD)
    assert found.matrix_flops == ALL_PAIRS
    assert found.upper
    assert analysis.coverage.upper_calls == 1
    assert found.bytes_read == 3 * 4096 + size


def test_decode_against_a_cache():
    """A new token per step: the cache is read, of what is written only the new rows and the output."""
    keys, values = rand(1, 2, 32, 16), rand(1, 2, 32, 16)
    q, new = rand(1, 8, 1, 16), rand(1, 2, 1, 16)

    def step():
        keys[:, :, 20:21].copy_(new)
        values[:, :, 20:21].copy_(new)
        return attention(q, keys[:, :, :21], values[:, :, :21], enable_gqa=True)

    analysis = analyse(step)
    assert analysis.totals.matrix_flops == 10752  # 2 * 8 * 21 * 32
    assert bytes_of(analysis, FORWARD) == (5888, 512)  # 4 B * (8 * 16 + 2 * 2 * 21 * 16), 4 B * 8 * 16
    assert operation(analysis, "aten::copy_").calls == 2
    assert analysis.totals.bytes_written == 512 + 2 * 128  # 4 B * 2 * 16 each


def test_autocast_runs_at_the_lower_precision():
    q, k, v = inputs(CASES["square"], "cpu", grad=True)
    gradient = torch.ones(2, 4, 8, 16)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            out = attention(q, k, v)
        out.float().backward(gradient)

    analysis = analyse(run)
    assert analysis.totals.matrix_flops == 114688  # 3.5 * 32768
    for name in (FORWARD, ATTENTION_BACKWARD):
        assert cost(analysis, name).matrix_dtype == "bfloat16"
    assert bytes_of(analysis, FORWARD) == (3 * 2048, 2048 + 256)


def retained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    out = attention(q, k, v).sum()
    out.backward(retain_graph=True)
    out.backward()


def checkpointed(*qkv: torch.Tensor) -> None:
    checkpoint(lambda *each: attention(*each, is_causal=True), *qkv, use_reentrant=False).sum().backward()


def by_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        attention(q, k, v, is_causal=True).sum().backward()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda *qkv: attention(*qkv).sum().backward(), 114688),  # (1 + 2.5) * 32768
        (lambda *qkv: (attention(*qkv) + attention(*qkv, is_causal=True)).sum().backward(), 179200),
        (retained, 196608),  # (1 + 2.5 + 2.5) * 32768: walked twice
        (by_math, 64512),  # 3.5 * 18432
        (checkpointed, 82944),  # (1 + 1 + 2.5) * 18432
    ],
    ids=["plain", "two calls", "retained graph", "math backend", "checkpointed"],
)
def test_whole_steps_count_forward_and_two_and_a_half_backward(run, expected):
    q, k, v = inputs(CASES["square"], "cpu", grad=True)
    assert analyse(lambda: run(q, k, v)).totals.matrix_flops == expected


def test_only_the_gradients_asked_for():
    q, k, v = inputs(CASES["square"], "cpu", grad=True)
    query_only = analyse_training(lambda: attention(q, k.detach(), v.detach()))
    found = cost(query_only, ATTENTION_BACKWARD)
    assert found.matrix_flops == 49152  # scores again, dP, dQ: 2 * 8 * 64 * 3 * 16
    assert found.bytes_written == 4096
    value_only = analyse_training(lambda: attention(q.detach(), k.detach(), v))
    assert cost(value_only, ATTENTION_BACKWARD).matrix_flops == 32768  # scores again, dV: 2 * 8 * 64 * 2 * 16


def test_self_attention_reads_the_one_tensor_once():
    q = rand(2, 4, 8, 16)
    assert bytes_of(analyse(lambda: attention(q, q, q)), FORWARD) == (4096, 4096)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_vmap():
    q, k, v = rand(3, 2, 4, 8, 16), rand(3, 2, 4, 8, 16), rand(3, 2, 4, 8, 16)
    assert analyse(lambda: torch.vmap(attention)(q, k, v)).totals.matrix_flops == 98304  # 3 * 32768


def test_inference_mode_counts_as_no_grad():
    q, k, v = inputs(CASES["causal"], "cpu")
    with torch.inference_mode():
        inference = analyse(lambda: attention(q, k, v, is_causal=True)).totals
    with torch.no_grad():
        assert analyse(lambda: attention(q, k, v, is_causal=True)).totals == inference
    assert inference.matrix_flops == CAUSAL


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_the_recomputed_forward(device, reentrant):
    q, k, v = inputs(CASES["causal"], device, grad=True)
    w = rand(16, 16, grad=True, device=device) if device == "cpu" else torch.empty(16, 16, device="meta")

    def run():
        out = checkpoint(lambda *qkv: attention(*qkv, is_causal=True) @ w, q, k, v, use_reentrant=reentrant)
        out.sum().backward()

    flops = {group.name: group.matrix_flops for group in analyse(run).by("op")}
    assert flops[FORWARD] == 36864  # 2 * 18432
    assert flops[ATTENTION_BACKWARD] == 46080  # 2.5 * 18432


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_nested_batches_are_counted_sequence_by_sequence():
    """4 heads of 5 and of 3 tokens: 2 * 4 * (5² + 3²) * (16 + 16) = 8704."""
    nested = torch.nested.nested_tensor([rand(5, 4, 16), rand(3, 4, 16)], layout=torch.jagged).transpose(1, 2)
    analysis = analyse(lambda: attention(nested, nested, nested))
    assert analysis.totals.matrix_flops == 8704
    assert analysis.coverage.calls == 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
class TestFlexAttention:
    """torch's own counter raises here. Compiled functions run eagerly while recording, so both ways are one op."""

    @staticmethod
    def inputs() -> list[torch.Tensor]:
        return [rand(1, 2, 128, 16) for _ in range(3)]

    @pytest.mark.parametrize("compiled", [False, True])
    def test_all_visible(self, compiled):
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = self.inputs()
        function = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
        analysis = analyse(lambda: function(q, k, v))
        found = cost(analysis, "higher_order::flex_attention")
        assert found.matrix_flops == 2097152 == analysis.totals.matrix_flops  # 2 * 2 * (128 * 128) * 32
        assert found.bytes_written >= 16384  # o: 4 B * 2 * 128 * 16
        assert analysis.coverage.uncosted == ()

    @staticmethod
    def masked(visible, **settings):
        """2 heads of 300 queries and keys, three blocks of 128 of which the last has 44; and 16 numbers."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = (rand(1, 2, 300, 16) for _ in range(3))
        mask = create_block_mask(visible, None, None, 300, 300, device="cpu")
        return cost(
            analyse(lambda: flex_attention(q, k, v, block_mask=mask, **settings)), "higher_order::flex_attention"
        )

    @pytest.mark.parametrize(
        ("visible", "pairs"),
        [
            (lambda b, h, i, j: i >= j, 300 * 301 // 2),
            (lambda b, h, i, j: (i >= j) & (i - j < 5), 5 * 300 - 10),
            (lambda b, h, i, j: i // 10 == j // 10, 10 * 300),
        ],
    )
    def test_a_block_mask_leaves_the_pairs_that_it_shows(self, visible, pairs):
        found = self.masked(visible)
        assert found.matrix_flops == 2 * 2 * pairs * (16 + 16)
        assert not found.upper

    def test_keys_in_blocks_that_no_query_sees_are_not_read(self):
        """280 of 300 keys, and as many values, of 2 heads: 2 * 280 * 2 * 16 * 4 B less."""
        less, more = (self.masked(lambda b, h, i, j, n=n: (j >= n) & (i >= 0)).bytes_read for n in (280, 0))
        assert more - less >= 71680

    def test_of_many_blocks_that_are_not_full_a_pair_each_is_certain(self, monkeypatch):
        """One is full, those with the last 44 queries are not, nor are those on the diagonal."""
        monkeypatch.setattr("rooflight.sources.capture.record.masks._MOST_PAIRS", 0)
        pairs = 128 * 128 + 5
        assert self.masked(lambda b, h, i, j: i >= j).matrix_flops == 2 * 2 * pairs * 32

    def test_a_score_function_may_hide_more(self):
        found = self.masked(lambda b, h, i, j: i >= j, score_mod=lambda score, b, h, i, j: score * 2)
        assert (found.upper, found.note) == (True, "score function not evaluated")
