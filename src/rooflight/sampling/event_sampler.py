"""Samples a user's function: it is profiled, and the events that targets name are its times."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from rooflight.operators.operator import Operator, Shape
from rooflight.records.samples import Row, Status
from rooflight.sampling.event_times import NoSuchEventError, Target, Trace, read, times_s
from rooflight.sampling.profiling import profiler
from rooflight.sampling.runner import FEWEST, Sampled, failure_of, row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTiming:
    """How a function is timed, in estimate-train-time's words.

    ``targets`` name the events of each direction. A shape is run ``active`` times under the profiler, after ``wait``
    calls outside the profiler and ``warmup`` calls that the profiler drops; those are of the warm-up ``shape``.
    """

    targets: tuple[Target, ...]
    wait: int
    warmup: int
    active: int
    shape: Shape


class EventSampler:
    """Times a function on one device, ``"cpu"`` or ``"cuda:1"`` and the like, by its profiler's events."""

    def __init__(self, device: str, dtype: str, timing: EventTiming) -> None:
        self.device, self.dtype, self._timing = device, dtype, timing
        self.kind: str = "cuda" if device.startswith("cuda") else "cpu"

    def warm_up(self, operator: Operator, shape: Shape) -> None:
        """Profile a shape without keeping anything of it.

        Raises NoSuchEventError for targets that name nothing: no other shape would have such events. A shape that
        cannot run is left alone.
        """
        try:
            trace = self._trace(operator, shape)
        except Exception:  # the rows will say what is wrong with each shape
            return
        for target in self._timing.targets:
            times_s(trace, target)

    def row(self, operator: Operator, shape: Shape) -> Row:
        """Sample a shape. Never raises for what a shape can do wrong: that is the row's status."""
        return row_of(shape, lambda: self._outcome(operator, shape))

    def _outcome(self, operator: Operator, shape: Shape) -> Sampled:
        if why := operator.refusal(shape):
            return Status.REFUSED, {}, why
        try:
            trace = self._trace(operator, shape)
            found = [times_s(trace, target) for target in self._timing.targets]
        except NoSuchEventError as error:
            return Status.FAILED, {}, str(error)
        except ValueError as error:  # what estimate-train-time's functions raise for sizes that cannot be divided
            return Status.REFUSED, {}, str(error)
        except Exception as error:  # what a kernel refuses shows only when it runs
            status, note = failure_of(error, self.kind)
            return status, {}, note
        samples = dict(zip(operator.directions, found, strict=True))
        least = min(len(times) for times in found)
        if least < FEWEST:
            return Status.FAILED, samples, f"{least} of {self._timing.active} calls have all events of the targets"
        return Status.OK, samples, ""

    def _trace(self, operator: Operator, shape: Shape) -> Trace:
        import torch

        timing = self._timing
        warm, timed = (operator.prepare(torch, each, self.dtype, self.device).forward for each in (timing.shape, shape))
        for _ in range(timing.wait):
            warm()
        skipped = max(1, timing.warmup)  # without a step to drop the profiler's start would fall into the first one
        with profiler(self.device, warmup=skipped, active=timing.active) as profiled:
            for number in range(skipped):
                if number < timing.warmup:
                    warm()
                profiled.step()
            for _ in range(timing.active):
                timed()
                profiled.step()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiled.export_chrome_trace(str(path))
            return read(path)
