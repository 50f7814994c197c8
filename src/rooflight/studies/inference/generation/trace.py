"""When the buckets of the last steps were open, and a Chrome trace of it, which Perfetto opens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rooflight.sources.capture.time.bucket_log import BucketLog
from rooflight.sources.capture.time.buckets import OUTSIDE
from rooflight.sources.capture.time.marks import Found
from rooflight.studies.inference.clocks import Meter, Reading
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.facts import DECODE, Facts
from rooflight.studies.inference.runs import Run

MOST_TRACED: Final = 64
"""Steps that are kept: the last ones."""

_MOST_STRETCHES: Final = 20_000  # of a step; a viewer shows no more, and memory stays bounded

Span = tuple[str, int, int]
"""A bucket's name, and when it was opened and closed, in nanoseconds."""


class _Step(NamedTuple):
    number: int
    run: Run
    meter: Meter
    reading: Reading
    facts: Facts


class StepSpans:
    """Keeps the last ``most`` steps of a profiler whose meter gives times in order."""

    def __init__(self, most: int = MOST_TRACED) -> None:
        self._steps: deque[_Step] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, meter: Meter, run: Run, reading: Reading, facts: Facts) -> None:
        """One more step."""
        if len(reading.found) <= _MOST_STRETCHES:
            self._steps.append(_Step(run.samples.seen - 1, run, meter, reading, facts))

    def chrome_trace(self, name: str) -> bytes:
        """The steps as Chrome's trace format has it, as JSON: a row of steps, and a row of buckets per domain.

        Times begin with the first step that is kept. On CUDA each clock has rows of its own: those of different clocks
        cannot be compared to the microsecond.
        """
        events: list[Mapping[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}]
        on_device = any(step.reading.on_host is not None for step in self._steps)
        events += self._rows(1, [Domain.MODEL] if on_device else list(Domain), "device events" if on_device else "host")
        if on_device:
            events += self._rows(11, [Domain.ENGINE], "host", on_host=True)
        return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})

    def _rows(
        self, row: int, domains: Sequence[Domain], clock: str, *, on_host: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        names = ("steps", *(f"{domain.value} buckets" for domain in domains))
        for number, name in enumerate(names, start=row):
            yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": f"{name} ({clock})"}}
            yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
        now = 0
        for place, step in enumerate(self._steps):
            found = (step.reading.on_host or ()) if on_host else step.reading.found
            timer = step.meter.engine if on_host else step.meter.steps
            # what is before the first step kept is not shown
            now = begin = now + (sum(ns for state, ns in found if state == OUTSIDE) if place else 0)
            now += sum(ns for state, ns in found if state != OUTSIDE)
            phase = "step" if step.facts.phase == DECODE else step.facts.phase
            yield _event(row, f"{phase} {step.number}", begin, now, _about(step))
            for number, domain in enumerate(domains, start=row + 1):
                for name, opened, closed in spans(timer, domain, found):
                    yield _event(number, name, begin + opened, begin + closed)


def spans(timer: BucketLog, domain: Domain, found: Found) -> Sequence[Span]:
    """When each bucket of a domain was open, from the begin of a step on, in the order of opening, which is also that
    of nesting. They nest properly: a bucket that is closed before another one that was opened in it cuts that in two.
    """
    now = 0
    done: list[Span] = []
    opened: list[int] = []  # places in done
    stretches = [(state, ns) for state, ns in found if state != OUTSIDE]
    for state, nanoseconds in (*stretches, (OUTSIDE, 0)):
        names = [] if state == OUTSIDE else [each.name for each in timer.opened(state) if each.domain == domain]
        common = 0
        while common < min(len(names), len(opened)) and names[common] == done[opened[common]][0]:
            common += 1
        for place in opened[common:]:
            name, since, _ = done[place]
            done[place] = (name, since, now)
        del opened[common:]
        for name in names[common:]:
            opened.append(len(done))
            done.append((name, now, now))
        now += nanoseconds
    return done


def _event(row: int, name: str, begin: int, end: int, about: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    found = {"ph": "X", "pid": 1, "tid": row, "name": name, "ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {**found, "args": about} if about else found


def _about(step: _Step) -> Mapping[str, Any]:
    facts = step.facts
    found: dict[str, Any] = {
        "run": step.run.number,
        "label": step.run.label,
        "batch": facts.batch,
        "tokens": facts.tokens,
        "kv_length": facts.length,
    }
    if facts.drafts is not None:
        found |= {"proposed": sum(facts.drafts.proposed), "accepted": sum(facts.drafts.accepted)}
    return found
