"""What ``rooflight profile-decode`` runs, how often, and where it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from rooflight.front.options import Refusable
from rooflight.records.options import Option
from rooflight.sources.workloads.errors import TargetError


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions(Refusable):
    """What to run. None leaves a choice to its default."""

    panel: ClassVar = "Generation"
    batch: Annotated[int, Option("Sequences that are decoded together.", "N")] = 8
    prompt: Annotated[int, Option("Tokens of each prompt.", "N")] = 512
    new: Annotated[int, Option("New tokens per sequence; the prefill makes the first.", "N")] = 128
    draft: Annotated[
        str | None,
        Option("Draft model: preset, config.json, or self:N, the target's first N layers.", "DRAFT", names="presets"),
    ] = None
    gamma: Annotated[int | None, Option("Tokens that the draft proposes per step. [default: 4]", "N")] = None
    acceptance: Annotated[
        float | None,
        Option("Accept each drafted token with this probability, not at the models' own rate.", "P"),
    ] = None
    baseline: Annotated[
        bool, Option("With a draft: run without it too, in turns.", flags=("--baseline/--no-baseline",))
    ] = True
    temperature: Annotated[float | None, Option("Of sampling; 0: the most probable token. [default: 1]", "T")] = None
    seed: Annotated[int | None, Option("Seed of prompts and draws. [default: 0]", "N")] = None
    cache: Annotated[
        str | None, Option("KV cache: dynamic, static or ragged. [default: dynamic; ragged with a draft]", "KIND")
    ] = None
    dtype: Annotated[
        str | None, Option("fp32, bf16, fp16. [default: bf16; fp32 on a CPU]", "DTYPE", names="dtypes")
    ] = None
    device: Annotated[Literal["cpu", "cuda"], Option("Where to run: cpu or cuda.", "DEVICE")] = "cpu"
    small: Annotated[bool, Option("The presets' architectures in a size for a laptop.")] = False

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("prompt", 1), ("new", 2)):
            value = getattr(self, name)
            if value < least:
                why = ": the prefill makes the first token, decode steps the others" if name == "new" else ""
                raise TargetError(f"--{name} {value}: give a number from {least} on{why}")
        if self.draft is None:
            self.refuse("no effect without --draft", ("gamma", "acceptance"))
            if not self.baseline:
                raise TargetError("--no-baseline: no effect without --draft")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """How often to run, and where to write."""

    panel: ClassVar = "Runs"
    runs: Annotated[int, Option("Measured runs.", "N")] = 3
    warmup: Annotated[int, Option("Runs before the measured ones.", "N")] = 1
    bounds: Annotated[
        bool,
        Option("Put the op bound of each bucket beside its time.", flags=("--bounds/--no-bounds",)),
    ] = True
    output_dir: Annotated[
        Path, Option("Write FOLDER/RUN_NAME/summary.json, report.md, trace.json and others.", "FOLDER")
    ] = Path("profiler_out")
    run_name: Annotated[str | None, Option("Name of the run's folder. [default: model, batch, time]", "NAME")] = None
    slo_ttft_ms: Annotated[float | None, Option("Goodput counts requests whose first token comes within MS.", "MS")] = (
        None
    )
    slo_tpot_ms: Annotated[float | None, Option("Goodput counts requests of at most MS per token.", "MS")] = None
    slo_e2e_ms: Annotated[float | None, Option("Goodput counts requests that end within MS.", "MS")] = None
    all: Annotated[bool, Option("Print all tables, not only where the time goes.")] = False

    @property
    def slo_ms(self) -> Mapping[str, float | None]:
        """The limits, by the names of the profiler's settings."""
        return {name: getattr(self, name) for name in ("slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms")}

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise TargetError(f"--runs {self.runs}: measure at least 1")
        if self.warmup < 0:
            raise TargetError(f"--warmup {self.warmup}: give a number of runs from 0 on")
