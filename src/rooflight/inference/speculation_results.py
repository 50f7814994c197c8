"""What speculative steps add up to: acceptance, the times of a round's parts, and speed beside that of plain steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rooflight.inference.drafts import RoundSums
from rooflight.inference.meter import Meter
from rooflight.inference.speculation import expected_tokens
from rooflight.inference.steps import Decoding, Run, Totals
from rooflight.records.document import Fields

DRAFT: Final = "draft"
VERIFY: Final = "verify"
"""The engine's buckets that divide a speculative step; what is in neither is overhead."""


class BatchSpeculation(Fields, frozen=True, kw_only=True):
    """Speculative and plain steps of one batch size; null where the batch was not given. Times are per step."""

    batch: int | None
    steps: int
    step_ms: float | None
    mean_kv_length: float | None
    throughput_tok_s: float | None
    plain_steps: int
    plain_step_ms: float | None
    plain_mean_kv_length: float | None
    plain_throughput_tok_s: float | None
    speedup_measured: float | None
    speedup_predicted: float | None


class SpeculativeData(Fields, frozen=True, kw_only=True):
    """Speculative decoding in all measured runs. ``reasons`` has, by field, why it is null.

    A round is a draft of one sequence and its verification; ``rounds`` are those that proposed something.
    ``mean_accepted_length`` includes the token that the target adds, ``mean_accepted_draft_tokens`` does not.
    ``acceptance_rate`` is accepted over proposed, ``alpha`` accepted over tested: tokens after the first rejection of a
    round are not tested. Lists by position begin with the first draft token (of a tree: the first level):
    ``acceptance_by_position`` is over all rounds that proposed that position, ``..._if_tested`` over those that
    accepted all before it. ``rounds_by_accepted`` and ``rounds_by_depth`` count rounds by draft tokens accepted and by
    depth of the draft, from 0 on. Times are averages of a speculative step.
    """

    proposed: int | None
    accepted: int | None
    acceptance_rate: float | None
    alpha: float | None
    acceptance_by_position: tuple[float, ...] | None
    acceptance_by_position_if_tested: tuple[float | None, ...] | None
    mean_accepted_length: float | None
    mean_accepted_draft_tokens: float | None
    tokens_per_target_forward: float | None
    steps: int
    rounds: int
    rounds_without_draft: int
    rounds_by_accepted: tuple[int, ...]
    rounds_by_depth: tuple[int, ...]
    step_ms: float | None
    draft_ms: float | None
    verify_ms: float | None
    overhead_ms: float | None
    speedup_measured: float | None
    speedup_predicted: float | None
    speedup_theorem_3_8: float | None
    by_batch: tuple[BatchSpeculation, ...]
    reasons: dict[str, str]


Times = tuple[float, float]
"""Nanoseconds that plain steps would need for some tokens, and that speculative ones took. The ratio is a speed-up."""


@dataclass(slots=True)
class _Batch:
    """The runs of one batch size."""

    rounds: RoundSums = field(default_factory=RoundSums)
    speculative: Decoding = field(default_factory=Decoding)
    plain: Decoding = field(default_factory=Decoding)
    draft_ns: int = 0

    @property
    def plain_token_ns(self) -> float | None:
        """A token of plain steps; None where there are none whose tokens are known."""
        totals = self.plain.totals
        return totals.token_time_ns / totals.tokens if totals.tokens else None

    @property
    def expected_tokens(self) -> float:
        """Tokens of all rounds, if each tested token is accepted with the same probability."""
        alpha = self.rounds.alpha or 0.0
        return sum(expected_tokens(alpha, depth) * count for (depth, _), count in self.rounds.by_depth.items())

    def measured(self) -> Times | None:
        """Of the tokens that there were."""
        took = self.speculative.totals
        needed_ns = self.plain_token_ns
        return None if needed_ns is None or not took.tokens else (took.tokens * needed_ns, took.token_time_ns)

    def predicted(self) -> Times | None:
        """Of the tokens to expect: E * plain / (draft + verify + overhead), summed over all steps."""
        needed_ns = self.plain_token_ns
        return None if needed_ns is None else (self.expected_tokens * needed_ns, self.speculative.totals.time_ns)

    def ideal(self) -> Times | None:
        """As predicted, if the target took for each round what it takes for a plain step."""
        needed_ns, plain = self.plain_token_ns, self.plain.totals
        if needed_ns is None or not self.draft_ns:
            return None
        verify_ns = self.speculative.totals.steps * plain.token_time_ns / plain.token_steps
        return self.expected_tokens * needed_ns, self.draft_ns + verify_ns


class Speculation:
    """Adds up finished runs. A run with a speculative step is a speculative one; steps of it that are not speculative
    count nowhere here. All others are plain, and their decode steps are what speed-ups are relative to. Rounds of mixed
    steps (prompts beside decoding) count in the acceptance, and in no time.
    """

    def __init__(self) -> None:
        self._batches: dict[int | None, _Batch] = {}
        self._parts_ns: dict[str, int] = {}
        self._other_rounds = RoundSums()

    def add(self, run: Run, meter: Meter) -> None:
        """One more run."""
        batch = self._batches.setdefault(run.batch, _Batch())
        if not run.steps_with_drafts:
            batch.plain.merge(run.plain)
            return
        self._other_rounds.merge(run.other_rounds)
        batch.rounds.merge(run.rounds)
        batch.speculative.merge(run.speculative)
        parts = meter.divided(run.speculative_by_state, run.speculative_host_by_state, (DRAFT, VERIFY))
        batch.draft_ns += parts.get(DRAFT, 0)
        for name, nanoseconds in parts.items():
            self._parts_ns[name] = self._parts_ns.get(name, 0) + nanoseconds

    def data(self) -> SpeculativeData:
        """The statistics of all runs."""
        rounds, steps = RoundSums(), Decoding()
        rounds.merge(self._other_rounds)
        for each in self._batches.values():
            rounds.merge(each.rounds)
            steps.merge(each.speculative)
        values = rounds_data(rounds) | self._times(steps.totals) | self._speedups()
        return SpeculativeData(
            **values,
            steps=steps.totals.steps,
            by_batch=tuple(_row(number, batch) for number, batch in self._speculative()),
            reasons=_reasons(bool(rounds.drafted), values),
        )

    @staticmethod
    def of_run(run: Run, meter: Meter) -> Speculation | None:
        """One run alone, if it has a speculative step."""
        if not run.steps_with_drafts:
            return None
        found = Speculation()
        found.add(run, meter)
        return found

    def beside(self, all_runs: Speculation) -> SpeculativeData:
        """The statistics of these runs, relative to the plain steps of all."""
        found = Speculation()
        found._parts_ns, found._other_rounds = self._parts_ns, self._other_rounds
        found._batches = {
            number: replace(batch, plain=all_runs._batches[number].plain) for number, batch in self._batches.items()
        }
        return found.data()

    def _speculative(self) -> list[tuple[int | None, _Batch]]:
        """The batches with speculative steps."""
        found = [(number, batch) for number, batch in self._batches.items() if batch.speculative.totals.steps]
        return sorted(found, key=lambda each: each[0] or 0)

    def _times(self, totals: Totals) -> dict[str, Any]:
        """Averages of a step. Its parts are known if the engine opened both buckets."""
        steps, parts = totals.steps, self._parts_ns
        both = bool(steps) and DRAFT in parts and VERIFY in parts
        return {
            "tokens_per_target_forward": totals.tokens / totals.token_steps if totals.token_steps else None,
            "step_ms": totals.time_ns / steps / 1e6 if steps else None,
            "draft_ms": parts[DRAFT] / steps / 1e6 if steps and DRAFT in parts else None,
            "verify_ms": parts[VERIFY] / steps / 1e6 if steps and VERIFY in parts else None,
            "overhead_ms": parts[""] / steps / 1e6 if both else None,
        }

    def _speedups(self) -> dict[str, Any]:
        """Over all batches that ran plainly too."""
        batches = [batch for _, batch in self._speculative()]
        return {
            "speedup_measured": _speedup(batch.measured() for batch in batches),
            "speedup_predicted": _speedup(batch.predicted() for batch in batches),
            "speedup_theorem_3_8": _speedup(batch.ideal() for batch in batches),
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


def _row(number: int | None, batch: _Batch) -> BatchSpeculation:
    mine, plain = batch.speculative, batch.plain
    return BatchSpeculation(
        batch=number,
        steps=mine.totals.steps,
        step_ms=mine.step_ms,
        mean_kv_length=mine.mean_length,
        throughput_tok_s=mine.totals.tok_s,
        plain_steps=plain.totals.steps,
        plain_step_ms=plain.step_ms,
        plain_mean_kv_length=plain.mean_length,
        plain_throughput_tok_s=plain.totals.tok_s,
        speedup_measured=_speedup([batch.measured()]),
        speedup_predicted=_speedup([batch.predicted()]),
    )


def _speedup(times: Iterable[Times | None]) -> float | None:
    known = [each for each in times if each is not None]
    took_ns = sum(took for _, took in known)
    return sum(needed for needed, _ in known) / took_ns if took_ns else None


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
