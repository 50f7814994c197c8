"""Scalars to TensorBoard and W&B: whatever a training loop already has open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def writers_in(writer: Any) -> tuple[Any, ...]:
    """One writer, several, or none, as a tuple. Raises TypeError for what can take no scalars.

    A writer is anything with ``add_scalar(name, value, step)`` (TensorBoard's ``SummaryWriter``) or with
    ``log(dict, step=...)`` (a W&B run, or the ``wandb`` module).
    """
    if writer is None:
        return ()
    if any(callable(getattr(writer, name, None)) for name in ("add_scalar", "log")):
        return (writer,)
    if isinstance(writer, Iterable) and not isinstance(writer, str | bytes | Mapping):
        return tuple(one for item in writer for one in writers_in(item))
    raise TypeError(f"a {type(writer).__name__} takes no scalars: pass a SummaryWriter, a W&B run, or a list of them")


def write_scalars(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    """Write all scalars under one step. Whatever the writer raises passes through; ValueError for a closed one."""
    if hasattr(writer, "add_scalar"):
        if type(writer).__module__ == "torch.utils.tensorboard.writer":
            _write_summary(writer, scalars, step)
            return
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        return
    run = getattr(writer, "run", None) or writer
    if getattr(run, "_is_finished", False):  # asked for its step, it waits 30 s for an answer
        raise ValueError("this W&B run is finished")
    reached = getattr(run, "step", None)
    if isinstance(reached, int) and reached > step:  # W&B drops what comes late under its own step
        writer.log({**scalars, "sol/iteration": step})
    else:
        writer.log(dict(scalars), step=step)


def _write_summary(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    """All scalars in one event: ``add_scalar`` takes seventy times as long, more than tracking itself."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    if writer.file_writer is None:
        raise ValueError("this SummaryWriter is closed")
    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
    writer.file_writer.add_summary(Summary(value=values), step)
