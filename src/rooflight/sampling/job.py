"""A job: one operator's sweep on one device, from its next shape to the rows, the CSV and the log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rooflight.costs.operators.estimate_train_time import short_precision
from rooflight.costs.operators.operator import Operator, Shape
from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.records.files import naming
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.quantity import percent
from rooflight.records.samples import SUFFIX, Header, Row, Status
from rooflight.sampling.runner import Repeats
from rooflight.sampling.store import Store, calibration_of, device_label, environment_of
from rooflight.sampling.sweeps import Sweep

DATA, LOG, TRACES = "sampling_data", "sampling_log", "sampling_traces"
_LOG_PERIOD_S = 1.0
_CSV_PERIOD_S = 30.0
_SHOWN = 200  # characters of why a shape failed; the row has all

Progress = Callable[[str], object]


class ProgressLog:
    """Lines of estimate-train-time's form in a file, and given to ``progress``; at most one per second, and a last one.

    ``total`` is how many shapes the whole sweep has, None where a budget ends it.
    """

    def __init__(
        self,
        path: Path,
        kernel: str,
        total: int | None,
        *,
        progress: Progress = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._kernel, self._total = path, kernel, total
        self._progress, self._now = progress, now
        self._began_s = self._last_s = now()
        self._done = self._written = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def advance(self, done: int, left_s: float | None = None) -> None:
        """So many shapes have a row, one of them new. ``left_s``: what is left of a budget."""
        self._done += 1
        if self._now() - self._last_s >= _LOG_PERIOD_S:
            self._write(done, left_s)

    def end(self, done: int) -> None:
        """The last line, unless it is written already or nothing was done."""
        if self._done > self._written:
            self._write(done, 0.0 if self._total is None else None)

    def _write(self, done: int, left_s: float | None) -> None:
        now_s = self._now()
        each_s = (now_s - self._began_s) / self._done
        if left_s is None:
            left_s = ((self._total or done) - done) * each_s
        line = line_of(now_s, self._kernel, done, self._total, each_s, left_s)
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._progress(line)
        self._last_s, self._written = now_s, self._done


def line_of(now_s: float, kernel: str, done: int, total: int | None, each_s: float, left_s: float) -> str:
    """A line of the log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s))
    part = f"{done}/{total}={100 * done / total:.2f}%" if total else f"{done}"
    minutes, seconds = divmod(max(0, round(left_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (
        f"[{stamp}]Kernel: {kernel} | Progress: {part} | Speed: {each_s:.2f}s/sample | "
        f"Remaining: {days}d{hours}h{minutes}m{seconds}s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to sample and where to keep it.

    ``kernel`` names the files, ``columns`` pair their names with parameters; empty ones are the operator's.
    ``dtype`` is torch's name. ``out`` holds the folders ``sampling_data`` and ``sampling_log``. ``timing`` goes
    into the header with the environment.
    """

    operator: Operator
    dtype: str
    out: Path
    kernel: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    parts: int = 1
    part: int = 1
    repeats: Repeats = field(default_factory=Repeats)
    timing: Mapping[str, str] = field(default_factory=dict)
    warmup_shape: Shape | None = None

    @property
    def name(self) -> str:
        """The kernel's name in files and logs."""
        return self.kernel or self.operator.name

    @property
    def precision(self) -> str:
        """estimate-train-time's name of the dtype."""
        return short_precision(self.dtype)

    def base(self, device: str) -> str:
        """estimate-train-time's file name without an ending."""
        return f"{device}_{self.name}_{self.precision}_{self.parts}_{self.part}"

    def header(self, device: str, environment: Mapping[str, str], calibration: Mapping[str, str]) -> Header:
        """What all rows of the job share."""
        given = {parameter for _, parameter in self.columns}
        return Header(
            kernel=self.name,
            operator=self.operator.name,
            precision=self.precision,
            device=device,
            columns=(*self.columns, *((name, name) for name in self.operator.parameters if name not in given)),
            directions=self.operator.directions,
            timing=self.timing,
            environment=environment,
            calibration=calibration,
        )

    def store(self, kind: str, number: int = 0) -> Store:
        """The job's file for this machine's device, with the rows that are there. Raises ValueError as Store does."""
        device = device_label(kind, number)
        header = self.header(device, environment_of(kind), calibration_of(kind))
        return Store(self.out / DATA / (self.base(device) + SUFFIX), header)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job left: its CSV, the statuses of all its rows, how many of them are new, and why one failed.

    ``others_share`` is the share of the CPU, of 1, that other programs took meanwhile; None where it is not known, and
    on a GPU, whose own clock times the kernels.
    """

    csv: Path
    statuses: Mapping[str, int]
    added: int
    failure: str = ""
    others_share: float | None = None

    def line(self, job: Job) -> str:
        """What became of the job, for the user."""
        counts = ", ".join(f"{count} {status}" for status, count in self.statuses.items()) or "no shapes"
        failure = f"; a failed shape: {self.failure}" if self.failure else ""
        busy = ""
        if self.others_share is not None and self.others_share >= BUSY_SHARE and self.added:
            busy = (
                f"; other programs took {percent(self.others_share)} of the CPU, so these times may be too "
                "long: sample again on a quiet machine"
            )
        return f"{job.name} {job.precision}: {counts} ({self.added} new) -> {self.csv}{failure}{busy}"


class ShapeSampler(Protocol):
    """Makes rows on one device."""

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""

    def warm_up(self, operator: Operator, shape: Shape) -> None:
        """Run a shape without keeping anything of it."""

    def row(self, operator: Operator, shape: Shape) -> Row:
        """Sample a shape. What a shape can do wrong is the row's status."""


class Keeper:
    """Appends rows to a store, keeps the log, and writes the CSV now and then and at the end, come what may."""

    def __init__(self, job: Job, sweep: Sweep, store: Store, progress: Progress) -> None:
        self._store, self._sweep = store, sweep
        path = job.out / LOG / f"{job.base(store.header.device)}.txt"
        self._log = ProgressLog(path, f"{job.name}_{job.precision}", sweep.total, progress=progress)
        self._written_s = time.monotonic()
        self._added = 0

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not len(self._store.rows):
            self._store.discard()
        elif error is not None:
            with suppress(OSError):  # of a full disk the file of rows is the first to tell
                self.end()

    def keep(self, row: Row) -> None:
        """Take a row."""
        self._store.append(row)
        self._added += 1
        rows = self._store.rows
        self._log.advance(len(rows), self._sweep.left_s(rows))
        if time.monotonic() - self._written_s > _CSV_PERIOD_S:
            self._store.write_csv()
            self._written_s = time.monotonic()

    def end(self) -> Outcome:
        """Write what is derived from the rows."""
        rows = self._store.rows
        self._log.end(len(rows))
        statuses = Counter(str(row.status) for row in rows.values())
        failures = (row.note for row in rows.values() if row.status is Status.FAILED and row.note)
        return Outcome(
            csv=self._store.write_csv(),
            statuses=statuses,
            added=self._added,
            failure=" ".join(next(failures, "").split())[:_SHOWN],
        )


def run(
    job: Job, sweep: Sweep, sampler: ShapeSampler, *, number: int = 0, progress: Progress = lambda _: None
) -> Outcome:
    """Sample the shapes of the sweep that the file does not have. Interrupted, it keeps every row that was finished."""
    with job.store(sampler.kind, number) as store, Keeper(job, sweep, store, progress) as keeper:
        bystander = Bystander() if sampler.kind == "cpu" else None
        shape = sweep.next(store.rows)
        if shape is not None and job.warmup_shape is not None:
            sampler.warm_up(job.operator, job.operator.shape(job.warmup_shape))
        while shape is not None:
            keeper.keep(sampler.row(job.operator, shape))
            shape = sweep.next(store.rows)
        others = None if bystander is None else bystander.others()
        return replace(keeper.end(), others_share=others)
