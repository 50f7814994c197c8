"""What a report says of a diagnosis: the regime, the findings as a table, and what is not worth it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Cell, Table, table
from rooflight.roofline.findings import Diagnosis, Finding, RegimeShare

FIRST: Final = 3
"""Findings on the first screen."""
_LEAST: Final = 0.05  # of the step: a regime with less is not named


def regime_text(found: Diagnosis) -> str:
    """``overhead (62% of the step; memory 20%, compute 15%)``."""
    others = sorted(found.shares.items(), key=lambda each: -each[1])
    rest = [f"{name} {percent(share)}" for name, share in others if share >= _LEAST and name != found.regime.value]
    return f"{found.regime.value} ({percent(found.confidence)} of the step{'; ' if rest else ''}{', '.join(rest)})"


def answer(found: Diagnosis | None) -> str:
    """What to change first, and what that gains; empty where no times are known."""
    if found is None or not found.step_s or found.source == "bound":
        return ""
    if not found.findings:
        return "Nothing was found that would gain 3% or more of a step."
    first = found.findings[0]
    gain = f"{Quantity(first.predicted_gain_s, 's')} of {Quantity(found.step_s, 's')}"
    return f"First: {first.title}. What helps: {_first_part(first.remedy)}. Predicted gain: {gain}."


def findings_facts(found: Diagnosis | None) -> Iterable[tuple[str, Cell]]:
    """The regime, and what is not worth it."""
    if found is None or not found.step_s:
        return
    yield "regime", regime_text(found)
    if found.not_worth_it:
        yield "not worth it", "; ".join(f"{each.title} ({each.reason})" for each in found.not_worth_it)
    if found.missing:
        yield "not looked at", "; ".join(found.missing)


def findings_table(found: Diagnosis, top: int | None = None) -> Table:
    """The findings, what gains most first."""
    return table(
        "findings",
        "What costs time, and what helps",
        found.findings,
        ("lost", "s", lambda each: each.seconds_lost),
        ("why", "", lambda each: f"{each.title}: {each.evidence}"),
        ("what helps", "", lambda each: each.remedy),
        ("gains", "s", lambda each: each.predicted_gain_s),
        ("between", "", _interval),
        ("gain left", "s", lambda each: each.after_others_s),
        ("id", "", lambda each: each.id),
        top=top,
        wraps=("why", "what helps"),
        optional=("gain left", "id", "between"),
        note=f"Seconds of a step of {Quantity(found.step_s, 's')} ({found.source}). Losses overlap; each gain is of "
        "the remedy alone, and what is left of it once those above are applied.",
    )


def first_findings(found: Table) -> Table:
    """The same in a line or two for each of the first, as the first screen has room for."""
    lost, why, helps, gains, ends = (found.names.index(name) for name in found.names[:5])

    rows = [
        (row[lost], _title_and_line(str(row[why])), _first_part(str(row[helps])), row[gains], row[ends])
        for row in found.rows[:FIRST]
    ]
    columns = tuple(found.columns[place] for place in (lost, why, helps, gains, ends))
    return replace(found, columns=columns, rows=tuple(rows), top=None, optional=("between",), note="")


def _title_and_line(why: str) -> str:
    """A cause without its evidence, but for the first line of the program that this names."""
    title, _, evidence = why.partition(": ")
    line = re.search(r"[^\s(]+\.py:\d+", evidence)
    return f"{title}, {line[0]}" if line else title


def _first_part(text: str) -> str:
    """A remedy up to its first comma or colon that is in no parentheses."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and letter in ",;:" and text[place + 1 : place + 2] == " ":
            return text[:place]
    return text


def _interval(finding: Finding) -> str:
    ends = (finding.predicted_gain_low_s, finding.predicted_gain_high_s)
    return " to ".join(str(Quantity(end, "s")) for end in ends)


def regimes_table(table_id: str, title: str, rows: Iterable[RegimeShare]) -> Table:
    """The regime of each phase or layer."""
    return table(
        table_id,
        title,
        rows,
        ("name", "", lambda each: each.name),
        ("time", "s", lambda each: each.seconds),
        ("regime", "", lambda each: each.regime.value),
        ("share of it", "%", lambda each: each.confidence),
    )
