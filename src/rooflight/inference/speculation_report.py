"""The report's tables of speculative decoding; none where no step has drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rooflight.inference.speculation_results import SpeculativeData
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Cell, Column, Table
from rooflight.records.series import Axis, Line, Mark, Series

_SHOWN: Final = 40


def speculation_tables(data: SpeculativeData) -> Iterable[Table]:
    """Acceptance, times of a round's parts, speed-ups, histograms."""
    if not data.rounds:
        return
    yield Table(
        id="speculative",
        title="Speculative decoding",
        columns=(Column("metric"), Column("value"), Column("meaning", wraps=True)),
        rows=tuple((name, value, meaning) for name, value, meaning in _metrics(data)),
    )
    yield Table(
        id="acceptance_by_position",
        title="Acceptance by position",
        columns=(Column("position"), Column("accepted", "%"), Column("accepted if tested", "%")),
        rows=tuple(
            (number, share, if_tested)
            for number, (share, if_tested) in enumerate(
                zip(data.acceptance_by_position or (), data.acceptance_by_position_if_tested or (), strict=True), 1
            )
        ),
        top=_SHOWN,
        see="summary.json has all",
        note="Accepted: of all rounds that proposed the position. If tested: of those that accepted all before it.",
    )
    yield Table(
        id="accepted_lengths",
        title="Accepted lengths",
        columns=(Column("draft tokens accepted"), Column("rounds"), Column("share", "%")),
        rows=tuple((number, count, count / data.rounds) for number, count in enumerate(data.rounds_by_accepted)),
        top=_SHOWN,
        see="summary.json has all",
        note="Without the token that the target adds to each round.",
    )
    yield _by_batch(data)


def speculation_by_run(runs: Sequence[tuple[int, str, SpeculativeData]]) -> Iterable[Table]:
    """Acceptance and speed-up of each run, after its number and label; none of a single run."""
    if len(runs) < 2:
        return
    yield Table(
        id="speculative_runs",
        title="Speculative decoding by run",
        columns=(
            Column("run"),
            Column("label"),
            Column("rounds"),
            Column("acceptance rate", "%"),
            Column("alpha", "%"),
            Column("mean accepted length"),
            Column("speed-up measured"),
            Column("predicted"),
        ),
        rows=tuple(
            (
                number,
                label,
                data.rounds,
                data.acceptance_rate,
                data.alpha,
                data.mean_accepted_length,
                data.speedup_measured,
                data.speedup_predicted,
            )
            for number, label, data in runs
        ),
        top=_SHOWN,
        see="summary.json has all",
        note="Speed-ups are relative to the plain steps of all runs.",
    )


def speculation_series(data: SpeculativeData) -> Iterable[Series]:
    """The histogram of accepted lengths, and acceptance by position."""
    if not data.rounds:
        return
    lengths = data.rounds_by_accepted[:_SHOWN]
    yield Series(
        id="accepted_lengths",
        title="Accepted lengths",
        x=Axis(name="draft tokens accepted"),
        y=Axis(name="rounds"),
        lines=(
            Line(
                name="rounds",
                x=tuple(f"{number} accepted" for number in range(len(lengths))),
                y=tuple(map(float, lengths)),
                mark=Mark.BARS,
            ),
        ),
    )
    positions = (data.acceptance_by_position or ())[:_SHOWN]
    yield Series(
        id="acceptance_by_position",
        title="Acceptance by position of the draft",
        x=Axis(name="position"),
        y=Axis(name="accepted", unit="%"),
        lines=(
            Line(
                name="of rounds that proposed the position",
                x=tuple(f"position {number}" for number in range(1, len(positions) + 1)),
                y=positions,
                mark=Mark.BARS,
            ),
        ),
    )


def speculation_fact(data: SpeculativeData) -> str | None:
    """Speculative decoding in one line."""
    if data.acceptance_rate is None or data.mean_accepted_length is None:
        return None
    speed = "" if data.speedup_measured is None else f", {data.speedup_measured:.2f}× the speed of plain steps"
    predicted = "" if data.speedup_predicted is None or not speed else f" ({data.speedup_predicted:.2f}× predicted)"
    return f"{percent(data.acceptance_rate)} accepted, {data.mean_accepted_length:.2f} tokens a round{speed}{predicted}"


def speculation_notes(data: SpeculativeData) -> Iterable[str]:
    """Why speed-ups and parts are not known, where there are rounds."""
    for name in ("speedup_measured", "overhead_ms"):
        if data.rounds and name in data.reasons:
            yield f"speculative.{name} is not known: {data.reasons[name]}."


def _metrics(data: SpeculativeData) -> Iterable[tuple[str, Cell, str]]:
    def share(value: float | None) -> Cell:
        return None if value is None else percent(value)

    def ms(value: float | None) -> Cell:
        return None if value is None else Quantity(value / 1e3, "s")

    yield "rounds", data.rounds, "one draft and its verification for one sequence"
    yield "proposed", data.proposed, "draft tokens"
    yield "accepted", data.accepted, "draft tokens, without those that the target adds"
    yield "acceptance rate", share(data.acceptance_rate), "accepted / proposed"
    yield "alpha", share(data.alpha), "accepted / tested: tokens after the first rejection are not tested"
    yield "mean accepted length", data.mean_accepted_length, "tokens of a round, with the one that the target adds"
    yield "tokens per target forward", data.tokens_per_target_forward, "of the whole batch"
    yield "step", ms(data.step_ms), "average"
    yield "draft", ms(data.draft_ms), "of a step, all passes of the draft"
    yield "verify", ms(data.verify_ms), "of a step, the target's pass"
    yield "overhead", ms(data.overhead_ms), "of a step, what is neither"
    yield "speed-up measured", data.speedup_measured, "tok/s in speculative steps / tok/s in plain steps, same batch"
    yield "speed-up predicted", data.speedup_predicted, "from alpha, the draft's depths and the times of steps"
    yield "speed-up by theorem 3.8", data.speedup_theorem_3_8, "if verification took a plain step, and nothing else"


def _by_batch(data: SpeculativeData) -> Table:
    return Table(
        id="speedup_by_batch",
        title="Speed-up by batch size",
        columns=(
            Column("batch"),
            Column("steps"),
            Column("step", "s"),
            Column("tok/s"),
            Column("KV length"),
            Column("plain steps"),
            Column("plain step", "s"),
            Column("plain tok/s"),
            Column("plain KV length"),
            Column("measured"),
            Column("predicted"),
        ),
        rows=tuple(
            (
                row.batch,
                row.steps,
                None if row.step_ms is None else row.step_ms / 1e3,
                row.throughput_tok_s,
                row.mean_kv_length,
                row.plain_steps,
                None if row.plain_step_ms is None else row.plain_step_ms / 1e3,
                row.plain_throughput_tok_s,
                row.plain_mean_kv_length,
                row.speedup_measured,
                row.speedup_predicted,
            )
            for row in data.by_batch
        ),
        note="Speeds compare where KV lengths do.",
    )
