"""Programs of which a part is read: bounds as they were when narrowing followed boxes exactly, within 1 %.

The program bound on an H100 of each, computed at commit 88ffe20. A bound is never above it.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from recorded_function import Calls
from torch import Tensor, nn
from torch.nn import functional

import rooflight as rl

BATCHES = {"1x1024": (1, 1024), "4x256": (4, 256)}


def gpt2(shape: tuple[int, int], **settings: Any) -> tuple[Calls, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    return Calls(lambda m, x: m(x, use_cache=False).logits[:, -1], model), torch.zeros(shape, dtype=torch.long)


def llama(shape: tuple[int, int]) -> tuple[Calls, Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).eval()
    return Calls(lambda m, x: m(x, use_cache=False).logits[:, -1], model), torch.zeros(shape, dtype=torch.long)


def bert() -> tuple[Calls, Tensor]:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=3)).eval()
    return Calls(lambda m, x: m(x).pooler_output, model), torch.zeros(4, 256, dtype=torch.long)


def lstm(*, batch_first: bool, both_ways: bool) -> tuple[Calls, Tensor]:
    net, head = nn.LSTM(128, 256, 3, batch_first=batch_first, bidirectional=both_ways), nn.Linear(256 << both_ways, 10)
    return Calls(lambda net, head, x: head(net(x)[0][:, -1] if batch_first else net(x)[0][-1]), net, head), torch.zeros(
        10, 512, 128
    )


def cross_entropy(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Calls, Tensor, Tensor]:
    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(x.float(), labels)

    return Calls(loss), torch.zeros(shape, dtype=dtype), torch.zeros(shape[0], *shape[2:], dtype=torch.long)


def slices(function: Callable[[Tensor], Tensor]) -> tuple[Calls, Tensor]:
    """Of queries, keys and values of one product."""
    return Calls(lambda linear, x: function(linear(x)), nn.Linear(512, 1536)), torch.zeros(8, 256, 512)


def attention(qkv: Tensor) -> Tensor:
    q, k, v = qkv.view(8, 256, 3, 8, 64).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(8, 256, 512)
    return mixed[:, -1] * 2


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{f"gpt2 {name}": partial(gpt2, shape) for name, shape in BATCHES.items()},
    **{f"gpt2 eager {n}": partial(gpt2, s, n_layer=2, attn_implementation="eager") for n, s in BATCHES.items()},
    **{f"llama {name}": partial(llama, shape) for name, shape in BATCHES.items()},
    "bert": bert,
    "lstm": partial(lstm, batch_first=False, both_ways=False),
    "lstm both ways": partial(lstm, batch_first=True, both_ways=True),
    "cross entropy": partial(cross_entropy, 4096, 1000),
    "cross entropy in half": partial(cross_entropy, 4096, 1000, dtype=torch.float16),
    "cross entropy of images": partial(cross_entropy, 8, 21, 64, 64),
    "queries, keys and values": partial(slices, lambda y: sum(part + 1 for part in y.chunk(3, -1))),
    "queries and keys": partial(slices, lambda y: sum(part + 1 for part in y.chunk(3, -1)[:2])),
    "queries and values": partial(slices, lambda y: y.chunk(3, -1)[0] + y.chunk(3, -1)[2]),
    "attention of the last": partial(slices, attention),
}

EXACT_S: dict[str, tuple[float, float]] = {
    "gpt2 1x1024": (0.0025284, 0.00258524),
    "gpt2 4x256": (0.00245182, 0.00251859),
    # less 9.8 and 2.4 us: what its causal mask hides of the first layer's scores, 1.61 and 0.40 GFLOP at 165 TFLOP/s
    "gpt2 eager 1x1024": (0.000263894, 0.000320762),
    "gpt2 eager 4x256": (0.000260559, 0.000314293),
    "llama 1x1024": (0.000375461, 0.000428098),
    "llama 4x256": (0.000369596, 0.000418593),
    "bert": (0.000480023, 0.000491058),
    "lstm": (2.98834e-05, 3.0949e-05),
    "lstm both ways": (6.51481e-05, 6.51589e-05),
    "cross entropy": (4.90053e-06, 4.90053e-06),
    "cross entropy in half": (2.45516e-06, 2.45516e-06),
    "cross entropy of images": (8.99899e-07, 8.99899e-07),
    "queries, keys and values": (4.81499e-05, 4.81499e-05),
    "queries and keys": (3.20999e-05, 3.20999e-05),
    "queries and values": (3.20999e-05, 3.20999e-05),
    "attention of the last": (3.21627e-05, 3.46764e-05),
}


def bounds_s(case: str) -> tuple[float, float]:
    """Program and fused bound."""
    with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        model, *inputs = CASES[case]()
        with rl.record(model, memory=True) as recording:
            kept = model(*inputs)
    del kept
    program = rl.analyze(recording.session, "H100-SXM5-80GB").program
    return program.program_bound_s, program.fused_bound_s


@pytest.mark.parametrize("case", CASES)
def test_bounds_are_what_exact_boxes_gave(case: str) -> None:
    program_s, fused_s = bounds_s(case)
    exact_program_s, exact_fused_s = EXACT_S[case]
    assert 0.99 * exact_program_s <= program_s <= exact_program_s * 1.00001
    assert 0.99 * exact_fused_s <= fused_s <= exact_fused_s * 1.00001
