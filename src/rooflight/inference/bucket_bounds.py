"""What buckets must do: recorded steps bounded for a device, beside the measured times of the same buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rooflight.inference.config import Domain
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.time_by_place import UNATTRIBUTED, TimeByPlace, WholeTime, time_by_place, whole_time

if TYPE_CHECKING:
    from rooflight.devices.spec import DeviceSpec
    from rooflight.inference.results import BucketSums
    from rooflight.inference.step_recorder import RecordedStep

NOTHING_RECORDED: Final = (
    "no step was recorded: call add_bounds(model) after the runs, or put some steps into record_steps()"
)
MODEL_ALONE: Final = (
    "add_bounds() records the model alone: record_steps() around steps of the engine records its buckets too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """A recorded step, bounded. In the analysis of a domain the phase of an op is its bucket, so that the groups by
    phase are the buckets, sum to the whole step, and no op is in two.
    """

    batch: int | None
    kv_length: float | None
    by_domain: Mapping[Domain, Analysis]
    whole: bool
    cache_bytes: int | None

    @property
    def analysis(self) -> Analysis:
        """The whole step."""
        return self.by_domain[Domain.MODEL]

    def whole_time(self, measured_s: float | None) -> WholeTime:
        """The whole step beside its bounds."""
        return whole_time(self.analysis, measured_s)

    def beside(self, domain: Domain, sums: BucketSums, *, timed_here: bool) -> TimeByPlace:
        """The buckets of a domain beside their mean times per step; ``timed_here``: on the device of the bounds."""
        analysis = self.by_domain[domain]
        if not timed_here:
            return time_by_place(analysis, "phase")
        seconds = {name: sums.average_ms(ns) / 1e3 for name, ns in sums.exclusive_ns.items()}
        seconds[UNATTRIBUTED] = sums.average_ms(sums.unattributed_ns) / 1e3
        return time_by_place(analysis, "phase", seconds, sums.average_ms(sums.whole_ns) / 1e3)


class RecordedBounds:
    """The bounds of all steps that a profiler recorded. Those of one device: the last that was given."""

    def __init__(self) -> None:
        self.device: DeviceSpec | None = None
        self.steps: list[StepBounds] = []

    def add(self, steps: Iterable[RecordedStep], device: DeviceSpec) -> None:
        """Bound more steps for a device; those of another device are dropped."""
        if self.device != device:
            self.steps.clear()
        self.device = device
        found = {(step.batch, step.kv_length, step.whole): step for step in self.steps}
        for step in steps:
            by_domain = {domain: analyze(session, device) for domain, session in step.sessions.items()}
            found[step.batch, step.kv_length, step.whole] = StepBounds(
                batch=step.batch,
                kv_length=step.kv_length,
                by_domain=by_domain,
                whole=step.whole,
                cache_bytes=step.cache_bytes,
            )
        self.steps = list(found.values())

    def of(self, domain: Domain, batch: int | None, kv_length: float | None) -> StepBounds | str:
        """The recorded step that bounds steps of a batch and a mean KV length: the longest that is no longer, since
        what a step must do grows with the KV length. Where there is none, why.
        """
        if not self.steps:
            return NOTHING_RECORDED
        steps = [step for step in self.steps if step.whole or domain is Domain.MODEL]
        if not steps:
            return MODEL_ALONE
        fitting = [step for step in steps if step.batch == batch and _no_longer(step.kv_length, kv_length)]
        if not fitting:
            of_batch = "an unknown batch" if batch is None else f"batch {batch:,}"
            length = "of unknown KV length" if kv_length is None else f"with a KV length up to {kv_length:,.0f}"
            return f"no step of {of_batch} {length} was recorded"
        return max(fitting, key=lambda step: (step.kv_length or 0.0, step.whole))


def _no_longer(recorded: float | None, measured: float | None) -> bool:
    if recorded is None or measured is None:
        return recorded is measured
    return recorded <= measured
