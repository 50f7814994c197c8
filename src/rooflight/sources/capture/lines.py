"""Lines of the user's own code that call ops, found on the stack at each op."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final

from msgspec import structs
from torch.autograd import graph

from rooflight.records.account import NO_PLACE, Place
from rooflight.sources.capture.own_code import is_users, place_at

NO_LINE: Final = 0
_LIBRARY, _OWN, _ENGINE, _COMPILER = 1, 2, 3, 4
_CALLS_COMPILED: Final = ("torch/_dynamo/eval_frame.py", "compile_wrapper")
"""Of torch: what calls a compiled function, or while that is recorded the original."""
_CALL: Final = 4  # frames at most from a function to its caller: a module has two between


class CallingLines:
    """Numbers of lines of the user's own code; ``NO_LINE`` is none."""

    def __init__(self) -> None:
        # By id of code, all of which is kept: code objects hash all that they hold.
        self._kinds: dict[int, int] = {id(graph._engine_run_backward.__code__): _ENGINE}
        self._codes: list[CodeType] = []
        # By id of code and instruction, the caller's too, and whether compiled code is between them and the op.
        self._numbers: dict[tuple[int, int, int, int, bool], int] = {}
        self._places: dict[Place, int] = {NO_PLACE: NO_LINE}

    def running(self, frame: FrameType | None) -> int:
        """The innermost line of the user's own from this frame outwards, within the backward pass if that is running:
        outside of it is the line that called ``backward``.
        """
        kinds, compiled = self._kinds, False
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self._meet(code)
            if kind == _COMPILER:
                compiled = True
            elif kind != _LIBRARY:
                return self._number(code, frame, compiled) if kind == _OWN else NO_LINE
            frame = frame.f_back
        return NO_LINE

    def _meet(self, code: CodeType) -> int:
        self._codes.append(code)
        file, name = _CALLS_COMPILED
        kind = _OWN if is_users(code.co_filename) else _LIBRARY
        if code.co_name == name and code.co_filename.endswith(file):
            kind = _COMPILER
        self._kinds[id(code)] = kind
        return kind

    def _is_compiled(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if (self._kinds.get(id(frame.f_code)) or self._meet(frame.f_code)) == _COMPILER:
                return True
            frame = frame.f_back
        return False

    def _number(self, code: CodeType, frame: FrameType, compiled: bool) -> int:
        caller, kinds = frame.f_back, self._kinds
        for _ in range(_CALL):
            if caller is None or (kinds.get(id(caller.f_code)) or self._meet(caller.f_code)) == _OWN:
                break
            caller = caller.f_back
        else:
            caller = None
        outer = (0, 0) if caller is None else (id(caller.f_code), caller.f_lasti)
        key = id(code), frame.f_lasti, *outer, compiled
        number = self._numbers.get(key)
        if number is None:
            place = place_at(code, frame.f_lasti, caller.f_code if caller is not None else None, outer[1])
            if compiled or self._is_compiled(frame):
                place = structs.replace(place, compiled=True)
            number = self._numbers[key] = self._places.setdefault(place, len(self._places))
        return number

    @property
    def places(self) -> tuple[Place, ...]:
        """The lines by their numbers."""
        return tuple(self._places)
