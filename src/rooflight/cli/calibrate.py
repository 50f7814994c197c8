"""``rooflight calibrate``: measure the roofs of this machine and save them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli.arguments import check_folder, refuse_unused
from rooflight.cli.choices import DeviceChoice, Executor
from rooflight.cli.endings import interrupted
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render

if TYPE_CHECKING:
    from rooflight.devices.calibrations import Calibration
    from rooflight.machine.probes import Progress


def calibrate(
    context: typer.Context,
    device: Annotated[
        DeviceChoice | None, typer.Option(help="What to measure. [default: cuda where there is one, otherwise cpu]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the saved roofs even where they are higher.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough figures in two seconds, not saved: a trial run.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="cpu: roofs of this many threads. [default: as many as torch runs on]")
    ] = None,
    executor: Annotated[
        Executor, typer.Option(help="This machine, or every node of a SLURM or Ray cluster.")
    ] = Executor.local,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="slurm, ray: folder for a calibration file of each node; slurm: nodes share it."
        ),
    ] = Path("cluster_roofs"),
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="slurm: this many nodes, after waiting for them. [default: all idle ones]"
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="slurm: nodes of this partition. [default: SLURM's]")
    ] = None,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="ray: the cluster to join.")] = "auto",
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
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
    from rooflight.reporting.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    every = set(context.params)
    if executor is not Executor.slurm:
        refuse_unused(context, every - {"nodes", "partition"}, "for --executor slurm")
    if executor is not Executor.ray:
        refuse_unused(context, every - {"address"}, "for --executor ray")
    if executor is Executor.local:
        refuse_unused(context, every - {"out"}, "for --executor slurm or ray; --json writes the roofs of this machine")
    else:
        refuse_unused(context, every - {"threads"}, "for this machine; a node is calibrated on all its cores")
    if quick and force:
        raise ValueError("--force: --quick saves no roofs, so there are none to replace")
    check_folder("--out", out)
    if executor is not Executor.local:
        from rooflight.cli.calibrate_cluster import ClusterRequest, calibrate_cluster

        asked = ClusterRequest(
            executor="slurm" if executor is Executor.slurm else "ray",
            device=None if device is None else device.kind,
            address=address,
            nodes=nodes,
            partition=partition,
            out=out,
            quick=quick,
            force=force,
        )
        calibrate_cluster(asked, outputs)
        return
    from rooflight.devices import calibrations
    from rooflight.machine import calibration
    from rooflight.machine.calibration import report_of

    with interrupted("no new roofs were saved, and those saved before are unchanged"):
        measured = _with_progress(device, quick, threads)
    saved_at: Path | None = None
    if not quick:
        measured = measured if force else calibration.best_known(measured)
        saved_at = calibrations.save(measured)
    outputs.write(report_of(measured, saved_at))
    if warning := _busy_warning(measured):
        typer.echo(warning, err=True)


def _with_progress(device: DeviceChoice | None, quick: bool, threads: int | None) -> Calibration:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from rooflight.machine import calibration
    from rooflight.machine.hardware import kind_here

    columns = (TextColumn("{task.description:<20}"), BarColumn(), TimeElapsedColumn())
    # drawn only on refresh: a drawing thread would take time from the CPU under test
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as bars:
        task = bars.add_task("warming up", total=1.0)
        bars.refresh()

        def show(name: str, fraction: float) -> None:
            bars.update(task, description=name, completed=fraction, refresh=True)

        progress: Progress = show
        kind = kind_here() if device is None else device.kind
        return calibration.calibrate(kind, progress, threads=threads, quick=quick)


def _busy_warning(measured: Calibration) -> str:
    from rooflight.machine.calibration import busy_share
    from rooflight.records.measurement import BUSY_SHARE

    share = busy_share(measured)
    if share < BUSY_SHARE:
        return ""
    taken = f"{share * 100:.0f} %"
    return f"rooflight: other programs took {taken} of the CPU, so these roofs may be low: run again on an idle machine"
