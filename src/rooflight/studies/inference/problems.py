"""Problems: what could not be measured as the program meant, as sentences with how often each came up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

_MOST: Final = 64
_MORE: Final = "more kinds of problems came up than are listed"

_log = logging.getLogger("rooflight")

P = ParamSpec("P")
T = TypeVar("T")


class Problems:
    """Each is logged when it first comes up, and counted from then on."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def note(self, text: str, times: int = 1) -> None:
        """So many more of what ``text`` says."""
        text = text[:500]
        if text not in self._counts:
            if len(self._counts) >= _MOST:
                text = _MORE
            if text not in self._counts:
                _log.warning("rooflight: %s", text)
        self._counts[text] = self._counts.get(text, 0) + times

    def error(self, where: str, error: Exception) -> None:
        """An exception that must not reach the engine."""
        _log.debug("rooflight: %s", where, exc_info=error)
        self.note(f"{where}: {type(error).__name__}: {error}")

    @property
    def counts(self) -> dict[str, int]:
        """How often each came up, in the order of first times."""
        return dict(self._counts)


def guarded(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T | None]:
    """A method of what has ``problems``, whose errors are problems, and go no further. Arguments that it does not take
    are the caller's error, and raise TypeError.
    """

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise  # the method was never entered
            self.problems.error(method.__name__, error)
            return None

    return call  # type: ignore[return-value]
