"""What lint found, as a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path

from rooflight.devices.spec import roofs_used_by
from rooflight.prediction.lint.findings import Cause, Finding, Rule, from_cache, said_of
from rooflight.prediction.read.ops import MeasuredOps
from rooflight.prediction.read.table import MeasuredTable
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Column, Report, Table
from rooflight.records.samples import SUFFIX

_Key = tuple[Path, str, str]
"""Source, kernel and device: one table."""


class TableData(Fields, frozen=True, kw_only=True):
    """A table that was checked; ``known``: its operator is, so that its rows have bounds. ``beat_bound``: times that
    are faster than the bound, and not flagged, by cause.
    """

    file: str
    kernel: str
    device: str
    operator: str
    known: bool
    rows: int
    flagged: int
    by_rule: Mapping[str, int]
    beat_bound: Mapping[str, int]


class FindingData(Fields, frozen=True, kw_only=True):
    """What is wrong with a row, or (``line`` None) with a column; ``factor`` is how far off."""

    file: str
    kernel: str
    device: str
    line: int | None
    direction: str
    rule: str
    evidence: str
    factor: float


class LintDocument(Document, frozen=True, kw_only=True, tag="rooflight.lint/1"):
    """All tables, all findings, and the files that hold no samples."""

    tables: tuple[TableData, ...]
    findings: tuple[FindingData, ...]
    skipped: tuple[str, ...]


def report_of(
    roots: Sequence[Path],
    tables: Sequence[MeasuredTable | MeasuredOps],
    findings: Sequence[Finding],
    *,
    beaten: Sequence[Mapping[Cause, int]] = (),
    skipped: Sequence[Path] = (),
    top: int = 10,
) -> Report:
    """Tables with findings, the worst first, then the worst findings of each rule; ``top`` of either.

    ``roots`` are the files and folders that were checked, ``beaten`` the causes (``beating``) of the first tables,
    ``skipped`` the files under ``roots`` that hold no samples.
    """
    by_table: dict[_Key, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_table[finding.source, finding.kernel, finding.device].append(finding)
    rows = sum(map(len, tables))
    flagged = {_key(table): len(_rows(by_table[_key(table)])) for table in tables}
    total = sum(flagged.values())
    labels = {_key(table): table.label for table in tables}
    return Report(
        title=f"Lint of {', '.join(map(str, roots))}",
        data=_data(roots, tables, by_table, beaten, skipped),
        facts=(
            ("files", len({table.source for table in tables})),
            ("tables", len(tables)),
            ("tables without findings", sum(not by_table[_key(table)] for table in tables)),
            ("rows", rows),
            ("rows flagged", total),
            ("share flagged", Quantity(total / rows, "%")),
            ("roofs from", roofs_used_by(table.device for table in tables)),
        ),
        tables=(_with_findings(tables, by_table, flagged, top), _worst(findings, labels, top)) if findings else (),
        notes=tuple(_notes(tables, beaten, skipped)),
        conclusion=_conclusion(total, sum(count > 0 for count in flagged.values()), len(findings)),
    )


def _notes(
    tables: Sequence[MeasuredTable | MeasuredOps], beaten: Sequence[Mapping[Cause, int]], skipped: Sequence[Path]
) -> Iterator[str]:
    """What was not checked, or not against a bound; what beats it with reason."""
    if said := said_of(sum(map(Counter, beaten), Counter[Cause]())):
        yield said
    if unread := sum(path.suffix != SUFFIX for path in skipped):
        yield f"Not checked: {count_of(unread, 'CSV file')} of an unknown format."
    if unmeasured := len(skipped) - unread:
        sweeps = count_of(unmeasured, "sweep")
        yield f"Not checked: {sweeps} of which no shape could be measured; the reasons are in the rows."
    for table in tables:
        if isinstance(table, MeasuredOps) and (count := from_cache(table)):
            ops = count_of(count, "op was", "ops were")
            yield (
                f"{table.label}: {ops} faster than main memory allows, but not than a cache: their data may have been "
                "in one."
            )
    unknown = Counter(table.kernel for table in tables if not table.known)
    for kernel, count in sorted(unknown.items()):
        yield f'No operator "{kernel}" is known, so its rows have no bound: {count_of(count, "table")}.'


def _with_findings(
    tables: Sequence[MeasuredTable | MeasuredOps],
    by_table: Mapping[_Key, Sequence[Finding]],
    flagged: Mapping[_Key, int],
    top: int,
) -> Table:
    """The tables in which something was found, the one with most flagged rows first."""
    shown = sorted((table for table in tables if by_table[_key(table)]), key=lambda each: -flagged[_key(each)])
    return Table(
        id="tables",
        title="Tables with findings",
        columns=(
            Column("table"),
            Column("device"),
            Column("rows"),
            Column("flagged"),
            Column("share", "%"),
            Column("findings"),
        ),
        rows=tuple(
            (
                table.label,
                table.device.name,
                len(table),
                flagged[_key(table)],
                flagged[_key(table)] / len(table),
                _counts(by_table[_key(table)]),
            )
            for table in shown
        ),
        top=top,
        optional=("share",),
        note="A row counts once however many findings it has; findings on a whole column flag no row.",
    )


def _key(table: MeasuredTable | MeasuredOps) -> _Key:
    return table.source, table.kernel, table.device.name


def _worst(findings: Sequence[Finding], labels: Mapping[_Key, str], top: int) -> Table:
    """The furthest off of each rule in turn, so that one rule's many findings do not hide another's."""
    by_rule = {rule: sorted((f for f in findings if f.rule is rule), key=lambda f: -f.factor) for rule in Rule}
    ranked = sorted(
        (
            (place, number, finding)
            for number, found in enumerate(by_rule.values())
            for place, finding in enumerate(found)
        ),
        key=lambda each: each[:2],
    )
    chosen = sorted(ranked[:top], key=lambda each: (each[1], each[0]))  # what is shown, rule by rule
    return Table(
        id="findings",
        title="Worst findings of each rule",
        columns=(Column("rule"), Column("table"), Column("device"), Column("line"), Column("evidence", wraps=True)),
        rows=tuple(
            (f"{f.rule} ({f.direction})", labels[f.source, f.kernel, f.device], f.device, f.line, f.evidence)
            for _, _, f in (*chosen, *ranked[top:])
        ),
        top=top,
        optional=("device",),
    )


def _conclusion(flagged: int, tables: int, findings: int) -> str:
    if not findings:
        return "No row was found to be wrong."
    return f"Leave {count_of(flagged, 'row')} out of training, in {tables} of the tables."


def _rows(findings: Sequence[Finding]) -> set[int]:
    return {finding.row for finding in findings if finding.row is not None}


def _counts(findings: Sequence[Finding]) -> str:
    counts = Counter((finding.direction, str(finding.rule)) for finding in findings if finding.row is not None)
    columns = [f"{finding.rule} ({finding.direction})" for finding in findings if finding.row is None]
    return ", ".join([*(f"{count} {rule} ({way})" for (way, rule), count in counts.most_common()), *columns])


def _data(
    roots: Sequence[Path],
    tables: Sequence[MeasuredTable | MeasuredOps],
    by_table: Mapping[_Key, list[Finding]],
    beaten: Sequence[Mapping[Cause, int]],
    skipped: Sequence[Path],
) -> LintDocument:
    return LintDocument(
        tables=tuple(
            TableData(
                file=_name(table.source, roots),
                kernel=table.kernel,
                device=table.device.name,
                operator=table.operator,
                known=table.known,
                rows=len(table),
                flagged=len(_rows(by_table[_key(table)])),
                by_rule=dict(Counter(str(finding.rule) for finding in by_table[_key(table)])),
                beat_bound={str(cause): count for cause, count in causes.items()},
            )
            for table, causes in zip(tables, (*beaten, *repeat({}, len(tables) - len(beaten))), strict=True)
        ),
        findings=tuple(
            FindingData(
                file=_name(table.source, roots),
                kernel=table.kernel,
                device=table.device.name,
                line=finding.line,
                direction=finding.direction,
                rule=str(finding.rule),
                evidence=finding.evidence,
                factor=float(finding.factor),
            )
            for table in tables
            for finding in by_table[_key(table)]
        ),
        skipped=tuple(_name(path, roots) for path in skipped),
    )


def _name(path: Path, roots: Sequence[Path]) -> str:
    """Relative to the folder that was checked; of several, as the user named it."""
    if len(roots) > 1:
        return str(path)
    return path.name if path == roots[0] else str(path.relative_to(roots[0]))
