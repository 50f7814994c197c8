"""What speculative steps add up to: acceptance, the times of a round's parts, and speed beside that of plain steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rooflight.inference.drafts import RoundSums
from rooflight.inference.meter import Meter
from rooflight.inference.speculation import expected_tokens
from rooflight.inference.steps import Run
from rooflight.inference.summary_sections import BatchSpeculation, SpeculativeData
from rooflight.inference.sums import StepSums, Sums

DRAFT: Final = "draft"
VERIFY: Final = "verify"
"""The engine's buckets that divide a speculative step; what is in neither is overhead."""

Times = tuple[float, float]
"""Nanoseconds that plain steps would need for some tokens, and that speculative ones took. The ratio is a speed-up."""


@dataclass(slots=True)
class BatchSums(Sums):
    """The runs of one batch size. ``other_rounds`` are those of mixed steps. ``parts_ns`` divides the speculative steps
    into ``DRAFT``, ``VERIFY`` and the rest.
    """

    rounds: RoundSums = field(default_factory=RoundSums)
    other_rounds: RoundSums = field(default_factory=RoundSums)
    speculative: StepSums = field(default_factory=StepSums)
    plain: StepSums = field(default_factory=StepSums)
    parts_ns: Counter[str] = field(default_factory=Counter)

    @property
    def plain_token_ns(self) -> float:
        """A token of plain steps; only where there are some whose tokens are known."""
        return self.plain.token_time_ns / self.plain.tokens

    @property
    def expected_tokens(self) -> float:
        """Tokens of all rounds, if each tested token is accepted with the same probability."""
        alpha = self.rounds.alpha or 0.0
        return sum(expected_tokens(alpha, depth) * count for (depth, _), count in self.rounds.by_depth.items())

    def measured(self) -> Times:
        """Of the tokens that there were."""
        took = self.speculative
        return took.tokens * self.plain_token_ns, took.token_time_ns if took.tokens else 0

    def predicted(self) -> Times:
        """Of the tokens to expect: E * plain / (draft + verify + overhead), summed over all steps."""
        return self.expected_tokens * self.plain_token_ns, self.speculative.time_ns

    def ideal(self) -> Times:
        """As predicted, if the target took for each round what it takes for a plain step."""
        if not self.parts_ns[DRAFT]:
            return 0, 0
        verify_ns = self.speculative.steps * self.plain.token_time_ns / self.plain.token_steps
        return self.expected_tokens * self.plain_token_ns, self.parts_ns[DRAFT] + verify_ns

    def row(self, batch: int | None) -> BatchSpeculation:
        """Speculative and plain steps side by side."""
        mine, plain = self.speculative, self.plain
        return BatchSpeculation(
            batch=batch,
            steps=mine.steps,
            step_ms=mine.mean_ms,
            mean_kv_length=mine.mean_length,
            throughput_tok_s=mine.tok_s,
            plain_steps=plain.steps,
            plain_step_ms=plain.mean_ms,
            plain_mean_kv_length=plain.mean_length,
            plain_throughput_tok_s=plain.tok_s,
            speedup_measured=_speedup([self], BatchSums.measured),
            speedup_predicted=_speedup([self], BatchSums.predicted),
        )


@dataclass(slots=True)
class Speculation(Sums):
    """Sums of runs by batch size. A run with a speculative step is a speculative one; steps of it that are not
    speculative count nowhere here. All others are plain, and their decode steps are what speed-ups are relative to.
    Rounds of mixed steps (prompts beside decoding) count in the acceptance, and in no time.
    """

    batches: dict[int | None, BatchSums] = field(default_factory=dict)

    @staticmethod
    def of_run(run: Run, meter: Meter) -> Speculation:
        """One run alone."""
        if not run.steps_with_drafts:
            return Speculation({run.batch: BatchSums(plain=run.plain)})
        steps = run.speculative
        parts = Counter(meter.divided(steps.by_state, steps.host_by_state, (DRAFT, VERIFY)))
        return Speculation({run.batch: BatchSums(run.rounds, run.other_rounds, steps, StepSums(), parts)})

    def data(self, beside: Speculation | None = None) -> SpeculativeData:
        """The statistics, relative to plain steps: the own ones, or those ``beside``."""
        plain = (beside or self).batches
        batches = {size: replace(each, plain=plain[size].plain) for size, each in self.batches.items()}
        total = BatchSums.total(batches.values())
        total.rounds.merge(total.other_rounds)
        speculative = {size: batches[size] for size in sorted(batches, key=lambda size: size or 0)
                       if batches[size].speculative.steps}  # fmt: skip
        rows = tuple(each.row(size) for size, each in speculative.items())
        values = rounds_data(total.rounds) | _times(total.speculative, total.parts_ns)
        for name, times in (
            ("speedup_measured", BatchSums.measured),
            ("speedup_predicted", BatchSums.predicted),
            ("speedup_theorem_3_8", BatchSums.ideal),
        ):
            values[name] = _speedup(speculative.values(), times)
        reasons = _reasons(bool(total.rounds.drafted), values)
        return SpeculativeData(**values, steps=total.speculative.steps, by_batch=rows, reasons=reasons)


def _speedup(batches: Iterable[BatchSums], times: Callable[[BatchSums], Times]) -> float | None:
    """Over all batches that ran plainly too."""
    known = [times(batch) for batch in batches if batch.plain.tokens]
    took_ns = sum(took for _, took in known)
    return sum(needed for needed, _ in known) / took_ns if took_ns else None


def _times(sums: StepSums, parts_ns: Counter[str]) -> dict[str, Any]:
    """Averages of a step. Its parts are known if the engine opened both buckets."""

    def part(name: str, *opened: str) -> float | None:
        known = sums.steps and all(each in parts_ns for each in opened)
        return parts_ns[name] / sums.steps / 1e6 if known else None

    return {
        "tokens_per_target_forward": sums.tokens / sums.token_steps if sums.token_steps else None,
        "step_ms": sums.mean_ms,
        "draft_ms": part(DRAFT, DRAFT),
        "verify_ms": part(VERIFY, VERIFY),
        "overhead_ms": part("", DRAFT, VERIFY),
    }


def rounds_data(rounds: RoundSums) -> dict[str, Any]:
    """What follows from the counts of rounds alone."""
    drafted = rounds.drafted
    by_position = rounds.positions() if drafted else ()
    per_round = rounds.accepted / drafted if drafted else None
    return {
        "proposed": rounds.proposed if drafted else None,
        "accepted": rounds.accepted if drafted else None,
        "acceptance_rate": rounds.accepted / rounds.proposed if drafted else None,
        "alpha": rounds.alpha,
        "acceptance_by_position": tuple(at.accepted / at.proposed for at in by_position) or None,
        "acceptance_by_position_if_tested": tuple(at.accepted / at.tested if at.tested else None for at in by_position)
        or None,
        "mean_accepted_length": None if per_round is None else 1 + per_round,
        "mean_accepted_draft_tokens": per_round,
        "rounds": drafted,
        "rounds_without_draft": rounds.without_draft,
        "rounds_by_accepted": rounds.histogram("accepted"),
        "rounds_by_depth": rounds.histogram("depth"),
    }


def _reasons(drafted: bool, values: Mapping[str, Any]) -> dict[str, str]:
    """Why each field that is null is so."""
    nothing = "no step has drafts: call set_step_speculation() in the steps that draft"
    parts = f'open the engine\'s buckets "{DRAFT}" and "{VERIFY}" in speculative steps, with engine_profiling=True'
    plain = "no plain steps with tokens, of the same batch: begin a run without speculative steps in the same profiler"
    tokens = "no speculative step has tokens: call set_step_tokens() in each"
    known = {
        "tokens_per_target_forward": tokens,
        "draft_ms": parts,
        "verify_ms": parts,
        "overhead_ms": parts,
        "speedup_measured": tokens if values["tokens_per_target_forward"] is None else plain,
        "speedup_predicted": plain,
        "speedup_theorem_3_8": plain if values["speedup_predicted"] is None else parts,
    }
    return {name: known.get(name, nothing) if drafted else nothing for name, value in values.items() if value is None}
