"""Configs that no model can be: one line that says what is wrong, as an error of the user's, and no code of others."""

from __future__ import annotations

import json

import pytest
from small_architectures import config_of

from rooflight.front.options import RunOptions
from rooflight.front.targets import analyze_target
from rooflight.sources.workloads.errors import TargetError, first_words

GPT2 = config_of("GPT2LMHeadModel")
LLAMA = config_of("LlamaForCausalLM")

REFUSED = {
    "layers below 0": ({**GPT2, "n_layer": -1}, "n_layer is -1: it must be at least 1"),
    "layers without end": ({**GPT2, "n_layer": 1 << 31}, "n_layer is 2147483648: it must be at most 10,000"),
    "labels without end": ({**GPT2, "num_labels": 1 << 31}, "num_labels is 2147483648: it must be at most 1,000,000"),
    "no layers": ({**GPT2, "n_layer": 0}, "n_layer is 0: it must be at least 1"),
    "no heads": ({**GPT2, "n_head": 0}, "n_head is 0"),
    "no heads of keys": ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads is 0"),
    "heads that share unevenly": (
        {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 3},
        "4 attention heads cannot share 3 key-value heads evenly",
    ),
    "a width that heads do not divide": ({**GPT2, "n_head": 3}, "must be divisible by num_heads"),
    "the same of Llama": ({**LLAMA, "num_attention_heads": 3}, r"\(32\) is not a multiple of .* heads \(3\)"),
    "text for a number": ({**GPT2, "n_embd": "wide"}, "expected int, got str"),
    "a number as text": ({**GPT2, "n_layer": "2"}, "expected int, got str"),
    "half a layer": ({**GPT2, "n_layer": 1.5}, "expected int, got float"),
    "a window that is text": ({**LLAMA, "sliding_window": "x"}, "makes no cache of this config: TypeError: new"),
    "no vocabulary": ({**GPT2, "vocab_size": 0}, "vocab_size is 0"),
    "a vocabulary of 24 digits": ({**GPT2, "vocab_size": 10**24}, "GPT2LMHeadModel is too large"),
    "a vocabulary of 16 digits": ({**GPT2, "vocab_size": 10**16}, r"too large: 3.20e\+17 parameters"),
    "nothing": ({}, 'names no "model_type"'),
    "a nested model type": ({"model_type": {"gpt2": 1}}, 'names no "model_type"'),
    "a deep zero": ({"model_type": "clip", "text_config": {"num_hidden_layers": 0}}, r"text_config\.num_hidden_layers"),
    "a part that is text": ({"model_type": "clip", "text_config": "x"}, "Validation error for field 'text_config'"),
    "a part of no type": ({"model_type": "llava", "text_config": {"model_type": "x"}}, r"model type .*: x.* \.\.\.$"),
    "an unknown activation": ({**LLAMA, "hidden_act": "boom"}, "KeyError: 'boom'"),
    "patches larger than the image": (
        {"model_type": "vit", "image_size": 32, "patch_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2},
        "ViTForImageClassification does not run with the inputs that Rooflight makes: .*Kernel size",
    ),
    "three sides of an image": ({"model_type": "vit", "image_size": [1, 2, 3]}, "is no height and width"),
    "images that Rooflight cannot make": (
        {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"]},
        "no inputs are known for MllamaForConditionalGeneration: write your own step",
    ),
    "images of several sizes": (
        {"model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"]},
        r"no inputs are known for LlavaNextForConditionalGeneration \(its images: .*\): write your own",
    ),
    "no class": ({**GPT2, "architectures": ["PreTrainedModel"]}, "no inputs are known for PreTrainedModel"),
}  # fmt: skip


def analyzed(tmp_path, values, **options):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return analyze_target(str(path), RunOptions(**options), device="H100-SXM5-80GB")


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_of_no_model_is_refused_in_one_line(tmp_path, case, capfd):
    values, said = REFUSED[case]
    with pytest.raises(TargetError, match=said) as caught:
        analyzed(tmp_path, values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "architectures", ["GPT2LMHeadModel", 5, [5], [{"a": 1}], {"a": 1}, [], ["os.system"], ["pipeline"]]
)
def test_whatever_stands_for_the_architectures_runs_the_model_or_its_usual_class(tmp_path, architectures):
    analysis, notes = analyzed(tmp_path, {**GPT2, "architectures": architectures}, seq=8)
    assert analysis.session.environment["model_class"] == "GPT2LMHeadModel"
    assert len(notes) == (architectures != "GPT2LMHeadModel")


def test_code_beside_a_config_never_runs(tmp_path):
    (tmp_path / "remote.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Model: ...\n"
    )
    remote = {"AutoConfig": "remote.Model", "AutoModelForCausalLM": "remote.Model"}
    _, (note,) = analyzed(tmp_path, {**GPT2, "architectures": ["Model"], "auto_map": remote}, seq=8)
    assert note == "transformers has no class Model, which the config names: built GPT2LMHeadModel, by its model_type."
    with pytest.raises(TargetError, match="code from a model's repository is never run"):
        analyzed(tmp_path, {"model_type": "mystery", "auto_map": remote})
    assert not (tmp_path / "ran").exists()


def test_long_texts_are_cut_between_words():
    assert first_words("one\n two") == "one two"
    assert first_words("word " * 100) == "word " * 59 + "word ..."  # 60 words of 5 characters are 300
