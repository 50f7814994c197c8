"""``rooflight fit``: learn from measured tables how long ops take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli.arguments import check_folder
from rooflight.cli.endings import interrupted
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner


def fit(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help=".csv, .csv.gz or .jsonl files of samples, or folders of them."),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the models.")] = Path("models"),
    keep_flagged: Annotated[bool, typer.Option("--keep-flagged", help="Learn from rows that lint flags too.")] = False,
    trees_only: Annotated[
        bool, typer.Option("--trees-only", help="Keep no sampled shapes in the models, so that you can share them.")
    ] = False,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Learn from samples how much longer than their bounds ops take, for rooflight predict.

    Times that rooflight lint flags are left out. Models are arrays and JSON, one file per kind of work; the
    errors reported are those of held-out rows.

    \b
      rooflight fit sampling_data --out models
      rooflight predict gemm --m 512 --n 512 --k 512 --device cpu --models models
    """
    from rooflight.prediction.fit_report import report_of
    from rooflight.prediction.fitting import learn_all, read_for_fit
    from rooflight.prediction.predictor import Predictor
    from rooflight.prediction.reading import find_all
    from rooflight.reporting.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    check_folder("--out", out)
    with spinner() as progress, interrupted(f"no model was written to {out}"):
        # each file once: of a row that is there twice, one copy would be learned from while the other is held out
        files = read_for_fit(find_all(data)[0], keep_flagged=keep_flagged, progress=progress, processes=True)
        learned = learn_all(
            (each for file in files for each in file.shown), progress, processes=True, trees_only=trees_only
        )
        if not learned.models:
            raise ValueError(f"{', '.join(map(str, data))}: too few rows of any kind to learn from, sample more")
    predictor = Predictor.of(learned.models)
    predictor.save(out)
    tables = [table for file in files for table in file.tables]
    findings = [finding for file in files for finding in file.findings]
    outputs.write(report_of(predictor, tables, findings, learned.few, out))
