"""``rooflight devices``: the figures of each device, and their sources."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.arguments import refuse_unused
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.what_if_options import Clock, Precision, what_if

app = typer.Typer()


@app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """List the known devices, or show every figure of one, with its source.

    \b
      rooflight devices
      rooflight devices --csv devices
      rooflight devices show H100-SXM5-80GB
    """
    if context.invoked_subcommand is not None:
        refuse_unused(context, (), f"write it after {context.invoked_subcommand}")
        return
    from rooflight.devices import all_devices
    from rooflight.devices.calibrations import device_of, saved
    from rooflight.devices.devices_report import list_report
    from rooflight.reporting.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    measured_only = {spec.name: spec for spec in map(device_of, saved()) if spec.datasheet is None}
    outputs.write(list_report((*all_devices(), *measured_only.values())))


@app.command(short_help="Show every figure of one device, with its source.")
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A device, cpu, cuda, or a path to a TOML.", autocompletion=completion.devices
        ),
    ],
    precision: Precision = None,
    clock: Clock = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Show every figure of one device: datasheet beside calibration, sources and doubts.

    \b
      rooflight devices show H100-SXM5-80GB
      rooflight devices show my_device.toml --json -
      rooflight devices show A100-SXM4-80GB --clock 1.1GHz
    """
    from rooflight.cli.progress import spinner
    from rooflight.devices.devices_report import device_report
    from rooflight.front.device import find_what_if
    from rooflight.reporting.output import Outputs

    supposed = what_if(precision, clock)
    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    with spinner() as progress:
        spec = find_what_if(name, supposed, progress=progress)
    outputs.write(device_report(spec))
