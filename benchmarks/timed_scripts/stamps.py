"""The clock of the scripts beside it: what their steps take, written to the file that STAMPS names."""

import json
import os
import time
from pathlib import Path


class Stamps:
    """Nanoseconds of each iteration (from one step's end to the next one's), of each step and of waiting for data."""

    def __init__(self) -> None:
        self.imported = time.time()
        self.ends: list[int] = []
        self.cpu_ends: list[int] = []
        self.steps: list[int] = []
        self.waits: list[int] = []
        self._begin = self._asked = 0

    def asks(self) -> None:
        self._asked = time.perf_counter_ns()

    def begins(self) -> None:
        self._begin = time.perf_counter_ns()

    def ended(self) -> None:
        now = time.perf_counter_ns()
        self.ends.append(now)
        self.cpu_ends.append(time.thread_time_ns())
        self.steps.append(now - self._begin)
        if self._asked:
            self.waits.append(self._begin - self._asked)

    def write(self) -> None:
        Path(os.environ["STAMPS"]).write_text(
            json.dumps(
                {
                    "imported": self.imported,
                    "ended": time.time(),
                    "iterations_ns": [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)],
                    "cpu_ns": [b - a for a, b in zip(self.cpu_ends, self.cpu_ends[1:], strict=False)],
                    "steps_ns": self.steps,
                    "waits_ns": self.waits,
                }
            )
        )
