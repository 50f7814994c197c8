"""attach_engine on generate of transformers, as it is installed: the same tokens as without, and steps, tokens, KV
lengths, drafts and buckets against what was generated."""

from __future__ import annotations

import pytest
import torch
import transformers
from fake_device import FakeDevice
from measured_runs import quiet, run_of
from small_decoders import GPT2, LLAMA

_CONFIGS = {"llama": LLAMA | {"max_position_embeddings": 128}, "gpt2": GPT2 | {"n_positions": 128, "pad_token_id": 0}}
_IDS = torch.randint(3, 64, (2, 6), generator=torch.Generator().manual_seed(0))


pytestmark = pytest.mark.usefixtures("one_thread")


def build(family: str = "llama", seed: int = 0, **changes: object):
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, **(_CONFIGS[family] | changes))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def model():
    return build()


def generated(model, ids=_IDS, **settings):
    torch.manual_seed(3)
    settings = {"max_new_tokens": 8, "do_sample": False} | settings
    return model.generate(ids, **settings)


def kept(prof) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in prof.results.samples.columns().items()}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampling"])
def test_greedy_and_sampling_by_hand(host, family, sampled):
    prof, model = host.profiler, build(family)
    before, hooks = set(vars(model)), len(model._forward_hooks)
    settings = {"do_sample": sampled, "eos_token_id": None, "temperature": 0.7} if sampled else {"eos_token_id": None}
    plain = generated(model, **settings)
    prof.attach_engine(model)
    assert torch.equal(generated(model, **settings), plain)
    prof.detach()
    assert set(vars(model)) == before
    assert len(model._forward_hooks) == hooks
    summary = host.summary()
    (run,) = summary["runs"]
    assert (run["meta"]["label"], run["meta"]["bsz"]) == ("generate", 2)
    assert (run["stats"]["steps"], run["stats"]["tokens_total"]) == (7, 14)  # the first token is the prefill's
    assert (run["other_phases"]["prefill"]["steps"], run["other_phases"]["prefill"]["tokens_total"]) == (1, 2)
    assert prof.results.samples.columns()["kv_length"].tolist() == [0, *range(6, 13)]
    # of a cached token: keys and values of 2 layers, 2 sequences, in float32; Llama has 2 heads of 8, GPT-2 4
    token = 2 * 2 * 2 * 4 * (16 if family == "llama" else 32)
    assert kept(prof)["kv_cache_bytes"] == [-1, *(token * length for length in range(6, 13))]
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["engine"]}
    assert calls == {"inputs": 1, "decode": 1, "sampler": 1, "postproc": 2, "(unattributed)": None}
    prefill = next(
        split for split in summary["bucket_splits"] if (split["domain"], split["kv_bin"]) == ("engine", "prefill")
    )
    assert set(prefill["buckets_avg_ms"]) <= {"prefill", "inputs", "sampler", "postproc"}
    assert not summary["problems"]


def test_sequences_that_are_finished_get_no_tokens(prof, model):
    free = generated(model, eos_token_id=None)[:, 6:]
    end = int(next(token for token in free[0] if token not in free[1]))  # the first sequence ends there
    model.generation_config.eos_token_id = end
    plain = generated(model)
    prof.attach_engine(model)
    assert torch.equal(generated(model), plain)
    length = free[0].tolist().index(end) + 1
    steps = plain.shape[1] - 6
    assert kept(prof)["tokens"] == [2] * length + [1] * (steps - length)


def test_each_sequence_is_a_request(tmp_path):
    prof = quiet(tmp_path)
    model = build()
    free = generated(model, eos_token_id=None)[:, 6:]
    model.generation_config.eos_token_id = int(next(token for token in free[0] if token not in free[1]))
    prof.attach_engine(model)
    length = free[0].tolist().index(model.generation_config.eos_token_id) + 1
    generated(model)
    generated(model, _IDS[:1], assistant_model=build(), eos_token_id=None)
    with pytest.raises(RuntimeError):
        generated(model, logits_processor=[_Stops(2)])
    ended = {name: column.tolist() for name, column in prof.requests.ended.columns().items()}
    assert ended["run"] == [0, 0, 1, 2, 2]
    assert ended["prompt_tokens"] == [6] * 5
    assert ended["tokens"] == [length, 8, 8, 1, 1]
    assert ended["deliveries"][:2] == [length, 8]
    assert ended["deliveries"][2] < 8  # several tokens of a round at once
    times = zip(ended["ttft_ns"], ended["last_ns"], ended["e2e_ns"], strict=True)
    assert all(0 < first <= last <= end for first, last, end in times)
    assert prof.requests.unfinished == 0
    prof.save_all()


def test_an_encoder_runs_before_the_prefill(prof):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)
    ).eval()
    plain = generated(model, eos_token_id=None)
    prof.attach_engine(model)
    assert torch.equal(generated(model, eos_token_id=None), plain)
    assert prof.results.samples.columns()["kv_length"].tolist() == list(range(8))  # of the decoder's cache
    assert prof.results.totals.tokens == 14


def test_tokens_of_sequences_on_a_device_are_counted_there():
    """As ``test_sequences_that_are_finished_get_no_tokens``, on tensors that are said to be on a device."""
    from types import SimpleNamespace

    from rooflight.studies.inference.engines.transformers import _count

    counted = []
    steps = SimpleNamespace(
        state={}, measures=True, facts=SimpleNamespace(set=lambda _name, tokens: counted.append(tokens))
    )
    for done in ([False, False, True], [False, True, False], [True, False, False]):
        _count(steps, torch.tensor(done, device="meta"), [object()])
    assert [each.device.type for each in counted] == ["meta"] * 3
    assert [each.shape for each in counted] == [()] * 3


def test_several_sequences_of_a_prompt_and_a_prompt_of_embeddings(host, prof, model):
    settings = {"do_sample": True, "num_return_sequences": 3, "eos_token_id": None}
    plain = generated(model, **settings)
    embeds = model.get_input_embeddings()(_IDS)
    of_embeds = generated(model, None, inputs_embeds=embeds, eos_token_id=None)
    prof.attach_engine(model)
    assert torch.equal(generated(model, **settings), plain)
    assert torch.equal(generated(model, None, inputs_embeds=embeds, eos_token_id=None), of_embeds)
    first, second = host.summary()["runs"]
    assert (first["meta"]["bsz"], first["stats"]["tokens_total"]) == (6, 42)
    assert (second["meta"]["bsz"], second["stats"]["tokens_total"]) == (2, 14)
    assert prof.results.samples.columns()["kv_length"].tolist() == [0, *range(6, 13)] * 2


@pytest.mark.parametrize(
    "settings",
    [
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 4},
        {"return_dict_in_generate": True, "output_scores": True},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"num_beams": 3},
        {"stopping_criteria": [lambda ids, scores: torch.zeros(len(ids), dtype=torch.bool)]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_ways_to_generate_give_the_same_with_hooks(host, settings, prof, model):
    plain = generated(model, **settings)
    prof.attach_engine(model)
    with torch.inference_mode():
        found = generated(model, **settings)
    if "return_dict_in_generate" in settings:
        assert len(found.scores) == len(plain.scores)
        assert all(torch.equal(*pair) for pair in zip(found.scores, plain.scores, strict=True))
        found, plain = found.sequences, plain.sequences
    assert torch.equal(found, plain)
    summary = host.summary()
    assert summary["stats"]["steps"] == 7
    assert summary["other_phases"]["prefill"]["steps"] == 1
    if "num_beams" in settings:  # which tokens stay is known at the end
        assert summary["runs"][0]["meta"]["bsz"] == 6
        assert summary["stats"]["tokens_total"] is None
    else:
        assert summary["stats"]["tokens_total"] == 14
    known = prof.results.samples.columns()["kv_length"].tolist()
    assert known[1:] == list(range(6, 13)) or "use_cache" in settings


def assisted(make, model, ids=_IDS[:1], **settings):
    """Generate with and without hooks: the summary, and the number of new tokens."""
    bench = make()
    prof = bench.profiler
    settings = {"eos_token_id": None, "max_new_tokens": 24} | settings
    plain = generated(model, ids, **settings)
    prof.attach_engine(model)
    assert torch.equal(generated(model, ids, **settings), plain)
    prof.detach()
    summary = bench.summary()
    assert not summary["problems"]
    return prof, summary, plain.shape[1] - ids.shape[1]


def test_a_draft_that_is_the_target_is_accepted_whole(make):
    model, draft = build(), build()
    draft.generation_config.num_assistant_tokens = 4
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    prof, summary, new = assisted(make, model, assistant_model=draft, max_new_tokens=20)
    assert new == 20
    assert (summary["speculative"]["proposed"], summary["speculative"]["accepted"]) == (16, 16)
    assert kept(prof)["tokens"] == [5] * 4  # four of the draft and one of the target
    assert prof.results.samples.columns()["kv_length"].tolist() == [
        0,
        10,
        15,
        20,
    ]  # the prompt's 6, then all but the last token
    assert (summary["stats"]["steps"], summary["other_phases"]["prefill"]["steps"]) == (3, 1)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "rejection sampling"])
def test_a_draft_that_differs_is_accepted_in_part(make, sampled):
    model, draft = build(), build(seed=1, num_hidden_layers=1)
    draft.lm_head.weight.data.copy_(model.lm_head.weight)
    prof, summary, new = assisted(make, model, assistant_model=draft, do_sample=sampled)
    rounds = summary["speculative"]
    tokens = kept(prof)["tokens"]
    assert sum(tokens) == new == 24
    assert rounds["accepted"] == new - len(tokens)  # each round adds one of the target
    assert 0 <= rounds["accepted"] <= rounds["proposed"]
    names = {row["name"] for row in summary["buckets"]["engine"]}
    assert {"inputs", "draft", "verify", "sampler", "postproc"} <= names
    assert "decode" not in names
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["engine"]}
    assert (calls["draft"], calls["verify"], calls["sampler"]) == (1, 1, 1)


def test_drafts_of_the_prompt_and_of_the_models_own_first_layers(make):
    model = build(num_hidden_layers=3)
    repeated = _IDS[:1].repeat(1, 3)
    prof, summary, new = assisted(make, model, repeated, prompt_lookup_num_tokens=3)
    assert sum(kept(prof)["tokens"]) == new == summary["speculative"]["accepted"] + len(kept(prof)["tokens"])
    prof, summary, new = assisted(make, model, assistant_early_exit=1)
    assert sum(kept(prof)["tokens"]) == new
    assert len(summary["runs"]) == 1
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["engine"]}
    assert (calls["draft"], calls["verify"], calls["inputs"]) == (1, 1, 1)  # not those of the draft's own loop
    assert "decode" not in calls


def test_a_draft_that_is_attached_too_makes_no_steps_in_steps_of_the_target(host):
    prof, model, draft = host.profiler, build(), build()
    plain = generated(model, _IDS[:1], assistant_model=draft, eos_token_id=None)
    prof.attach_engine(model)
    prof.attach_engine(draft)
    assert torch.equal(generated(model, _IDS[:1], assistant_model=draft, eos_token_id=None), plain)
    summary = host.summary()
    (run,) = summary["runs"]
    tokens = run["stats"]["tokens_total"] + run["other_phases"]["prefill"]["tokens_total"]
    assert tokens == 8


def test_models_and_engines_attached_together_share_steps(host, prof, model):
    plain = generated(model)
    prof.attach_model(model)
    prof.attach_engine(model)
    assert torch.equal(generated(model), plain)
    summary = host.summary()
    calls = {row["name"]: row["calls_per_step"] for row in summary["buckets"]["model"]}
    assert (calls["lm_head"], calls["attn.compute"]) == (1, 2)
    prof.detach()
    assert torch.equal(generated(model), plain)
    assert prof.results.totals.steps == summary["stats"]["steps"]


class _Stops(transformers.LogitsProcessor):
    def __init__(self, at):
        self.at, self.calls = at, 0

    def __call__(self, ids, scores):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt if self.at == 3 else RuntimeError("bad token")
        return scores


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_exception_ends_step_and_run_and_the_next_call_is_measured(host, at, prof, model):
    plain = generated(model)
    prof.attach_engine(model)
    with pytest.raises(KeyboardInterrupt if at == 3 else RuntimeError):
        generated(model, logits_processor=[_Stops(at)])
    assert not prof.in_run
    assert not prof.step.is_open
    assert torch.equal(generated(model), plain)
    summary = host.summary()
    first, second = summary["runs"]
    assert first["stats"]["steps"] + first["other_phases"]["prefill"]["steps"] == at
    assert first["meta"]["steps_raised"] == 1
    assert second["stats"]["steps"] == 7
    prof.detach()
    assert "generate" not in vars(model)


def test_calls_outside_of_generate_are_not_touched(prof, model):
    plain = model(_IDS).logits
    prof.attach_engine(model)
    assert torch.equal(model(_IDS).logits, plain)
    assert not prof.problems.counts
    assert not prof.results.runs


def test_nothing_waits_for_the_device(make):
    device = FakeDevice()
    bench = make(device, strict_sync=False)
    prof, model = bench.profiler, build()
    prof.attach_engine(model)
    with run_of(prof):
        generated(model)
        waits = device.syncs
        assert waits == 0
        device.finish()
    assert prof.results.totals.steps == 7


def test_what_is_no_model_of_transformers_cannot_generate(make):
    with pytest.raises(ValueError, match='mapping "transformers generate": Linear has no method generate'):
        make().profiler.attach_engine(torch.nn.Linear(2, 2), "transformers generate")
