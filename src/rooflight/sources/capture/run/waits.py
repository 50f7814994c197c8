"""What is known of the time between steps: waiting for a loader, evaluating, writing checkpoints."""

from __future__ import annotations

from contextlib import suppress


class Waits:
    """Nanoseconds of each kind so far. What lies within a step is not asked for."""

    def __init__(self, began: int = 0) -> None:
        self.loader = self.evaluation = self.checkpoint = 0
        self.evaluates_since = 0
        self.workers = 0  # of the loader of what is trained on
        self.other_data_since = self._others = 0  # fetched, and no model called since; what its loader took
        self.last_event = began  # when what is known to lie between steps last ended
        self._last = 0  # the id of the data that was fetched last
        self._training: set[int] = set()
        self._fetched: set[int] = set()  # since a step began, or an evaluation
        self._before: set[int] = set()  # that evaluation
        self._firsts: dict[int, list[float]] = {}  # by data, the sum of the first batch of each epoch

    def known(self, now: int) -> tuple[int, int, int]:
        """Loader, evaluation and checkpoint until now."""
        running = max(0, now - self.evaluates_since) if self.evaluates_since else 0
        return self.loader, self.evaluation + running, self.checkpoint

    def trains(self) -> None:
        """What was fetched since the step before, or an evaluation, is trained on: if nothing, what lay before that."""
        self._training = self._fetched or ({self._last} | (self._before if self._last in self._before else set()))
        self._fetched, self._before = set(), set()
        self.other_data_since = self._others = 0

    def evaluates(self, now: int, *, counts: bool = True) -> None:
        """A model is called without gradients. After a step that ``counts``: an evaluation, with its data's loader."""
        if counts and not self.evaluates_since:
            self.evaluates_since = self.other_data_since or now
            self.loader -= self._others
        self._before, self._fetched = self._fetched or self._before, set()
        self.other_data_since = self._others = 0

    def end_evaluation(self, now: int) -> None:
        """What follows is no evaluation."""
        if self.evaluates_since:
            self.evaluation += max(0, now - self.evaluates_since)
            self.evaluates_since, self.last_event = 0, now

    def fetch(self, data: int, now: int, workers: int = 0) -> int:
        """A loader is asked for a batch of the data of this id. Returns when, or 0 in an evaluation: training data ends
        that.
        """
        self._last = data
        if self._last in self._training:
            self.end_evaluation(now)
        elif self._training and not (self.evaluates_since or self.other_data_since):
            self.other_data_since = now
        self._fetched |= set() if self.evaluates_since else {self._last}
        self.workers = self.workers if self.evaluates_since else workers
        return 0 if self.evaluates_since else now

    def fetched(self, begin: int, now: int) -> None:
        """The loader has the batch that it was asked for at ``begin``."""
        if begin:
            self.last_event = now
            self.loader += self.last_event - begin
            self._others += self.last_event - begin if self.other_data_since else 0

    def begins_epoch(self, data: int, batch: object) -> None:
        """A loader of this data gave the first ``batch`` of an epoch."""
        with suppress(Exception):  # a batch of the program's own, whatever that does
            while isinstance(batch, list | tuple | dict):
                batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
            if batch.device.type == "cpu":  # type: ignore[attr-defined]
                self._firsts.setdefault(data, []).append(float(batch.double().sum()))  # type: ignore[attr-defined]

    @property
    def again(self) -> bool:
        """Whether the first batch of what is trained on was the same in each of several epochs."""
        found = [self._firsts.get(data, []) for data in self._training]
        return any(len(sums) > 1 and len(set(sums)) == 1 for sums in found)

    def saved(self, begin: int, now: int) -> None:
        """The checkpoint of ``begin`` is written; within an evaluation it is none of that."""
        if begin:
            self.last_event = now
            self.checkpoint += self.last_event - begin
            self.evaluates_since += self.last_event - begin if self.evaluates_since else 0
