"""``rooflight run --on``: a script on a GPU that is not there, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from rooflight.cli.endings import ended
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.capture.run.children import Watched
    from rooflight.capture.run.elsewhere import Program
    from rooflight.devices.spec import DeviceSpec
    from rooflight.records.session import Session
    from rooflight.reporting.output import Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereOptions:
    """The devices that a script is to see, which are not in this machine."""

    panel: ClassVar = "Elsewhere"
    on: Annotated[
        str | None,
        Option("GPUs that are not here, by name: the script sees the first; the step is answered for each.",
               "DEVICE[,DEVICE...]"),
    ] = None  # fmt: skip
    gpus: Annotated[int, Option("GPUs of a node.", "N", least=1)] = 1
    nodes: Annotated[int, Option("Nodes.", "N", least=1)] = 1
    rank: Annotated[int, Option("Rank that is recorded.", "N", least=0)] = 0

    def refuse_without_on(self) -> None:
        """Raise ValueError for an option that has no effect here."""
        for name, value in (("gpus", self.gpus != 1), ("nodes", self.nodes != 1), ("rank", self.rank)):
            if value:
                raise ValueError(f"--{name}: no effect without --on: start ranks that are here with torchrun")


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
        from rooflight.front.elsewhere import report_elsewhere

        asked, watched = self.elsewhere, self.watched
        devices = devices_of(asked.on or "")
        from rooflight.capture.run.elsewhere import Program

        program = Program(target=self.target, arguments=tuple(self.arguments), module=self.module, skip=watched.skip,
                          only=str(watched.only or ""), named=watched.named)  # fmt: skip
        session = run_elsewhere(program, asked, devices, self.saved)
        sys.stdout.flush()
        os.dup2(2, 1)  # standard output is the script's
        self.outputs.write(report_elsewhere(session, devices, str(self.saved)))
        return session.run.exit_code if session.run is not None else None


def devices_of(names: str) -> list[DeviceSpec]:
    """The devices of ``--on``. Raises ValueError for a name that is unknown."""
    from rooflight.front.device import find_device

    return [find_device(name.strip()) for name in names.split(",")]


def run_elsewhere(program: Program, asked: ElsewhereOptions, devices: Sequence[DeviceSpec], saved: Path) -> Session:
    """Run a program in a child that sees the first of the devices, and load what it recorded.

    Raises ValueError for devices and ranks that cannot be, RuntimeError for a child that left no session.
    """
    from rooflight.capture.run.elsewhere import Wanted, seen_of
    from rooflight.records.archive import load

    seen = [seen_of(device) for device in devices]
    ranks = asked.gpus * asked.nodes
    if asked.rank >= ranks:
        raise ValueError(f"--rank {asked.rank}: there are {ranks}, from 0")
    wanted = Wanted(
        program=program,
        devices=tuple(device.name for device in devices),
        seen=seen[0],
        gpus=asked.gpus,
        nodes=asked.nodes,
        rank=asked.rank,
        saved=str(saved),
        loud=sys.stderr.isatty(),
    )
    saved.unlink(missing_ok=True)
    code = _wait(wanted.command())
    if not saved.is_file():
        raise RuntimeError(f"{program.target} ended without a session (exit code {code}): see its output above")
    return load(saved)


def _wait(command: Sequence[str]) -> int:
    """Wait for the child. Ctrl-C reaches it too: it then saves what it has."""
    with subprocess.Popen(command) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
