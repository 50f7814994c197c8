"""``rooflight run``: a script as it is, and at its end how far its step is from the speed of light."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from rooflight.cli.launch import Launch, prepared
from rooflight.cli.options import Output
from rooflight.cli.run_on import ElsewhereOptions, LaunchOn
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.records.timeline import StepKind

_STARTERS: Final = {
    "python": "", "torchrun": "-m torch.distributed.run", "accelerate": "-m accelerate.commands.accelerate_cli",
    "deepspeed": "-m torch.distributed.run --nproc-per-node N",
}  # fmt: skip
"""Programs that start a script, and how it is run instead."""
_LAUNCHERS: Final = (
    *("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch"),
    "accelerate.commands.accelerate_cli",
)
"""Those that start a process for each rank, as programs and as modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Which steps of a script are looked at."""

    panel: ClassVar = "Step"
    steps: Annotated[int | None, Option("Steps to time. [default: all after the skipped]", "N", least=1)] = None
    skip: Annotated[int, Option("Steps that warm up, before one is recorded.", "N", least=0)] = 2
    step: Annotated[
        str | None,
        Option("What a step is: optimizer, backward, module:CLASS or function:FILE:NAME. [default: as found]", "KIND"),
    ] = None

    def chosen(self) -> tuple[StepKind | None, str]:
        """The kind of step, and the name of its module or function. Raises ValueError for another word."""
        if self.step is None:
            return None, ""
        from rooflight.records.timeline import StepKind

        word, _, name = self.step.replace(" ", ":", 1).partition(":")
        kinds = {str(kind): kind for kind in StepKind if kind is not StepKind.PHASE}
        needs_name = word in (StepKind.MODULE, StepKind.FUNCTION)
        if word not in kinds or needs_name != bool(name):
            raise ValueError(f"--step {self.step}: write optimizer, backward, module:CLASS or function:FILE:NAME")
        file, _, function = name.rpartition(":")
        if word == StepKind.FUNCTION and not (function and Path(file).is_file()):
            raise ValueError(f"--step {self.step}: write function:FILE:NAME, with a file that exists")
        return kinds[word], name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput(Output):
    """Where the report and the session go."""

    save: Annotated[Path | None, Option("Save the session to this file. [default: in the cache folder]", "FILE")] = None


def run(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT", help="Python file, or with -m a module; then its arguments.")
    ],
    *,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    step: StepOptions,
    elsewhere: ElsewhereOptions,
    output: RunOutput,
) -> Launch | LaunchOn:
    """Run a training or inference script as it is, and say how far its step is from the speed of light, what lies
    between steps, and where the time goes.

    The step is found by watching: it ends when Optimizer.step returns, or a backward pass without an optimizer, or a
    call of the model. One step is recorded, all others run undisturbed and are timed. The script's output, files,
    random numbers and exit code stay as they are; the report goes to standard error when it ends.

    With --on the script runs for GPUs that are not there, in a process of its own and until a step is recorded: the
    report says how long it would take on each, whether it fits, and what is exchanged.

    Options stand before SCRIPT; whatever follows it is the script's, and so is standard output: --json and others take
    a file.

    \b
      rooflight run train.py --epochs 1
      rooflight run --skip 5 --html report.html train.py --batch-size 64
      rooflight run -m torch.distributed.run --nproc-per-node 2 train.py
      rooflight run --step module:GPT generate.py
      rooflight run --on H100-SXM5-80GB,B200-SXM --gpus 8 train.py
    """
    target, *arguments = script
    outputs = output.open(save=output.save)
    if outputs.to_stdout:
        raise ValueError("standard output is the script's: give --json, --markdown, --csv, --html a file")
    only, named = step.chosen()
    if elsewhere.on is not None and target in _LAUNCHERS:
        named_script = next((at for at, word in enumerate(arguments) if word.endswith(".py")), None)
        itself = " ".join(arguments[named_script:]) if named_script is not None else "SCRIPT"
        raise ValueError(
            f"{target}: with --on no launcher starts ranks, --gpus says how many the script sees: say rooflight run "
            f"--on {elsewhere.on} --gpus N {itself}"
        )
    if not module and Path(target).is_dir():
        raise ValueError(f"{target} is a folder: name the script in it, or a module with -m")
    if not module and not Path(target).is_file():
        raise FileNotFoundError(f"no script {target}{_instead_of(target, arguments)}")
    watched, saved = prepared(target, module=module, skip=step.skip, steps=step.steps, only=only, named=named)
    saved = Path.cwd() / output.save if output.save else saved
    if elsewhere.on is not None:
        return LaunchOn(target=target, arguments=arguments, module=module, watched=watched, saved=saved,
                        elsewhere=elsewhere, outputs=outputs)  # fmt: skip
    elsewhere.refuse_without_on()
    return Launch(
        target=target, arguments=arguments, module=module, watched=watched, saved=saved, outputs=_words(output)
    )


def _instead_of(target: str, arguments: list[str]) -> str:
    """What is meant by the name of a program that starts scripts."""
    found = _STARTERS.get("python" if target.startswith("python") else target)
    return "" if found is None else f": say rooflight run {' '.join(filter(None, (found, *arguments)))}"


def _words(output: Output) -> list[str]:
    files = {name: getattr(output, name) for name in ("json", "markdown", "csv", "html")}
    words = [word for name, file in files.items() if file for word in (f"--{name}", file)]
    return words + [word for each in output.render for word in ("--render", each)]
