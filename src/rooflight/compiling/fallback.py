"""What Dynamo does meanwhile with frames that it cannot trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

Call = Callable[..., Any]

_LOUD: Final = ("torch._dynamo.convert_frame", "torch._subclasses.fake_tensor")
_KEPT: Final = 8


@contextmanager
def falling_back(reasons: list[str]) -> Iterator[None]:
    """Frames that Dynamo cannot trace run eagerly in the block, instead of raising in the program. Why is added to
    ``reasons``, in a line each, instead of being logged with a stack.
    """
    from torch._dynamo import config

    def quiet(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            reasons.extend(_error_in(record.getMessage()))
            del reasons[:-_KEPT]
            return False
        return True

    loggers = [logging.getLogger(name) for name in _LOUD]
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        with config.patch(suppress_errors=True):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


def guarded(compiled: Call, eager: Call) -> Call:
    """The compiled function. A call that Dynamo cannot trace runs eagerly: errors of the program stay its own."""
    from torch._dynamo.exc import TorchDynamoException

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except TorchDynamoException:
            return eager(*args, **kwargs)

    return call


def _error_in(message: str) -> list[str]:
    """The line of a traceback that names the error."""
    lines = [line.strip() for line in message.splitlines()]
    return [line for line in lines if "Error" in line.split(":")[0] or line.startswith("torch._dynamo.exc.")][-1:]
