"""``SolCallback`` for the ``Trainer`` of transformers and what is built on it (TRL)."""

from __future__ import annotations

import sys
from typing import Any

from transformers import Trainer, TrainerCallback

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.studies.tracking.callbacks.watch import TrainerWatch
from rooflight.studies.tracking.loop import DEFAULT_INTERVAL, Tracker


class SolCallback(TrainerCallback):
    """Tracks each optimizer step, with all its micro-batches; evaluations and checkpoints between them do not count.

        trainer = Trainer(...)
        with SolCallback(trainer):
            trainer.train()

    So the trainer's own TensorBoard and W&B get the scalars, and torch is left clean if ``train`` raises, of which
    transformers tells no callback. ``Trainer(callbacks=[SolCallback()])`` works too: it writes to ``writer`` and to the
    W&B run that is open, and after an exception the next ``train``, ``close`` or the end of the callback cleans up.

    A report is printed every ``interval`` steps, 0 for never. ``device`` is a spec or name to bound for; None takes the
    one that torch would use here (a CPU is calibrated once). Raises ValueError for an unknown device or interval; once
    training has begun nothing is raised.
    """

    def __init__(
        self,
        trainer: Trainer | None = None,
        *,
        writer: Any = None,
        device: DeviceSpec | str | None = None,
        interval: int = DEFAULT_INTERVAL,
        top: int = 10,
    ) -> None:
        self._trainer = trainer
        self._watch = TrainerWatch(device=device, interval=interval, top=top)
        self._writer, self._run = writer, _OpenRun()

    @property
    def tracker(self) -> Tracker | None:
        """What tracks the training, or tracked the last one; None before the first."""
        return self._watch.tracker

    def close(self) -> None:
        """End tracking, so that torch is as before. Does nothing if nothing is tracked."""
        self._watch.close()

    def __enter__(self) -> SolCallback:
        if self._trainer is not None and self not in self._trainer.callback_handler.callbacks:
            self._trainer.add_callback(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._trainer is not None:
            self._trainer.remove_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin to track, from the first step on."""
        self._watch.start(kwargs["model"])

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin a step, after an evaluation or at the start; otherwise it began where the last ended."""
        self._watch.begin_iteration()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step; the trainer calls this once for all micro-batches."""
        self._watch.end_iteration(state.global_step, [self._writer, *self._boards(), self._run])
        if control.should_training_stop:
            self.close()  # the trainer's writers are still open here, unlike in on_train_end
        self._interrupt_for(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """An evaluation at the end of an epoch does not count."""
        self._interrupt_for(control)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """An evaluation that nobody announced: the step in which it ran is dropped."""
        self._watch.interrupt()

    def on_save(self, *_: Any, **__: Any) -> None:
        """A checkpoint that nobody announced does not count either."""
        self._watch.interrupt()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End tracking."""
        self.close()

    def _boards(self) -> list[Any]:
        callbacks = self._trainer.callback_handler.callbacks if self._trainer is not None else ()
        return [getattr(callback, "tb_writer", None) for callback in callbacks]

    def _interrupt_for(self, control: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._watch.interrupt()


class _OpenRun:
    def log(self, scalars: dict[str, float], step: int) -> None:
        """Write a step's figures."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not None:
            # the trainer's own axis: W&B's step counts calls, and drops what comes late
            run.log({**scalars, "train/global_step": step})
