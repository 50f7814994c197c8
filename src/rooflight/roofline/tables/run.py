"""What a report says of a script that ``rooflight run`` watched, and the first screen of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from rooflight.records.account import WORDS, Cause
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Report, Table, share, table
from rooflight.records.timeline import Run, RunStep, SameSteps
from rooflight.roofline.memory.texts import growth_text
from rooflight.roofline.tables.document import AnalysisDocument
from rooflight.roofline.tables.findings import first_findings

_MUCH_BETWEEN: Final = 0.05
_MANY_TIMES: Final = 100
_ROWS: Final = 4
_FIRST: Final = (
    "regime", "account", "throughput", "not worth it", "calls of optimizers", "unequal steps", "mean iteration",
    "predicted wall time", "exit code",
)  # fmt: skip
_ALL: Final = "100% of calls, 100% of bytes"
_COLUMNS: Final = ("layer", "measured", "op bound", "efficiency", "limiter")


def run_facts(run: Run | None) -> Iterable[tuple[str, Cell]]:
    """What a step of a script is, how its steps differ, and what lies between them."""
    if run is None:
        return
    if run.step is not None:
        step = run.step
        number = "none could be recorded" if step.recorded is None else f"number {step.recorded:,} was recorded"
        yield "step", f"{step.name} ({step.count:,} times, {step.at}), from {step.begins}; {number}"
        if step.calls:
            yield "calls of optimizers", ", ".join(f"{count:,} of {name}" for name, count in step.calls)
    recorded = next((size for size in run.alike if size.recorded), None) if len(run.alike) > 1 else None
    if recorded is not None and recorded.median_s is not None:
        part = share(recorded.count * recorded.median_s, _timed_s(run.alike))
        of_time = "" if part is None else f", {percent(part)} of the time"
        yield (
            "unequal steps",
            f"{recorded.count:,} of {sum(each.count for each in run.alike):,} are of the recorded size{of_time}",
        )
    if run.between and run.step is not None:
        whole_s = run.between[0].seconds / run.between[0].share
        step_s = whole_s - sum(each.seconds for each in run.between)
        parts = [*((each.name, each.seconds) for each in run.between), ("step", step_s)]
        terms = " + ".join(f"{name} {Quantity(seconds, 's')}" for name, seconds in parts)
        yield "mean iteration", f"{terms} = {Quantity(whole_s, 's')}"
    if run.exit_code:
        yield "exit code", f"{run.exit_code}{f' ({run.error})' if run.error else ''}"


def _timed_s(sizes: Iterable[SameSteps]) -> float:
    return sum(each.count * (each.median_s or 0.0) for each in sizes)


def sizes_table(run: Run | None) -> Iterator[Table]:
    """The steps of a script by size, where they differ."""
    sizes = run.alike if run is not None else ()
    if len(sizes) < 2:
        return
    yield table(
        "sizes",
        "Steps by size",
        sizes,
        ("steps", "", lambda size: size.count),
        ("first input", "", lambda size: f"from {size.elements:,} elements" if size.elements else None),
        ("backward passes", "", lambda size: size.backwards),
        ("autograd nodes", "", lambda size: size.nodes),
        ("median", "s", lambda size: size.median_s),
        ("share", "%", lambda size: share(size.count * (size.median_s or 0.0), _timed_s(sizes))),
        ("recorded", "", lambda size: "yes" if size.recorded else None),
        optional=("first input",),
        note="Ops, bounds and the account are of steps of the recorded size."
        if any(size.recorded and size.median_s is not None for size in sizes)
        else "No timed step is of the recorded size: compiled code runs eagerly while it is recorded.",
    )


def of_script(run: Run | None, verdict: str, *, brief: bool = False) -> str:
    """The conclusion of a step that belongs to a script: what the step is, and unless in ``brief`` what lies between
    steps.
    """
    if run is None:
        return verdict
    if run.step is None:
        name = "Name one by --step function:FILE:NAME, or by rooflight.phase around it."
        took = f" The account is of the whole run. {verdict}" if run.between else ""
        if run.error:
            return f"No step was found in {run.script}, which ended with exit code {run.exit_code}: {run.error}.{took}"
        return f"No step was found in {run.script}: it made {run.seen}. {name}{took}"
    what = f"A step is {calls_of(run.step)} ({run.step.count:,} of them, {run.step.at}). "
    part, seconds = sum(each.share for each in run.between), sum(each.seconds for each in run.between)
    if brief or part < _MUCH_BETWEEN:
        return what + verdict
    longest = max(run.between, key=lambda each: each.seconds)
    name = {"other": "the script's own code"}.get(longest.name, f"the {longest.name}")
    lie = f"{Quantity(seconds, 's')} a step on average, {percent(part)} of the time"
    return f"{what}{verdict} Between steps lie {lie}, most of it in {name}."


def calls_of(step: RunStep) -> str:
    """``one call of AdamW.step``; how many turns of the loop, where some of its optimizers do not step in each."""
    return f"one call of {step.name}" if step.turns < 2 else f"{step.turns} turns of the loop, with {step.name}"


def _of_iterations(data: object) -> str:
    """What a step of a measured script is, how long an iteration takes, how many times what its work needs, and what
    takes most beside that. Empty of anything else.
    """
    if not isinstance(data, AnalysisDocument) or data.run is None or data.run.step is None or data.account is None:
        return ""
    wall_s, rows = data.account.wall_s, data.account.rows
    light_s = sum(row.seconds for row in rows if row.cause is Cause.LIGHT)
    shares = dict[Cause, float]()  # of a cause, whatever its regime
    for row in rows:
        if row.cause is not Cause.LIGHT and row.source == "measured":
            shares[row.cause] = shares.get(row.cause, 0.0) + row.share
    if not shares:
        return ""
    longest = max(shares, key=lambda cause: shares[cause])
    times = wall_s / light_s if light_s else 0.0
    factor = f"{times:.1f}" if times < _MANY_TIMES else f"{times:,.0f}"
    needs = f", {factor} times the {Quantity(light_s, 's')} that its work needs" if light_s else ""
    of = "the rest" if light_s else "it"
    text = f"An iteration takes {Quantity(wall_s, 's')}{needs}. Most of {of}: {WORDS[longest].partition(':')[0]}, "
    text += f"{percent(shares[longest])}."
    unknown = f" No bounds here: {'; '.join(data.device.notes)}." if not light_s and data.device.notes else ""
    return of_script(data.run, text + unknown, brief=True)


def in_brief(report: Report, path: str, options: str = "") -> Report:
    """The same report, of which a terminal shows the first screen; ``path`` is the session, for all of it, with these
    options.
    """
    facts = [(name, cell) for name, cell in report.facts if name in _FIRST or (name == "coverage" and cell != _ALL)]
    facts = [(name, _names_alone(cell) if name == "not worth it" else cell) for name, cell in facts]
    ranks = [each for each in (report.table("ranks"),) if each is not None]
    layers, data = report.table("by_layer"), getattr(report.data, "slowest", report.data)
    found = (data.findings, data.hot_spots) if isinstance(data, AnalysisDocument) else ((), ())
    tables = [*ranks, *([first_findings(*found)] if any(found) else [])]
    tables += [_longest(layers)] if layers is not None and not any(found) else []
    more = f" and {count_of(len(report.notes), 'note')}" if report.notes else ""
    evidence = f"rooflight diagnose {path}{options} shows the evidence, " if any(found) and not ranks else ""
    same = "with the same words" if evidence else f"{path}{options} shows"
    notes = [f"{evidence}rooflight analyze {same} all tables{more}"]
    grows = growth_text(data.memory) if isinstance(data, AnalysisDocument) else ""
    brief = replace(
        report,
        conclusion=f"{_of_iterations(report.data) or report.conclusion} {grows}".strip(),
        facts=tuple(facts),
        tables=tuple(tables),
        series=(),
        notes=tuple(notes) if path else (),
    )
    return replace(report, brief=brief)


def _names_alone(cell: Cell) -> str:
    """``CUDA graphs, torch.compile`` of the same with reasons."""
    return ", ".join(each.partition(" (")[0] for each in str(cell).split("; "))


def _longest(layers: Table) -> Table:
    """The layers that took longest; where none was timed, those with the largest bounds."""
    places = [layers.names.index(name) for name in _COLUMNS if name in layers.names]
    by = layers.names.index(next(name for name in ("measured", "op bound", "calls") if name in layers.names))
    rows = sorted(layers.rows, key=lambda row: _number(row[by]), reverse=True)[:_ROWS]
    return Table(
        id=layers.id,
        title=f"Layers that took longest ({len(rows)} of {len(layers.rows)})",
        columns=tuple(layers.columns[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in rows),
    )


def _number(cell: Cell) -> float:
    return cell if isinstance(cell, int | float) else 0.0
