"""Speculative decoding: its theory, the drafts of a step, and what drafts add up to beside plain steps.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (2023), sections 3.1 to 3.5. In a
*round* a draft proposes ``gamma`` tokens for one sequence, one pass of the target accepts a prefix of them (a path, if
the draft is a tree), and adds one token of its own, the *bonus* token. So a round yields the accepted tokens plus one.
A speculative step runs one round for each sequence of its batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from rooflight.records.document import Fields
from rooflight.records.report import share
from rooflight.studies.inference.sums import StepSums, Sums


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens that a round yields on average: (1 - a^(gamma + 1)) / (1 - a), the equation (1) of Leviathan et al.

    ``acceptance`` is a, the probability that a draft token is accepted if those before it were, taken to be the same
    for all. It counts tokens that were *tested*: not the share of all proposed ones, of which those after the first
    rejection are never tested. Between 1 (nothing accepted) and ``gamma`` + 1. Raises ValueError outside of 0 to 1,
    and for a negative ``gamma``.
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance {acceptance}: give a probability from 0 to 1")
    if gamma < 0:
        raise ValueError(f"gamma {gamma}: give a number of draft tokens from 0 on")
    return sum(acceptance**tokens for tokens in range(gamma + 1))  # the same, and right at 1 and close to it


def predicted_speedup(
    tokens_per_round: float, *, plain_s: float, draft_s: float, verify_s: float, overhead_s: float = 0.0
) -> float:
    """Tokens per second of speculative decoding, over those of plain decoding: E * plain / (draft + verify + overhead).

    ``tokens_per_round`` is E (``expected_tokens``). ``plain_s``: a step of plain decoding, which yields one token per
    sequence. Of a round: ``draft_s``, all passes of the draft; ``verify_s``, the target's pass over gamma + 1 tokens;
    ``overhead_s``, what else is in it, such as sampling. All are of the same batch, so that a batch needs no factor.

    Theorem 3.8 of Leviathan et al. is the case ``draft_s = gamma * c * plain_s``, ``verify_s = plain_s``,
    ``overhead_s = 0``: the target takes as long for gamma + 1 tokens as for one, as where reading its weights takes all
    the time. Raises ValueError for negative times and for a round that takes no time.
    """
    times = (tokens_per_round, plain_s, draft_s, verify_s, overhead_s)
    if not all(each >= 0 for each in times):  # NaN too
        raise ValueError(f"tokens and seconds {times}: give numbers from 0 on")
    round_s = draft_s + verify_s + overhead_s
    if not round_s:
        raise ValueError("a round that takes no time: give the time of the draft's or the target's passes")
    return tokens_per_round * plain_s / round_s


MOST_POSITIONS: Final = 1024
"""The longest draft that is counted by position."""

_TOO_MANY: Final = 1 << 53  # from here on floats skip whole numbers


@dataclass(frozen=True, slots=True)
class Drafts:
    """The rounds of a step: per sequence the draft tokens proposed (all nodes of a tree), those accepted, and the depth
    of the draft (of a chain its length). False where they are not known.
    """

    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    depth: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.depth)


UNKNOWN_DRAFTS: Final = Drafts((), (), ())
"""Those of a step whose drafts cannot be."""


@dataclass(slots=True)
class RoundSums(Sums):
    """Counts over rounds. ``by_depth`` counts rounds by depth of the draft and tokens accepted of it, from which all
    statistics by position follow; it has at most 525,000 entries, however many rounds there are.
    """

    proposed: int = 0
    accepted: int = 0
    by_depth: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, drafts: Drafts) -> None:
        """The rounds of one more step."""
        self.proposed += sum(drafts.proposed)
        self.accepted += sum(drafts.accepted)
        self.by_depth.update(zip(drafts.depth, drafts.accepted, strict=True))

    @property
    def alpha(self) -> float | None:
        """The share of tested draft tokens that was accepted: the estimate with the greatest likelihood if all are
        accepted with the same probability. A round tests the tokens that it accepts, and the next if there is one.
        """
        tested = sum(min(accepted + 1, depth) * count for (depth, accepted), count in self.by_depth.items())
        return self.accepted / tested if tested else None

    def positions(self) -> list[list[int]]:
        """By position of the draft, from the first on: the rounds that proposed it, those of them that accepted all
        before it, and those that accepted it too.
        """
        deepest = max((depth for depth, _ in self.by_depth), default=0)
        ends = np.zeros((deepest + 1, 3), dtype=np.int64)
        for (depth, accepted), count in self.by_depth.items():
            ends[(depth, min(depth, accepted + 1), accepted), range(3)] += count
        found: list[list[int]] = ends[::-1].cumsum(axis=0)[::-1][1:].tolist()
        return found

    def histogram(self, of: Literal["depth", "accepted"]) -> tuple[int, ...]:
        """How many rounds that proposed something had a depth, or accepted so many tokens, from 0 on."""
        found: Counter[int] = Counter()
        for (depth, accepted), count in self.by_depth.items():
            if depth:
                found[depth if of == "depth" else accepted] += count
        return tuple(found[number] for number in range(max(found, default=-1) + 1))


def drafts_of(proposed: Any, accepted: Any, depth: Any, *, batch: int | None) -> Drafts:
    """The rounds of a step of ``batch`` sequences: counts in a list, array or tensor, one per sequence, or numbers if
    there is one sequence. ``proposed`` and ``depth`` may be one number for all sequences; ``depth`` None: chains.

    Raises ValueError for counts that are negative or no whole numbers, for shapes that do not fit each other or the
    batch, for more tokens accepted than the draft is deep, and for drafts deeper than they have tokens or than 1024.
    """
    tokens = _counts("accepted", accepted)
    if isinstance(tokens, int):
        tokens = (tokens,)
        if batch is not None and batch > 1:
            raise ValueError(f"one number of draft tokens for a batch of {batch}: give one per sequence")
    if batch is not None and len(tokens) > batch:
        raise ValueError(f"draft tokens of {len(tokens)} sequences for a batch of {batch}: give one per sequence")
    nodes = _spread("proposed", _counts("proposed", proposed), len(tokens))
    levels = nodes if depth is None else _spread("depth", _counts("depth", depth), len(tokens))
    for each in zip(nodes, tokens, levels, strict=True):
        _check(*each)
    return Drafts(nodes, tokens, levels)


def _check(nodes: int, tokens: int, levels: int) -> None:
    if nodes < 0 or tokens < 0 or levels < 0:
        raise ValueError(f"{tokens} of {nodes} draft tokens accepted: give numbers from 0 on")
    if tokens > levels:
        what = f"{nodes} proposed" if levels == nodes else f"a depth of {levels}"
        raise ValueError(f"{tokens} draft tokens accepted of {what}: leave out the target's own token")
    if levels > nodes or (nodes and not levels):
        raise ValueError(f"a draft of {nodes} tokens with a depth of {levels}: give the length of its longest path")
    if levels > MOST_POSITIONS:
        raise ValueError(f"a draft of depth {levels}: up to {MOST_POSITIONS} are counted")


def _counts(name: str, counts: Any) -> int | tuple[int, ...]:
    if type(counts) is int and abs(counts) < _TOO_MANY:
        return counts
    if type(counts) is list and counts and set(map(type, counts)) == {int} and max(map(abs, counts)) < _TOO_MANY:
        return tuple(counts)
    try:
        values = np.asarray(counts.tolist() if hasattr(counts, "tolist") else counts)
    except ValueError:  # lists of different lengths
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give a whole number per sequence") from None
    if values.ndim > 1:
        raise ValueError(f"{name} draft tokens of shape {values.shape}: give one per sequence, in one dimension")
    if values.dtype.kind not in "iuf" or not values.size:
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give a whole number per sequence")
    if not np.isfinite(values).all() or (values % 1).any() or (abs(values) >= _TOO_MANY).any():
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give whole numbers")
    found = values.astype(np.int64).tolist()
    return tuple(found) if values.ndim else int(found)


def _spread(name: str, counts: int | tuple[int, ...], sequences: int) -> tuple[int, ...]:
    if isinstance(counts, int):
        return (counts,) * sequences
    if len(counts) != sequences:
        raise ValueError(f"{name} draft tokens of {len(counts)} sequences, accepted ones of {sequences}")
    return counts


DRAFT: Final = "draft"
VERIFY: Final = "verify"
"""The engine's buckets that divide a speculative step; what is in neither is overhead."""

Times = tuple[float, float]
"""Nanoseconds that plain steps would need for some tokens, and that speculative ones took. The ratio is a speed-up."""


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
        reasons = _reasons(values)
        return SpeculativeData(**values, steps=total.speculative.steps, by_batch=rows, reasons=reasons)


def _speedup(batches: Iterable[BatchSums], times: Callable[[BatchSums], Times]) -> float | None:
    known = [times(batch) for batch in batches if batch.plain.tokens]
    took_ns = sum(took for _, took in known)
    return sum(needed for needed, _ in known) / took_ns if took_ns else None


def _times(sums: StepSums, parts_ns: Counter[str]) -> dict[str, Any]:
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
    drafted = sum(count for (depth, _), count in rounds.by_depth.items() if depth)
    by_position = rounds.positions()
    per_round = rounds.accepted / drafted if drafted else None
    return {
        "proposed": rounds.proposed if drafted else None,
        "accepted": rounds.accepted if drafted else None,
        "acceptance_rate": rounds.accepted / rounds.proposed if drafted else None,
        "alpha": rounds.alpha,
        "acceptance_by_position": tuple(accepted / proposed for proposed, _, accepted in by_position) or None,
        "acceptance_by_position_if_tested": tuple(share(accepted, tested) for _, tested, accepted in by_position)
        or None,
        "mean_accepted_length": None if per_round is None else 1 + per_round,
        "mean_accepted_draft_tokens": per_round,
        "rounds": drafted,
        "rounds_without_draft": sum(rounds.by_depth.values()) - drafted,
        "rounds_by_accepted": rounds.histogram("accepted"),
        "rounds_by_depth": rounds.histogram("depth"),
    }


def _reasons(values: Mapping[str, Any]) -> dict[str, str]:
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
    return {
        name: known.get(name, nothing) if values["rounds"] else nothing
        for name, value in values.items()
        if value is None
    }
