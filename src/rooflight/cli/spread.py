"""``rooflight analyze --parallel``: a step of a preset or config, spread over GPUs that are not here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from rooflight.cli.run_on import ElsewhereOptions, devices_of, run_elsewhere
from rooflight.front.options import DeviceOptions, RunOptions

if TYPE_CHECKING:
    from rooflight.records.report import Report

MIXED: Final = "mixed"
_SEVERAL: Final = re.compile(r"(\d+)x(.+)")
_NODE: Final = 8  # GPUs of a node, where there are more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A target on ``gpus`` devices, by the layout ``parallel``."""

    target: str
    device: str
    gpus: int
    parallel: str
    mixed: bool

    @classmethod
    def asked_by(cls, targets: Sequence[str], device: DeviceOptions, parallel: str | None) -> Spread | None:
        """What the options ask for, None if that is nothing of the kind. Raises ValueError for what cannot be."""
        several = _SEVERAL.fullmatch(device.device or "")
        mixed = device.precision == MIXED
        if several is None and parallel is None and not mixed:
            return None
        if len(targets) != 1:
            raise ValueError("--parallel: one preset or config at a time")
        name = several[2] if several else device.device
        if name is None:
            raise ValueError("--parallel, --precision mixed: name GPUs that are not here: --device 8xH100-SXM5-80GB")
        gpus = int(several[1]) if several else 1
        if gpus > 1 and not parallel:
            raise ValueError(f"--device {device.device}: say how the step is spread: --parallel fsdp, ddp or tp={gpus}")
        if device.clock is not None or (device.precision is not None and not mixed):
            raise ValueError("--parallel: --clock and --precision other than mixed have no effect beside it")
        from rooflight.workloads.spread import Layout
        from rooflight.workloads.targets import ProblemFile, UserFunction, find_target

        if isinstance(find_target(targets[0]), UserFunction | ProblemFile):
            raise ValueError(f"{targets[0]}: run a script of yours with rooflight run --on {name} --gpus {gpus}")
        Layout.read(parallel or "", gpus)
        return cls(target=targets[0], device=name, gpus=gpus, parallel=parallel or "", mixed=mixed)

    def report(self, run: RunOptions, save: Path | None, progress: Callable[[str], None]) -> Report:
        """Run it on virtual GPUs, and say what a step takes. Raises ValueError for options that cannot be."""
        from rooflight.capture.run.elsewhere import Program
        from rooflight.front.elsewhere import report_elsewhere

        if run.step in ("prefill", "decode"):
            raise ValueError(f"--step {run.step}: several GPUs take --step train or forward")
        nodes = max(1, self.gpus // _NODE) if self.gpus % _NODE == 0 else 1
        asked = ElsewhereOptions(gpus=self.gpus // nodes, nodes=nodes)
        program = Program(target="rooflight.workloads.spread", arguments=tuple(self._words(run)), module=True,
                          skip=2 if "ddp" in self.parallel else 1)  # fmt: skip
        devices = devices_of(self.device)
        with TemporaryDirectory() as folder:
            saved = Path.cwd() / save if save else Path(folder) / "step.session"
            progress(f"recording a step on {self.gpus} x {self.device}, which are not here")
            session = run_elsewhere(program, asked, devices, saved)
            if session.run is not None and session.run.step is None and session.run.exit_code:
                raise ValueError(f"{self.target} could not be spread so: its error is above")
            return report_elsewhere(session, devices, str(save or ""))

    def _words(self, run: RunOptions) -> list[str]:
        given = {field.name: getattr(run, field.name) for field in fields(run)}
        words = [self.target]
        for name, value in given.items():
            if value not in (None, False):
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return [*words, *(["--parallel", self.parallel] if self.parallel else []), *(["--mixed"] if self.mixed else [])]
