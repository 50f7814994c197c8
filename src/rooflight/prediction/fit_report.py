"""What was learned from measured tables, and how wrong it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path

from rooflight.prediction.lint import Finding
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.tables import Table
from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Report
from rooflight.records.report import Table as ReportTable

SCHEMA = "rooflight.fit/1"


def report_of(
    predictor: Predictor, tables: Sequence[Table], findings: Sequence[Finding], few: Mapping[str, int], folder: Path
) -> Report:
    """The models made, with the errors of rows held out; what lint took out, and what was too little to learn from."""
    models = sorted(predictor.models.values(), key=lambda model: -model.rows)
    times = sum(table.seconds.size for table in tables)
    flagged = len({(finding.source, finding.line, finding.direction) for finding in findings if finding.line})
    rows: list[tuple[Cell, ...]] = [
        (
            model.key,
            model.rows,
            ", ".join(model.devices),
            Quantity(model.error, "%"),
            f"{exp(model.inside[0]):.2f} to {exp(model.inside[1]):.2f}",
        )
        for model in models
    ]
    notes = [f"{key}: {count} times are too few to learn from." for key, count in sorted(few.items())]
    unknown = sorted({table.kernel for table in tables if not table.known})
    if unknown:
        notes.append(f"Passed over, as no such operator is registered: {', '.join(unknown)}.")
    return Report(
        title=f"Models in {folder}",
        schema=SCHEMA,
        facts=(("tables", len(tables)), ("times", times), ("left out, flagged by lint", flagged)),
        tables=(
            ReportTable(
                title="By kind of work",
                columns=("kind", "times", "devices", "error", "true / predicted, 90 %"),
                rows=tuple(rows),
                optional=("devices",),
                note="Error is the mean absolute percentage error of times held out, five parts in turn.",
            ),
        ),
        notes=tuple(notes),
        data={
            "models": [
                {
                    "key": model.key,
                    "rows": model.rows,
                    "devices": list(model.devices),
                    "error": model.error,
                    "inside": list(model.inside),
                    "outside": list(model.outside),
                }
                for model in models
            ],
            "too_few": dict(few),
            "times": times,
            "flagged": flagged,
        },
    )
