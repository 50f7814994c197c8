"""``LayerSOLHooks`` and ``sol_profile``: the layers of a model, how long each takes and how long it would need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rooflight.front.device import find_device
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.report import Report
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.sources.capture.record.modules import Models, models_of
from rooflight.studies.tracking.observer import ObservedStep, StepObserver, errors_to
from rooflight.studies.tracking.report import report_of_analysis, report_of_step


class LayerSOLHooks:
    """Hooks on every module of a model. What runs between ``attach`` and ``detach`` is one pass, unless ``step`` cuts
    it into several; the first two, and any that does something new, are recorded op by op, the others only timed.

        hooks = LayerSOLHooks(model)
        hooks.attach()
        for batch in data:
            train(batch)
            hooks.step()
        hooks.detach()
        hooks.print_report()

    ``device`` is a spec or name to bound for; None takes the one that torch would use here (a CPU is calibrated once).
    Raises ValueError for an unknown device, TypeError for what is no model.
    """

    def __init__(self, model: Models, device: DeviceSpec | str | None = None) -> None:
        self._models = models_of(model)
        self._device = None if device is None else find_device(device)
        self._observer: StepObserver | None = None
        self._error: Exception | None = None
        self._last: ObservedStep | None = None
        self._analysis: Analysis | None = None
        self._steps = 0

    @property
    def attached(self) -> bool:
        """Whether the hooks are in place."""
        return self._observer is not None and self._observer.running

    def attach(self) -> LayerSOLHooks:
        """Put the hooks in place, and drop earlier records. Raises RuntimeError if they are there already."""
        if self.attached:
            raise RuntimeError("the hooks are attached already: detach() first")
        self._device = find_device(self._device)
        self._last = self._analysis = self._error = None
        self._steps = 0
        self._observer = StepObserver(self._models, self._device, self._fail)
        self._observer.start()
        return self

    def detach(self) -> None:
        """Take the hooks out; what they recorded stays. Does nothing if they are not in place."""
        if self._observer is None:
            return
        with errors_to(self._fail):
            self._keep(self._observer.finish(self._steps))
        self._observer.stop()  # also what an error inside an op has left

    def step(self) -> None:
        """End a pass and begin the next. Raises RuntimeError if the hooks are not attached."""
        if self._observer is None or not self.attached:
            raise RuntimeError("the hooks are not attached: attach() first")
        with errors_to(self._fail):
            self._keep(self._observer.end_step(self._steps))
        self._steps += 1

    @property
    def analysis(self) -> Analysis:
        """Costs and bounds of the last pass that is known in full. Raises RuntimeError before anything ran."""
        if self._observer is not None and self.attached and self._last is None:
            session = self._observer.so_far()  # of the open pass, the first one
            if session is not None and len(session):
                self._analysis = analyze(session, self._observer.device)
        if self._error is not None:
            raise RuntimeError(f"the hooks were removed after an error: {self._error}") from self._error
        if self._last is not None and self._last.structure is not None:
            return self._last.structure.analysis
        if self._analysis is None:
            raise RuntimeError("nothing was recorded yet: attach(), run the model, then report")
        return self._analysis

    def report(self, top: int = 10) -> Report:
        """The report of the last pass that is known in full. Raises RuntimeError before anything ran."""
        analysis = self.analysis
        title = " and ".join(name or type(model).__name__ for name, model in self._models.items())
        if self._last is None:
            return report_of_analysis(analysis, title=title, top=top)
        return report_of_step(self._last, title="" if self._last.number else title, top=top)

    def print_report(self, top: int = 10) -> None:
        """Print it. Raises RuntimeError before anything ran."""
        from rooflight.reporting.console import print_report

        print_report(self.report(top))

    def _keep(self, steps: list[ObservedStep]) -> None:
        for step in steps:
            if step.tells_more_than(self._last):
                self._last = step

    def _fail(self, error: Exception) -> None:
        self._error = error
        if self._observer is not None:
            self._observer.stop()


@contextmanager
def sol_profile(model: Models, device: DeviceSpec | str | None = None) -> Iterator[LayerSOLHooks]:
    """Profile what runs inside, and have its report afterwards:

        with sol_profile(model) as hooks:
            output = model(tokens)
        hooks.print_report()

    Raises as ``LayerSOLHooks`` does. Hooks are gone afterwards, also after an exception.
    """
    hooks = LayerSOLHooks(model, device).attach()
    try:
        yield hooks
    finally:
        hooks.detach()
