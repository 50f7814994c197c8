"""What is compiled, how each program of it runs, and what is shown of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from rooflight.records.options import Option

LIMIT_S: Final = 600.0
"""A process that takes longer is ended: a compilation may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a preset, config or problem takes; None leaves it to its default."""

    panel: ClassVar = "Step"
    step: Annotated[
        str | None, Option("Step of a preset or config: forward, train, prefill or decode. [default: forward]", "STEP")
    ] = None
    batch: Annotated[int | None, Option("Sequences or images per step. [default: the preset's]", "N")] = None
    seq: Annotated[int | None, Option("Tokens per sequence. [default: the preset's]", "N")] = None
    dtype: str | None = None
    optimizer: str | None = None
    device: str | None = None
    small: Annotated[bool, Option("The preset's architecture in a size for a laptop.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """How a program is compiled and run."""

    panel: ClassVar = "Program"
    inputs: Annotated[
        str | None, Option("Function of the file that returns the arguments. [default: get_inputs]", "NAME")
    ] = None
    backend: Annotated[str, Option("Backend of torch.compile.", "NAME")] = "inductor"
    dynamic: Annotated[
        bool | None,
        Option("Compile for any shape, or for each shape. [default: as torch chooses]", flags=("--dynamic/--static",)),
    ] = None
    threads: Annotated[int | None, Option("CPU threads. [default: the cores]", "N")] = None
    limit_s: Annotated[float, Option("End a program that takes longer.", "SECONDS", flags=("--limit",))] = LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(ProgramOptions):
    """Modes of compiling, and for how long programs run. ``bounds``: with op and fused bounds beside the times."""

    modes: Annotated[
        tuple[str, ...],
        Option("default, reduce-overhead, max-autotune or aot-inductor; may repeat.", "MODE", flags=("--mode",)),
    ] = ("default",)
    iterations: Annotated[int, Option("Iterations of each program.", "N")] = 100
    warmup: Annotated[int, Option("First iterations, which no steady time counts.", "N")] = 5
    bounds: Annotated[bool, Option("Put the op and fused bound beside the times.", flags=("--bounds/--no-bounds",))] = (
        True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions(ProgramOptions):
    """What of a program is explained."""

    calls: Annotated[int, Option("Calls of the compiled program.", "N")] = 3
    compile_mode: Annotated[
        str, Option("Mode of torch.compile: default, reduce-overhead or max-autotune.", "MODE", flags=("--mode",))
    ] = "default"
    code: Annotated[bool, Option("Show the generated code of each kernel.")] = False
    dispatcher: Annotated[
        bool,
        Option("Call eagerly first, and show the dispatcher's layers.", flags=("--dispatcher/--no-dispatcher",)),
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GainOptions:
    """Whether the gain of compiling is predicted, and for what."""

    panel: ClassVar = "Prediction"
    predict_only: Annotated[bool, Option("Predict what compiling would bring; compile and time nothing.")] = False
    device: Annotated[
        str | None,
        Option("Predict for this device (see: rooflight devices). [default: this machine]", "NAME", names="devices"),
    ] = None
    host: Annotated[
        float | None,
        Option(
            "Predict with this host time per launch. [default: typical; 6e-6 to 17e-6 were measured]",
            "SECONDS",
        ),
    ] = None
