"""What lint found, as a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rooflight.prediction.lint import Finding, Rule
from rooflight.prediction.tables import Table
from rooflight.records.quantity import Quantity
from rooflight.records.report import Report
from rooflight.records.report import Table as Section

SCHEMA = "rooflight.lint/1"


def report_of(
    root: Path, tables: Sequence[Table], findings: Sequence[Finding], *, skipped: Sequence[Path] = (), top: int = 10
) -> Report:
    """Files with findings, the worst first, then the worst findings of each rule; ``top`` of either.

    ``skipped`` are files under ``root`` that hold no samples.
    """
    by_file: dict[Path, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_file[finding.source].append(finding)
    rows = sum(map(len, tables))
    flagged = {table.source: len(_rows(by_file[table.source])) for table in tables}
    with_findings = sorted((table for table in tables if by_file[table.source]), key=lambda each: -flagged[each.source])
    notes = [f"Not checked: {len(skipped)} CSV files that are not named GPU_operator_precision.csv."] if skipped else []
    notes += [
        f'{_name(table.source, root)}: no operator "{table.operator}" is known, so its rows have no bound.'
        for table in tables
        if not table.known
    ]
    total = sum(flagged.values())
    return Report(
        title=f"Lint of {root}",
        schema=SCHEMA,
        facts=(
            ("Files", len(tables)),
            ("Files without findings", len(tables) - len(with_findings)),
            ("Rows", rows),
            ("Rows flagged", total),
            ("Share flagged", Quantity(total / rows, "%")),
        ),
        tables=(
            Section(
                title="Files with findings",
                columns=("Table", "Device", "Rows", "Flagged", "Share", "Findings"),
                rows=tuple(
                    (
                        _short(table.source),
                        table.device.name,
                        len(table),
                        flagged[table.source],
                        Quantity(flagged[table.source] / len(table), "%"),
                        _counts(by_file[table.source]),
                    )
                    for table in with_findings[:top]
                ),
                optional=("Share",),
                left_out=max(0, len(with_findings) - top),
                note="A row counts once however many findings it has; findings on a whole column flag no row.",
            ),
            _worst(findings, {table.source: table.device.name for table in tables}, top),
        ),
        notes=tuple(notes),
        conclusion=_conclusion(total, sum(count > 0 for count in flagged.values()), len(findings)),
        data=_data(root, tables, by_file, skipped),
    )


def _worst(findings: Sequence[Finding], devices: Mapping[Path, str], top: int) -> Section:
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
    chosen = sorted(ranked[:top], key=lambda each: (each[1], each[0]))
    return Section(
        title="Worst findings of each rule",
        columns=("Rule", "Table", "Device", "Line", "Evidence"),
        rows=tuple(
            (f"{f.rule} ({f.direction})", _short(f.source), devices[f.source], f.line, f.evidence) for _, _, f in chosen
        ),
        optional=("Device",),
        left_out=len(findings) - len(chosen),
    )


def _conclusion(flagged: int, files: int, findings: int) -> str:
    if not findings:
        return "Nothing is wrong with these rows as far as can be told."
    return f"Not to be learned from: {flagged} rows in {files} of the files."


def _rows(findings: Sequence[Finding]) -> set[int]:
    return {finding.row for finding in findings if finding.row is not None}


def _counts(findings: Sequence[Finding]) -> str:
    counts = Counter((finding.direction, str(finding.rule)) for finding in findings if finding.row is not None)
    columns = [f"{finding.rule} ({finding.direction})" for finding in findings if finding.row is None]
    return ", ".join([*(f"{count} {rule} ({way})" for (way, rule), count in counts.most_common()), *columns])


def _data(
    root: Path, tables: Sequence[Table], by_file: dict[Path, list[Finding]], skipped: Sequence[Path]
) -> dict[str, Any]:
    return {
        "files": [
            {
                "file": _name(table.source, root),
                "device": table.device.name,
                "operator": table.operator,
                "known": table.known,
                "rows": len(table),
                "flagged": len(_rows(by_file[table.source])),
                "by_rule": dict(Counter(str(finding.rule) for finding in by_file[table.source])),
            }
            for table in tables
        ],
        "findings": [
            {
                "file": _name(table.source, root),
                "line": finding.line,
                "direction": finding.direction,
                "rule": str(finding.rule),
                "evidence": finding.evidence,
                "factor": finding.factor,
            }
            for table in tables
            for finding in by_file[table.source]
        ],
        "skipped": [_name(path, root) for path in skipped],
    }


def _short(path: Path) -> str:
    """A file's name without the device, which has a column of its own, and without its ending."""
    return path.stem.partition("_")[2]


def _name(path: Path, root: Path) -> str:
    return path.name if path == root else str(path.relative_to(root))
