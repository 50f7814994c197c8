"""``rooflight devices``: the figures of each device, and their sources; ``rooflight presets``: public architectures."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.options import Command, Output, refuse, verb
from rooflight.front.options import WhatIfOptions

devices_app = typer.Typer()


@devices_app.callback(invoke_without_command=True)
@verb
def devices(context: typer.Context, output: Output) -> None:
    """List the known devices, or show every figure of one, with its source.

    \b
      rooflight devices
      rooflight devices --csv devices
      rooflight devices show H100-SXM5-80GB
    """
    if context.invoked_subcommand is not None:
        refuse(context, set(context.params), f"write it after {context.invoked_subcommand}")
        return
    from rooflight.hardware.devices import all_devices
    from rooflight.hardware.devices.calibrations import device_of, saved
    from rooflight.hardware.devices.tables import list_report

    outputs = output.open()
    measured_only = {spec.name: spec for spec in map(device_of, saved()) if spec.datasheet is None}
    outputs.write(list_report((*all_devices(), *measured_only.values())))


@devices_app.command(cls=Command, short_help="Show every figure of one device, with its source.")
@verb
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A device, cpu, cuda, or a path to a TOML.", autocompletion=completion.devices
        ),
    ],
    supposed: WhatIfOptions,
    output: Output,
) -> None:
    """Show every figure of one device: datasheet beside calibration, sources and doubts.

    \b
      rooflight devices show H100-SXM5-80GB
      rooflight devices show my_device.toml --json -
      rooflight devices show A100-SXM4-80GB --clock 1.1GHz
    """
    from rooflight.cli.progress import spinner
    from rooflight.front.device import find_what_if
    from rooflight.hardware.devices.tables import device_report

    roofs = supposed.roofs()
    outputs = output.open()
    with spinner() as progress:
        spec = find_what_if(name, roofs, progress=progress)
    outputs.write(device_report(spec))


def presets(output: Output) -> None:
    """List the public architectures that rooflight analyze takes by name: kind, parameters, default batch and
    sequence, and where their shapes are published.

    \b
      rooflight presets
      rooflight presets --json -
      rooflight analyze gpt2
    """
    from rooflight.sources.workloads.presets import PRESETS, report_of

    output.open().write(report_of(PRESETS.values()))
