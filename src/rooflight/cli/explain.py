"""``rooflight explain``: what each stage of torch.compile makes of a function."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.compile_options import Backend, Batch, Dynamic, Inputs, Limit, Seq, Small, Step, Threads
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner


def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="file.py:function, preset, config.json, problem.py, or workload of compile-bench.",
        ),
    ],
    inputs: Inputs = None,
    calls: Annotated[int, typer.Option(metavar="N", help="Calls of the compiled program.")] = 3,
    compile_mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="default, reduce-overhead or max-autotune.")
    ] = "default",
    backend: Backend = "inductor",
    dynamic: Dynamic = None,
    code: Annotated[bool, typer.Option("--code", help="Show the generated code of each kernel.")] = False,
    dispatcher: Annotated[
        bool, typer.Option("--dispatcher/--no-dispatcher", help="Call eagerly first, and show the dispatcher's layers.")
    ] = True,
    step: Step = None,
    batch: Batch = None,
    seq: Seq = None,
    small: Small = False,
    threads: Threads = None,
    limit: Limit = 600.0,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Show what each stage of torch.compile makes of TARGET: the dispatcher's layers in eager, Dynamo's graphs, guards,
    graph breaks and recompiles, AOT autograd's joint graph, and Inductor's kernels.

    A function that takes arguments gets those that get_inputs() of the same file returns; if get_inputs yields several,
    each is one call, so that changing shapes show. A function without arguments that returns a step, as rooflight
    analyze takes it, has the step explained; of a step with a model the model's forward is compiled. One that returns
    tensors is explained itself.

    All reasons are torch's own; beside each graph break and recompile is what removes it. Everything runs in a fresh
    process.

    \b
      rooflight explain path/to/train.py:loss_of
      rooflight explain path/to/train.py:loss_of --inputs three_batches --code
      rooflight explain gpt2 --small --step train
      rooflight explain attention-block --json -
    """
    from rooflight.compiling.bench.trial import Options
    from rooflight.compiling.explain.tables import report_of
    from rooflight.compiling.explain.target import explained_target
    from rooflight.reporting.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    options = Options(mode=step, batch=batch, seq=seq, small=small)
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    with spinner() as progress, aside, tempfile.TemporaryDirectory(prefix="rooflight-inductor-") as folder:
        found = explained_target(
            target,
            options,
            Path(folder),
            inputs=inputs,
            calls=calls,
            mode=compile_mode,
            backend=backend,
            dynamic=dynamic,
            code=code,
            dispatcher=dispatcher,
            threads=threads,
            limit_s=limit,
            progress=progress,
        )
    outputs.write(report_of(found))
