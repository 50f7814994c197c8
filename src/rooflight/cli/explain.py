"""``rooflight explain``: what each stage of torch.compile makes of a function."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.options import Output
from rooflight.cli.progress import running
from rooflight.studies.compiling.options import ExplainOptions, Options


def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="file.py:function, preset, config.json, problem.py, or workload of compile-bench.",
        ),
    ],
    step: Options,
    program: ExplainOptions,
    output: Output,
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
    from rooflight.studies.compiling.explain.explain import ExplainRequest, explained_target
    from rooflight.studies.compiling.explain.tables import report_of

    outputs = output.open()
    with running(outputs) as progress, tempfile.TemporaryDirectory(prefix="rooflight-inductor-") as folder:
        request = ExplainRequest(target=target, options=step, **asdict(program))
        found = explained_target(request, Path(folder), progress=progress)
    outputs.write(report_of(found))
