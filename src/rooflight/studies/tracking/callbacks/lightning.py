"""``SolCallback`` for the ``Trainer`` of Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.sources.capture.phases import phase
from rooflight.studies.tracking.callbacks.watch import TrainerWatch
from rooflight.studies.tracking.loop import DEFAULT_INTERVAL, Tracker

_BETWEEN = "train/data"


class SolCallback(Callback):
    """Tracks each optimizer step, with all its micro-batches; validation and checkpoints do not count, and a step that
    validation interrupts between two micro-batches is dropped.

        trainer = Trainer(callbacks=[SolCallback()], ...)

    Scalars go to the trainer's loggers. Phases are ``train/forward``, ``train/backward``, ``train/optimizer`` and, from
    one batch to the next, ``train/data``; a phase of your own inside ``training_step`` counts instead.

    A report is printed every ``interval`` steps, 0 for never. ``device`` is a spec or name to bound for; None takes the
    one that torch would use here (a CPU is calibrated once). Raises ValueError for an unknown device or interval; once
    training has begun nothing is raised.
    """

    def __init__(
        self, *, device: DeviceSpec | str | None = None, interval: int = DEFAULT_INTERVAL, top: int = 10
    ) -> None:
        self._watch = TrainerWatch(device=device, interval=interval, top=top)
        self._phases: list[phase] = []  # those open: from one batch to the next, and what a batch does within it
        self._steps = 0  # optimizer steps done, as the trainer counts
        self._writers: list[Any] = []
        self._within = False  # whether some micro-batches of a step are done

    @property
    def tracker(self) -> Tracker | None:
        """What tracks the training, or tracked the last one; None before the first."""
        return self._watch.tracker

    def close(self) -> None:
        """End tracking, so that torch is as before. Does nothing if nothing is tracked."""
        self._leave_phases()
        self._watch.close()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to track, from the first batch on."""
        self._steps, self._within = trainer.global_step, False
        self._writers = [
            # TensorBoard's writer takes all scalars at once, its logger one by one
            logger.experiment if isinstance(logger, TensorBoardLogger) else _Logger(logger)
            for logger in trainer.loggers
        ]
        self._watch.start(pl_module)
        self._enter(_BETWEEN)

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a step, unless one goes on."""
        if not self._within:
            self._watch.begin_iteration()
        self._within_batch("train/forward")

    def on_before_backward(self, *_: Any) -> None:
        """The loss is known."""
        self._within_batch("train/backward")

    def on_after_backward(self, *_: Any) -> None:
        """Gradients are known; what follows works on them."""
        self._within_batch("train/optimizer")

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End a step, if the batch was the last of one."""
        self._leave_phases(all_but=1)
        self._within = trainer.global_step == self._steps
        if not self._within:
            self._steps = trainer.global_step
            self._watch.end_iteration(self._steps, self._writers)

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Validation is no part of training."""
        if not trainer.sanity_checking:
            self._watch.interrupt()

    def on_save_checkpoint(self, *_: Any) -> None:
        """Nor is a checkpoint."""
        self._watch.interrupt()

    def on_train_end(self, *_: Any) -> None:
        """End tracking."""
        self.close()

    def on_exception(self, *_: Any) -> None:
        """End tracking, also when training is interrupted."""
        self.close()

    def teardown(self, *_: Any, **__: Any) -> None:
        """End tracking, if nothing else has."""
        self.close()

    def _within_batch(self, name: str) -> None:
        if self._phases:
            self._leave_phases(all_but=1)
            self._enter(name)

    def _enter(self, name: str) -> None:
        self._phases.append(phase(name).__enter__())

    def _leave_phases(self, all_but: int = 0) -> None:
        while len(self._phases) > all_but:
            self._phases.pop().__exit__()


class _Logger:
    """A logger of Lightning's as a writer: its own method keeps to the trainer's axis, and to rank 0."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Write a step's figures."""
        self._logger.log_metrics(scalars, step)
