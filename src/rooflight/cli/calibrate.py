"""``rooflight calibrate``: measure the roofs of this machine, or of every node of a cluster, and save them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rooflight.cli.endings import Interrupted, interrupted
from rooflight.cli.options import Output, check_folder, refuse, refuse_elsewhere
from rooflight.cli.progress import spinner
from rooflight.records.quantity import count_of
from rooflight.sampling.executor.options import NodesOptions

if TYPE_CHECKING:
    from rooflight.hardware.devices.calibrations import Calibration
    from rooflight.reporting.output import Outputs

Kind = Literal["cpu", "cuda"]


def calibrate(
    context: typer.Context,
    device: Annotated[
        Kind | None,
        typer.Option(metavar="KIND", help="What to measure, cpu or cuda. [default: cuda where there is one]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the saved roofs even where they are higher.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough figures in two seconds, not saved: a trial run.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="cpu: roofs of so many threads. [default: torch's]")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="slurm, ray: folder for a calibration file of each node; slurm: nodes share it."
        ),
    ] = Path("cluster_roofs"),
    *,
    where: NodesOptions,
    output: Output,
) -> None:
    """Measure the roofs of this machine, or of a cluster's nodes: peaks, bandwidths and launch latency.

    Takes about 20 seconds for a CPU, 40 for a GPU; run nothing else meanwhile. The roofs are saved for later runs.
    Roofs of a CPU belong to a number of threads, and are saved for it. A roof is the best of all calibrations, so a
    second one raises roofs and lowers none; --force discards the saved ones.

    On a cluster, each node runs a task of its own, and the report names the slow ones among equal nodes.

    \b
      rooflight calibrate
      rooflight calibrate --device cpu --json roofs.json
      rooflight calibrate --executor slurm --partition gpu --device cuda
    """

    outputs = output.open()
    refuse_elsewhere(context, where.executor)
    if where.executor == "local":
        refuse(context, ("out",), "for --executor slurm or ray; --json writes the roofs of this machine")
    else:
        refuse(context, ("threads",), "for this machine; a node is calibrated on all its cores")
    if quick and force:
        raise ValueError("--force: --quick saves no roofs, so there are none to replace")
    check_folder("--out", out)
    if where.executor != "local":
        _calibrate_nodes(where, device, out, outputs, quick=quick, force=force)
        return
    from rooflight.hardware.devices import calibrations
    from rooflight.hardware.machine import calibration
    from rooflight.records.files import alone, cache_folder
    from rooflight.records.measurement import BUSY_SHARE

    with interrupted("no new roofs were saved, and those saved before are unchanged"):
        measured = _with_progress(device, quick, threads)
    saved_at: Path | None = None
    if not quick:
        with alone(cache_folder()):
            measured = measured if force else calibration.best_known(measured)
            saved_at = calibrations.save(measured)
    outputs.write(calibration.report_of(measured, saved_at))
    if (share := calibration.busy_share(measured)) >= BUSY_SHARE:
        why = f"other programs took {share * 100:.0f} % of the CPU, so these roofs may be low"
        typer.echo(f"rooflight: {why}: run again on an idle machine", err=True)


def _calibrate_nodes(
    where: NodesOptions, device: Kind | None, out: Path, outputs: Outputs, *, quick: bool, force: bool
) -> None:
    from rooflight.sampling.nodes.calibrate import calibrate_nodes, save_best
    from rooflight.sampling.nodes.tables import report_of

    out.mkdir(parents=True, exist_ok=True)
    with spinner() as progress:
        found = calibrate_nodes(where, device, out, quick=quick, progress=progress)
    notes = list(found.notes)
    calibrated = [each for each in found.measured if each.calibration is not None]
    if quick:
        notes.append(
            "Rough figures of two seconds, which no later analysis uses: leave out --quick before you call a node slow."
        )
    elif calibrated:
        try:
            save_best(calibrated, force=force)
        except (OSError, ValueError) as error:  # the nodes' files are there, and the report is still worth having
            notes.append(f"Not kept for later analyses ({error}): set ROOFLIGHT_CACHE to a folder that can be written.")
    if found.measured:
        title = f"Roofs of {count_of(len({each.node for each in calibrated}), 'node')}"
        outputs.write(report_of(found, title=title, notes=notes))
    if found.interrupted:
        raise Interrupted(f"the nodes that had finished are in {out}")
    if not calibrated:
        raise RuntimeError(f"no node could be calibrated: {found.measured[0].reason}")


def _with_progress(device: Kind | None, quick: bool, threads: int | None) -> Calibration:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from rooflight.hardware.machine import calibration
    from rooflight.hardware.machine.hardware import kind_here

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn())
    # drawn only on refresh: a drawing thread would take time from the CPU under test
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as bars:
        task = bars.add_task("warming up", total=1.0)
        bars.refresh()

        def show(name: str, fraction: float) -> None:
            bars.update(task, description=name, completed=fraction, refresh=True)

        return calibration.calibrate(device or kind_here(), show, threads=threads, quick=quick)
