"""``rooflight merge``: the parts of a sweep as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render


def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="CSV or jsonl files of one operator, precision and device."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write. [default: GPU_operator_precision.csv beside the first]"),
    ] = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Put the parts of a sweep together: duplicate rows dropped, sorted by shape. The files themselves do not change.

    \b
      rooflight merge sampling_data/NVIDIAA100*_flash_atten_fp16_*.csv
      rooflight merge part1.jsonl part2.jsonl --out merged.csv
    """
    from rooflight.reporting.output import Outputs
    from rooflight.sampling.merge import merge as merge_files
    from rooflight.sampling.merge import report_of

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render, others={"--out": out})
    outputs.write(report_of(merge_files(files, out), len(files)))
