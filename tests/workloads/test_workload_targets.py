import json
import sys
from pathlib import Path

import pytest

from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.presets import preset
from rooflight.sources.workloads.targets import ConfigFile, UserFunction, called, find_target, open_target

TINY_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def refused(text, **options):
    with pytest.raises(TargetError) as caught:
        open_target(text, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_finds_presets_configs_and_functions(tmp_path, config_file):
    assert find_target("GPT2") is preset("gpt2")
    path = Path(config_file(TINY_LLAMA))
    assert find_target(str(path)) == find_target(str(tmp_path)) == ConfigFile(path=path)
    script = tmp_path / "train.py"
    script.write_text("def make_step(): return lambda: None")
    assert find_target(f"{script}:make_step") == UserFunction(path=script, name="make_step")
    message = refused(f"{script}:make_step", batch=4, small=True)
    assert message.startswith("--batch, --small: no effect on ")
    assert not issubclass(RunFailed, ValueError)
    assert issubclass(TargetError, ValueError)


def test_presets_and_configs_open_with_options(config_file):
    step = open_target("gpt2", step="forward", batch=3, seq=5, dtype="fp16", device="meta")
    assert step.description == "gpt2: forward pass, batch 3, sequence 5, float16"
    path = config_file(TINY_LLAMA)
    step = open_target(path, seq=8, device="cpu", optimizer="sgd")
    assert step.run().isfinite()
    assert step.description == f"{Path(path).parent.name}: training step, batch 1, sequence 8, float32, SGD (foreach)"


def test_a_config_is_called_as_its_folder_or_its_file(tmp_path, monkeypatch):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").touch()
    monkeypatch.chdir(tmp_path / "small")
    assert {called(text) for text in ("config.json", str(tmp_path / "small"), "../small/", "../small/config.json")} == {
        "small"
    }
    assert called("a/mine.json") == "mine"
    assert called("a/train.py:make_step") == "train.py:make_step"
    assert called("gpt2") == "gpt2"


def test_a_model_of_the_hub_names_the_preset():
    with pytest.raises(TargetError, match=r"^no file Qwen/Qwen3-8B: did you mean qwen3-8b"):
        find_target("Qwen/Qwen3-8B")
    with pytest.raises(TargetError, match=r"^no file nowhere/abcxyz$"):
        find_target("nowhere/abcxyz")


def test_quantized_checkpoint_is_built_in_the_dtype_asked_for(config_file):
    path = config_file({**TINY_LLAMA, "quantization_config": {"quant_method": "fp8"}})
    assert open_target(path, step="forward", seq=8).run().logits.shape == (1, 8, 64)


MISTAKES = {  # what stands in a config.json, and what is said of it
    "{": "is not JSON: Expecting",
    "[" * 100_000: "is not JSON: maximum recursion depth",
    '{"n_layer": 1' + "0" * 5000 + "}": "is not JSON: Exceeds the limit",
    "[]": "holds no JSON object",
    '{"hidden_size": 3}': 'names no "model_type"',
    '{"model_type": "mystery"}': 'knows no model_type "mystery"',
    '{"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}': "code from a model's repository is never run",
    json.dumps({**TINY_LLAMA, "hidden_size": "wide"}): "transformers refuses",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_config_mistakes(config_file, text):
    assert MISTAKES[text] in refused(config_file(text))


def test_a_long_name_of_a_model_is_cut(config_file):
    assert len(refused(config_file({"model_type": "A" * 100_000}))) < 1000


def test_unknown_targets(tmp_path, config_file):
    assert "it has 2048 positions" in refused(config_file(TINY_LLAMA, "other.json"), seq=4096)
    assert f"no file {tmp_path}/nothing.json" in refused(f"{tmp_path}/nothing.json")
    assert refused(str(tmp_path)) == f"{tmp_path} is a folder without a config.json"
    assert refused("gpt-2").startswith('unknown target "gpt-2": did you mean gpt2')
    assert "known presets: gpt2," in refused("zzz")
    assert ", resnet-50. Or pass a config.json" in refused("zzz")
    assert refused("").startswith("empty target")
    assert refused("missing.py:make_step") == "no file missing.py"


def test_missing_libraries_name_the_extra(monkeypatch, config_file):
    path = config_file(TINY_LLAMA)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused(path) == 'building presets and config.json models needs transformers: pip install "rooflight[hf]"'
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(path) == (
        'building presets and config.json models needs torch and transformers: pip install "rooflight[torch,hf]"'
    )
    assert refused(f"{__file__}:make_step") == 'recording a PyTorch program needs torch: pip install "rooflight[torch]"'


def test_old_transformers_is_refused(monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.57.1")
    assert refused("gpt2") == 'transformers 4.57.1 is too old: pip install "rooflight[hf]" --upgrade'
