import pytest
import torch

from rooflight.sources.workloads.build import build_model, torch_device, torch_dtype
from rooflight.sources.workloads.errors import TargetError
from rooflight.sources.workloads.presets import preset


def test_the_largest_model_on_meta_holds_no_weights_and_tied_ones_are_tied():
    model = build_model(preset("llama-3.1-405b").config(), device="meta", dtype="bf16")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    config = preset("gpt2").small()
    model = build_model(config, device="meta", dtype="float32")
    assert model.lm_head.weight is model.transformer.wte.weight
    config.n_head = 3  # of 128: no model can be built from that
    with pytest.raises(TargetError, match=r"transformers cannot build GPT2LMHeadModel: .*divisible") as caught:
        build_model(config, device="meta", dtype="bf16")
    assert "\n" not in str(caught.value)


def test_real_weights_are_initialised_and_always_the_same():
    config = preset("llama-3.1-8b").small()
    state = torch.random.get_rng_state()
    first, second = (build_model(config, device="cpu", dtype="float32") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    weight = first.lm_head.weight
    assert torch.equal(weight, second.lm_head.weight)
    # transformers draws linear layers from a normal distribution of this width
    assert weight.std().item() == pytest.approx(config.initializer_range, rel=0.1)
    assert torch.equal(first.model.norm.weight, torch.ones_like(first.model.norm.weight))


def test_building_leaves_config_initialisers_and_default_dtype_alone():
    config = preset("gpt2").small()
    before = config.to_dict()
    normal = torch.nn.init.normal_
    build_model(config, device="meta", dtype="bfloat16")
    assert config.to_dict() == before
    assert torch.nn.init.normal_ is normal
    assert torch.get_default_dtype() is torch.float32


def test_attention_runs_through_sdpa_where_there_is_any():
    assert build_model(preset("gpt2").small(), device="meta", dtype="bf16").config._attn_implementation == "sdpa"
    build_model(preset("mamba").small(), device="meta", dtype="bf16")  # has none and is built all the same


def test_mixture_of_experts_runs_as_grouped_matmul():
    model = build_model(preset("mixtral-8x7b").small(), device="meta", dtype="bfloat16")
    assert model.config._experts_implementation == "grouped_mm"
    with pytest.raises(TargetError, match="on meta needs dtype bfloat16"):
        build_model(preset("mixtral-8x7b").small(), device="meta", dtype="float32")


@pytest.mark.parametrize(
    ("named", "name", "message"),
    [
        (torch_dtype, "bf61", 'unknown dtype "bf61"'),
        (torch_dtype, "int8", 'weights cannot be built as "int8"'),
        (torch_device, "gpux", 'unknown device "gpux"'),
        pytest.param(
            *(torch_device, "cuda", "no CUDA device here"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA"),
        ),
    ],
)
def test_names_of_none_are_refused(named, name, message):
    assert torch_dtype("bf16") is torch_dtype(torch.bfloat16) is torch.bfloat16
    assert torch_device("meta").type == "meta"
    with pytest.raises(TargetError, match=message):
        named(name)
