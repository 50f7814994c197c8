"""``FunctionalPatcher``: every torch function a program calls, in modules or outside."""

from __future__ import annotations

from weakref import ref

from rooflight.front.device import find_device
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.report import Report
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.sources.capture.record.modules import Models, models_of
from rooflight.sources.capture.record.recorder import record
from rooflight.studies.tracking.report import report_of_analysis


class FunctionalPatcher:
    """Captures ``torch.*``, ``torch.nn.functional.*`` and the methods of tensors between ``patch`` and ``unpatch``,
    with their backward passes. It replaces no function: torch's own modes report the calls, so nothing is left behind.

    ``device`` is a spec or name to bound for; None takes the one that torch would use here (a CPU is calibrated once).
    Raises ValueError for an unknown device.
    """

    def __init__(self, device: DeviceSpec | str | None = None) -> None:
        self._device = None if device is None else find_device(device)
        self._recording: record | None = None
        self._open = False
        self._error: Exception | None = None
        self._models: list[Models] = []

    def patch(self) -> FunctionalPatcher:
        """Begin to capture, and forget what was captured before. Raises RuntimeError if it has begun."""
        if self._open:
            raise RuntimeError("patched already: unpatch() first")
        self._device = find_device(self._device)
        self._error = None
        me = ref(self)  # torch holds the recording: a patcher that is forgotten must not live on in it

        def fail(error: Exception) -> None:
            if (patcher := me()) is not None:
                patcher._fail(error)

        recording = record(functions=True, times=self._device.kind == "cpu", on_error=fail)
        recording.__enter__()
        self._recording, self._open = recording, True
        for model in self._models:
            recording.name_modules(model)
        return self

    def unpatch(self) -> None:
        """Stop capturing; what was captured stays. Does nothing if it has not begun."""
        if self._recording is None:
            return
        if self._error is not None:
            self._recording.abandon()  # an error inside an op leaves it where only now it can be taken out
        elif self._open:
            self._recording.__exit__()
        self._open = False

    def register_model(self, model: Models) -> None:
        """Give the modules of ``model`` their qualified names, before or after ``patch``. Raises TypeError for what is
        no model.
        """
        models_of(model)
        if self._open and self._recording is not None:
            self._recording.name_modules(model)
        self._models.append(model)

    def analyze(self, device: DeviceSpec | str | None = None) -> Analysis:
        """Costs and bounds of what was captured so far, on another ``device`` than the patcher's if one is given.
        Raises RuntimeError before ``patch``, and after an error of the patcher's own, which ended it and not the
        program; ValueError for an unknown device.
        """
        if self._error is not None:
            raise RuntimeError(f"the patcher was removed after an error: {self._error}") from self._error
        if self._recording is None or self._device is None:
            raise RuntimeError("nothing was captured: patch(), run your program, then analyze()")
        return analyze(self._recording.so_far(), find_device(device or self._device))

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self._recording is not None:
            self._recording.abandon()

    def report(self, top: int = 10) -> Report:
        """The report of what was captured so far. Raises RuntimeError before ``patch``."""
        return report_of_analysis(self.analyze(), title="functions", top=top)

    def get_summary(self, top: int = 10) -> str:
        """The report as text. Raises RuntimeError before ``patch``."""
        from rooflight.reporting.console import plain_text

        return plain_text(self.report(top))
