"""A script on a GPU that is not there (``rooflight run --on``), or a step spread over several (``analyze --parallel``),
in a process of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from rooflight.cli.endings import ended
from rooflight.front.options import DeviceOptions, RunOptions
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.hardware.devices.spec import DeviceSpec
    from rooflight.records.report import Report
    from rooflight.reporting.output import Outputs
    from rooflight.sources.capture.run.children import Watched


MIXED: Final = "mixed"
_SEVERAL: Final = re.compile(r"(\d+)x(.+)")
_NODE: Final = 8  # GPUs of a node, where there are more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """What devices cost."""

    price: Annotated[
        tuple[str, ...], Option("Dollars an hour of one GPU: what tokens or samples cost is said.", "DEVICE=DOLLARS")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOptions(PriceOptions):
    """How a step is spread over several devices."""

    panel: ClassVar = "Device"
    parallel: Annotated[
        str | None,
        Option("Spread the step over the GPUs of --device 8xNAME: ddp, fsdp, tp=8 or fsdp=4,tp=2.", "LAYOUT"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereOptions(PriceOptions):
    """The devices that a script is to see, which are not in this machine."""

    panel: ClassVar = "Elsewhere"
    on: Annotated[
        str | None,
        Option("GPUs that are not here (see: rooflight devices): it runs as on the first, all are reported.",
               "DEVICE[,DEVICE...]"),
    ] = None  # fmt: skip
    gpus: Annotated[int, Option("GPUs per node, as the script sees them.", "N", least=1)] = 1
    nodes: Annotated[int, Option("Nodes, each with --gpus GPUs: a rank for each GPU.", "N", least=1)] = 1
    rank: Annotated[int, Option("Rank that runs and is recorded.", "N", least=0)] = 0

    def refuse_without_on(self) -> None:
        """Raise ValueError for an option that has no effect here."""
        ranks = ": ranks that are here are started by torchrun"
        given = ("gpus", self.gpus != 1), ("nodes", self.nodes != 1), ("rank", self.rank), ("price", self.price)
        for name, value in given:
            if value:
                raise ValueError(f"--{name}: no effect without --on DEVICE{'' if name == 'price' else ranks}")


@dataclass(frozen=True, kw_only=True)
class LaunchOn:
    """A script that is to run on GPUs that are not there once the command line is done with."""

    target: str
    arguments: Sequence[str]
    module: bool
    elsewhere: ElsewhereOptions
    watched: Watched
    saved: Path
    outputs: Outputs

    def start(self) -> None:
        """Run the script in a child, and report what it recorded on standard error. Leaves the process."""
        sys.exit(ended(self._run, debug=False))

    def _run(self) -> int | None:
        from rooflight.front.elsewhere import record_elsewhere, report_elsewhere
        from rooflight.front.on_devices import prices_of

        asked, watched = self.elsewhere, self.watched
        devices = devices_of(asked.on or "")
        prices = prices_of(asked.price, devices)
        from rooflight.sources.capture.run.elsewhere import Program

        program = Program(target=self.target, arguments=tuple(self.arguments), module=self.module, skip=watched.skip,
                          only=str(watched.only or ""), named=watched.named)  # fmt: skip
        session = record_elsewhere(
            program, devices, self.saved, gpus=asked.gpus, nodes=asked.nodes, rank=asked.rank, loud=sys.stderr.isatty()
        )
        sys.stdout = sys.stderr  # standard output is the script's
        self.outputs.write(report_elsewhere(session, devices, str(self.saved), prices))
        return session.run.exit_code if session.run is not None else None


def devices_of(names: str) -> list[DeviceSpec]:
    """The devices of ``--on``. Raises ValueError for a name that is unknown."""
    from rooflight.front.device import find_device

    return [find_device(name.strip()) for name in names.split(",")]


def several_of(names: str) -> list[DeviceSpec]:
    """The devices of ``--device A,B``; none where one is named, whose name may have a comma. Raises ValueError."""
    if "," not in names:
        return []
    from rooflight.front.device import find_device

    try:
        find_device(names)
    except ValueError:
        return devices_of(names)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A target on ``gpus`` devices, by the layout ``parallel``."""

    target: str
    device: str
    gpus: int
    parallel: str
    mixed: bool
    price: Sequence[str]

    @classmethod
    def asked_by(cls, targets: Sequence[str], device: DeviceOptions, spread: SpreadOptions) -> Spread | None:
        """What the options ask for, None if that is nothing of the kind. Raises ValueError for what cannot be."""
        several, parallel = _SEVERAL.fullmatch(device.device or ""), spread.parallel
        mixed = device.precision == MIXED
        if several is None and parallel is None and not mixed:
            return None
        if len(targets) != 1:
            raise ValueError("--parallel: one preset or config at a time")
        name = several[2] if several else device.device
        if name is None:
            raise ValueError("--parallel, --precision mixed: name GPUs that are not here: --device 8xH100-SXM5-80GB")
        gpus = int(several[1]) if several else 1
        if not gpus:
            raise ValueError(f"--device {device.device}: one GPU is the least")
        if gpus > 1 and not parallel:
            raise ValueError(f"--device {device.device}: say how the step is spread: --parallel fsdp, ddp or tp={gpus}")
        if device.clock is not None or (device.precision is not None and not mixed):
            raise ValueError("--parallel: --clock and --precision other than mixed have no effect beside it")
        from rooflight.sources.workloads.spread import Layout
        from rooflight.sources.workloads.targets import ProblemFile, UserFunction, find_target

        if isinstance(find_target(targets[0]), UserFunction | ProblemFile):
            raise ValueError(f"{targets[0]}: run a script of yours with rooflight run --on {name} --gpus {gpus}")
        Layout.read(parallel or "", gpus)
        return cls(target=targets[0], device=name, gpus=gpus, parallel=parallel or "", mixed=mixed,
                   price=spread.price)  # fmt: skip

    def report(self, run: RunOptions, save: Path | None, progress: Callable[[str], None]) -> Report:
        """Run it on virtual GPUs, and say what a step takes. Raises ValueError for options that cannot be."""
        from tempfile import TemporaryDirectory

        from rooflight.front.elsewhere import record_elsewhere, report_elsewhere
        from rooflight.front.on_devices import prices_of
        from rooflight.sources.capture.run.elsewhere import Program

        if run.step in ("prefill", "decode"):
            raise ValueError(f"--step {run.step}: several GPUs take --step train or forward")
        nodes = max(1, self.gpus // _NODE) if self.gpus % _NODE == 0 else 1
        program = Program(target="rooflight.sources.workloads.spread", arguments=tuple(self._words(run)), module=True,
                          skip=2 if "ddp" in self.parallel else 1)  # fmt: skip
        devices = devices_of(self.device)
        prices = prices_of(self.price, devices)
        with TemporaryDirectory() as folder:
            saved = Path.cwd() / save if save else Path(folder) / "step.session"
            progress(f"recording a step on {self.gpus} x {self.device}, which are not here")
            session = record_elsewhere(program, devices, saved, gpus=self.gpus // nodes, nodes=nodes)
            if session.run is not None and session.run.step is None and session.run.exit_code:
                raise ValueError(f"{self.target} could not be spread so: its error is above")
            return report_elsewhere(session, devices, str(save or ""), prices)

    def _words(self, run: RunOptions) -> list[str]:
        given = {field.name: getattr(run, field.name) for field in fields(run)}
        words = [self.target]
        for name, value in given.items():
            if value not in (None, False):
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return [*words, *(["--parallel", self.parallel] if self.parallel else []), *(["--mixed"] if self.mixed else [])]
