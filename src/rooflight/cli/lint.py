"""``rooflight lint``: which rows of measured tables cannot be true."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli.options import Output, SourceDevice
from rooflight.cli.progress import spinner

FOUND = 1


def lint(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA", help="Samples (.csv, .csv.gz, .jsonl), traces, saved sessions, or folders of them."
        ),
    ],
    device: SourceDevice = None,
    top: Annotated[int, typer.Option(metavar="N", help="Rows shown of the long tables.")] = 10,
    *,
    output: Output,
) -> None:
    """Check every row of measured tables against the roofline and against its neighbours.

    Of traces and saved sessions, every op is checked: none can be faster than light.

    Exit code 0 where nothing was found, 1 with findings, 2 for data that cannot be read.

    \b
      rooflight lint sampling_data
      rooflight lint a.csv more_samples --top 20
      rooflight lint NVIDIAA100-SXM4-80GB_gemm_fp16.csv --json findings.json
      rooflight lint trace.json.gz
    """
    from rooflight.front.measured import find_measured, read_measured
    from rooflight.prediction.lint import findings as linting
    from rooflight.prediction.lint.findings import beats_bound, lint_ops, row_bounds
    from rooflight.prediction.lint.tables import report_of
    from rooflight.prediction.read import read_file
    from rooflight.prediction.read.measured import MeasuredTable

    outputs = output.open()
    if top < 1:
        raise ValueError(f"--top {top}: ask for at least 1 row")
    with spinner() as progress:
        files = find_measured(data)
        outputs.spare([*files.tables, *files.sessions])
        tables: list[MeasuredTable] = []
        for path in files.tables:
            progress(f"reading {path.name}")
            tables += read_file(path)
        findings: list[linting.Finding] = []
        beats: list[int] = []
        for table in tables:
            progress(f"checking {table.label} of {table.device.name}")
            bounds = row_bounds(table)
            found = linting.lint_table(table, bounds)
            findings += found
            beats.append(beats_bound(table, bounds, linting.left_out(found)))
        sessions = read_measured(files.sessions, device, progress)
        for session in sessions:
            findings += lint_ops(session)
        report = report_of(data, [*tables, *sessions], findings, beats=beats, skipped=files.skipped, top=top)
    outputs.write(report)
    if findings:
        raise typer.Exit(FOUND)
