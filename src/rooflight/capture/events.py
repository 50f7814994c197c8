"""Kineto's events as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One op or kernel in Kineto's trace. ``correlation`` is the same for a kernel and the op that launched it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    correlation: int
    on_device: bool


def events_of(results: Any) -> list[Event]:
    """Kineto's raw events, without torch's FunctionEvents, which take longer to make than the run takes."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    found = []
    for raw in results.events():
        on_device = raw.device_type() != DeviceType.CPU
        start = raw.start_ns()
        found.append(
            Event(
                raw.name(),
                start,
                start + raw.duration_ns(),
                raw.start_thread_id(),
                raw.linked_correlation_id() if on_device else raw.correlation_id(),
                on_device,
            )
        )
    return found
