"""What is known of the time between steps: waiting for a loader, evaluating, writing checkpoints."""

from __future__ import annotations

from time import perf_counter_ns


class Waits:
    """Nanoseconds of each kind so far. What lies within a step is not asked for."""

    def __init__(self) -> None:
        self.loader = self.evaluation = self.checkpoint = 0
        self.evaluates_since = 0
        self.last_event = perf_counter_ns()  # when what is known to lie between steps last ended
        self._data: object = None
        self._training_data: object = None

    def known(self, now: int) -> tuple[int, int, int]:
        """Loader, evaluation and checkpoint until now."""
        running = max(0, now - self.evaluates_since) if self.evaluates_since else 0
        return self.loader, self.evaluation + running, self.checkpoint

    def trains(self) -> None:
        """The batch that was fetched last is trained on."""
        self._training_data = self._data

    def evaluates(self, now: int) -> None:
        """Evaluation goes on, or begins now."""
        self.evaluates_since = self.evaluates_since or now

    def end_evaluation(self, now: int) -> None:
        """What follows is no evaluation."""
        if self.evaluates_since:
            self.evaluation += max(0, now - self.evaluates_since)
            self.evaluates_since, self.last_event = 0, now

    def fetch(self, data: object, now: int) -> int:
        """A loader is asked for a batch of ``data``: other than is trained on is evaluated. Returns when, or 0 then."""
        if data is self._training_data:
            self.end_evaluation(now)
        elif self._training_data is not None:
            self.evaluates(now)
        self._data = data
        return 0 if self.evaluates_since else now

    def fetched(self, begin: int) -> None:
        """The loader has the batch that it was asked for at ``begin``."""
        if begin:
            self.last_event = perf_counter_ns()
            self.loader += self.last_event - begin

    def saved(self, begin: int) -> None:
        """The checkpoint of ``begin`` is written; within an evaluation it is none of that."""
        if begin:
            now = perf_counter_ns()
            self.checkpoint += now - begin
            if self.evaluates_since:
                self.evaluates_since += now - begin
            self.last_event = now
