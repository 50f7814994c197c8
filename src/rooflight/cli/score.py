"""``rooflight score``: a kernel beside its bounds, eager and compiled."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflight.cli.options import Output
from rooflight.cli.progress import running
from rooflight.front.options import DeviceOptions

WRONG = 1


def score(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="A Python file with Model, get_inputs and get_init_inputs.")
    ],
    solution: Annotated[
        str, typer.Argument(metavar="SOLUTION", help="A Python file with ModelNew, which does the same work.")
    ],
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
    *,
    device: DeviceOptions,
    output: Output,
) -> None:
    """Say how far SOLUTION, a kernel of yours, is on the way from eager PyTorch to the speed of light.

    Both files have KernelBench's form. The solution is checked against the reference on several inputs, with the same
    weights; then eager, torch.compile and the solution are timed in turns, on new inputs each time, beside the bounds
    of the reference's work. The share is (eager - solution) / (eager - program bound): 0 % is eager, 100 %
    is light.

    Nothing is timed for a --device that is not in this machine.

    Exit code 0 for a right solution, 1 for a wrong one, 2 for a file that cannot be used.

    \b
      rooflight score problem.py solution.py
      rooflight score problem.py solution.py --json - --trials 50
      rooflight score problem.py solution.py --device B200-SXM
    """
    from rooflight.studies.scoring.run import score as scored
    from rooflight.studies.scoring.tables import report_of

    outputs = output.open()
    roofs = device.roofs()
    with running(outputs) as progress:
        found = scored(
            reference,
            solution,
            device=device.device,
            what_if=roofs,
            compiled=compiled,
            trials=trials,
            tolerance=tolerance,
            progress=progress,
        )
        report = report_of(found)
    outputs.write(report)
    if found.checked is not None and not found.checked.agrees:
        raise typer.Exit(WRONG)
