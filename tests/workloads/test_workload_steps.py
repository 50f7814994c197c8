import pytest
import torch
from attention_spy import AttentionSpy
from transformers import AutoConfig
from transformers.cache_utils import DynamicCache

from rooflight.sources.workloads.classes import KINDS
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.presets import PRESETS, preset
from rooflight.sources.workloads.steps import make_step

BATCH, SEQ = 2, 16

PRESETS_AND_MODES = [(name, mode) for name, known in PRESETS.items() for mode in KINDS[known.kind].steps]

# Presets that differ only in size run the same code.
ALIKE = {"gpt2-xl", "llama-3.1-70b", "llama-3.1-405b", "llama-tiny-draft", "mamba-130m"}
SMALL = [(name, mode) for name, mode in PRESETS_AND_MODES if name not in ALIKE]

CAUSAL = ["gpt2", "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt-neox-20b"]


def small_step(name, mode, **options):
    seq = None if PRESETS[name].kind == "image-classification" else SEQ
    return make_step(name, **{"step": mode, "batch": BATCH, "seq": seq, "device": "cpu", "small": True, **options})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "mode"), SMALL)
def test_small_presets_run_again_and_again_on_cpu(name, mode, dtype):
    step = small_step(name, mode, dtype=dtype)
    first, second = step.run(), step.run()
    if mode == "train":
        # the optimizer learns the batch; bfloat16 may be too coarse to tell
        assert second.item() < first.item() or (dtype == "bfloat16" and second.item() == first.item())
        assert all(p.grad is None for p in step.model.parameters())
    else:
        assert first.logits.shape == second.logits.shape
        assert torch.isfinite(first.logits).all()
        assert not first.logits.requires_grad
    assert step.model.training == (mode == "train")
    assert {p.dtype for p in step.model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("mode", ["forward", "train", "prefill"])
@pytest.mark.parametrize("name", CAUSAL)
def test_full_sequences_attend_through_the_causal_flag(name, mode):
    step = small_step(name, mode)
    with AttentionSpy() as spy:
        step.run()
    assert len(spy.calls) == preset(name).small().num_hidden_layers
    for call in spy.calls:
        assert call.is_causal
        assert not call.has_mask
        assert call.query[0] == call.key[0] == BATCH
        assert call.query[2] == call.key[2] == SEQ


@pytest.mark.parametrize("name", CAUSAL)
def test_decode_sees_the_cache_and_itself_every_time(name):
    step = small_step(name, "decode", dtype="bfloat16")
    with AttentionSpy() as spy:
        for _ in range(3):
            step.run()
    assert len(spy.calls) == 3 * preset(name).small().num_hidden_layers
    for call in spy.calls:
        assert not call.is_causal
        assert not call.has_mask
        assert (call.query[2], call.key[2], call.value[2]) == (1, SEQ + 1, SEQ + 1)


def test_grouped_heads_reach_attention_ungrouped_and_prefill_gives_the_last_logits_and_a_cache():
    with AttentionSpy() as spy:
        small_step("llama-3.1-8b", "forward").run()
    assert spy.calls[0].query == (BATCH, 4, SEQ, 32)
    assert spy.calls[0].key == (BATCH, 2, SEQ, 32)
    output = small_step("llama-3.1-8b", "prefill").run()
    assert output.logits.shape == (BATCH, 1, 512)
    assert output.past_key_values.get_seq_length() == SEQ


@pytest.mark.parametrize(("name", "mode"), [("gpt2", "forward"), ("llama-3.1-8b", "decode")])
def test_a_step_computes_what_a_plain_call_with_transformers_own_cache_computes(name, mode):
    step = small_step(name, mode)
    seen = {}
    hook = step.model.register_forward_pre_hook(lambda _, args, kwargs: seen.update(kwargs), with_kwargs=True)
    ours = step.run().logits
    hook.remove()
    plain = {"use_cache": False}
    if mode == "decode":
        theirs = DynamicCache(config=step.model.config)
        for i, layer in enumerate(seen["past_key_values"].layers):
            theirs.update(layer.keys[:, :, :SEQ], layer.values[:, :, :SEQ], i)
        plain = {"past_key_values": theirs}
    with torch.no_grad():
        expected = step.model(input_ids=seen["input_ids"], **plain).logits
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "mamba2"])
def test_decode_never_grows_caches_that_are_no_plain_ones(model_type):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    more = {
        "mistral": {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 8},
        "gemma3_text": {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
                        "sliding_window": 8},
        "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 1, "state_size": 8},
    }  # fmt: skip
    config = AutoConfig.for_model(model_type, **sizes, **more[model_type], pad_token_id=0, bos_token_id=1,
                                  eos_token_id=2)  # fmt: skip
    step = make_step(config, step="decode", batch=1, seq=SEQ, device="cpu")
    keys = []
    for _ in range(3):
        with AttentionSpy() as spy:
            step.run()
        keys.append([call.key for call in spy.calls])
    assert keys[0] == keys[1] == keys[2]


def test_step_describes_itself_and_its_tokens():
    step = make_step("gpt2", device="meta")
    assert step.description == "gpt2: training step, batch 1, sequence 256, bfloat16, AdamW (foreach)"
    assert (step.name, step.batch, step.seq, step.tokens) == ("train", 1, 256, 256)
    assert (step.dtype, step.device, step.notes) == ("bfloat16", "meta", ())
    assert make_step("gpt2", device="cpu", small=True).dtype == "float32"
    assert small_step("llama-3.1-8b", "decode").tokens == BATCH
    assert small_step("t5-3b", "forward").tokens == 2 * BATCH * SEQ  # source and target
    assert small_step("resnet-50", "forward").tokens is None
    assert small_step("whisper-large-v3", "forward").tokens == BATCH * SEQ


COUNTED = "Rooflight counts up to 10,000,000,000 in a step"
RESNET = r"resnet-50 \(ResNetForImageClassification, image-classification\) has no step decode: use forward"
BERT = r"bert-large \(BertForMaskedLM, masked-lm\) has no step prefill: use forward or train"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"seq": 1025}, r"seq 1025 is too long for gpt2: it has 1024 positions"),
        ("gpt2", {"seq": 1024, "step": "decode"}, r"seq 1024 and the new token is too long for gpt2: it has 1024"),
        ("whisper-large-v3", {"seq": 1000}, "seq 1000 is too long for whisper-large-v3: it has 448 positions"),
        ("resnet-50", {"seq": 99}, "seq 99 has no effect: resnet-50 takes images"),
        ("gpt2", {"step": "forward", "optimizer": "sgd"}, "optimizer sgd has no effect: step forward has none"),
        ("gpt2", {"batch": 10**22}, f"batch is {10**22}: {COUNTED}"),
        ("gpt2", {"seq": 10**22}, f"seq is {10**22}: {COUNTED}"),
        ("gpt2", {"batch": 10**9, "seq": 100}, rf"batch 1000000000 and seq 100 make 1e\+11 tokens: {COUNTED}"),
        ("gpt2", {"seq": 0}, "seq is 0: it must be at least 1"),
        ("gpt2", {"batch": 0}, "batch is 0: it must be at least 1"),
        ("gpt2", {"step": "dance"}, 'unknown step "dance": use one of forward, train, prefill, decode'),
        ("gpt2", {"optimizer": "lion"}, 'unknown optimizer "lion": use one of adamw, adamw-fused, sgd, none'),
        ("resnet-50", {"step": "decode"}, RESNET),
        ("bert-large", {"step": "prefill"}, BERT),
        ("bert-large", {"seq": 513}, "it has 512 positions"),
        ("gpt3", {}, 'unknown preset "gpt3": did you mean gpt2'),
        (preset("gpt2").config, {"small": True}, "small is for presets"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(name, options, message):
    with pytest.raises(TargetError, match=message) as caught:
        make_step(name() if callable(name) else name, **options)
    assert "\n" not in str(caught.value)


def test_a_default_gives_way_to_a_short_model():
    config = preset("gpt2").small()
    config.n_positions = 100
    assert make_step(config).seq == 100
    assert make_step(config, step="decode").seq == 99
    with pytest.raises(TargetError, match="it has 100 positions"):
        make_step(config, seq=101)


def test_a_step_that_breaks_says_so_in_one_line():
    step = small_step("gpt2", "forward")
    step.model.lm_head = torch.nn.Linear(3, 3)
    with pytest.raises(RunFailed, match="the step failed: RuntimeError: mat1 and mat2 shapes") as caught:
        step.run()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
