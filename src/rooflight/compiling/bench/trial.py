"""One program in a process of its own: what it is asked, what it found, and the process."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from rooflight.compiling.options import Options
from rooflight.compiling.process import replied
from rooflight.workloads.errors import RunFailed, TargetError

Program = Literal["eager", "compiled", "check"]
EAGER: Final = "eager"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run: a target, eager or compiled in a mode, so many times; ``check``: both, compared. ``inputs``:
    the function of its file that returns the arguments, if not ``get_inputs``.
    """

    target: str
    options: Options
    inputs: str | None = None
    program: Program
    compile_mode: str = "default"
    backend: str = "inductor"
    dynamic: bool | None = None
    iterations: int
    threads: int
    place: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How a value differs from the eager one: ``why`` says what is wrong, empty for a right one."""

    why: str = ""
    error: float | None = None
    tolerance: float | None = None


class Rounding(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the eager and of the compiled program against the same program in float64.

    ``eager`` and ``compiled``: the largest root mean square error of a tensor among results, gradients and state, as
    a share of its values; None where ``failed`` says why there is no float64 run. ``further``: the first tensor
    that the compiled program has further from float64 than rounding explains; empty for none. ``missing``: ops
    without a float64 form.
    """

    eager: float | None = None
    compiled: float | None = None
    further: str = ""
    missing: tuple[str, ...] = ()
    failed: str = ""

    @property
    def explains(self) -> bool:
        """Whether the compiled program is no further from float64 than the eager one."""
        return not self.failed and not self.further


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the compiled program is right: its ``result``, and the ``state`` of the model (parameters and buffers
    after the same ``steps``, gradients after each) beside the eager program's; None for a step without a model.
    """

    result: Difference
    state: Difference | None = None
    steps: int = 0
    rounding: Rounding | None = None

    @property
    def correct(self) -> bool:
        """Whether nothing differs by more than the tolerance of its dtype, or than rounding explains."""
        return not self.why

    @property
    def why(self) -> str:
        """What is wrong; empty for a right program."""
        different = self.different
        if different and not self.form and self.rounding is not None and self.rounding.explains:
            return ""
        return different

    @property
    def form(self) -> bool:
        """Whether results differ in form, or in what is not a floating-point number."""
        return any(each is not None and bool(each.why) and each.error is None for each in (self.result, self.state))

    @property
    def different(self) -> str:
        """How the compiled program differs from the eager one by more than the tolerance; empty if it does not."""
        state = "" if self.state is None or not self.state.why else f"the model's state after it: {self.state.why}"
        return self.result.why or state

    @property
    def error(self) -> float | None:
        """The larger error of the two; None where nothing has floating numbers."""
        errors = [each.error for each in (self.result, self.state) if each is not None and each.error is not None]
        return max(errors, default=None)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each iteration, and what torch noted while it compiled.

    ``stages_s``: seconds by stage of compiling. ``peak_bytes``: the most memory the process held (CUDA: that torch
    allocated). ``graph_breaks`` and ``recompiles``: line and reason of each, by torch's logs, in order.
    ``kernel_bytes``: those that the compiled graphs' kernels read and write, by Inductor's account; None where it gives
    none. ``others_share``: of the CPU, taken by other programs. ``step``: what ran, in a line; empty where the target
    says it. ``notes``: what was not done as its config says, or how its function was taken.
    """

    samples_s: tuple[float, ...]
    stages_s: dict[str, float] = {}
    peak_bytes: int | None = None
    graphs: int = 0
    kernels: int = 0
    kernel_bytes: int | None = None
    graph_breaks: tuple[str, ...] = ()
    recompiles: tuple[str, ...] = ()
    others_share: float | None = None
    step: str = ""
    notes: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a process answers: one of its fields. ``wrong`` is the user's mistake, ``failed`` a program that broke."""

    trial: Trial | None = None
    check: Check | None = None
    wrong: str = ""
    failed: str = ""


def answered(request: Request, cache: Path, *, limit_s: float | None = None) -> Answer:
    """What the program answers, run in a process of its own with ``cache`` as Inductor's folder.

    What the program prints is dropped. Raises TargetError for the user's mistake, RunFailed for a program that breaks,
    dies or takes longer than ``limit_s``.
    """
    reply = replied("rooflight.compiling.bench.child", request, cache, threads=request.threads, limit_s=limit_s)
    answer = msgspec.json.decode(reply, type=Answer)
    if answer.wrong:
        raise TargetError(answer.wrong)
    if answer.failed:
        raise RunFailed(answer.failed)
    return answer
