"""Speculative decoding: the speed-up that theory predicts from separately measured pieces, beside the measured one.

    python benchmarks/speculative_speedup.py [--rounds 9] [--new 96] [--setting 0 --setting 7 ...]

A target (Llama of 6 layers from a config, random weights) and drafts that are its first layer, with noise or without,
so that the target accepts some of what they propose; real rejection sampling at a temperature. For each setting of
batch, gamma, noise and temperature, in rounds that alternate between everything below:

- measured: tokens per second of speculative steps, over those of plain steps, of at least four sequences;
- pieces, from other runs with other prompts and seeds: a plain step; gamma passes of the draft and a pass of the target
  over gamma + 1 tokens, in turns and without anything else; alpha, and what a step does besides passes, of another
  speculative run.

The prediction is ``predicted_speedup(expected_tokens(alpha, gamma), ...)``, with each time relative to the plain step
of its round, and the median over rounds. Speeds are of decode steps in which all sequences draft gamma tokens: where
some of a batch are done, others go on alone, which the theory leaves out. Times are process time of one thread, so that
other programs count only as far as they slow memory and caches. The interval of an error is that of the middle 80 % of
200 choices of as many rounds, drawn with replacement (bootstrap).
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rooflight.inference import Profiler, decode, expected_tokens, predicted_speedup, speculative_decode
from rooflight.studies.inference.generation.decoding import drawn, probabilities
from rooflight.studies.inference.generation.ragged_cache import RaggedCache
from rooflight.studies.inference.generation.speculative import SpeculativeGeneration
from rooflight.studies.inference.runs import UNKNOWN

PROMPT = 64
VOCABULARY = 1024
BAR = 0.10
LEAST_SEQUENCES = 4  # in a round: alpha of fewer tokens is too inexact, both as measured and as it happens to be
CHOICES = 200  # of rounds, for the intervals
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
class Speculative:
    """Steps in which all sequences drafted gamma tokens; ``overhead_s`` is what a step does besides passes."""

    tokens: int = 0
    time_s: float = 0.0
    tested: int = 0
    accepted: int = 0
    overhead_s: float = 0.0

    def add(self, other: Speculative) -> None:
        """Those of another run; ``overhead_s`` stays."""
        self.tokens += other.tokens
        self.time_s += other.time_s
        self.tested += other.tested
        self.accepted += other.accepted


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was measured of a setting once. ``plain_s``, ``other``, ``draft_s`` (by tokens that the first pass reads)
    and ``verify_s`` are pieces; ``plain_tok_s`` and ``speculative`` are of the runs to predict.
    """

    plain_s: float
    plain_tok_s: float
    speculative: Speculative
    other: Speculative
    draft_s: dict[int, float]
    verify_s: float

    @property
    def speedup(self) -> float:
        return self.speculative.tokens / self.speculative.time_s / self.plain_tok_s


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
) -> Speculative:
    prof.begin_run(bsz=setting.batch, label="speculative")
    found = speculative_decode(
        target, draft, prompts(setting.batch, seed), new,
        gamma=setting.gamma, temperature=setting.temperature, seed=seed, profiler=prof,
    )  # fmt: skip
    prof.end_run()
    run = prof.results.runs[-1]
    times_ns = round_times_ns(prof, found)
    full = [number for number, each in enumerate(found.proposed) if min(each) == setting.gamma]
    passes_ms = run.buckets_engine_avg_ms["draft"] + run.buckets_engine_avg_ms["verify"]
    return Speculative(
        tokens=sum(sum(found.step_tokens[number]) for number in full),
        time_s=sum(times_ns[number] for number in full) / 1e9,
        tested=sum(min(accepted + 1, setting.gamma) for number in full for accepted in found.accepted[number]),
        accepted=sum(sum(found.accepted[number]) for number in full),
        overhead_s=(run.stats.mean_ms - passes_ms) / 1e3,
    )


def round_times_ns(prof: Profiler, found: SpeculativeGeneration) -> list[int]:
    """The times of the speculative steps of the latest run. Its first step is the prefill, which is none of them."""
    columns = prof.results.samples.columns()
    mine = (columns["run"] == prof.results.runs[-1].meta.number) & (columns["proposed"] != UNKNOWN)
    assert columns["tokens"][mine].tolist() == [sum(each) for each in found.step_tokens]
    return columns["step_ns"][mine].tolist()


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


def measured_once(
    prof: Profiler, target: LlamaForCausalLM, draft: LlamaForCausalLM, setting: Setting, new: int, seed: int
) -> Round:
    runs = -(-LEAST_SEQUENCES // setting.batch)
    speculative = speculative_run(prof, target, draft, setting, new, seed + 2)
    for number in range(1, runs):
        speculative.add(speculative_run(prof, target, draft, setting, new, seed + 10 * number + 2))
    other = speculative_run(prof, target, draft, setting, new, seed + 3)
    if runs > 1:  # alpha does not depend on the batch
        several = replace(setting, batch=LEAST_SEQUENCES)
        other.add(speculative_run(prof, target, draft, several, new, seed + 6))
    draft_s, verify_s = passes_s(target, draft, setting, new, seed + 4)
    return Round(
        plain_s=plain_run(prof, target, setting, new, seed)[0],
        plain_tok_s=plain_run(prof, target, setting, new, seed + 1)[1],
        speculative=speculative,
        other=other,
        draft_s=draft_s,
        verify_s=verify_s,
    )


def measure(settings: Sequence[Setting], rounds: int, new: int) -> dict[Setting, list[Round]]:
    target, drafts = models()
    found: dict[Setting, list[Round]] = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory() as folder:
        prof = profiler(folder)
        for number in range(-1, rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for place, (setting, done) in enumerate(found.items()):
                draft, seed = drafts[setting.noise], 1000 * (number + 2) + 100 * place
                if number < 0:  # warms up
                    measured_once(prof, target, draft, setting, 16, seed)
                else:
                    done.append(measured_once(prof, target, draft, setting, new, seed))
        prof.save_all()
    return found


def alpha(runs: Sequence[Speculative]) -> float:
    return sum(each.accepted for each in runs) / sum(each.tested for each in runs)


def prediction(setting: Setting, rounds: Sequence[Round]) -> float:
    accepted = alpha([each.other for each in rounds])
    # after a round that accepted all of a sequence's draft, the draft reads two tokens first
    behind = 1 - (1 - accepted**setting.gamma) ** setting.batch

    def relative(time_s: Callable[[Round], float]) -> float:
        return statistics.median(time_s(each) / each.plain_s for each in rounds)

    one, two = (relative(lambda each, read=read: each.draft_s[read]) for read in (1, 2))
    return predicted_speedup(
        expected_tokens(accepted, setting.gamma),
        plain_s=1.0,
        draft_s=one + behind * (two - one),
        verify_s=relative(lambda each: each.verify_s),
        overhead_s=relative(lambda each: each.other.overhead_s),
    )


def error(setting: Setting, rounds: Sequence[Round]) -> float:
    return prediction(setting, rounds) / statistics.median(each.speedup for each in rounds) - 1


def error_interval(setting: Setting, rounds: Sequence[Round]) -> tuple[float, float]:
    chance = random.Random(0)
    errors = sorted(error(setting, chance.choices(rounds, k=len(rounds))) for _ in range(CHOICES))
    return errors[CHOICES // 10], errors[-1 - CHOICES // 10]


def row(setting: Setting, rounds: Sequence[Round]) -> str:
    ms = [
        1e3 * statistics.median(each)
        for each in zip(
            *((each.plain_s, each.draft_s[1], each.verify_s, each.other.overhead_s) for each in rounds), strict=True
        )
    ]
    low, high = error_interval(setting, rounds)
    return (
        f"{setting.batch:5} {setting.gamma:5} {setting.noise:5.1f} {setting.temperature:4.1f} "
        f"{alpha([each.other for each in rounds]):8.3f} {alpha([each.speculative for each in rounds]):8.3f} "
        f"{' '.join(f'{each:7.2f}' for each in ms)} {statistics.median(each.speedup for each in rounds):10.3f} "
        f"{prediction(setting, rounds):9.3f} {error(setting, rounds):+6.1%} {low:+7.1%} to {high:+6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--setting", type=int, action="append", choices=range(len(SETTINGS)), help="by number, from 0")
    args = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    chosen = SETTINGS if args.setting is None else [SETTINGS[number] for number in args.setting]
    found = measure(chosen, args.rounds, args.new)
    print(f"{args.rounds} alternating rounds of {args.new} tokens per sequence, {time.monotonic() - begun:.0f} s")
    print("                          alpha of              ms per plain step, passes, other            speed-up")
    print(
        "batch gamma noise temp   pieces measured    plain   draft  verify   other   measured predicted  error"
        "  80% interval"
    )
    for setting, rounds in found.items():
        print(row(setting, rounds))
    within = sum(abs(error(setting, rounds)) <= BAR for setting, rounds in found.items())
    surely = sum(max(map(abs, error_interval(setting, rounds))) <= BAR for setting, rounds in found.items())
    print(f"{within} of {len(found)} settings within {BAR:.0%} (bar: at least 6), {surely} with their whole interval")
    raise SystemExit(within < min(6, len(found)))


if __name__ == "__main__":
    main()
