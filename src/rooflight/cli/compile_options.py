"""The options that say what is compiled and how, the same for every verb that compiles a target."""

from __future__ import annotations

from typing import Annotated

import typer

Backend = Annotated[str, typer.Option(metavar="NAME", help="Backend of torch.compile.")]
Dynamic = Annotated[bool | None, typer.Option("--dynamic/--static", help="Dynamic shapes. [default: as torch chooses]")]
Inputs = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Function of the file that returns the arguments. [default: get_inputs]"),
]
Step = Annotated[
    str | None, typer.Option(metavar="MODE", help="Of a model: forward, train, prefill, decode. [default: forward]")
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="Of a model: sequences or images per step.")]
Seq = Annotated[int | None, typer.Option(metavar="N", help="Of a model: tokens per sequence.")]
Small = Annotated[bool, typer.Option("--small", help="The preset's architecture in a size for a laptop.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads. [default: the cores]")]
Limit = Annotated[float, typer.Option(metavar="SECONDS", help="End a program that takes longer.")]
