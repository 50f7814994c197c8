"""attach_model on the real decoder families of transformers, built from small configs: which bucket each module's time
is in, and that models are left as they were."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import transformers
from fake_device import FakeDevice
from measured_runs import quiet, run_of
from small_decoders import GPT2, HEAD, LLAMA, SIZES
from torch import nn

from rooflight.inference import NullProfiler, Profiler, register_module_bucket
from rooflight.studies.inference.engines.module_buckets import _TABLE, placed_modules

_QKV = {"q_proj": "attn.qkv_proj", "k_proj": "attn.qkv_proj", "v_proj": "attn.qkv_proj"}
_NORMS = {"input_layernorm": "norm", "post_attention_layernorm": "norm"}
_GATED = {"gate_proj": "mlp.gate_up_proj", "up_proj": "mlp.gate_up_proj", "down_proj": "mlp.down_proj",
          "act_fn": "mlp.act"}  # fmt: skip
_ATTENTION = _QKV | {"o_proj": "attn.o_proj", "rotary_emb": "attn.rope"} | _NORMS
_ENDS = {"embed_tokens": "embed", "norm": "norm", "lm_head": "lm_head"}
_LIKE_LLAMA = _ATTENTION | _GATED | _ENDS
_QK_NORMS = {"q_norm": "attn.qk_norm", "k_norm": "attn.qk_norm"}
_FEEDFORWARD_NORMS = {"pre_feedforward_layernorm": "norm", "post_feedforward_layernorm": "norm"}
_MOE = {"experts": "mlp.experts", "mlp.gate": "mlp.router"}
_LIKE_GPT2 = {"wte": "embed", "wpe": "embed", "ln_1": "norm", "ln_2": "norm", "ln_f": "norm", "lm_head": "lm_head",
              "attn.c_attn": "attn.qkv_proj", "attn.c_proj": "attn.o_proj", "mlp.c_fc": "mlp.gate_up_proj",
              "mlp.c_proj": "mlp.down_proj", "mlp.act": "mlp.act"}  # fmt: skip
_LIKE_NEOX = {"query_key_value": "attn.qkv_proj", "dense": "attn.o_proj", "dense_h_to_4h": "mlp.gate_up_proj",
              "dense_4h_to_h": "mlp.down_proj", "act": "mlp.act", "rotary_emb": "attn.rope",
              "lm_head": "lm_head"} | _NORMS  # fmt: skip

# By model type: its config, and the bucket of every leaf module that does work, by the end of its path.
FAMILIES = {
    "llama": (LLAMA, _LIKE_LLAMA),
    "qwen2": (LLAMA, _LIKE_LLAMA),
    "qwen3": (HEAD, _LIKE_LLAMA | _QK_NORMS),
    "mistral": (LLAMA, _LIKE_LLAMA),
    "mixtral": (LLAMA | {"num_local_experts": 4}, _ATTENTION | _ENDS | _MOE),
    "qwen3_moe": (HEAD | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
                  _ATTENTION | _QK_NORMS | _ENDS | _MOE),
    "qwen2_moe": (LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                            "shared_expert_intermediate_size": 16},
                  _LIKE_LLAMA | _MOE | {"shared_expert_gate": "mlp.router"}),
    "gemma": (HEAD, _LIKE_LLAMA),
    "gemma2": (HEAD, _LIKE_LLAMA | _FEEDFORWARD_NORMS),
    "gemma3_text": (HEAD, _LIKE_LLAMA | _FEEDFORWARD_NORMS | _QK_NORMS),
    "gpt2": (GPT2, _LIKE_GPT2),
    "gpt_bigcode": (GPT2, _LIKE_GPT2),
    "gptj": (GPT2 | {"rotary_dim": 4}, _QKV | {
        "wte": "embed", "ln_1": "norm", "ln_f": "norm", "attn.out_proj": "attn.o_proj", "fc_in": "mlp.gate_up_proj",
        "fc_out": "mlp.down_proj", "act": "mlp.act", "lm_head": "lm_head"}),
    "gpt_neox": (SIZES | {"intermediate_size": 48}, _LIKE_NEOX | {"embed_in": "embed", "final_layer_norm": "norm"}),
    "falcon": (SIZES, _LIKE_NEOX | {"word_embeddings": "embed", "ln_f": "norm"}),
    "bloom": ({"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
              _LIKE_NEOX | {"word_embeddings": "embed", "word_embeddings_layernorm": "norm", "ln_f": "norm",
                            "gelu_impl": "mlp.act"}),
    "phi": (LLAMA, _QKV | {
        "embed_tokens": "embed", "dense": "attn.o_proj", "rotary_emb": "attn.rope", "input_layernorm": "norm",
        "final_layernorm": "norm", "fc1": "mlp.gate_up_proj", "fc2": "mlp.down_proj", "activation_fn": "mlp.act",
        "lm_head": "lm_head"}),
    "phi3": (LLAMA, _ENDS | _NORMS | {
        "qkv_proj": "attn.qkv_proj", "o_proj": "attn.o_proj", "rotary_emb": "attn.rope",
        "gate_up_proj": "mlp.gate_up_proj", "down_proj": "mlp.down_proj", "activation_fn": "mlp.act"}),
    "opt": (SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 16}, _QKV | {
        "embed_tokens": "embed", "embed_positions": "embed", "project_in": "embed", "project_out": "lm_head",
        "out_proj": "attn.o_proj", "self_attn_layer_norm": "norm", "final_layer_norm": "norm",
        "fc1": "mlp.gate_up_proj", "fc2": "mlp.down_proj", "activation_fn": "mlp.act", "lm_head": "lm_head"}),
    "starcoder2": (LLAMA, _ATTENTION | _ENDS | {
        "c_fc": "mlp.gate_up_proj", "c_proj": "mlp.down_proj", "act": "mlp.act"}),
    "cohere": (LLAMA, _LIKE_LLAMA),
    "olmo2": (LLAMA, _LIKE_LLAMA | _QK_NORMS | {"post_feedforward_layernorm": "norm"}),
    "stablelm": (LLAMA, _LIKE_LLAMA),
}  # fmt: skip
_IDLE = (nn.Dropout, nn.Identity)
_IDS = torch.randint(3, 64, (2, 6), generator=torch.Generator().manual_seed(0))


def build(family: str, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **(FAMILIES[family][0] | changes))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def model() -> nn.Module:
    return build("llama")


def hooks(model: nn.Module) -> list[int]:
    """How much is hooked in each module, in every one of its dicts of hooks, and what is called in its place."""
    in_dicts = [
        len(value)
        for module in model.modules()
        for name, value in vars(module).items()
        if "hooks" in name and isinstance(value, dict)
    ]
    return [*in_dicts, *(id(vars(module).get("_compiled_call_impl")) - id(None) for module in model.modules())]


def step(prof: Profiler, call) -> None:
    with run_of(prof, bsz=2), torch.inference_mode(), prof.step_timing_ctx():
        prof.set_step_tokens(2)
        call()


def expected(family: str, path: str) -> str:
    buckets = FAMILIES[family][1]
    found = {bucket for end, bucket in buckets.items() if f".{path}".endswith(f".{end}")}
    assert len(found) == 1, path
    return found.pop()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_leaf_is_in_the_one_bucket_it_belongs_to(family):
    model = build(family)
    placed = placed_modules(model, lora=False)
    assert len({id(each.module) for each in placed}) == len(placed)
    assert all(each.known for each in placed)
    by_path = {each.path: each for each in placed}
    for path, module in model.named_modules():
        if list(module.children()) or isinstance(module, _IDLE):
            continue
        if ".experts." in path:  # a part of what is timed as a whole
            assert path not in by_path
            continue
        assert by_path[path].bucket == expected(family, path), path
    around = {each.bucket for each in placed if list(each.module.children())}
    parts = "mlp.experts" if "experts" in FAMILIES[family][1] else "mlp.act"
    assert around - {"mlp.act"} == {"prepare", "logits", "residual", "attn.compute", parts} - {"mlp.act"}
    layers = [each for each in placed if each.bucket == "residual"]
    assert len(layers) == 2  # the config's, each once
    assert all(isinstance(each.module, nn.Module) and each.path.endswith((".0", ".1")) for each in layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_the_same_with_hooks_and_the_model_as_before_without(prof, family):
    model = build(family)
    files = {type(module).__module__ for module in model.modules()}
    ropes = {file: getattr(sys.modules[file], "apply_rotary_pos_emb", None) for file in files}
    before = hooks(model)
    with torch.inference_mode():
        plain = model(_IDS).logits
    prof.attach_model(model)
    assert hooks(model) != before
    outputs = []
    step(prof, lambda: outputs.append(model(_IDS).logits))
    assert torch.equal(outputs[0], plain)
    calls = prof.results.totals.buckets["model"].calls
    assert {"prepare", "logits"} <= set(calls)
    calls = {name: number for name, number in calls.items() if name not in ("prepare", "attn.mask", "logits")}
    assert set(FAMILIES[family][1].values()) | {"attn.compute", "residual"} == set(calls) - {"attn.rope"} | (
        {"attn.rope"} & set(FAMILIES[family][1].values())
    )
    assert ("attn.rope" in calls) == (family not in ("gpt2", "gpt_bigcode", "opt", "bloom"))
    assert not prof.problems.counts
    prof.detach()
    assert hooks(model) == before
    assert {file: getattr(sys.modules[file], "apply_rotary_pos_emb", None) for file in files} == ropes
    prof.detach()  # nothing more
    prof.attach_model(model)
    prof.detach()
    assert hooks(model) == before


def test_calls_of_a_llama_by_hand(prof, model):
    prof.attach_model(model)
    step(prof, lambda: model(_IDS))
    assert prof.results.totals.buckets["model"].calls == {
        "prepare": 1,
        "attn.mask": 1,
        "embed": 1,
        "residual": 2,
        "norm": 5,  # two a layer, and the last
        "attn.compute": 2,
        "attn.qkv_proj": 6,
        "attn.rope": 3,  # cos and sin once, applied in each layer
        "attn.o_proj": 2,
        "mlp.act": 4,  # the MLP, and in it the activation
        "mlp.gate_up_proj": 4,
        "mlp.down_proj": 2,
        "lm_head": 1,
        "logits": 1,
    }
    prof.detach()
    step(prof, lambda: model(_IDS))
    assert prof.results.totals.buckets["model"].calls["lm_head"] == 1


class _Takes(nn.Module):
    """Takes the nanoseconds that it is told."""

    def __init__(self, bench, nanoseconds: int, **parts: nn.Module) -> None:
        super().__init__()
        self._bench, self._ns = bench, nanoseconds
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self):
        self._bench.work(self._ns)
        for part in self.children():
            part()


def decoder(bench) -> nn.Module:
    def work(nanoseconds: int, **parts: nn.Module) -> _Takes:
        return _Takes(bench, nanoseconds, **parts)

    attention = work(300, q_proj=work(10), k_proj=work(20), v_proj=work(30), o_proj=work(40))
    mlp = work(7, gate_proj=work(100), up_proj=work(200), down_proj=work(400))
    layer = work(5, input_layernorm=work(1), self_attn=attention, post_attention_layernorm=work(2), mlp=mlp)
    base = work(6, embed_tokens=work(50), block=layer)
    return work(0, model=work(9, decoder=base, lm_head=work(1000)), value_head=work(4))


def test_times_by_bucket_are_exact_on_every_clock(bench):
    model = decoder(bench)
    bench.profiler.attach_model(model)
    with run_of(bench.profiler, bsz=1):
        with bench.profiler.step_timing_ctx():
            model()
        bench.catch_up()
    sums = bench.profiler.results.totals.buckets["model"]
    assert sums.exclusive_ns == {"logits": 9, "prepare": 6, "embed": 50, "residual": 5, "norm": 3,
        "attn.compute": 300, "attn.qkv_proj": 60, "_Takes": 4,
        "attn.o_proj": 40, "mlp.act": 7, "mlp.gate_up_proj": 300, "mlp.down_proj": 400, "lm_head": 1000}  # fmt: skip
    assert sums.unattributed_ns == 0
    bench.profiler.detach()


@pytest.mark.parametrize("error", [RuntimeError, StopIteration])
@pytest.mark.parametrize("place", ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.act_fn", "lm_head"])
def test_exceptions_leave_no_bucket_open(prof, place, error, model):
    prof.attach_model(model)

    def fail(*_):
        raise error

    handle = model.get_submodule(place).register_forward_pre_hook(fail)
    with run_of(prof, bsz=2), torch.inference_mode(), prof.step_timing_ctx():
        with pytest.raises((error, RuntimeError)):
            model(_IDS)
        prof.set_step_tokens(2)
        handle.remove()
        model(_IDS)
    assert not prof.problems.counts
    assert prof.results.totals.buckets["model"].calls["lm_head"] == 1 + (place == "lm_head")


def test_attaching_twice_is_refused_and_changes_nothing(prof, model):
    prof.attach_model(model)
    before = hooks(model)
    for again in (model, model.model.layers[0], model.lm_head):
        with pytest.raises(ValueError, match="attached already: detach"):
            prof.attach_model(again)
    with pytest.raises(ValueError, match=r"takes a torch\.nn\.Module, not str"):
        prof.attach_model("llama")
    assert hooks(model) == before


def test_a_draft_that_shares_the_targets_head_is_attached_beside_it(prof):
    target, draft = build("llama"), build("llama", num_hidden_layers=1)
    draft.lm_head = target.lm_head
    prof.attach_model(target)
    prof.attach_model(draft)
    step(prof, lambda: draft(_IDS))
    assert prof.results.totals.buckets["model"].calls["lm_head"] == 1
    assert prof.results.totals.buckets["model"].calls["attn.rope"] == 2
    prof.detach()
    assert not any(hooks(target) + hooks(draft))


def test_two_profilers_detach_in_any_order(make, tmp_path):
    model, file = build("llama"), sys.modules["transformers.models.llama.modeling_llama"]
    rope = file.apply_rotary_pos_emb
    first, second = make().profiler, quiet(tmp_path, model_profiling=True)
    first.attach_model(model)
    second.attach_model(model)
    first.detach()
    assert file.apply_rotary_pos_emb is not rope
    step(first, lambda: model(_IDS))
    assert "attn.rope" not in first.results.totals.buckets["model"].calls
    second.detach()
    assert file.apply_rotary_pos_emb is rope
    assert not any(hooks(model))


def test_rope_of_a_model_that_is_not_attached_is_not_timed(prof):
    model, other = build("llama"), build("llama")
    prof.attach_model(model)
    step(prof, lambda: other(_IDS))
    assert prof.results.totals.buckets["model"].calls == {}


class _Lora(nn.Module):
    """A layer as peft's ``lora.Linear`` has it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base
        out_features, in_features = base.weight.shape
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, out_features, bias=False)})

    def forward(self, x):
        low = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + self.lora_B["default"](low) * 2.0


class _InlineLora(nn.Linear):
    """A layer that is the base itself."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.lora_A = nn.Linear(in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, out_features, bias=False)

    def forward(self, x):
        return super().forward(x) + self.lora_B(self.lora_A(x))


@pytest.mark.parametrize("gated", [True, False])
def test_lora_by_pefts_names(prof, gated, model):
    for layer in model.model.layers:
        layer.self_attn.q_proj = _Lora(layer.self_attn.q_proj)
        layer.self_attn.o_proj = _Lora(layer.self_attn.o_proj)
        layer.mlp.down_proj = _InlineLora(48, 32)
    prof.attach_model(model, use_gated_lora=gated)
    step(prof, lambda: model(_IDS))
    calls = prof.results.totals.buckets["model"].calls
    assert calls["attn.qkv_proj"] == 6
    assert calls["attn.o_proj"] == calls["mlp.down_proj"] == 2
    lora = {name: number for name, number in calls.items() if name.endswith(".lora")}
    # the wrapper once a layer; of what is no wrapper, A and B
    assert lora == ({"attn.qkv_proj.lora": 2, "attn.o_proj.lora": 2, "mlp.down_proj.lora": 4} if gated else {})
    prof.detach()
    assert not any(hooks(model))


def test_a_model_of_unknown_names_is_timed_by_classes(prof):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    prof.attach_model(model)
    step(prof, lambda: model(torch.ones(1, 4)))
    assert prof.results.totals.buckets["model"].calls == {"Linear": 2, "ReLU": 1}
    assert list(prof.problems.counts) == [
        "attach_model: no module of Sequential has a known name: buckets are classes of modules "
        "(register_module_bucket names them)"
    ]
    prof.detach()
    prof.attach_model(nn.Linear(4, 4))  # not even parts


def test_an_unknown_module_in_a_known_model_is_not_in_its_neighbours_bucket(prof, model):
    model.model.layers[0].self_attn.sparsity_indexer = nn.Linear(32, 32)
    prof.attach_model(model)
    assert [text for text in prof.problems.counts if "model.layers.0.self_attn.sparsity_indexer" in text]
    (unknown,) = [each for each in placed_modules(model, lora=False) if not each.known]
    assert unknown.bucket == "Linear"


def test_names_are_added_in_one_line_and_once():
    with pytest.raises(ValueError, match=r'called "q_proj" are in bucket attn\.qkv_proj already'):
        register_module_bucket("q_proj", "mine")
    for name, bucket in (("", "mine"), (".", "mine"), ("mine", ""), (3, "mine")):
        with pytest.raises(ValueError, match="give a module's name and a bucket's"):
            register_module_bucket(name, bucket)
    register_module_bucket("_Takes", "engine.mine")  # a class; and no label of the engine's domain
    try:
        (placed,) = placed_modules(_Takes(None, 0), lora=False)
        assert (placed.bucket, placed.known) == ("engine.mine", True)
    finally:
        del _TABLE["_Takes"]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_layer_is_one_bucket_and_stays_one_graph(prof, in_place, model):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    layers = model.model.layers
    if in_place:
        layers[0].mlp.compile(backend=backend, fullgraph=True)
    else:
        layers[0].mlp = torch.compile(layers[0].mlp, backend=backend, fullgraph=True)
    before = hooks(model)
    prof.attach_model(model)
    step(prof, lambda: model(_IDS))
    step(prof, lambda: model(_IDS))
    calls = prof.results.totals.buckets["model"].calls
    assert len(graphs) == 1
    assert calls["compiled"] == 2
    assert calls["mlp.down_proj"] == 2  # of the other layer
    (text,) = prof.problems.counts
    assert "torch.compile made parts" in text
    assert text.endswith("in bucket compiled, which holds mlp.gate_up_proj, mlp.act, mlp.down_proj")
    prof.detach()
    assert hooks(model) == before
    with torch.inference_mode():
        model(_IDS)
    torch._dynamo.reset()


def test_a_model_compiled_after_it_was_attached_is_whole(prof):
    torch._dynamo.reset()
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(4, 4))
    model.add_module("fc2", nn.Linear(4, 4))
    prof.attach_model(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    step(prof, lambda: compiled(torch.ones(1, 4)))
    assert prof.results.totals.buckets["model"].calls == {}
    prof.detach()
    torch._dynamo.reset()


def test_nothing_is_hooked_where_nothing_is_measured(make, as_rank):
    model = build("gpt2")
    NullProfiler().attach_model(model, use_gated_lora=True)
    NullProfiler().detach()
    make(model_profiling=False).profiler.attach_model(model)
    as_rank(1, 2)
    disabled = make().profiler
    assert disabled.disabled
    disabled.attach_model(model)
    disabled.detach()
    assert not any(hooks(model))


def test_a_copy_of_an_attached_model_runs(make):
    prof = make(FakeDevice()).profiler
    model = build("gpt2")
    prof.attach_model(model)
    copy.deepcopy(model)(_IDS)
    prof.detach()


def test_a_decode_step_with_a_kv_cache_is_in_named_buckets(tmp_path):
    """At least 95 % of a step of real work."""
    torch.manual_seed(0)
    settings = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 8192}
    config = transformers.LlamaConfig(**(LLAMA | settings | {"num_attention_heads": 8, "max_position_embeddings": 512}))
    model = transformers.LlamaForCausalLM(config).eval()
    prof = quiet(tmp_path, model_profiling=True)
    prof.attach_model(model)
    with torch.inference_mode():
        out = model(torch.randint(3, 64, (8, 64)), use_cache=True, logits_to_keep=1)
        cache, ids = out.past_key_values, out.logits.argmax(-1)
        with run_of(prof, bsz=8):
            for _ in range(12):
                with prof.step_timing_ctx():
                    logits = model(ids, past_key_values=cache, use_cache=True).logits
                    prof.set_step_tokens(8)
                ids = logits[:, -1:].argmax(-1)
    prof.detach()
    sums = prof.results.totals.buckets["model"]
    assert sum(sums.exclusive_ns.values()) + sums.unattributed_ns == sums.whole_ns
    assert sums.unattributed_ns <= 0.05 * sums.whole_ns
