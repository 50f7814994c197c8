"""What is asked of Dynamo: to run eagerly what it cannot trace, and to forget compiled frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Final


def compilation() -> Any:
    """The id of what Dynamo compiles now, which the entry of the cache will have; None outside of Dynamo."""
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def drop(compilations: Set[Any]) -> None:
    """Take the entries of these compilations out of Dynamo's cache, so that their frames are compiled once more."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for code in [found for known in input_codes.seen if (found := known()) is not None]:
        for entry in _debug_get_cache_entry_list(code):
            manager = entry.guard_manager
            if entry.compile_id in compilations and not isinstance(manager, DeletedGuardManagerWrapper):
                state = manager.extra_state
                if state is not None:
                    state.invalidate(entry, DeletedGuardManagerWrapper("Rooflight did not compile it"))


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
