"""``rooflight profile-decode``: run a generation loop, and say where each decode step's time goes."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.endings import Interrupted
from rooflight.cli.options import Output, check_folder
from rooflight.cli.progress import running
from rooflight.studies.inference.generation.options import JobOptions, LoopOptions


def profile_decode(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="Preset (see: rooflight presets), config.json, or engine.py:make_engine.",
        ),
    ],
    *,
    loop: LoopOptions,
    runs: JobOptions,
    output: Output,
) -> None:
    """Generate tokens with TARGET on this machine, with a KV cache, and say where the time of each decode step goes:
    attention, MLP, head, sampling, and with a draft model drafting and verification.

    TARGET is a preset, a transformers config.json (both with random weights), or a function of your own
    (path/to/engine.py:make_engine) that returns your engine.

    With --draft, tokens are drafted and accepted by rejection sampling, so that they are distributed as the target's.
    Random weights accept at a rate of their own: --acceptance sets it, and the report says so.

    \b
      rooflight profile-decode llama-tiny --batch 8 --prompt 512 --new 128
      rooflight profile-decode llama-tiny --draft llama-tiny-draft --gamma 4
      rooflight profile-decode llama-tiny --draft self:2 --acceptance 0.7
      rooflight profile-decode path/to/engine.py:make_engine --json -
    """
    from rooflight.studies.inference.generation.job import DecodeJob

    outputs = output.open()
    check_folder("--output-dir", runs.output_dir)
    with running(outputs, redraws=False) as progress:
        job = DecodeJob(target, loop, runs, progress=progress, command=shlex.join(sys.argv))
        outputs.spare(folder=job.folder)
        try:
            job.run()
        except KeyboardInterrupt as stop:
            raise Interrupted(job.state(job.save())) from stop
        if not job.collects:
            return
        progress("writing the report")
        report, failed = job.report()
    outputs.write(report, failed)
