"""Lines of the user's own code that call ops, found on the stack at each op."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final

from torch.autograd import graph

from rooflight.records.account import NO_PLACE, Place
from rooflight.sources.capture.own_code import is_users, place_at

NO_LINE: Final = 0
_LIBRARY, _OWN, _ENGINE = range(3)


class CallingLines:
    """Numbers of lines of the user's own code; ``NO_LINE`` is none."""

    def __init__(self) -> None:
        # By id of code, all of which is kept: code objects hash all that they hold.
        self._kinds: dict[int, int] = {id(graph._engine_run_backward.__code__): _ENGINE}
        self._codes: list[CodeType] = []
        self._numbers: dict[tuple[int, int], int] = {}  # by id of code and instruction
        self._places: dict[Place, int] = {NO_PLACE: NO_LINE}

    def running(self, frame: FrameType | None) -> int:
        """The innermost line of the user's own from this frame outwards, within the backward pass if that is running:
        outside of it is the line that called ``backward``.
        """
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = kinds[id(code)] = _OWN if is_users(code.co_filename) else _LIBRARY
                self._codes.append(code)
            if kind:
                key = id(code), frame.f_lasti
                number = self._numbers.get(key) if kind == _OWN else NO_LINE
                return self._meet(key, code) if number is None else number
            frame = frame.f_back
        return NO_LINE

    def _meet(self, key: tuple[int, int], code: CodeType) -> int:
        number = self._places.setdefault(place_at(code, key[1]), len(self._places))
        self._numbers[key] = number
        return number

    @property
    def places(self) -> tuple[Place, ...]:
        """The lines by their numbers."""
        return tuple(self._places)
