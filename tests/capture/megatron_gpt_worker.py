"""A rank with whole models of megatron-core's, on the CPU: what was recorded of a step. Started by ``forked_ranks``."""

import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import forked_ranks
import torch

import rooflight as rl

MODELS = {
    "dense": {},
    "experts": {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_token_dispatcher_type": "allgather",
        "add_bias_linear": False,
    },
}


class NoTracker:
    """Megatron's keeps states of GPUs."""

    def fork(self, *_: object) -> Any:
        return contextlib.nullcontext()


def without_a_gpu() -> None:
    """What Megatron asks of a GPU, or of Transformer Engine, that is not there."""
    from megatron.core import tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    tensor_parallel.get_cuda_rng_tracker = lambda *_, **__: NoTracker()
    moe_utils.te_general_gemm = None


def step_of(**changes: Any) -> rl.Session:
    """Forward and backward of two layers: 2 sequences of 32 tokens, width 64, 4 heads, 128 words."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        **changes,
    )
    layers = get_gpt_layer_local_spec(num_experts=changes.get("num_moe_experts"), moe_grouped_gemm=False)
    model = GPTModel(config=config, transformer_layer_spec=layers, vocab_size=128, max_sequence_length=32)
    words, places = torch.randint(0, 128, (2, 32)), torch.arange(32).expand(2, 32)
    mask = torch.ones(1, 1, 32, 32, dtype=torch.bool).triu(1)
    with rl.record(model) as recording:
        model(words, places, mask, labels=words).mean().backward()
    return recording.session


def find(rank: int, world: int, folder: Path) -> None:
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel()
    without_a_gpu()
    found = {}
    for name, changes in MODELS.items():
        session = step_of(**changes)
        analysis = rl.analyze(session, "H100-SXM5-80GB")
        found[name] = {
            "matrix_flops": analysis.totals.matrix_flops,
            "classes": Counter(module.class_name for module in session.modules),
            "unseen": sum(op.signature.is_unseen for op in session.records),
            "uncosted": len(analysis.coverage.uncosted),
        }
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(forked_ranks.main(find))
