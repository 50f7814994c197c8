"""``rooflight fit``: learn from measured tables how long ops take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli.progress import spinner


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV or jsonl file of samples, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the models.")] = Path("models"),
    keep_flagged: Annotated[bool, typer.Option("--keep-flagged", help="Learn from rows that lint flags too.")] = False,
    json: Annotated[str | None, typer.Option(help="Write JSON to this file, - for standard output.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write Markdown to this file, - for standard output.")] = None,
) -> None:
    """Learn from samples how much longer than their bounds ops take, for rooflight predict.

    Times that rooflight lint flags are left out. Models are text files, one a kind of work; their errors are of rows
    held out.

    \b
      rooflight fit sampling_data --out models
      rooflight predict gemm --m 4096 --n 4096 --k 4096 --models models
    """
    from rooflight.prediction import lint as linting
    from rooflight.prediction.fit_report import report_of
    from rooflight.prediction.predictor import fit as learn
    from rooflight.prediction.tables import find, read_table
    from rooflight.reporting.output import check_writable, write_report

    if json == markdown == "-":
        raise ValueError("--json - and --markdown -: only one can have standard output")
    for target in (json, markdown):
        check_writable(target)
    with spinner() as progress:
        paths, _ = find(data)
        tables = []
        findings: list[linting.Finding] = []
        for path in paths:
            progress(f"reading and checking {path.name}")
            tables.append(read_table(path))
            if not keep_flagged:
                findings += linting.lint_table(tables[-1])
        predictor, few = learn(tables, findings, progress)
        if not predictor.models:
            raise ValueError(f"{data} has too few rows of any kind to learn from: sample more")
        predictor.save(out)
        report = report_of(predictor, tables, findings, few, out)
    write_report(report, json=json, markdown=markdown)
