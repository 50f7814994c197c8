"""StandIn: a function that stands in the place of another, for as long as a profiler times that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler

Made = Callable[[Callable[..., Any], Sequence["Profiler"]], Callable[..., Any]]
"""Makes what stands in for a function, for all the profilers in a list that changes."""

_shared: Final[dict[tuple[Any, str], tuple[Any, Any, list[Profiler]]]] = {}
"""By owner and name: the function, what stands in for it, and the profilers that it serves."""


class StandIn:
    """Puts what ``make`` makes in the place of ``name`` in ``owner``, a module or a class.

    One serves all profilers, so that they can be removed in any order; the first one makes it.
    """

    def __init__(self, owner: Any, name: str, profiler: Profiler, make: Made) -> None:
        self.key = (owner, name)
        self._profiler = profiler
        if self.key not in _shared:
            profilers: list[Profiler] = []
            function = vars(owner)[name]
            stand_in = make(function, profilers)
            stand_in.__wrapped__ = function  # type: ignore[attr-defined]
            _shared[self.key] = (function, stand_in, profilers)
            setattr(owner, name, stand_in)
        _shared[self.key][2].append(profiler)

    def remove(self) -> None:
        """Put the function back once no profiler times it."""
        function, stand_in, profilers = _shared[self.key]
        profilers.remove(self._profiler)
        if profilers:
            return
        owner, name = self.key
        del _shared[self.key]
        if vars(owner).get(name) is stand_in:  # else somebody else's is around it
            setattr(owner, name, function)
