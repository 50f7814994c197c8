import subprocess
import sys

import pytest

from rooflight.sources.workloads.build import build_model
from rooflight.sources.workloads.classes import class_of
from rooflight.sources.workloads.errors import TargetError
from rooflight.sources.workloads.presets import PRESETS, load_presets, preset

# Millions of parameters as their makers publish them, tied embeddings counted once.
PUBLISHED_MILLIONS = {
    "gpt2": 124.44,
    "gpt2-xl": 1557.6,
    "llama-3.1-8b": 8030.3,
    "llama-3.1-70b": 70553.7,
    "llama-3.1-405b": 405853.4,
    "llama-tiny": 41.69,
    "llama-tiny-draft": 15.19,
    "qwen3-8b": 8190.7,
    "qwen3-30b-a3b": 30532.1,
    "mixtral-8x7b": 46702.8,
    "deepseek-v3": 671026.4,
    "gpt-neox-20b": 20554.6,
    "mamba": 2768.3,
    "mamba-130m": 129.1,
    "bert-large": 335.2,
    "t5-3b": 2851.6,
    "vit-large": 304.3,
    "whisper-large-v3": 1543.5,
    "resnet-50": 25.56,
}


def test_every_preset_has_a_published_size():
    assert set(PRESETS) == set(PUBLISHED_MILLIONS)


@pytest.mark.parametrize("name", PRESETS)
def test_full_size_has_the_published_parameters(name):
    model = build_model(PRESETS[name].config(), device="meta", dtype="bfloat16")
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == PRESETS[name].parameters
    assert parameters / 1e6 == pytest.approx(PUBLISHED_MILLIONS[name], rel=1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_small_is_the_same_architecture_below_two_million_parameters(name):
    full, small = PRESETS[name].config(), PRESETS[name].small()
    assert type(small) is type(full)
    model = build_model(small, device="meta", dtype="float32" if "experts" not in str(small) else "bfloat16")
    assert sum(p.numel() for p in model.parameters()) < 2e6


@pytest.mark.parametrize("name", PRESETS)
def test_the_class_is_what_the_config_alone_tells(name):
    config, kind = PRESETS[name].config(), PRESETS[name].kind
    assert class_of(config).kind == kind
    assert class_of(config).model_class is class_of(config, kind).model_class


def test_configs_are_made_afresh():
    known = preset("llama-3.1-8b")
    known.config().rope_parameters["rope_theta"] = 1.0
    assert known.config().rope_parameters["rope_theta"] == 500000.0


def test_unknown_preset_names_close_ones_or_lists_all():
    with pytest.raises(TargetError, match=r'^unknown preset "gpt2-x1": did you mean .*gpt2-xl') as caught:
        preset("gpt2-x1")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"known presets: gpt2, gpt2-xl, .*resnet-50"):
        preset("zzz")


def test_files_of_presets_refuse_duplicates_and_inherit_values(tmp_path):
    head = 'kind = "causal-lm"\nmodel_type = "gpt2"\nparameters = 1\nsource = ""\ndescription = ""\n'
    file = tmp_path / "mine.toml"
    file.write_text(f'[one]\n{head}batch = 3\n[one.shapes]\na = 1\nb = 2\n[two]\nlike = "one"\n[two.shapes]\nb = 5\n')
    known = load_presets(file)
    assert [each.shapes for each in known.values()] == [{"a": 1, "b": 2}, {"a": 1, "b": 5}]
    assert [(each.batch, each.seq) for each in known.values()] == [(3, 256), (3, 256)]
    with pytest.raises(ValueError, match='two presets are called "one"'):
        load_presets(file, file)


def test_listing_presets_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from rooflight.sources.workloads import presets, targets; presets.preset('gpt2'); "
        "targets.find_target('gpt2'); assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
