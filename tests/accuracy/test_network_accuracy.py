"""Recurrent layers, multi-head attention, encoders and whole language models, recorded from real calls."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch
from counting import Run, analyse, analyse_training, bytes_of, cost, flops, rand, training_flops
from torch import nn
from torch.utils.checkpoint import checkpoint

from rooflight.sources.capture.record.kernels import ATTENTION_BACKWARD

pytest.importorskip("transformers")

SIZES: dict[str, int] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_one_way_and_both_ways_of_recurrent_networks():
    """x is [3, 5, 10], 20 hidden units: a token meets gates * 20 * (10 + 20) weights in the first layer."""
    x, trained = rand(3, 5, 10), rand(3, 5, 10, grad=True)
    lstm, gru = nn.LSTM(10, 20, num_layers=2, batch_first=True), nn.GRU(10, 20)
    assert flops(lambda: lstm(x)) == 168000  # 2 * 15 tokens * 4 gates * 20 * ((10 + 20) + (20 + 20))
    # less the states' gradient of the first step, whose state wants none: 2 * 3 * 80 * 20 of each layer
    assert training_flops(lambda: lstm(trained)[0]) == 3 * 168000 - 2 * 9600
    assert flops(lambda: nn.LSTM(10, 20, bidirectional=True)(x)) == 144000  # 2 * 2 directions * 15 * 80 * 30
    assert flops(lambda: nn.GRU(10, 20, bidirectional=True)(x)) == 108000  # 2 * 2 directions * 15 * 60 * 30
    # forward 54000, weights' gradients 54000, inputs' 2 * 15 * 60 * 10 = 18000, states' 2 * 15 * 60 * 20 = 36000
    # less the first step's, whose state is zeros that want none: 2 * 5 * 60 * 20 = 12000
    assert training_flops(lambda: gru(trained)[0]) == 54000 + 54000 + 18000 + 36000 - 12000
    assert flops(lambda: nn.LSTMCell(10, 20)(x[0])) == 24000  # 2 * 5 * 80 * 30


def test_lstm_bytes_in_training_leave_the_workspace_out():
    lstm, x = nn.LSTM(10, 20), rand(5, 3, 10)
    # 4 B * (x 5 * 3 * 10 + weights 80 * (10 + 20) + biases 2 * 80 + h and c 2 * 3 * 20)
    # 4 B * (y 5 * 3 * 20 + h and c 2 * 3 * 20)
    with torch.no_grad():
        assert bytes_of(analyse(lambda: lstm(x)), "aten::lstm") == (11320, 1680)
    assert bytes_of(analyse_training(lambda: lstm(x)[0]), "aten::lstm") == (11320, 1680)


class TestMultiheadAttention:
    """2 sequences of 8 tokens of width 32, 4 heads of 8.

    Projections 2 * 16 * 32 * (96 + 32) = 131072, attention 2 * (2 * 4) * 64 * (8 + 8) = 16384: 147456 together.
    """

    def test_training_and_evaluation_count_alike(self):
        layer, x = nn.MultiheadAttention(32, 4, batch_first=True), rand(2, 8, 32)
        run: Run = lambda: layer(x, x, x, need_weights=False)[0]  # noqa: E731
        assert flops(run) == 147456
        assert flops(lambda: layer(x, x, x)) == 147456  # weights asked for: products and softmax one by one
        layer.eval()
        assert flops(run) == 147456
        with torch.no_grad():
            assert flops(run) == 147456  # the fast path, one native op
        with torch.inference_mode():
            assert flops(run) == 147456

    def test_fast_path_bytes(self):
        layer, x = nn.MultiheadAttention(32, 4, batch_first=True).eval(), rand(2, 8, 32)
        with torch.no_grad():
            found = bytes_of(analyse(lambda: layer(x, x, x, need_weights=False)), "aten::_native_multi_head_attention")
        # 4 B * (x 512, once for q, k and v, + 96 * 32 + 96 + 32 * 32 + 32), 4 B * 512
        assert found == (18944, 2048)

    def test_backward(self):
        layer, x = nn.MultiheadAttention(32, 4, batch_first=True), rand(2, 8, 32)
        # forward 147456; out projection twice 2 * 16 * 32 * 32; attention 2.5 * 16384; in projection only dw: 98304
        expected = 147456 + 2 * 32768 + 40960 + 98304
        assert training_flops(lambda: layer(x, x, x, need_weights=False)[0]) == expected


class TestEncoder:
    """Two layers: attention as above and 2 * 16 * 2 * 32 * 64 = 131072 of feed-forward, 278528 a layer."""

    @staticmethod
    def encoder() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)

    def test_training(self):
        encoder, x = self.encoder(), rand(2, 8, 32)
        # forward 557056; backward of products twice theirs (2 * 2 * 262144), of attention 2.5 * 2 * 16384, less the
        # input's gradient through the first in projection, 98304
        assert training_flops(lambda: encoder(x)) == 557056 + 1048576 + 81920 - 98304

    def test_fast_path(self):
        encoder, x = self.encoder().eval(), rand(2, 8, 32)
        with torch.no_grad():
            analysis = analyse(lambda: encoder(x), encoder)
        assert {op.signature.name for op in analysis.operations} >= {"aten::_transformer_encoder_layer_fwd"}
        assert analysis.totals.matrix_flops == 557056
        assert analysis.coverage.uncosted == ()


class TestLanguageModel:
    """Llama, 2 layers: width 32, 4 query and 2 key heads of 8, feed-forward 48, vocabulary 64; 2 sequences of 8.

    Weights of a layer: q and o 2 * 32 * 32, k and v 2 * 32 * 16, feed-forward 3 * 32 * 48: 7680; head 32 * 64 = 2048.
    Products forward 2 * 16 * (2 * 7680 + 2048) = 557056; attention 2 layers * 2 * (2 * 4) * 36 * 16 = 18432.
    """

    @staticmethod
    def llama(device: str = "cpu") -> nn.Module:
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(**SIZES)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config)

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_forward(self, device):
        model, ids = self.llama(device), torch.zeros(2, 8, dtype=torch.long, device=device)
        with torch.no_grad():
            expected = analyse(lambda: model(ids, use_cache=False)).totals
        assert expected.matrix_flops == 575488  # 557056 + 18432
        with torch.inference_mode():
            assert analyse(lambda: model(ids, use_cache=False)).totals == expected

    def test_training(self):
        model, ids = self.llama(), torch.zeros(2, 8, dtype=torch.long)

        def step():
            loss = model(ids, labels=ids, use_cache=False).loss
            loss.backward()

        analysis = analyse(step, model)
        assert analysis.totals.matrix_flops == 1735680  # 3 * 557056 + 3.5 * 18432
        assert analysis.coverage.uncosted == ()

    def test_decode(self):
        model, ids = self.llama(), torch.zeros(2, 8, dtype=torch.long)
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
            analysis = analyse(lambda: model(ids[:, :1], past_key_values=cache, use_cache=True), model)
        # one token a sequence: 2 * 2 * 17408 of products, attention 2 layers * 2 * (2 * 4) * 9 * 16
        assert analysis.totals.matrix_flops == 69632 + 4608
        attention = [op for op in analysis.operations if op.signature.name == "aten::scaled_dot_product_attention"]
        # per layer q 4 B * 2 * 4 * 8, k and v 2 * 4 B * 2 * 2 * 9 * 8
        assert [op.cost.bytes_read for op in attention] == [2560]
        assert attention[0].calls == 2

    @pytest.mark.parametrize("experts", ["eager", "grouped_mm", "batched_mm"])
    def test_mixture_of_experts(self, experts):
        from transformers import AutoModelForCausalLM, MixtralConfig

        config = MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **SIZES)
        model, ids = AutoModelForCausalLM.from_config(config), torch.zeros(2, 8, dtype=torch.long)
        model.config._experts_implementation = experts
        # a layer: attention projections 2 * 16 * 3072 and router 2 * 16 * 32 * 4; each token meets 2 of 4 experts,
        # 2 * 16 * 2 * (3 * 32 * 48); attention 9216, head 2 * 16 * 2048
        with torch.no_grad():
            analysis = analyse(lambda: model(ids, use_cache=False))
        assert analysis.totals.matrix_flops == 2 * (98304 + 4096 + 294912 + 9216) + 65536
        assert analysis.coverage.uncosted == ()


class TestSteps:
    """A step of Linear(8, 16), relu, Linear(16, 4) on 5 rows: forward 1280 + 640."""

    @staticmethod
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def test_plain(self):
        model, x = self.network(), rand(5, 8)
        assert training_flops(lambda: model(x)) == 4480  # 3 * 1920 - 1280, the input wants no gradient

    def test_checkpointing_counts_what_is_computed_again(self):
        model, x = self.network(), rand(5, 8, grad=True)
        reentrant = analyse(lambda: checkpoint(model, x, use_reentrant=True).sum().backward(), model)
        assert reentrant.totals.matrix_flops == 7680  # 4 * 1920
        early = analyse(lambda: checkpoint(model, x, use_reentrant=False).sum().backward(), model)
        assert early.totals.matrix_flops == 7040  # 4 * 1920 - 640: torch stops before the last layer, rightly

    def test_autocast(self):
        model, x = self.network(), rand(5, 8)

        def run():
            with torch.autocast("cpu", torch.bfloat16):
                model(x).float().sum().backward()

        analysis = analyse(run, model)
        assert analysis.totals.matrix_flops == 4480
        products = [op for op in analysis.operations if op.signature.name in ("aten::mm", "aten::addmm")]
        assert {op.cost.matrix_dtype for op in products} == {"bfloat16"}

    @pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
    def test_compiled_model(self):
        model, x = self.network(), rand(5, 8)
        compiled = torch.compile(model, backend="eager")
        assert flops(lambda: compiled(x)) == 1920

    @pytest.mark.parametrize(
        "run",
        [
            lambda x: nn.functional.linear(x, torch.ones(7, 10)),
            lambda x: torch.einsum("tbi,tbj->tij", x, x),
            lambda x: nn.functional.conv1d(x, torch.ones(4, 5, 3)),
            lambda x: nn.functional.layer_norm(x, (10,)),
            lambda x: nn.functional.cross_entropy(x[0], torch.zeros(5, dtype=torch.long)),
            nn.GRU(10, 20),
            nn.LSTM(10, 20),
            lambda x: x.transpose(0, 1).reshape(-1).to(torch.bfloat16),
        ],
        ids=["linear", "einsum", "conv1d", "layer_norm", "cross_entropy", "gru", "lstm", "reshape"],
    )
    def test_inference_mode_counts_as_no_grad(self, run):
        x = rand(3, 5, 10)
        with torch.no_grad():
            expected = analyse(lambda: run(x)).totals
        with torch.inference_mode():
            found = analyse(lambda: run(x)).totals
        counts = attrgetter("flops", "bytes_read", "bytes_written")
        assert counts(found) == counts(expected)


def test_attention_block_between_projections():
    """A block of width 16, 2 heads of 8, 2 x 8 tokens: as any training step, whichever device runs it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(2, 8, 16))

    totals = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            block, x = Block(), torch.empty(2, 8, 16, requires_grad=True)
        analysis = analyse_training(lambda block=block, x=x: block(x), block)
        # products 3 * (2 * 16 * 16 * 64), attention 2 * (2 * 2) * 36 * 16 = 4608 forward, 2.5 times that backward
        assert analysis.totals.matrix_flops == 98304 + 16128
        assert cost(analysis, ATTENTION_BACKWARD).matrix_flops == 11520
        recomputed = analyse(lambda block=block, x=x: checkpoint(block, x, use_reentrant=False).sum().backward(), block)
        # again 24576 + 4608, not the last layer
        assert recomputed.totals.matrix_flops == analysis.totals.matrix_flops + 29184
        totals.append((analysis.totals.flops, analysis.totals.bytes_read, analysis.totals.bytes_written))
    assert totals[0] == totals[1]
