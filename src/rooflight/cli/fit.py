"""``rooflight fit``: learn from measured tables how long ops take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli.endings import interrupted
from rooflight.cli.options import Output, SourceDevice, check_folder
from rooflight.cli.progress import spinner


def fit(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA", help="Samples (.csv, .csv.gz, .jsonl), traces, saved sessions, or folders of them."
        ),
    ],
    device: SourceDevice = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the models.")] = Path("models"),
    on: Annotated[
        str | None,
        typer.Option(
            metavar="MODELS",
            help="Add these rows to other models: shipped, or a folder of models. [default: learn from DATA alone]",
            show_default=False,
        ),
    ] = None,
    keep_flagged: Annotated[bool, typer.Option("--keep-flagged", help="Learn from rows that lint flags too.")] = False,
    trees_only: Annotated[
        bool, typer.Option("--trees-only", help="Keep no sampled shapes in the models, so that you can share them.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Learn from samples and traces how much longer than their bounds ops take, for rooflight predict.

    Times that rooflight lint flags are left out. Models are arrays and JSON, one file per kind of work; the
    errors reported are those of held-out rows.

    With --on shipped a few rows of your device are enough: they are learned on top of what other devices taught.

    \b
      rooflight fit sampling_data --out models
      rooflight fit sampling_data trace.json.gz --out models
      rooflight fit sampling_data --on shipped --out models
      rooflight predict gemm --m 512 --n 512 --k 512 --device cpu --models models
    """
    from rooflight.front.measured import find_measured, read_measured
    from rooflight.prediction.fit.base import base_of, learn_on, save_on
    from rooflight.prediction.fit.fitting import learn_all, read_for_fit
    from rooflight.prediction.fit.refusals import (
        refuse_impossible,
        refuse_two_devices,
        refuse_two_groups,
    )
    from rooflight.prediction.fit.rows import shown_by_ops, together
    from rooflight.prediction.fit.tables import report_of
    from rooflight.prediction.lint.findings import lint_ops
    from rooflight.prediction.predictor import Predictor
    from rooflight.prediction.read.measured import MeasuredOps, MeasuredTable

    outputs = output.open()
    check_folder("--out", out)
    root = None if on is None else base_of(on)
    if on is not None and trees_only:
        raise ValueError("--trees-only: rows on top of other models are kept as shapes: leave out --on or --trees-only")
    with spinner() as progress, interrupted(f"no model was written to {out}"):
        # each file once: of a row that is there twice, one copy would be learned from while the other is held out
        found = find_measured(data)
        files = read_for_fit(found.tables, keep_flagged=keep_flagged, progress=progress, processes=True)
        sessions = read_measured(found.sessions, device, progress)
        faster = [] if keep_flagged else [finding for session in sessions for finding in lint_ops(session)]
        taught = shown_by_ops(sessions, faster)
        shown = [each for file in files for each in file.shown]
        if not keep_flagged:
            refuse_two_devices(together([*shown, *taught.shown]))
            refuse_two_groups(together(shown))
        paths = [*found.tables, *found.sessions]
        if root is not None:
            learned = learn_on(Predictor.load(root), [*shown, *taught.shown], progress, processes=True)
        else:
            learned = learn_all(shown, progress, beside=taught.shown, processes=True, trees_only=trees_only)
        if not learned.models:
            refuse_impossible((file.tables, file.findings) for file in files)
            why = (
                "all rows of a kind are of one shape or two"
                if learned.alike
                else "too few rows of any kind to learn from"
            )
            instead = ", or add them to other models with --on shipped" if on is None else ""
            raise ValueError(f"{', '.join(map(str, data))}: {why}: sample other shapes{instead}")
    if on is not None and root is not None:
        save_on(root, on, learned.models, out, paths)
    else:
        Predictor.of(learned.models).save(out, paths)
    tables: list[MeasuredTable | MeasuredOps] = [*(table for file in files for table in file.tables), *sessions]
    findings = [*(finding for file in files for finding in file.findings), *faster]
    beats = sum(file.beats for file in files)
    outputs.write(report_of(learned, tables, findings, out, taught, beats))
