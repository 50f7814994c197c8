"""Speculative decoding: the speed-up that theory predicts from separately measured pieces, beside the measured one.

    python benchmarks/speculative_speedup.py [--rounds 9] [--new 96]

A target (Llama of 6 layers from a config, random weights) and drafts that are its first layer, with noise or without,
so that the target accepts some of what they propose; real rejection sampling at a temperature. For each setting of
batch, gamma, noise and temperature, in rounds that alternate between everything below:

- measured: tokens per second of a speculative run, over those of a plain run;
- pieces, from other runs with other prompts and seeds: a plain step; gamma passes of the draft and a pass of the target
  over gamma + 1 tokens, in turns and without anything else; alpha, and what a step does besides passes, of another
  speculative run.

The prediction is ``predicted_speedup(expected_tokens(alpha, gamma), ...)``, with each time relative to the plain step
of its round, and the median over rounds. Speeds are of steps in which all sequences draft gamma tokens: where some of
a batch are done, others go on alone, which the theory leaves out. Times are process time of one thread, so that other
programs count only as far as they slow memory and caches.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rooflight.inference import Profiler, decode, expected_tokens, predicted_speedup, speculative_decode
from rooflight.inference.ragged_cache import RaggedCache
from rooflight.inference.rejection_sampling import drawn, probabilities

PROMPT = 64
VOCABULARY = 1024
BAR = 0.10
ALPHA_BATCH = 4  # alpha is of so many sequences at least: it does not depend on the batch, and needs many tokens
SPREAD = 8  # how far apart the sequences of a batch are


@dataclass(frozen=True)
class Setting:
    batch: int
    gamma: int
    noise: float  # of the draft's weights, relative to the target's
    temperature: float


SETTINGS = (
    Setting(1, 2, 0.0, 1.0),
    Setting(1, 4, 0.0, 2.0),
    Setting(1, 6, 0.0, 1.0),
    Setting(1, 4, 0.3, 1.0),
    Setting(2, 3, 0.1, 1.0),
    Setting(4, 2, 0.3, 1.0),
    Setting(4, 5, 0.0, 2.0),
    Setting(8, 3, 0.0, 1.0),
    Setting(8, 4, 0.3, 2.0),
)


@dataclass
class Pieces:
    """Seconds, one a round; tokens tested and accepted in all."""

    plain_s: list[float] = field(default_factory=list)
    draft_s: dict[int, list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )  # by tokens that the first pass reads
    verify_s: list[float] = field(default_factory=list)
    overhead_s: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    plain_tok_s: list[float] = field(default_factory=list)
    tested: int = 0
    accepted: int = 0
    measured_tested: int = 0
    measured_accepted: int = 0


def models() -> tuple[LlamaForCausalLM, dict[float, LlamaForCausalLM]]:
    """The target, and a draft for each noise."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    target = LlamaForCausalLM(config).eval()
    drafts = {}
    with torch.no_grad():
        for layer in target.model.layers[1:]:  # add little, so that the first says much of what all do
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        target.lm_head.weight.mul_(4.0)  # some tokens are likely, as with a trained model
        for noise in dict.fromkeys(setting.noise for setting in SETTINGS):
            drafts[noise] = draft = copy.deepcopy(target)
            draft.model.layers = draft.model.layers[:1]
            draft.config.num_hidden_layers = 1
            for weights in draft.model.layers.parameters():
                if weights.ndim > 1:
                    weights.add_(noise * weights.std() * torch.randn_like(weights))
    return target, drafts


def profiler(folder: str) -> Profiler:
    settings = {"output_dir": folder, "run_name": "x", "warmup_runs": 0, "print_per_run": False}
    return Profiler(settings | {"engine_profiling": True}, device="cpu", clock=time.process_time_ns)


def plain_run(prof: Profiler, target: LlamaForCausalLM, setting: Setting, new: int, seed: int) -> tuple[float, float]:
    """Seconds of a step, and tokens per second."""
    prof.begin_run(bsz=setting.batch, label="plain")
    decode(target, prompts(setting.batch, seed), new, temperature=setting.temperature, seed=seed, profiler=prof)
    prof.end_run()
    stats = prof.results.runs[-1].stats
    return stats.mean_ms / 1e3, stats.throughput_tok_s


def speculative_run(
    prof: Profiler, target: LlamaForCausalLM, draft: LlamaForCausalLM, setting: Setting, new: int, seed: int
) -> tuple[float, float, int, int]:
    """Tokens per second of full steps; seconds of a step besides passes; tokens tested and accepted in full steps."""
    prof.begin_run(bsz=setting.batch, label="speculative")
    found = speculative_decode(
        target, draft, prompts(setting.batch, seed), new,
        gamma=setting.gamma, temperature=setting.temperature, seed=seed, profiler=prof,
    )  # fmt: skip
    prof.end_run()
    run = prof.results.runs[-1]
    columns = prof.results.samples.columns()
    times_ns = columns["step_ns"][columns["run"] == run.meta.number]
    full = [
        place
        for place, each in enumerate(found.proposed)
        if min(each) == setting.gamma and min(found.step_tokens[place])
    ]
    tokens = sum(sum(found.step_tokens[place]) for place in full)
    tested = sum(min(accepted + 1, setting.gamma) for place in full for accepted in found.accepted[place])
    accepted = sum(sum(found.accepted[place]) for place in full)
    passes_ms = run.buckets_engine_avg_ms["draft"] + run.buckets_engine_avg_ms["verify"]
    return tokens / (times_ns[full].sum() / 1e9), (run.stats.mean_ms - passes_ms) / 1e3, tested, accepted


@torch.no_grad()
def passes_s(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, setting: Setting, new: int, seed: int, rounds: int = 24
) -> tuple[dict[int, float], float]:
    """Seconds of gamma passes of the draft with the choice of tokens, by tokens that the first one reads; and of a pass
    of the target over gamma + 1. In turns, as in a step, since each model drives the other's weights out of the caches;
    along the lengths that a run goes through, with tokens that nobody accepts.
    """
    batch, gamma = setting.batch, setting.gamma
    generator = torch.Generator().manual_seed(seed)
    capacity = PROMPT + new + SPREAD + gamma + 2
    caches = {model: RaggedCache(model, batch=batch, capacity=capacity) for model in (draft, target)}
    for model, cache in caches.items():
        model(input_ids=prompts(batch, seed), **cache.arguments([0] * batch, PROMPT))

    def ran(model: LlamaForCausalLM, starts: list[int], queries: int) -> torch.Tensor:
        tokens = torch.randint(VOCABULARY, (batch, queries), generator=generator)
        return model(input_ids=tokens, **caches[model].arguments(starts, queries)).logits

    draft_s: dict[int, list[float]] = {1: [], 2: []}
    verify_s: list[float] = []
    for number in range(rounds):
        base = PROMPT + number * new // rounds
        starts = [base + row * SPREAD // max(batch - 1, 1) for row in range(batch)]
        first = 1 + number % 2
        begun = time.process_time_ns()
        for place in range(gamma):
            logits = ran(draft, [start + place for start in starts], 1 if place else first)
            drawn(probabilities(logits[:, -1], setting.temperature), generator)
        drafted = time.process_time_ns()
        ran(target, starts, gamma + 1)
        draft_s[first].append((drafted - begun) / 1e9)
        verify_s.append((time.process_time_ns() - drafted) / 1e9)
    return {first: statistics.fmean(times) for first, times in draft_s.items()}, statistics.fmean(verify_s)


def prompts(batch: int, seed: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(seed))


def measure(rounds: int, new_tokens: int) -> dict[Setting, Pieces]:
    target, drafts = models()
    found = {setting: Pieces() for setting in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        prof = profiler(folder)
        for number in range(-1, rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for place, (setting, pieces) in enumerate(found.items()):
                seed = 1000 * (number + 2) + 10 * place
                draft = drafts[setting.noise]
                one = Pieces() if number < 0 else pieces  # the first round warms up
                new = 16 if number < 0 else new_tokens
                one.plain_s.append(plain_run(prof, target, setting, new, seed)[0])
                one.plain_tok_s.append(plain_run(prof, target, setting, new, seed + 1)[1])
                tok_s, _, tested, accepted = speculative_run(prof, target, draft, setting, new, seed + 2)
                one.measured.append(tok_s)
                one.measured_tested += tested
                one.measured_accepted += accepted
                _, overhead_s, tested, accepted = speculative_run(prof, target, draft, setting, new, seed + 3)
                one.overhead_s.append(overhead_s)
                if setting.batch < ALPHA_BATCH:  # more tokens of the same distribution
                    several = replace(setting, batch=ALPHA_BATCH)
                    *_, tested, accepted = speculative_run(prof, target, draft, several, new, seed + 6)
                one.tested += tested
                one.accepted += accepted
                draft_s, verify_s = passes_s(target, draft, setting, new, seed + 4)
                for first, seconds in draft_s.items():
                    one.draft_s[first].append(seconds)
                one.verify_s.append(verify_s)
        prof.save_all()
    return found


def prediction(setting: Setting, pieces: Pieces) -> float:
    alpha = pieces.accepted / pieces.tested
    # after a round that accepted all of a sequence's draft, the draft reads two tokens first
    behind = 1 - (1 - alpha**setting.gamma) ** setting.batch

    def relative(times_s: list[float]) -> float:
        return statistics.median(each / plain for each, plain in zip(times_s, pieces.plain_s, strict=True))

    one, two = (relative(pieces.draft_s[queries]) for queries in (1, 2))
    return predicted_speedup(
        expected_tokens(alpha, setting.gamma),
        plain_s=1.0,
        draft_s=one + behind * (two - one),
        verify_s=relative(pieces.verify_s),
        overhead_s=relative(pieces.overhead_s),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new", type=int, default=96)
    args = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    found = measure(args.rounds, args.new)
    print(f"{args.rounds} alternating rounds of {args.new} tokens per sequence, {time.monotonic() - begun:.0f} s")
    print("                          alpha of              ms per plain step, passes, other            speed-up")
    print("batch gamma noise temp   pieces measured    plain   draft  verify   other   measured predicted  error")
    within = 0
    for setting, each in found.items():
        measured = statistics.median(mine / plain for mine, plain in zip(each.measured, each.plain_tok_s, strict=True))
        predicted = prediction(setting, each)
        error = predicted / measured - 1
        within += abs(error) <= BAR
        ms = [
            statistics.median(times) * 1e3 for times in (each.plain_s, each.draft_s[1], each.verify_s, each.overhead_s)
        ]
        alphas = each.accepted / each.tested, each.measured_accepted / each.measured_tested
        print(
            f"{setting.batch:5} {setting.gamma:5} {setting.noise:5.1f} {setting.temperature:4.1f} "
            f"{alphas[0]:8.3f} {alphas[1]:8.3f} {' '.join(f'{each:7.2f}' for each in ms)} "
            f"{measured:10.3f} {predicted:9.3f} {error:+6.1%}"
        )
    print(f"{within} of {len(found)} settings within {BAR:.0%} (bar: at least 6)")
    raise SystemExit(within < 6)


if __name__ == "__main__":
    main()
