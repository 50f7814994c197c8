"""Measured ops: the ops of a session that was timed, such as a trace, as rows to learn from and to check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.read.table import Floats
from rooflight.prediction.work.facts import Costed, bounded
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran, float32_rules


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOp:
    """A row: an op, the precision at which its float32 products ran, and the seconds of each of its calls."""

    op: OpSignature
    precision: str
    samples_s: Floats

    def on(self, device: DeviceSpec) -> Costed | Uncosted:
        """What it must do, and its bound on a device."""
        return bounded((self.op,), as_it_ran(device, self.precision))[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOps:
    """The timed ops of a session, a row for each distinct signature. ``kernel``, ``operator``, ``known`` and ``label``
    are what reports call it beside tables.
    """

    source: Path
    device: DeviceSpec
    rows: tuple[MeasuredOp, ...]
    kernel: str = "ops"
    operator: str = "ops"
    known: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def label(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def seconds(self) -> Floats:
        """The median time of each row."""
        return np.array([float(np.median(row.samples_s)) for row in self.rows], dtype=np.float64)


def measured_ops(session: Session, device: DeviceSpec, source: Path) -> MeasuredOps:
    """The rows of a session that was timed on a device. Calls that took no time launched nothing, and are left out.

    Raises ValueError for a session without times of ops, and for one whose timed step is not the recorded one.
    """
    measurement = session.measurement
    if measurement is None or not len(measurement.op_samples_s) or not measurement.of_the_session:
        raise ValueError(f"{source} has no times of ops: nothing can be learned from it, or checked")
    rules = float32_rules(session.environment, device)
    with np.errstate(invalid="ignore"):
        chosen = session.counted & (measurement.op_samples_s > 0)  # [steps, records]
    numbers = np.broadcast_to(session.columns.signature, chosen.shape)[chosen]
    seconds = measurement.op_samples_s[chosen]
    if not len(numbers):
        raise ValueError(f"{source} has no op with a time: nothing can be learned from it, or checked")
    order = np.argsort(numbers, kind="stable")
    distinct, first = np.unique(numbers[order], return_index=True)
    samples = np.split(seconds[order], first[1:])
    signatures = [session.signatures[number] for number in distinct.tolist()]
    return MeasuredOps(
        source=source,
        device=device,
        rows=tuple(
            MeasuredOp(op=op, precision=rules.precision_of(op), samples_s=each)
            for op, each in zip(signatures, samples, strict=True)
        ),
    )
