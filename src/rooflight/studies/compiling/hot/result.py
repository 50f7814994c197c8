"""What became of the hot loops of a process, as a Report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from rooflight.records.document import Document, Fields
from rooflight.records.report import Report, Table, table
from rooflight.studies.compiling.hot.state import CallKind, Seen, State

_NAMED: Final = 3


class KindDocument(Fields, frozen=True, kw_only=True):
    """Calls of one kind: how many were observed, with how many different sizes, how many operations one runs, and what
    was decided, for which ``reason``, or what an undecided kind waits for. ``eager_s`` and ``compiled_s``: medians of
    the last runs timed (until the next call where a backward pass followed), None where none was. ``speedup``: by the
    quickest quarter of each side. ``expected_speedup``: before compiling. ``compile_s``: the calls that traced and
    compiled. ``break_even_runs``: compiled runs that gain what that took.
    """

    state: State
    calls: int
    sizes: int
    operations: int
    reason: str
    eager_s: float | None
    compiled_s: float | None
    speedup: float | None
    expected_speedup: float | None
    compile_s: float | None
    break_even_runs: int | None


class HotDocument(Document, frozen=True, kw_only=True, tag="rooflight.hot/1"):
    """A loop: calls that were observed, what of it was compiled, and its calls by kind. ``settled``: calls go straight
    to the code chosen, and are counted no more. ``checked``: compiled runs that were compared with eager ones;
    ``error``: their largest relative error. ``recompiles``: compilations after the first that nobody planned.
    """

    name: str
    calls: int
    settled: bool
    compiled: str
    checked: int
    error: float | None
    recompiles: int
    note: str
    kinds: tuple[KindDocument, ...]


def report_of(loops: Sequence[Seen], *, detecting: bool = False) -> Report:
    """The report of some loops, in the order in which they were attached. ``detecting``: the detection is on."""
    data = tuple(
        HotDocument.view(
            seen,
            compiled=seen.what,
            kinds=tuple(_kind(kind, runs_known=seen.expected_runs is not None) for kind in seen.kinds.values()),
        )
        for seen in loops
    )
    kinds = [kind for document in data for kind in document.kinds]
    compiled = sum(kind.state == "compiled" for kind in kinds)
    return Report(
        title="Hot paths",
        data=data,
        facts=(
            ("loops", len(data)),
            ("kinds of calls", len(kinds)),
            ("compiled", compiled),
            ("rolled back or left eager", sum(kind.state == "eager" for kind in kinds)),
        ),
        tables=(_table(data),) if data else (),
        notes=tuple(f"{document.name}: {document.note}" for document in data if document.note),
        conclusion=_conclusion(data, detecting=detecting),
    )


def _conclusion(data: Sequence[HotDocument], *, detecting: bool) -> str:
    if not data and detecting:
        return (
            "No loop was observed: since the detection began, no module was called, and no loop of functions ran for "
            "long enough (0.2 s) to be seen. Shorter loops stay eager: compiling takes seconds."
        )
    if not data:
        return (
            "No loop was observed: call rooflight.hot(function or module), or "
            "rooflight.compiling.enable_hot_path_detection()."
        )
    compiled = [
        document.name + (f" ({kind.speedup:.2f} times as fast)" if kind.speedup else "")
        for document in data
        for kind in document.kinds
        if kind.state == "compiled"
    ]
    if not compiled:
        reasons = dict.fromkeys(f"{loop.name}: {kind.reason}" for loop in data for kind in loop.kinds if kind.reason)
        return " ".join(["Nothing was compiled.", *(f"{reason}." for reason in list(reasons)[:_NAMED])])
    more = f" and {len(compiled) - _NAMED} more" if len(compiled) > _NAMED else ""
    return f"Compiled: {', '.join(compiled[:_NAMED])}{more}."


def _kind(kind: CallKind, *, runs_known: bool) -> KindDocument:
    eager, compiled = (statistics.median(times) if times else None for times in (kind.eager_s, kind.compiled_s))
    gain_s = eager - compiled if eager is not None and compiled is not None else 0.0
    return KindDocument.view(
        kind,
        reason=kind.why(runs_known=runs_known),
        sizes=len(kind.sizes),
        eager_s=eager,
        compiled_s=compiled,
        expected_speedup=None if kind.expected is None else kind.expected.speedup,
        break_even_runs=-int(-kind.compile_s // gain_s) if kind.compile_s and gain_s > 0 else None,
    )


def _table(data: Sequence[HotDocument]) -> Table:
    def why(loop: HotDocument, kind: KindDocument) -> str:
        return kind.reason or (loop.compiled if kind.state in {"compiled", "trying"} else "")

    return table(
        "loops",
        "Loops by kind of call",
        [(loop, kind) for loop in data for kind in loop.kinds],
        ("loop", "", lambda row: row[0].name),
        ("state", "", lambda row: row[1].state),
        ("calls", "", lambda row: row[1].calls),
        ("sizes", "", lambda row: row[1].sizes),
        ("operations", "", lambda row: row[1].operations),
        ("eager", "s", lambda row: row[1].eager_s),
        ("compiled", "s", lambda row: row[1].compiled_s),
        ("speed-up", "", lambda row: row[1].speedup),
        ("compiling", "s", lambda row: row[1].compile_s),
        ("break-even runs", "", lambda row: row[1].break_even_runs),
        ("compiled part, or why not", "", lambda row: why(*row)),
        wraps=("compiled part, or why not",),
        optional=("sizes", "operations", "break-even runs", "calls"),
        note=(
            "calls: those observed; calls of decided loops go straight to their code. "
            "Kinds differ in dtypes, ranks, sizes of 0 and 1, devices, train or eval."
        ),
    )
