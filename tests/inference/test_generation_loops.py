"""The generation loops: real transformers models with KV caches. A draft must change the speed and nothing else: at
temperature 0 tokens are equal, above it they are distributed as the target's, counted here over a tiny vocabulary.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import transformers
from measured_runs import quiet, run_of
from small_decoders import GPT2, HEAD, LLAMA, SIZES

from rooflight.sources.workloads.build import build_model
from rooflight.studies.inference.generation.decoding import decode
from rooflight.studies.inference.generation.speculative import (
    accept_sampled,
    count_accepted,
    speculative_decode,
    token_after,
)

MIXED = ["sliding_attention", "full_attention"]
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 5},  # every layer has a window
    "qwen3": HEAD | {"layer_types": MIXED, "use_sliding_window": True, "sliding_window": 5},
    "gemma2": HEAD | {"layer_types": MIXED, "sliding_window": 5},  # without SDPA: masks are numbers
    "gemma3_text": HEAD | {"layer_types": MIXED, "sliding_window": 5},
    "gpt2": GPT2,
    "gptj": GPT2 | {"rotary_dim": 4},
    "gpt_neox": SIZES | {"intermediate_size": 48},
    "opt": SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "phi": LLAMA,
    "falcon": SIZES,
    "mixtral": LLAMA | {"num_local_experts": 4},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def config_of(family, **more):
    return transformers.AutoConfig.for_model(family, **(FAMILIES[family] | more))


def built(config, *, noise=0.3, seed=0, dtype="float64"):
    """A model whose tokens differ: the usual initialisation repeats one. In float64, so that no two logits tie."""
    model = build_model(config, device="cpu", dtype=dtype).eval()
    return disturbed(model, noise, seed)


def disturbed(model, noise, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn(each.shape, dtype=each.dtype, generator=generator) * noise)
    return model


def draft_like(target, config, noise, dtype="float64"):
    """A draft that is often, and not always, of the target's mind."""
    draft = build_model(config, device="cpu", dtype=dtype).eval()
    draft.load_state_dict(target.state_dict())
    return disturbed(draft, noise, 1)


def prompt(batch=3, length=7, vocabulary=64):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_all_caches_and_a_draft_give_the_same_tokens(family):
    dtype = "float32" if family == "mixtral" else "float64"  # torch has no grouped matmul in float64
    config = config_of(family)
    target = built(config, dtype=dtype)
    draft = draft_like(target, config, 0.05, dtype)
    plain = decode(target, prompt(), 20)
    assert len(set(plain.tokens.flatten().tolist())) > 2  # a loop over one token would show nothing
    for cache in ("ragged", "static"):
        assert torch.equal(decode(target, prompt(), 20, cache=cache).tokens, plain.tokens), cache
    found = speculative_decode(target, draft, prompt(), 20, gamma=3)
    assert torch.equal(found.tokens, plain.tokens)
    per_sequence = [sum(counts) for counts in zip(*found.accepted, strict=True)]
    assert len(set(per_sequence)) > 1 or found.steps > 5  # lengths of sequences did differ, or tokens were refused


@pytest.mark.parametrize("seed", range(12))
def test_batch_gamma_and_lengths_do_not_change_greedy_tokens(seed):
    """Settings drawn at random, drafts from one that always agrees to one that never does."""
    draw = torch.Generator().manual_seed(seed)
    batch, length, new, gamma = (int(torch.randint(1, most, (), generator=draw)) for most in (5, 12, 24, 9))
    target = built(config_of("llama"), seed=seed)
    draft = draft_like(target, config_of("llama"), [0.0, 0.03, 0.1, 1.0][seed % 4])
    ids = prompt(batch, length)
    found = speculative_decode(target, draft, ids, new, gamma=gamma)
    assert torch.equal(found.tokens, decode(target, ids, new).tokens)
    for proposed, accepted, tokens in zip(found.proposed, found.accepted, found.step_tokens, strict=True):
        for asked, yes, got in zip(proposed, accepted, tokens, strict=True):
            assert 0 <= yes <= asked <= gamma
            assert got == yes + 1 or got == yes == asked == 0
    assert [1 + sum(each) for each in zip(*found.step_tokens, strict=True)] in ([], [new] * batch)
    if not seed % 4:  # the same model: all is accepted, ceil((new - 1) / (gamma + 1)) steps after the first token
        assert found.accepted == found.proposed
        assert found.steps == -(-(new - 1) // (gamma + 1))


def test_a_batch_of_one_needs_no_positions():
    """Bloom derives positions from the mask: one sequence is decoded, several are refused."""
    config = transformers.AutoConfig.for_model("bloom", vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    target = built(config)
    draft = draft_like(target, config, 0.05)
    one = speculative_decode(target, draft, prompt(1), 12, gamma=3)
    assert torch.equal(one.tokens, decode(target, prompt(1), 12).tokens)
    with pytest.raises(ValueError, match="use a batch of 1"):
        speculative_decode(target, draft, prompt(2), 12)


def test_a_state_that_cannot_be_taken_back_is_decoded_without_a_draft_alone():
    config = transformers.AutoConfig.for_model("mamba", vocab_size=64, hidden_size=16, num_hidden_layers=1,
                                               state_size=4)  # fmt: skip
    model = build_model(config, device="cpu", dtype="float32").eval()
    assert decode(model, prompt(), 4).tokens.shape == (3, 4)
    with pytest.raises(ValueError, match="rejected tokens cannot be taken back"):
        speculative_decode(model, model, prompt(), 4)


# -- distributions ----------------------------------------------------------------------------------------------------

TINY = FAMILIES["llama"] | {"vocab_size": 4, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
                            "num_hidden_layers": 1, "intermediate_size": 8, "pad_token_id": None}  # fmt: skip


def chi_square(counts, expected):
    """Cells in which less than 10 are expected count as one."""
    rare = expected < 10
    pooled = [torch.cat([each[~rare], each[rare].sum()[None]]) for each in (counts, expected)]
    return float(((pooled[0] - pooled[1]) ** 2 / pooled[1]).sum())


@pytest.mark.parametrize(("gamma", "temperature"), [(1, 1.0), (2, 0.7), (4, 1.5)])
def test_sampled_tokens_are_distributed_as_the_targets(gamma, temperature):
    """All 4^3 continuations of 3 tokens, by their exact probabilities: a chi-square statistic of 63 degrees of freedom
    is above 115 once in 15,000 times, of fewer less often. Lengths of the batch's sequences differ on the way.
    """
    target = built(transformers.LlamaConfig(**TINY), noise=0.4)
    draft = built(transformers.LlamaConfig(**TINY), noise=0.4, seed=5)
    batch, new = 20_000, 3
    ids = torch.tensor([[1, 2, 0]]).expand(batch, -1)
    found = speculative_decode(target, draft, ids, new, gamma=gamma, temperature=temperature, seed=3)
    share = sum(map(sum, found.accepted)) / sum(map(sum, found.proposed))
    assert 0.2 < share < 0.98  # the draft is another distribution, and some of it is accepted
    every = torch.tensor(list(itertools.product(range(4), repeat=new)))
    with torch.no_grad():
        logits = target(torch.cat([torch.tensor([[1, 2, 0]]).expand(64, -1), every], 1)).logits[:, 2:5]
    exact = torch.softmax(logits / temperature, -1).gather(-1, every[..., None])[..., 0].prod(-1)
    places = (found.tokens * torch.tensor([16, 4, 1])).sum(-1)
    counts = torch.bincount(places, minlength=64).double()
    assert chi_square(counts, exact * batch) < 115
    plain = decode(target, ids, new, temperature=temperature, seed=4)
    plain_counts = torch.bincount((plain.tokens * torch.tensor([16, 4, 1])).sum(-1), minlength=64).double()
    assert chi_square(plain_counts, exact * batch) < 115
    with torch.no_grad():  # and the statistic does see a draft's distribution
        wrong = draft(torch.cat([torch.tensor([[1, 2, 0]]).expand(64, -1), every], 1)).logits[:, 2:5]
    drafts = torch.softmax(wrong / temperature, -1).gather(-1, every[..., None])[..., 0].prod(-1)
    assert chi_square(counts, drafts * batch) > 500


def test_rejection_sampling_by_hand():
    """q = (0.5, 0.5), p = (0.2, 0.8): token 0 is accepted with 0.2 / 0.5 = 0.4, token 1 always; norm(max(0, p - q)) is
    (0, 1), so that after a rejection comes token 1.
    """
    many = 100_000
    q = torch.tensor([0.5, 0.5], dtype=torch.float64).expand(many, 1, 2)
    p = torch.tensor([0.2, 0.8], dtype=torch.float64).expand(many, 2, 2)
    generator = torch.Generator().manual_seed(0)
    for token, share in ((0, 0.4), (1, 1.0)):
        drafted = torch.full((many, 1), token)
        accepted = accept_sampled(drafted, q, p, generator)
        assert accepted.double().mean() == pytest.approx(share, abs=0.006)  # 4 sigma: 4 * sqrt(0.24 / 1e5)
        count = count_accepted(accepted)
        after = token_after(count, q, p, generator)
        assert (after[count == 0] == 1).all()
        assert after[count == 1].double().mean() == pytest.approx(0.8, abs=0.009)  # the bonus token, from p


def test_a_token_the_target_never_takes_is_never_accepted_and_equal_distributions_leave_no_gap():
    one = torch.tensor([[[1.0, 0.0]]])
    generator = torch.Generator().manual_seed(0)
    never = accept_sampled(torch.zeros(1000, 1, dtype=torch.long), one.expand(1000, 1, 2),
                           torch.tensor([0.0, 1.0]).expand(1000, 2, 2), generator)  # fmt: skip
    assert not never.any()
    # p = q, yet called rejected, as rounding can have it: a token of p, not an error
    assert token_after(torch.tensor([0]), one, one.expand(1, 2, 2), generator).tolist() == [0]


def test_accepted_counts_end_at_the_first_rejection():
    table = torch.tensor([[True, True, True], [True, False, True], [False, True, True]])
    assert count_accepted(table).tolist() == [3, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_assumed_acceptance_is_met(temperature):
    """Each drafted token is accepted with 0.6: of gamma = 3, 0.6 + 0.36 + 0.216 = 1.176 on average."""
    target = built(transformers.LlamaConfig(**TINY))
    draft = built(transformers.LlamaConfig(**TINY), seed=5)
    ids = torch.ones(400, 3, dtype=torch.long)
    found = speculative_decode(target, draft, ids, 40, gamma=3, temperature=temperature, acceptance=0.6)
    full = [(yes, asked) for row, asks in zip(found.accepted, found.proposed, strict=True)
            for yes, asked in zip(row, asks, strict=True) if asked == 3]  # fmt: skip
    assert sum(yes for yes, _ in full) / len(full) == pytest.approx(1.176, abs=0.05)


def test_the_same_seed_gives_the_same_tokens():
    target, draft = built(config_of("llama")), built(config_of("llama"), seed=2)
    first, again, other = (speculative_decode(target, draft, prompt(), 12, temperature=1.0, seed=seed).tokens
                           for seed in (1, 1, 2))  # fmt: skip
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# -- what a profiler sees ---------------------------------------------------------------------------------------------


def profiled(tmp_path, run):
    prof = quiet(tmp_path, engine_profiling=True, model_profiling=True)
    with run_of(prof, bsz=3):
        found = run(prof)
    return found, prof


def test_steps_of_a_plain_loop(tmp_path):
    """A prompt of 7 and 5 new tokens: the prefill makes the first, 4 steps the others, with 7, 8, 9, 10 cached."""
    told = []
    target = built(config_of("llama"))
    _, prof = profiled(tmp_path, lambda prof: decode(target, prompt(), 5, profiler=prof,
                                                     on_step=lambda *at: told.append(at)))  # fmt: skip
    run = prof.results.runs[0]
    assert run.stats.steps == 4
    assert run.other_phases["prefill"].steps == 1
    assert run.stats.tokens_total == 12
    assert prof.results.samples.columns()["kv_length"].tolist() == [0, 7, 8, 9, 10]
    assert set(run.buckets_engine_avg_ms) == {"decode", "sampler"}
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    requests = prof.requests.ended.columns()
    assert requests["tokens"].tolist() == requests["deliveries"].tolist() == [5, 5, 5]
    assert requests["prompt_tokens"].tolist() == [7, 7, 7]
    # 2 layers * (keys, values) * 3 sequences * 2 heads * 8 numbers * 8 bytes, of 7 to 10 tokens
    assert run.kv_cache is not None
    assert run.kv_cache.last_bytes == 2 * 2 * 3 * 2 * 8 * 8 * 10
    assert not prof.problems.counts


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_mistakes_are_told(tmp_path):
    target = built(config_of("llama"))
    other = built(config_of("llama", vocab_size=60))
    cases = [
        (lambda: decode(target, prompt(), 0), "0 new tokens"),
        (lambda: decode(target, prompt(3, 60), 6), "need 65 positions: LlamaForCausalLM has 64"),
        (lambda: decode(target, prompt()[0], 4), r"shape \(7,\)"),
        (lambda: decode(target, prompt(), 4, temperature=-1), "temperature -1"),
        (lambda: decode(target, prompt(), 4, temperature=float("nan")), "temperature nan"),
        (lambda: decode(target, prompt(), 4, cache="paged"), 'cache "paged": give one of dynamic, static, ragged'),
        (lambda: speculative_decode(target, other, prompt(), 4), "the draft has 60 tokens, the target 64"),
        (lambda: speculative_decode(target, target, prompt(), 4, gamma=0), "gamma 0"),
        (lambda: speculative_decode(target, target, prompt(), 4, acceptance=1.1), "acceptance 1.1"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    assert decode(target, prompt(3, 60), 5).tokens.shape == (3, 5)  # 64 positions: the last token is not fed
    last = speculative_decode(target, target, prompt(3, 60), 5, gamma=8)
    assert torch.equal(last.tokens, decode(target, prompt(3, 60), 5).tokens)
