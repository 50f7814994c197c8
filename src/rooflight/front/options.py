"""How a target is run, for which device it is bounded, how it is predicted, and how traces are read."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.hardware.devices.what_if import WhatIf
    from rooflight.prediction.predictor import Predictor
    from rooflight.roofline.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusable:
    """Options that some targets do not take."""

    def refuse(self, why: str, among: Container[str] | None = None) -> None:
        """Raise ValueError if any is given, or any of those ``among`` them, saying why it cannot be."""
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]
        names = [name for name in given if among is None or name in among]
        if names:
            raise ValueError(", ".join(f"--{name.replace('_', '-')}" for name in names) + f": {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Refusable):
    """How a preset or config is to run; None leaves the choice to its defaults."""

    panel: ClassVar = "Step"
    step: Annotated[str | None, Option("forward, train, prefill or decode. [default: forward]", "STEP")] = None
    batch: Annotated[int | None, Option("Sequences or images per step. [default: the preset's]", "N")] = None
    seq: Annotated[int | None, Option("Tokens per sequence. [default: the preset's]", "N")] = None
    dtype: Annotated[
        str | None, Option("fp32, bf16, fp16. [default: bf16; fp32 on a CPU]", "DTYPE", names="dtypes")
    ] = None
    optimizer: Annotated[
        str | None, Option("Of --step train: adamw, adamw-fused, sgd or none. [default: adamw]", "NAME")
    ] = None
    small: Annotated[bool, Option("The preset's architecture in a size for a laptop.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """Roofs of a device as they would be: narrower products, a locked clock."""

    panel: ClassVar = "Device"
    precision: Annotated[
        str | None,
        Option(
            "Matrix products as if in tf32, bf16, fp8, ... [default: as the program says]",
            "NAME",
            names="precisions",
        ),
    ] = None
    clock: Annotated[
        str | None,
        Option("Peaks as if the clock were locked: 1.5GHz, 1410MHz. [default: the highest]", "CLOCK"),
    ] = None

    def roofs(self) -> WhatIf:
        """The roofs that the options suppose. Raises ValueError, naming the option, for anything else."""
        from rooflight.hardware.devices.what_if import WhatIf, parse_clock

        try:
            WhatIf(precision=self.precision)
        except ValueError as error:
            raise ValueError(f"--precision: {error}") from None
        try:
            clock_hz = None if self.clock is None else parse_clock(self.clock)
        except ValueError as error:
            raise ValueError(f"--clock: {error}") from None
        return WhatIf(precision=self.precision, clock_hz=clock_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions(WhatIfOptions):
    """The device that a target is bounded for, and its roofs."""

    device: Annotated[
        str | None,
        Option("Bound for this device (see: rooflight devices). [default: this machine]", "NAME", names="devices"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOptions:
    """Whether and how a step's time is predicted."""

    panel: ClassVar = "Prediction"
    predict: Annotated[bool, Option("Predict the step's time too, for any device, beside a typical host.")] = False
    models: Annotated[
        Path | None,
        Option("Predict with the models that rooflight fit wrote to this folder. [default: shipped]", "FOLDER"),
    ] = None
    host: Annotated[
        float | None,
        Option("Predict with this host time per launch. [default: typical; 6e-6 to 17e-6 were measured]", "SECONDS"),
    ] = None
    graph: Annotated[bool, Option("Predict the step as replayed from a CUDA graph: the host launches once.")] = False

    def issuing(self) -> Host | None:
        """The host that a wall time assumes, None for a typical one. Raises ValueError for two, or a time below 0."""
        from rooflight.roofline.host import Host

        if self.graph and self.host is not None:
            raise ValueError("--graph: its host launches once, so that --host has no effect: give one of the two")
        if self.graph:
            return Host.of_graph()
        return None if self.host is None else Host.of(self.host, source="--host")

    def predictor(self) -> Predictor | None:
        """The models in the folder, or the shipped ones; None where nothing is predicted. Raises ValueError if the
        folder has none.
        """
        from rooflight.prediction.predictor import Predictor

        if not (self.predict or self.graph or self.models is not None or self.host is not None):
            return None
        return Predictor.load(self.models) if self.models else Predictor()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions(Refusable):
    """What is read beside a trace. ``capture``: the trace of the capture of the graphs that were replayed; ``model``:
    the config of the model that a serving engine ran, or a preset; ``execution_trace``: what torch's
    ExecutionTraceObserver wrote of the same run.
    """

    panel: ClassVar = "Traces"
    capture: Annotated[
        Path | None, Option("Trace recorded while the CUDA graphs of TARGET were captured.", "TRACE")
    ] = None
    model: Annotated[
        str | None,
        Option("Model of a trace of vLLM or SGLang: its config.json, or a preset.", "CONFIG", names="presets"),
    ] = None
    execution_trace: Annotated[
        Path | None, Option("Execution trace of the same run, as ExecutionTraceObserver writes it.", "FILE")
    ] = None

    def refuse_for(self, target: str) -> None:
        """Raise ValueError if any is given with a target that is no trace."""
        self.refuse(f"no effect on {target}: only a trace of torch's profiler takes such options")


PLAIN: Final = TraceOptions()
"""Nothing beside the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOn:
    """Where traces are read: by ``executor``, on the cluster at ``address`` (None: this machine's), and in at most so
    many ``processes`` on this machine (by default one per core).
    """

    panel: ClassVar = "Traces"
    executor: Annotated[Literal["local", "ray"], Option("Where traces of several ranks are read.")] = "local"
    address: Annotated[str | None, Option("ray: the cluster to join. [default: this machine's]", "HOST:PORT")] = None
    processes: int | None = None
