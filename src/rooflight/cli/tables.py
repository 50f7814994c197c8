"""Verbs for measured tables: ``rooflight fit`` learns from them how long ops take, ``rooflight lint`` finds rows that
cannot be true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from rooflight.cli.endings import interrupted
from rooflight.cli.options import Output, SourceDevice, check_folder
from rooflight.cli.progress import spinner
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.front.measured import MeasuredFiles
    from rooflight.records.report import Report

FOUND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Which rows are learned, on top of which models, and where the models go."""

    panel: ClassVar = "Models"
    out: Annotated[Path, Option("Folder for the models.", "FOLDER")] = Path("models")
    on: Annotated[
        str | None,
        Option(
            "Add these rows to other models: shipped, or a folder of models. [default: learn from DATA alone]", "MODELS"
        ),
    ] = None
    keep_flagged: Annotated[bool, Option("Learn from rows that lint flags too.")] = False
    trees_only: Annotated[bool, Option("Keep no sampled shapes in the models, so that you can share them.")] = False


def fit(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA", help="Samples (.csv, .csv.gz, .jsonl), traces, saved sessions, or folders of them."
        ),
    ],
    device: SourceDevice = None,
    *,
    models: FitOptions,
    output: Output,
) -> None:
    """Learn from samples and traces how much longer than their bounds ops take, for rooflight predict.

    Times that rooflight lint flags are left out. Models are arrays and JSON, one file per kind of work; the
    errors reported are those of held-out rows.

    With --on shipped a few rows of your device are enough: they are learned on top of models of other devices.

    \b
      rooflight fit sampling_data --out models
      rooflight fit sampling_data trace.json.gz --out models
      rooflight fit sampling_data --on shipped --out models
      rooflight predict gemm --m 512 --n 512 --k 512 --device cpu --models models
    """
    from rooflight.front.measured import find_measured

    outputs = output.open()
    check_folder("--out", models.out)
    with spinner() as progress, interrupted(f"no model was written to {models.out}"):
        # each file once: of a row that is there twice, one copy would be learned from while the other is held out
        found = find_measured(data)
        outputs.spare([*found.tables, *found.sessions])
        save = _learned(data, found, device, models, progress)
    outputs.write(save())


def _learned(
    data: list[Path],
    found: MeasuredFiles,
    device: str | None,
    models: FitOptions,
    progress: Callable[[str], None],
) -> Callable[[], Report]:
    from rooflight.front.measured import read_measured
    from rooflight.prediction.fit.base import base_of, learn_on, save_on
    from rooflight.prediction.fit.fitting import learn_all, read_for_fit
    from rooflight.prediction.fit.functions import learn_functions
    from rooflight.prediction.fit.refusals import refuse_impossible, refuse_two_devices, refuse_two_groups
    from rooflight.prediction.fit.rows import shown_by_ops, together
    from rooflight.prediction.fit.tables import report_of
    from rooflight.prediction.lint.findings import left_out, lint_ops
    from rooflight.prediction.predictor import Predictor
    from rooflight.prediction.read.measured import MeasuredOps, MeasuredTable

    root = None if models.on is None else base_of(models.on)
    if root is not None and models.trees_only:
        raise ValueError("--trees-only: rows on top of other models are kept as shapes: leave out --on or --trees-only")
    files = read_for_fit(found.tables, keep_flagged=models.keep_flagged, progress=progress, processes=True)
    sessions = read_measured(found.sessions, device, progress)
    faster = [] if models.keep_flagged else [finding for session in sessions for finding in lint_ops(session)]
    of_ops = shown_by_ops(sessions, faster)
    shown = [each for file in files for each in file.shown]
    if not models.keep_flagged:
        refuse_two_devices(together([*shown, *of_ops.shown]))
        refuse_two_groups(together(shown))
    if root is not None:
        learned = learn_on(Predictor.load(root), [*shown, *of_ops.shown], progress, processes=True)
    else:
        learned = learn_all(shown, progress, beside=of_ops.shown, processes=True, trees_only=models.trees_only)
    if not models.trees_only:
        flagged = left_out(finding for file in files for finding in file.findings)
        functions, few_rows = learn_functions((table for file in files for table in file.tables), flagged)
        learned = replace(learned, functions=functions, few={**learned.few, **few_rows})
    if not (learned.models or learned.functions):
        refuse_impossible((file.tables, file.findings) for file in files)
        one_shape, few = "all rows of a kind are of one shape or two", "too few rows of any kind to learn from"
        why = one_shape if learned.alike else few
        instead = ", or add them to other models with --on shipped" if root is None else ""
        raise ValueError(f"{', '.join(map(str, data))}: {why}: sample other shapes{instead}")
    paths = [*found.tables, *found.sessions]
    tables: list[MeasuredTable | MeasuredOps] = [*(table for file in files for table in file.tables), *sessions]
    findings = [*(finding for file in files for finding in file.findings), *faster]

    def save() -> Report:
        if models.on is not None and root is not None:
            save_on(root, models.on, learned.models, models.out, paths, learned.functions)
        else:
            Predictor.of(learned.models, learned.functions).save(models.out, paths)
        return report_of(learned, tables, findings, models.out, of_ops, sum(file.beats for file in files))

    return save


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
