"""The store: rows appended to a file of JSON lines; a process killed at any moment loses none and doubles none."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Final

import msgspec

from rooflight.costs.operators.estimate_train_time import TIMES
from rooflight.hardware.devices import calibrations
from rooflight.hardware.machine import environment
from rooflight.hardware.machine.calibration import LATENCY, roofs_by_name
from rooflight.hardware.machine.environment import cpu_model
from rooflight.hardware.machine.hardware import cuda_name
from rooflight.records.files import naming, write_whole
from rooflight.records.samples import Header, Row, Rows, Status, middle_s, parse

_BEGIN: Final = b'{"kernel":'
"""Of the first line: a killed process may have written less of it, or more without the rest."""


class Store:
    """A file of rows that one process at a time appends to.

    Opening it drops a last line that was cut off, and takes up the rows that are there. Raises ValueError where the
    file was written for another operator, precision or device, or is being written by another process.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self.rows = Rows(header.parameters)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._take_up()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, row: Row) -> None:
        """Add a row: one write at the end of the file, all of it or a torn line that the next opening drops."""
        self.rows.add(row)
        self._write(row)

    def write_csv(self) -> Path:
        """Write estimate-train-time's CSV beside the file, in the place of an earlier one. Returns its path."""
        path = self.path.with_suffix(".csv")
        write_whole(path, "".join(csv_lines(self.header, self.rows)))
        return path

    def discard(self) -> None:
        """Leave no file behind, where there is no row."""
        for path in (self.path, self.path.with_suffix(".csv")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_up(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when the process dies
        except OSError:
            raise ValueError(f"{self.path} is being written by another process") from None
        with open(self._file, "rb", closefd=False) as file:
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and not _BEGIN.startswith(content[: len(_BEGIN)]):
            raise ValueError(f"{self.path} is no file of samples: choose another --out")
        found, rows = parse(whole, self.path) if whole else (self.header, [])
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        if not whole:
            self._write(self.header)
            return
        for name in ("kernel", "operator", "precision", "device", "columns", "directions"):
            there, here = getattr(found, name), getattr(self.header, name)
            if there != here:
                raise ValueError(f"{self.path} holds samples of {name} {there}, not {here}: choose another --out")
        for name, what in (("cache", "samples of a {} cache, not a {} one"), ("targets", "times of events {}, not {}")):
            before, now = found.timing.get(name), self.header.timing.get(name)
            if before != now:
                raise ValueError(f"{self.path} holds {what.format(before, now)}: choose another --out")
        self.header = found
        for row in rows:
            self.rows.add(row)

    def _write(self, record: Row | Header) -> None:
        line = msgspec.json.encode(record) + b"\n"
        with naming(self.path):
            if os.write(self._file, line) != len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))


def csv_lines(header: Header, rows: Rows) -> Iterator[str]:
    """estimate-train-time's CSV: its columns, one line for each row that is ok, times in microseconds."""
    yield ",".join((*(name for name, _ in header.columns), *TIMES[header.directions])) + "\n"
    for key, row in rows.items():
        if row.status is Status.OK:
            times = (f"{middle_s(row.samples_s[direction]) * 1e6:.3f}" for direction in header.directions)
            yield ",".join((*map(str, key), *times)) + "\n"


_CLOCKS: Final = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit"


def device_label(kind: str, number: int = 0) -> str:
    """The device's name in a file's name, as estimate-train-time has it: no blanks, and no ``_``."""
    name = (cuda_name(number) if kind == "cuda" else None) or cpu_model()
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name.replace(" ", "")).strip("-")


def environment_of(kind: str) -> dict[str, str]:
    """Device, driver, torch and system, and the clocks where they can be read."""
    return environment.describe(kind) | (_gpu_clocks() if kind == "cuda" else _cpu_clocks())


def calibration_of(kind: str, threads: int | None = None) -> dict[str, str]:
    """The saved roofs of this machine, in SI units, a CPU's of ``threads`` (None: those that torch runs on); empty
    where it was never calibrated.
    """
    threads = (threads or environment.threads_here()) if kind == "cpu" else None
    try:
        found = calibrations.load(environment.fingerprint(kind), threads)
    except ValueError:  # a broken file is the calibration's matter
        return {}
    if found is None:
        return {}
    roofs = {name: f"{each.value:.6g}" for name, each in roofs_by_name(found.roofs).items()}
    latency = roofs.pop(LATENCY, None)
    facts = {"fingerprint": found.fingerprint, "measured_at": found.measured_at}
    facts |= {f"{name} {'B' if name.startswith('memory') else 'FLOP'}/s": text for name, text in roofs.items()}
    facts |= {"threads": str(found.roofs.threads)} if found.roofs.threads else {}
    return facts | ({"launch s": latency} if latency else {})


def _gpu_clocks() -> dict[str, str]:
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    answer = environment.nvidia_smi(_CLOCKS, "-i", number)
    return dict(zip(_CLOCKS.split(","), map(str.strip, answer.split(",")), strict=False)) if answer else {}


def _cpu_clocks() -> dict[str, str]:
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    found = {}
    for name in ("scaling_governor", "cpuinfo_max_freq"):
        try:
            found[name] = (folder / name).read_text().strip()
        except OSError:
            continue  # virtual machines do not have it
    return found
