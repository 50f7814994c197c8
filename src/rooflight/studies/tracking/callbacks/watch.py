"""TrainerWatch: what every framework's callback does, whatever the framework calls its hooks."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from rooflight.front.device import find_device
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.sources.capture.record.modules import Models
from rooflight.studies.tracking.loop import DEFAULT_INTERVAL, Tracker

_log = logging.getLogger("rooflight")


class TrainerWatch:
    """Tracks a trainer's iterations, which can be interrupted: what runs between ``interrupt`` and the next
    ``begin_iteration`` is part of none, and an iteration that is interrupted in its midst is dropped.

    Raises ValueError for an unknown device or interval; after that no method raises.
    """

    def __init__(
        self, *, device: DeviceSpec | str | None = None, interval: int = DEFAULT_INTERVAL, top: int = 10
    ) -> None:
        if interval < 0:
            raise ValueError(f"a report every {interval} iterations: give a number from 1 on, or 0 for never")
        self._device = None if device is None else find_device(device)
        self._interval, self._top = interval, top
        self.tracker: Tracker | None = None
        self._left_behind: weakref.finalize[Any, TrainerWatch] | None = None

    def start(self, models: Models) -> None:
        """Track a training of ``models`` from its first iteration on; one that ended without a word is ended first."""
        self.close()
        try:
            self.tracker = Tracker(models, device=self._device, interval=self._interval, top=self._top)
        except Exception as error:  # a machine that cannot be calibrated must not keep a training from beginning
            _log.warning("rooflight: nothing is tracked: %s: %s", type(error).__name__, error, exc_info=error)
            return
        # a trainer that raised and was thrown away leaves nothing either
        self._left_behind = weakref.finalize(self, self.tracker.close)
        self._left_behind.atexit = False
        self.tracker.pause()

    def begin_iteration(self) -> None:
        """An iteration begins here, if none is open."""
        if self.tracker is not None:
            self.tracker.resume()

    def end_iteration(self, number: int, writer: Any = None) -> None:
        """An iteration ends and the next begins."""
        if self.tracker is not None:
            self.tracker.log(number, writer)

    def interrupt(self) -> None:
        """Something begins that is no part of training."""
        if self.tracker is not None:
            self.tracker.pause()

    def close(self) -> None:
        """End tracking, so that torch is as before. Does nothing if nothing is tracked."""
        if self.tracker is not None:
            self.tracker.close()
        if self._left_behind is not None:
            self._left_behind.detach()
