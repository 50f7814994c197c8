"""``rooflight merge``: the parts of a sweep as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    files: Annotated[list[Path], typer.Argument(help="CSV or jsonl files of one operator, precision and device.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write. [default: GPU_operator_precision.csv beside the first]")
    ] = None,
) -> None:
    """Put the parts of a sweep together: doubles dropped, sorted by shape, the files themselves untouched.

    \b
      rooflight merge sampling_data/NVIDIAA100*_flash_atten_fp16_*.csv
      rooflight merge part1.jsonl part2.jsonl --out merged.csv
    """
    from rooflight.sampling.merge import merge as merge_files

    merged = merge_files(files, out)
    more = f", {merged.duplicates} doubles dropped" if merged.duplicates else ""
    more += f", {merged.repeated} measured again" if merged.repeated else ""
    typer.echo(f"{merged.path}: {merged.rows} rows of {len(files)} files{more}")
