"""Forty-two kinds of scripts for CUDA, unedited: each is answered, and what its step runs was counted by hand."""

from __future__ import annotations

import pytest
from test_unedited_scripts import H100, SCRIPTS, calls_of, recorded_on

import rooflight as rl
from rooflight.costs.registry import cost_of
from rooflight.front.on_devices import row_of
from rooflight.front.sessions import predicted
from rooflight.prediction.predictor import Predictor

ATTENTION = "aten::scaled_dot_product_attention"
QUICK = ["flash_and_triton", "no_sync_hook"]
WITH_TORCHVISION = ("resnet_amp", "vit_tf32")
RANKS = 8
PREDICTOR = Predictor()
TABLE = {
    # of a block: two convolutions, of three blocks one more; the stem; each with a backward pass
    "data_parallel": (RANKS, "SGD", {"aten::convolution": 12, "aten::convolution_backward": 12, "aten::mm": 2}),
    "spawned_ranks": (RANKS, "SGD", {"aten::batch_norm_elemt": 2, "aten::batch_norm_backward_elemt": 2}),
    # four micro-batches of six layers, the first input without a gradient; one exchange
    "no_sync_hook": (RANKS, "AdamW", {"aten::addmm": 24, "aten::mm": 4 * (6 + 5), "c10d::allreduce_": 2}),
    # a root and six blocks, which are gathered again for the backward pass, where their forward pass runs again
    "fsdp1_gpt": (RANKS, "AdamW", {"c10d::_allgather_base_": 13, "c10d::_reduce_scatter_base_": 7, ATTENTION: 12}),
    # the gradients of seven norms, whose weights all ranks of a row hold
    "tensor_sequence_parallel": (RANKS, "AdamW", {"_c10d_functional::all_reduce": 7, ATTENTION: 3, "aten::addmm": 9}),
    # shards of six blocks and a root: gathered twice, the root once; what is scattered is summed over the copies
    "hsdp_llama": (
        2 * RANKS,
        "AdamW",
        {"c10d::_allgather_base_": 13, "c10d::_reduce_scatter_base_": 7, "c10d::allreduce_": 7, "aten::addmm": 13},
    ),
    # the text's features with their gradients, which an all-to-all brings back, the image's without; two buckets
    "contrastive_gather": (RANKS, "AdamW", {"c10d::allgather_": 2, "c10d::alltoall_": 1, "c10d::allreduce_": 2}),
    # of two layers: counts, tokens there and back; of the gradients all but those of the input. Two experts a rank
    "expert_parallel": (RANKS, "AdamW", {"c10d::alltoall_base_": 2 * 3 + 3, "aten::mm": 2 * 13 + 1}),
    # the first of four stages: two blocks, eight micro-batches
    "pipelined": (4, "Adam", {"c10d::send": 8, "c10d::recv_": 8, "aten::addmm": 8 * 2 * 3, ATTENTION: 16}),
    "old_amp": (1, "SGD", {"aten::convolution": 5, "aten::convolution_backward": 5, "aten::addmm": 1}),
    "lightning_speech": (1, "AdamW", {"aten::gru": 1, "rooflight::gru_backward": 1, "aten::convolution": 1}),
    "timed_inference": (1, "Sequential", {ATTENTION: 6, "aten::addmm": 24, "aten::_fused_rms_norm": 24}),
    "trainer_bert": (1, "AdamW", {ATTENTION: 8, "aten::_fused_adamw_": 2}),
    "accelerated_vit": (RANKS, "AdamW", {ATTENTION: 8, "aten::convolution": 2}),
    "llama_static_cache": (1, "LlamaForCausalLM", {ATTENTION: 4, "aten::mm": 4 * 7 + 1}),
    "trainer_class": (1, "AdamW", {ATTENTION: 4}),
    "lbfgs_style": (1, "LBFGS", {"aten::convolution": 20 * 4, "aten::mm": 20 * 4 * 3}),  # 20 evaluations
    "ppo_on_gpu": (1, "Adam", {"aten::addmm": 6, "aten::mm": 10}),
    "wgan_penalty": (1, "Adam", {}),
    "vae_cuda": (1, "Adam", {"aten::addmm": 5, "aten::mm": 9}),
    "translate": (1, "Adam", {ATTENTION: 9}),  # three of the encoder, six of the decoder
    "cuda_graph": (1, "Adam", {"aten::addmm": 2, "aten::mm": 3}),
    "prefetcher": (1, "SGD", {"aten::convolution": 2, "aten::convolution_backward": 2}),
    "packed_tagger": (1, "Adam", {"aten::lstm": 1, "rooflight::lstm_backward": 1}),
    "per_sample": (1, "SGD", {"aten::convolution": 2}),
    "saves_and_resumes": (1, "AdamW", {"aten::addmm": 2, "aten::mm": 3}),
    "falls_back": (1, "AdamW", {"aten::addmm": 16, "aten::mm": 32}),
    "shapes_vary": (1, "AdamW", {ATTENTION: 3}),
    "bert_masked": (1, "AdamW", {}),
    "dcgan": (1, "Adam", {}),
    "ddp_mlp_mixer": (RANKS, "AdamW", {}),
    "flash_and_triton": (
        1,
        "AdamW",
        {
            "aten::_flash_attention_forward": 4,
            "aten::_flash_attention_backward": 4,
            "triton::linear_kernel": 2,
            "triton::relu_squared_kernel": 2,
        },
    ),
    "flex_documents": (1, "Adam", {}),
    "fsdp2_llama": (RANKS, "AdamW", {ATTENTION: 8}),
    "gpt2_generate": (1, "GPT2LMHeadModel", {ATTENTION: 12}),
    "llama_checkpointed": (1, "AdamW", {}),
    "lstm_words": (1, "backward", {"aten::lstm": 1}),
    "moe_routed": (1, "AdamW", {}),
    "nano_gpt": (1, "AdamW", {}),
    "resnet_amp": (1, "SGD", {}),
    "unet_diffusion": (1, "AdamW", {}),
    "vit_tf32": (1, "AdamW", {}),
}


def answered(tmp_path, name):
    """The session of a script of the table, which has what is written there."""
    if name in WITH_TORCHVISION:
        pytest.importorskip("torchvision")
    gpus, step, counts = TABLE[name]
    nodes = 2 if name == "hsdp_llama" else 1
    session = recorded_on(tmp_path, SCRIPTS / f"{name}.py", gpus=gpus // nodes, nodes=nodes)
    assert session.run.step.name.removesuffix(".step") == step
    assert {op: len(calls_of(session, op)) for op in counts} == counts
    row = row_of(predicted(rl.analyze(session, H100), PREDICTOR), session.run.virtual, PREDICTOR)
    assert row.gpus == gpus
    assert row.step_s > row.bound_s > 0
    return session


def test_every_script_is_in_the_table():
    assert sorted(TABLE) == sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("name", QUICK)
def test_a_script_is_answered(tmp_path, name):
    session = answered(tmp_path, name)
    if name == "no_sync_hook":  # the hook sends bfloat16: six layers of 1,024 x 1,024 and a bias
        payload = sum(tensor.nbytes for op in calls_of(session, "c10d::allreduce_") for tensor in op.inputs)
        assert payload == 2 * 6 * (1024 * 1024 + 1024)

    if name == "flash_and_triton":  # 2,048 tokens by 256 to 1,024 numbers; sequences of known lengths
        (product,) = {cost_of(op).matrix_flops for op in calls_of(session, "triton::linear_kernel")}
        assert product == 2 * 2048 * 1024 * 256
        (squared,) = {cost_of(op).bytes_moved for op in calls_of(session, "triton::relu_squared_kernel")}
        assert squared == 2 * 2048 * 1024 * 2
        lengths = {op.attribute("lengths") for op in calls_of(session, "aten::_flash_attention_backward")}
        assert lengths == {None, (512, 512, 256, 256, 384, 384, 128, 128)}
        pairs = sum(length * (length + 1) // 2 for length in (512, 256, 384, 128))
        assert 4 * 4 * 64 * pairs in {
            cost_of(op).matrix_flops for op in calls_of(session, "aten::_flash_attention_forward")
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TABLE.keys() - QUICK))
def test_the_other_scripts_are_answered(tmp_path, name):
    answered(tmp_path, name)
