"""What lint found, as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rooflight.hardware.devices.spec import roofs_used_by
from rooflight.prediction.lint.findings import Finding, Rule, beats_note, from_cache
from rooflight.prediction.read.measured import MeasuredOps, MeasuredTable
from rooflight.records.document import Document, Fields
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Report, Table, table
from rooflight.records.samples import SUFFIX


class TableData(Fields, frozen=True, kw_only=True):
    """A table that was checked; ``known``: its operator is, so that its rows have bounds. ``beat_bound``: times that
    are faster than the bound, and not flagged.
    """

    file: str
    kernel: str
    device: str
    operator: str
    known: bool
    rows: int
    flagged: int
    by_rule: Mapping[str, int]
    beat_bound: int


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


class _Checked:
    def __init__(self, measured: MeasuredTable | MeasuredOps, findings: list[Finding], beats: int) -> None:
        self.measured, self.findings, self.beats = measured, findings, beats
        self.flagged = len({finding.row for finding in findings if finding.row is not None})

    @property
    def found(self) -> str:
        """Findings of rows by rule, the most frequent first, then those of columns."""
        counts = Counter((each.direction, str(each.rule)) for each in self.findings if each.row is not None)
        columns = [f"{each.rule} ({each.direction})" for each in self.findings if each.row is None]
        return ", ".join([*(f"{count} {rule} ({way})" for (way, rule), count in counts.most_common()), *columns])


def report_of(
    roots: Sequence[Path],
    tables: Sequence[MeasuredTable | MeasuredOps],
    findings: Sequence[Finding],
    *,
    beats: Sequence[int] = (),
    skipped: Sequence[Path] = (),
    top: int = 10,
) -> Report:
    """Tables with findings, the worst first, then the worst findings of each rule; ``top`` of either.

    ``roots`` are the files and folders that were checked, ``beats`` how many times of each of the first tables are
    faster than the bound without being flagged, ``skipped`` the files under ``roots`` that hold no samples.
    """
    by_table: dict[tuple[Path, str, str], list[Finding]] = {}
    for finding in findings:
        by_table.setdefault(_table(finding), []).append(finding)
    counts = (*beats, *[0] * (len(tables) - len(beats)))
    checked = [
        _Checked(each, by_table.get((each.source, each.kernel, each.device.name), []), count)
        for each, count in zip(tables, counts, strict=True)
    ]
    rows, flagged = sum(map(len, tables)), [each for each in findings if each.row is not None]
    count = len({(*_table(each), each.row) for each in flagged})  # an op of two kinds has two tables under one name
    return Report(
        title=f"Lint of {', '.join(map(str, roots))}",
        data=_document(roots, checked, skipped),
        facts=(
            ("files", len({each.source for each in tables})),
            ("tables", len(tables)),
            ("tables without findings", sum(not each.findings for each in checked)),
            ("rows", rows),
            ("rows flagged", count),
            ("share flagged", Quantity(count / rows, "%")),
            ("roofs from", roofs_used_by(each.device for each in tables)),
        ),
        tables=(_with_findings(checked, top), _worst(findings, checked, top)) if findings else (),
        notes=tuple(_notes(checked, skipped)),
        conclusion=f"Leave {count_of(count, 'row')} out of training, in {len(set(map(_table, flagged)))} of the tables."
        if findings
        else "No row was found to be wrong.",
    )


def _table(finding: Finding) -> tuple[Path, str, str]:
    return finding.source, finding.kernel, finding.device


def _document(roots: Sequence[Path], checked: Sequence[_Checked], skipped: Sequence[Path]) -> LintDocument:
    def name(path: Path) -> str:
        """Relative to the folder that was checked; of several, as the user named it."""
        if len(roots) > 1:
            return str(path)
        return path.name if path == roots[0] else str(path.relative_to(roots[0]))

    return LintDocument(
        tables=tuple(
            TableData.view(
                each.measured,
                each,
                file=name(each.measured.source),
                device=each.measured.device.name,
                rows=len(each.measured),
                by_rule=Counter(str(finding.rule) for finding in each.findings),
                beat_bound=each.beats,
            )
            for each in checked
        ),
        findings=tuple(
            FindingData.view(finding, file=name(finding.source)) for each in checked for finding in each.findings
        ),
        skipped=tuple(map(name, skipped)),
    )


def _notes(checked: Sequence[_Checked], skipped: Sequence[Path]) -> Iterator[str]:
    if note := beats_note(sum(each.beats for each in checked)):
        yield note
    if unread := sum(path.suffix != SUFFIX for path in skipped):
        yield f"Not checked: {count_of(unread, 'CSV file')} of an unknown format."
    if unmeasured := len(skipped) - unread:
        sweeps = count_of(unmeasured, "sweep")
        yield f"Not checked: {sweeps} of which no shape could be measured; the reasons are in the rows."
    for each in checked:
        if isinstance(each.measured, MeasuredOps) and (count := from_cache(each.measured)):
            ops = count_of(count, "op was", "ops were")
            yield (
                f"{each.measured.label}: {ops} faster than main memory allows, but not than a cache: their data may "
                "have been in one."
            )
    unknown = Counter(each.measured.kernel for each in checked if not each.measured.known)
    for kernel, count in sorted(unknown.items()):
        yield f'No operator "{kernel}" is known, so its rows have no bound: {count_of(count, "table")}.'


def _with_findings(checked: Sequence[_Checked], top: int) -> Table:
    return table(
        "tables",
        "Tables with findings",
        sorted((each for each in checked if each.findings), key=lambda each: -each.flagged),
        ("table", "", lambda each: each.measured.label),
        ("device", "", lambda each: each.measured.device.name),
        ("rows", "", lambda each: len(each.measured)),
        ("flagged", "", lambda each: each.flagged),
        ("share", "%", lambda each: each.flagged / len(each.measured)),
        ("findings", "", lambda each: each.found),
        top=top,
        optional=("share",),
        note="A row counts once however many findings it has; findings on a whole column flag no row.",
    )


def _worst(findings: Sequence[Finding], checked: Sequence[_Checked], top: int) -> Table:
    """The furthest off of each rule in turn, so that one rule's many findings do not hide another's."""
    labels = {_table(finding): each.measured.label for each in checked for finding in each.findings}
    by_rule = [sorted((f for f in findings if f.rule is rule), key=lambda f: -f.factor) for rule in Rule]
    ranked = sorted(
        ((place, number, f) for number, of_rule in enumerate(by_rule) for place, f in enumerate(of_rule)),
        key=lambda each: each[:2],
    )
    first = sorted(ranked[:top], key=lambda each: (each[1], each[0]))  # what is shown, rule by rule
    return table(
        "findings",
        "Worst findings of each rule",
        [found for _, _, found in (*first, *ranked[top:])],
        ("rule", "", lambda f: f"{f.rule} ({f.direction})"),
        ("table", "", lambda f: labels[_table(f)]),
        ("device", "", lambda f: f.device),
        ("line", "", lambda f: f.line),
        ("evidence", "", lambda f: f.evidence),
        wraps=("evidence",),
        top=top,
        optional=("device",),
    )
