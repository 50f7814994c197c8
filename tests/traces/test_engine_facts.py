"""What annotations, caches, kernels and a model's config show of an engine's ops."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import kernel, launch, op, ran, span

import rooflight as rl
from rooflight.sources.traces.ops.engines import in_window, read_model, step_lengths

MODELS = Path(__file__).parent.parent / "models"


SUMS = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"


@pytest.mark.parametrize(
    ("text", "tokens", "lengths"),  # sequences, keys, visible pairs, and whether these are all
    [
        ("execute_context_1(888_788544)_generation_0(0)", 888, (1, 888, 888 * 889 // 2, False)),
        (SUMS, 32, (32, 32785, 32785, True)),
        (SUMS, 48, (32, 32785, 32785, True)),  # 16 more tokens are padding
        # 6 tokens of 2 sequences: no fewer pairs than those of 3 tokens each, 2 * 3 * 4 / 2; and 3 that generate
        ("execute_context_2(6)_generation_3(3)", 9, (5, 9, 12 + 3, False)),
        ("execute_context_2(6)_generation_3(3)", 3, (3, 3, 3, False)),
        ("execute_context_2(6)_generation_3(3)", 6, (2, 6, 12, False)),
        ("step[DECODE bs=32]", 32, None),
        ("execute_context_1(888)_generation_0(0)", 10, None),
        ("execute_context_2(3)_generation_3(3)", 3, None),
        ("execute_context_1(a)_generation_0(0)", 1, None),
        ("execute_new_1_cached_2", 3, None),
    ],
)
def test_lengths_of_a_step(text, tokens, lengths):
    found = step_lengths([text], tokens)
    assert (found and (found.sequences, found.keys, found.pairs, found.exact)) == lengths


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=6), st.integers(1, 80))
def test_lengths_are_never_more_than_the_sequences_have(sequences, window):
    queries, keys = [new for new, _ in sequences], [new + old for new, old in sequences]
    products = (sum(one * other for one, other in zip(queries, each, strict=True)) for each in (queries, keys))
    sums = (sum(queries), sum(keys), *products)
    pairs = sum(q * k - q * (q - 1) // 2 for q, k in zip(queries, keys, strict=True))
    seen = [min(window, k - q + 1 + i) for q, k in zip(queries, keys, strict=True) for i in range(q)]
    read = [min(k, q + window - 1) for q, k in zip(queries, keys, strict=True)]
    number = len(sequences)
    whole = step_lengths(
        [f"execute_context_{number}(sq{sums[0]}sk{sums[1]}sqsq{sums[2]}sqsk{sums[3]})_generation_0(0)"], sums[0]
    )
    assert (whole.keys, whole.pairs, whole.exact) == (sums[1], pairs, True)
    for text in (f"{sums[0]}", f"{sums[0]}_{sums[2]}", f"sq{sums[0]}sqsk{sums[3]}", f"sq{sums[0]}sk{sums[1]}"):
        part = step_lengths([f"execute_context_{number}({text})_generation_0(0)"], sums[0])
        assert sums[0] <= part.keys <= sums[1]
        assert sums[0] <= part.pairs <= pairs
        for lengths in (whole, part):
            hidden = in_window(lengths, window)
            assert hidden.keys <= sum(read)
            assert hidden.pairs <= sum(seen)
    if number == 1:
        hidden = in_window(whole, window)
        assert (hidden.keys, hidden.pairs) == (sum(read), sum(seen))


def test_a_config_has_heads_experts_and_windows(tmp_path):
    found = read_model(MODELS / "gpt-oss-120b.json")
    assert (found.hidden_size, found.heads, found.experts, found.experts_per_token) == (2880, 64, 128, 4)
    assert found.expert_weights == 3 * 2880 * 2880
    assert (found.expert_bits, found.window) == (4, 128)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 8, "hidden_act": "relu2"}}))
    assert read_model(tmp_path).hidden_size == 8
    assert not read_model({"hidden_size": 8}).has_experts
    relu = {"hidden_size": 8, "hidden_act": "relu2", "num_experts": 4, "num_experts_per_tok": 2}
    assert read_model({**relu, "moe_intermediate_size": 5}).expert_weights == 2 * 8 * 5
    assert read_model("gpt2").hidden_size == 768


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (None, 16),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4}, 4),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 8}}}}, 4),
        ({"quant_method": "of tomorrow"}, 4),
    ],
)
def test_bits_of_weights(quantization, bits):
    assert read_model({"hidden_size": 8, "quantization_config": quantization}).expert_bits == bits


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"sliding_window": 16}, 16),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 16, "use_sliding_window": False}, 0),
        ({"sliding_window": 16, "layer_types": ["full_attention"]}, 0),
        ({"attention_chunk_size": 64, "layer_types": ["chunked_attention", "full_attention"]}, 64),
    ],
)
def test_windows_of_a_config(config, window):
    assert read_model({"hidden_size": 8, **config}).window == window


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "not a JSON object"), ("{", "not JSON"), ("{}", "no hidden_size"), (None, "is no file and no preset")],
)
def test_what_is_no_config(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path / "config.json")


ATTENTION = {"dims": [[4, 2, 8], [4, 1, 8], [4, 1, 8], [4, 2, 8]], "types": ["c10::BFloat16"] * 4}
DECODE = "execute_context_0(0)_generation_4(sq4sk100sqsq4sqsk100)"


PLAIN = {"hidden_size": 8}
SLIDING = {"hidden_size": 8, "sliding_window": 10}
ATTENDS = "vllm::unified_attention_with_output"


def served(*inside, name="fmhaSm100aKernel", store=False):
    """A step of vLLM with one attention, whose kernel has this name."""
    events = [span(DECODE, -5, 90), op(ATTENDS, 0, 50, **ATTENTION), launch(1, 1), kernel(60, 70, 1, name=name)]
    if store:
        types = ["c10::BFloat16"] * 2 + ["unsigned char"] * 2
        dims = [[4, 1, 8], [4, 1, 8], [9, 16, 1, 8], [9, 16, 1, 8]]
        events.append(op("_C_cache_ops::reshape_and_cache_flash", 60, 70, dims=dims, types=types))
    return [*events, *inside]


@pytest.fixture
def attributes(read):
    """The attributes of the attention."""

    def attributes(*inside, model=None, **options):
        session = read(*served(*inside, **options), model=model)
        (found,) = [each for each in session.signatures if each.name == ATTENDS]
        return dict(found.attributes)

    return attributes


def test_a_config_that_changes_nothing_is_said(read):
    plain = ran("aten::add", dims=[[4], [4]], types=["float"] * 2, by="add")
    for events, model, noted in (
        (plain, PLAIN, True),
        (plain, None, False),
        (served(name="_fwd_kernel"), PLAIN, False),
    ):
        notes = read(*events, model=model).notes
        assert any("The model's config changed nothing" in note for note in notes) is noted


def test_lengths_are_taken_where_no_window_can_hide_keys(attributes):
    assert attributes(model=PLAIN, name="_fwd_kernel")["kv_tokens"] == 100
    # without a model a window may hide keys; the names of TensorRT-LLM's kernels show it
    assert attributes(name="_fwd_kernel") == {}
    assert attributes()["kv_tokens"] == 100
    assert attributes(name="fmhaSm100aKernel_Sliding") == {}
    # nor are they those of a call where several share the keys
    merged = op("_C::merge_attn_states", 51, 59, dims=[[4, 2, 8]], types=["c10::BFloat16"])
    assert attributes(merged, model=PLAIN) == {}
    # 4 sequences of 1 token, of whose keys no more is known: each sees at least its own
    assert attributes(model=SLIDING, name="_fwd_kernel")["visible_pairs"] == 4
    assert attributes(model=SLIDING)["visible_pairs"] == 100
    assert attributes(model=SLIDING, name="fmhaSm100aKernel_Sliding")["visible_pairs"] == 4


def test_the_dtype_of_the_cache_is_that_of_what_is_stored(attributes):
    found = attributes(store=True)
    assert (found["cache_dtype"], found["kv_width"]) == ("uint8", 8)
    assert "cache_dtype" not in attributes()
    assert attributes(name="paged_attention_fp8")["cache_dtype"] == "float8_e4m3fn"
    assert "cache_dtype" not in attributes(name="paged_attention<(vllm::Fp8KVCacheDataType)0>")


def test_an_op_whose_attention_ran_in_another_op_says_so(attributes):
    inner = [op("_vllm_fa3_C::fwd", 10, 20, **ATTENTION), launch(12, 2), kernel(71, 80, 2, name="flash_fwd")]
    assert attributes(*inner)["incomplete"].startswith("ops inside it did its work")
    assert "incomplete" not in attributes(name="triton_poi_fused_add")
    assert "incomplete" in attributes(name="at::native::copy")


def test_experts_are_split_as_the_heads_are(read):
    model = {"hidden_size": 8, "num_attention_heads": 4, "num_experts": 6, "num_experts_per_tok": 2}
    model |= {"moe_intermediate_size": 10, "quantization_config": {"quant_method": "mxfp4"}}
    experts = op("vllm::moe_forward", 60, 80, dims=[[4, 8], [4, 6]], types=["c10::BFloat16"] * 2)
    run = [experts, launch(61, 2), kernel(90, 99, 2, name="bmm_MxE4m3_MxE2m1")]
    session = read(op(ATTENDS, 0, 50, **ATTENTION), *run, model=model)  # 2 of 4 heads
    (found,) = [dict(each.attributes) for each in session.signatures if each.name == "vllm::moe_forward"]
    sizes = {"expert_bits": 4, "expert_weights": 3 * 8 * 10 // 2, "experts_per_token": 2, "hidden_size": 8}
    assert found == {**sizes, "product_dtype": "float8_e4m3fn"}
    session = read(*run, model=model, distributedInfo={"world_size": 4})
    assert dict(session.signatures[0].attributes)["expert_weights"] == 3 * 8 * 10 // 4


def test_a_prefill_of_vllm(shown):
    session = rl.read_trace(shown / "b200_vllm_moe_eager.json.gz", model=MODELS / "gpt-oss-120b.json")
    analysis = rl.analyze(session)
    measured = sum(each.measured_s for each in analysis.operations)
    bounded = sum(each.measured_s for each in analysis.operations if isinstance(each.cost, rl.OpCost))
    assert bounded > 0.9 * measured
    assert not analysis.contradictions
    pairs = {dict(each.attributes).get("visible_pairs") for each in session.signatures if "attention" in each.name}
    # one sequence of 888 tokens: half its layers see all keys, the others 128
    assert pairs == {888 * 889 // 2, 128 * 129 // 2 + (888 - 128) * 128}
