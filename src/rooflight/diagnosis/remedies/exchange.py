"""Exchange between ranks: many small collectives, and what no computing hides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.remedies.waiting import RANK
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import Flags
from rooflight.records.timeline import HostLine, Within

SMALL: Final = Remedy(
    id="small-collectives",
    title="many small collectives, one after the other",
    short="stack the values and reduce them once",
    rest="log every N steps",
    verify="one collective in their place",
)
OVERLAP: Final = Remedy(
    id="overlap",
    title="communication that no computing hides",
    short="overlap it (bucket_cap_mb, no_sync())",
    rest="DDP's buckets, no_sync() while accumulating, FSDP prefetch",
    verify="exposed communication falls",
    waste=False,
)
_SMALL_BYTES: Final = 16 * 1024
_GLOO_BYTES_PER_S, _GLOO_S = 5e8, 1e-3  # in one machine, slowly


def small(facts: Facts) -> Iterable[Draft]:
    """Collectives that take their latency only."""
    of = facts.of
    calls = np.flatnonzero(of.collectives)
    tiny = calls[_few_bytes(of)[calls]]
    waited_s, _, line = of.in_library(Within.COLLECTIVES)
    if len(tiny) < 4:
        return
    took_s = max(facts.spared(tiny), waited_s * len(tiny) / max(1, len(calls)))
    exposed_s = of.analysis.communication.exposed_step_s
    if exposed_s is not None and not of.on_cpu:  # what runs beside computing costs nothing
        took_s = min(took_s, exposed_s)
    if not took_s:
        return
    sizes = of.total(lambda op: op.input_bytes, tiny)
    text = (
        f"{count_of(len(tiny), 'collective')} of {Quantity(sizes, 'B')} in all take {Quantity(took_s, 's')}{_at(line)}"
    )
    gain_s = took_s * (1 - max(1, len(tiny) / 16) / len(tiny))
    yield from facts.draft(SMALL, tiny, text, gain_s=gain_s, regime=Regime.COMMUNICATION, low=0.5, high=1.4,
                           causes=(Cause.COMMUNICATION, Cause.LAUNCHES))  # fmt: skip


def _few_bytes(of: Evidence) -> Flags:
    return of.where_op(op.input_bytes <= _SMALL_BYTES for op in of.session.signatures)


def exposed(facts: Facts) -> Iterable[Draft]:
    """Time of collectives in which nothing is computed."""
    of, timeline = facts.of, facts.of.timeline
    found = of.analysis.communication
    exposed_s = of.exposed_s if found.exposed_step_s is None else found.exposed_step_s
    if timeline is not None:
        steps = [step.exposed_communication_s for step in timeline.steps if step.in_session]
        exposed_s = sum(steps) / len(steps) if steps else timeline.exposed_communication_s
    large = np.flatnonzero(of.collectives & ~_few_bytes(of))
    if exposed_s is None or (not exposed_s and of.source != "predicted" and timeline is None):
        exposed_s = facts.spared(large)
    if not exposed_s or not (len(large) or timeline is not None):
        return
    text = f"{Quantity(exposed_s, 's')} of the step's communication is hidden by nothing"
    # only computing that hides none yet can hide it, and the last bucket, of eight or more, has none after it
    computing_s = float(of.seconds[~of.collectives].sum()) - (found.overlapped_s or 0.0)
    gain_s = min(exposed_s, max(0.0, computing_s)) * (1 - 1 / max(8, len(large)))
    yield from facts.waiting(OVERLAP, (Cause.COMMUNICATION, Cause.LIGHT), exposed_s, gain_s, text, 0.3)


def waits_for_ranks(facts: Facts) -> Iterable[Draft]:
    """Waits in collectives that their bytes do not explain: another rank comes late."""
    of = facts.of
    waited_s, asleep_s, line = of.in_library(Within.COLLECTIVES)
    calls = np.flatnonzero(of.collectives)
    if not of.on_cpu or line is None or not len(calls):
        return
    sent = of.total(lambda op: op.input_bytes, calls)
    needs_s = sent / _GLOO_BYTES_PER_S + len(calls) * _GLOO_S
    late_s = min(waited_s, asleep_s * 1.2) - needs_s
    text = f"{Quantity(waited_s, 's')} a step in {count_of(len(calls), 'collective')}{_at(line)}, which need about "
    yield from facts.waiting(
        RANK, (Cause.COMMUNICATION, Cause.RANK), waited_s, 0.6 * late_s, text + str(Quantity(needs_s, "s")), 0.4
    )


def _at(line: HostLine | None) -> str:
    return f" at {line.where.at}" if line is not None and line.where else ""


RULES: Final = (small, exposed, waits_for_ranks)
