"""``rooflight profile-decode``: run a generation loop, and say where each decode step's time goes."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.arguments import check_folder
from rooflight.cli.choices import DeviceChoice
from rooflight.cli.endings import Interrupted
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner


def profile_decode(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="Preset (see: rooflight presets), config.json, or engine.py:make_engine.",
        ),
    ],
    batch: Annotated[int, typer.Option(metavar="N", help="Sequences that are decoded together.")] = 8,
    prompt: Annotated[int, typer.Option(metavar="N", help="Tokens of each prompt.")] = 512,
    new: Annotated[int, typer.Option(metavar="N", help="New tokens per sequence; the prefill makes the first.")] = 128,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFT",
            autocompletion=completion.presets,
            help="Draft model: preset, config.json, or self:N, the target's first N layers.",
        ),
    ] = None,
    gamma: Annotated[int | None, typer.Option(metavar="N", help="Tokens drafted per step. [default: 4]")] = None,
    acceptance: Annotated[
        float | None,
        typer.Option(metavar="P", help="Accept each drafted token with this probability, not at the models' own rate."),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="With a draft: run without it too, in turns.")
    ] = True,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="0 takes the most probable token. [default: 1]")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of prompts and draws. [default: 0]")] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="dynamic, static or ragged. [default: dynamic; ragged with a draft]"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", autocompletion=completion.dtypes, help="fp32, bf16, fp16. [default: bf16; fp32 on a CPU]"
        ),
    ] = None,
    device: Annotated[DeviceChoice, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = DeviceChoice.cpu,
    small: Annotated[bool, typer.Option("--small", help="The presets' architectures in a size for a laptop.")] = False,
    runs: Annotated[int, typer.Option(metavar="N", help="Measured runs.")] = 3,
    warmup: Annotated[int, typer.Option(metavar="N", help="Runs before them that are not measured.")] = 1,
    output_dir: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Write FOLDER/RUN_NAME/summary.json, report.md, trace.json and others."),
    ] = Path("profiler_out"),
    run_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run's folder. [default: model, batch, time]")
    ] = None,
    slo_ttft_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Goodput counts requests whose first token comes within MS.")
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="The same for the time per output token.")
    ] = None,
    slo_e2e_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="The same for the latency of the whole request.")
    ] = None,
    bounds: Annotated[
        bool, typer.Option("--bounds/--no-bounds", help="Bound each bucket: how far it is from the speed of light.")
    ] = True,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print another run's summary.json beside this one.")
    ] = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
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
      rooflight profile-decode config.json --compare other/summary.json
      rooflight profile-decode path/to/engine.py:make_engine --json -
    """
    from rooflight.inference.comparison import read_summary
    from rooflight.inference.generation.job import DecodeJob, JobOptions
    from rooflight.inference.generation.loops import LoopOptions
    from rooflight.reporting.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    check_folder("--output-dir", output_dir)
    other = None if compare is None else (compare, read_summary(compare))
    job_options = JobOptions(
        runs=runs,
        warmup=warmup,
        bounds=bounds,
        output_dir=str(output_dir),
        run_name=run_name,
        slo_ms={"slo_ttft_ms": slo_ttft_ms, "slo_tpot_ms": slo_tpot_ms, "slo_e2e_ms": slo_e2e_ms},
    )
    options = LoopOptions(batch=batch, prompt=prompt, new=new, draft=draft, gamma=gamma, acceptance=acceptance,
                          baseline=baseline, temperature=temperature, seed=seed, cache=cache, dtype=dtype,
                          device=device.kind, small=small)  # fmt: skip
    # the output of the engine must not get into a report on standard output, which another program reads
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    with spinner(redraws=False) as progress, aside:
        job = DecodeJob(target, options, job_options, progress=progress, command=shlex.join(sys.argv))
        try:
            job.run()
        except KeyboardInterrupt as stop:
            raise Interrupted(job.kept(job.save())) from stop
        if not job.collects:
            return
        progress("writing the report")
        report = job.report(other)
    outputs.write(report)
