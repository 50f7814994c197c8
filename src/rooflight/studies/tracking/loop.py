"""Speed of light in a training loop: ``initialize_sol`` once, ``log_training_sol`` at the end of each iteration.

Tracking never stops a training run. An error inside it is logged once, tracking takes itself out and the loop goes on.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from rooflight.front.device import find_device
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.report import Report
from rooflight.reporting.writers import write_scalars, writers_in
from rooflight.sources.capture.record.modules import Models, models_of
from rooflight.studies.tracking.observer import ObservedStep, StepObserver, errors_to
from rooflight.studies.tracking.report import report_of_step, scalars_of

DEFAULT_INTERVAL: Final = 100

_log = logging.getLogger("rooflight")


def add_sol_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--rl-enable-sol-tracking``, ``--rl-sol-report-interval`` and ``--rl-sol-device`` to a training script."""
    group = parser.add_argument_group("speed of light")
    group.add_argument(
        "--rl-enable-sol-tracking", action="store_true", help="Track how far each iteration is from the speed of light."
    )
    group.add_argument(
        "--rl-sol-report-interval",
        type=int,
        default=DEFAULT_INTERVAL,
        metavar="N",
        help="Print a report every N iterations, 0 for never. [default: %(default)s]",
    )
    group.add_argument(
        "--rl-sol-device", metavar="NAME", help="Bound for this device (see: rooflight devices). [default: this one]"
    )
    return parser


class Tracker:
    """Tracks one loop. ``initialize_sol`` makes one; make your own to track several, or to read ``last_step``.

    ``log`` ends an iteration. ``close`` takes all hooks out. Raises ValueError for an unknown device and TypeError for
    models that are none, both before anything is touched; after that no method raises.
    """

    def __init__(
        self, model: Models, *, device: DeviceSpec | str | None = None, interval: int = DEFAULT_INTERVAL, top: int = 10
    ) -> None:
        if interval < 0:
            raise ValueError(f"a report every {interval} iterations: give a number from 1 on, or 0 for never")
        spec = find_device(device)
        self.interval, self.top = interval, top
        self.last_step: ObservedStep | None = None
        self._writer: Any = None  # the one given last
        self._broken_writers: set[int] = set()
        self._failed = self._paused = False
        self._observer = StepObserver(models_of(model), spec, self._fail)
        with errors_to(self._fail):
            self._observer.start()

    @property
    def running(self) -> bool:
        """Whether it tracks now: not while paused, after ``close``, or after an error inside."""
        return self._observer.running

    def log(self, iteration: int, writer: Any = None) -> Report | None:
        """End an iteration: write its scalars, and every ``interval`` iterations print a report, which is returned.

        Nothing happens after ``close`` or an error.
        """
        if not self.running:
            if self._failed:
                self._observer.stop()  # an error inside an op leaves the recorder where only now it can be taken out
            return None
        report = None
        with errors_to(self._fail):
            self._writer = writer
            self._take(self._observer.end_step(iteration))
            if self.interval and iteration % self.interval == 0 and self.last_step is not None and _speaks():
                from rooflight.reporting.console import print_report

                report = self.report()
                print_report(report)
                sys.stdout.flush()
            self._observer.restart_clock()
        return report

    def report(self) -> Report:
        """The report of the last step that is known in full. Raises RuntimeError before there is one."""
        if self.last_step is None:
            raise RuntimeError("no iteration has ended yet: call log_training_sol at the end of each")
        return report_of_step(self.last_step, top=self.top)

    def pause(self) -> None:
        """Drop the open iteration and track nothing until ``resume``: for evaluations and checkpoints in a loop."""
        if self.running:
            self._paused = True
            with errors_to(self._fail):
                self._observer.pause()

    def resume(self) -> None:
        """Begin an iteration anew. Does nothing unless paused."""
        if self._paused:
            self._paused = False
            with errors_to(self._fail):
                self._observer.resume()

    def close(self) -> None:
        """Write what the device had not finished yet, and take hooks and recording out. Can be called again."""
        self._paused = False
        with errors_to(self._fail):
            self._take(self._observer.remaining())
        self._observer.stop()

    def _take(self, steps: list[ObservedStep]) -> None:
        for step in steps:
            if step.tells_more_than(self.last_step):
                self.last_step = step
            self._write(step, self._writer)

    def _write(self, step: ObservedStep, writer: Any) -> None:
        writers = [one for one in writers_in(writer) if id(one) not in self._broken_writers]
        if not writers:
            return
        scalars = scalars_of(step)
        for one in writers:
            try:
                write_scalars(one, scalars, step.number)
            except Exception as error:
                self._broken_writers.add(id(one))
                _log.warning("rooflight: no more scalars to %s: %s", type(one).__name__, error)

    def _fail(self, error: Exception) -> None:
        self._paused = False
        if not self._failed:
            self._failed = True
            _log.warning(
                "rooflight: tracking ended after an error: %s: %s", type(error).__name__, error, exc_info=error
            )
        try:
            self._observer.stop()
        except Exception:
            _log.debug("rooflight: removing hooks failed", exc_info=True)


_tracker: Tracker | None = None
_warned = False


def initialize_sol(model: Models, args: Any = None, *, device: DeviceSpec | str | None = None) -> Tracker | None:
    """Track the loop that trains ``model``: a module, or several in a dict (policy, reference) or list.

    ``args`` is what a parser with ``add_sol_arguments`` returned, a mapping, or None for tracking with defaults.
    Without ``rl_enable_sol_tracking`` in it nothing is tracked, and None is returned. A second call ends the first
    tracking.
    Raises TypeError for models that are none and ValueError for an unknown device: mistakes made before training.
    """
    global _tracker, _warned
    settings: Mapping[str, Any] = args if isinstance(args, Mapping) else vars(args) if args is not None else {}
    shutdown_sol()
    if args is not None and not settings.get("rl_enable_sol_tracking", False):
        _warned = True  # it was declined, which is no mistake to warn of
        return None
    interval = settings.get("rl_sol_report_interval")
    _tracker = Tracker(
        model,
        device=device or settings.get("rl_sol_device"),
        interval=DEFAULT_INTERVAL if interval is None else int(interval),
    )
    return _tracker


def log_training_sol(iteration: int, writer: Any = None) -> Report | None:
    """End an iteration of the loop that ``initialize_sol`` tracks: scalars to ``writer`` (a TensorBoard SummaryWriter,
    a W&B run, a list of them, or None), a report at every interval, and a fresh start for the next iteration.

    Returns the report if one was printed. Never raises; before ``initialize_sol`` it logs one warning and does nothing.
    """
    global _warned
    if _tracker is None:
        if not _warned:
            _warned = True
            _log.warning("rooflight: log_training_sol does nothing before initialize_sol(model, args)")
        return None
    return _tracker.log(iteration, writer)


def shutdown_sol() -> None:
    """End tracking and take all hooks out. Does nothing if nothing is tracked."""
    global _tracker
    if _tracker is not None:
        _tracker.close()
        _tracker = None


def _speaks() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
