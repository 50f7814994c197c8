"""``rooflight score``: a kernel beside its bounds, eager and compiled."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner
from rooflight.cli.what_if_options import Clock, Precision, what_if

WRONG = 1


def score(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="A Python file with Model, get_inputs and get_init_inputs.")
    ],
    solution: Annotated[
        str, typer.Argument(metavar="SOLUTION", help="A Python file with ModelNew, which does the same work.")
    ],
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.devices,
            help="Bound for this device; nothing is timed if it is not in this machine. [default: this machine]",
        ),
    ] = None,
    precision: Precision = None,
    clock: Clock = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Time the reference under torch.compile too.")
    ] = True,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Timed calls of each program. [default: 5 to 30, in half a minute]")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Largest error of a right result. [default: 1e-4 for float32, 1e-2 for 16 bits]"
        ),
    ] = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Say how far SOLUTION, a kernel of yours, is on the way from eager PyTorch to the speed of light.

    Both files have KernelBench's form. The solution is checked against the reference on several inputs, with the same
    weights; then eager, torch.compile and the solution are timed in turns, on new inputs each time, beside the bounds
    of the reference's work. The share of the way is (eager - solution) / (eager - program bound): 0 % is eager, 100 %
    is light.

    --precision and --clock bound with other roofs: products in fewer bits than the reference's, a locked clock.

    Exit code 0 for a right solution, 1 for a wrong one, 2 for a file that cannot be used.

    \b
      rooflight score problem.py solution.py
      rooflight score problem.py solution.py --json - --trials 50
      rooflight score problem.py solution.py --device B200-SXM
    """
    from rooflight.reporting.output import Outputs
    from rooflight.scoring.run import score as scored
    from rooflight.scoring.score_report import report_of

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    supposed = what_if(precision, clock)
    # the output of the programs must not get into a report on standard output, which another program reads
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    with spinner() as progress, aside:
        found = scored(
            reference,
            solution,
            device=device,
            what_if=supposed,
            compiled=compiled,
            trials=trials,
            tolerance=tolerance,
            progress=progress,
        )
        report = report_of(found)
    outputs.write(report)
    if found.checked is not None and not found.checked.agrees:
        raise typer.Exit(WRONG)
