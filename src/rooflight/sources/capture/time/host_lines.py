"""Host lines: a statistical sampler of the thread that runs a step, and whether it worked or slept.

py-spy needs rights of its own, and pyinstrument does not know a waiting thread from a working one: this one samples by
the thread's CPU clock too. It runs in steps of its own; those that are timed are not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from dis import opmap
from importlib import import_module
from math import inf
from types import CodeType, FrameType
from typing import Any, Final

from msgspec import structs

from rooflight.records.account import Place
from rooflight.records.timeline import HostLine, Within
from rooflight.sources.capture import own_code
from rooflight.sources.capture.own_code import function_of, is_of_tensors, is_users, place_at
from rooflight.sources.capture.time.ticks import Ticks

INTERVAL_S: Final = 1e-3
LEAST_S: Final = 0.1
"""Steps are sampled for at least so long."""
_HARDLY: Final = 0.25  # of its time: a line that seems to sleep less does not, the rest is chance
_MOST_LINES: Final = 12
_MOST_STEPS: Final = 50

_WITHIN: Final = (
    ("importlib", Within.IMPORTING),
    ("multiprocessing/popen_", Within.STARTING),
    ("torch/_dynamo/convert_frame.py", Within.COMPILING),
    ("torch/_inductor/compile", Within.COMPILING),
    ("torch/utils/data/", Within.LOADER),
    ("torch/distributed/", Within.COLLECTIVES),
    ("torch/optim/", Within.OPTIMIZER),
    ("torch/serialization.py", Within.SAVING),
    ("torch/utils/checkpoint.py", Within.CHECKPOINTING),
    ("torch/autograd/", Within.BACKWARD),
    ("multiprocessing/", Within.PROCESS),
    *((part, Within.TEXT) for part in ("torch/_tensor_str.py", "/logging/", "/json/", "arrayprint.py", "/tqdm/")),
    *((part, Within.FILES) for part in ("npyio", "/csv.py", "/zipfile", "/gzip.py", "/tarfile.py", "/pathlib")),
    ("/copy.py", Within.COPYING),
    *((part, Within.OPS) for part in ("torch/nn/", "torch/functional.py", "torch/_tensor.py", "torch/distributions/")),
)
"""What a sample was in, by the path of a file on its stack; the first that fits."""
_GENERAL: Final = frozenset((Within.TEXT, Within.FILES, Within.COPYING, Within.OPS))
"""Of what a library calls, that library says more."""
_RESUME: Final = opmap["RESUME"]
_JUMPS, _OPERATORS = (
    frozenset(number for name, number in opmap.items() if name.startswith(names))
    for names in (("JUMP_BACKWARD",), ("BINARY_", "COMPARE_", "UNARY_", "STORE_SUBSCR", "INPLACE_"))
)
_CALLING: Final = frozenset(number for name, number in opmap.items() if name.startswith("CALL"))
_INSTRUCTION, _BACK = 2, 16  # bytes, instructions
_IMPORTS: Final = "_call_with_frames_removed"  # runs the code of a module: whatever that does, it is imported
_CALLERS: Final = (Within.LOADER, Within.CHECKPOINTING, Within.BACKWARD)

Key = tuple[CodeType | None, int, Within, CodeType | None, int]
"""Code, the instruction in it, what library code that is in, and the same of the caller's."""


def _ran(code: bytes, at: int, *, begins: bool) -> int:
    """The instruction that has taken time, where this one runs: at the next turn of a loop, or where it calls a
    function that ``begins``, signals arrive for which an operator of tensors was no place; a call was.
    """
    if begins or code[at] in _JUMPS:
        for before in range(at - _INSTRUCTION, max(0, at - _INSTRUCTION * _BACK), -_INSTRUCTION):
            if code[before] in _OPERATORS:
                return before
            if code[before] in _CALLING:
                break
    return at


class HostLines:
    """Samples of the thread that makes it, while ``sampling`` is open."""

    def __init__(self, interval_s: float = INTERVAL_S, share: float = inf) -> None:
        self._interval_s, self._share = interval_s, share
        self._found: dict[Key, list[float]] = {}
        self._places: dict[CodeType, Within | None] = {}
        self._of_tensors: dict[tuple[int, int], Within] = {}

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample until the end of the block, however it ends."""
        ticks = Ticks(self.key, self.take, self._interval_s, share=self._share, hurry=True)
        ticks.start()
        try:
            yield
        finally:
            ticks.stop()

    def lines(self, steps: int) -> tuple[HostLine, ...]:
        """Where the thread was longest, of one of so many steps."""
        seconds, awake_s = ({key: both[at] / steps for key, both in self._found.items()} for at in (0, 1))
        return longest_lines(seconds, awake_s)

    def take(self, key: Key, wall_s: float, ran_s: float, waited_s: float) -> None:
        """A sample: where the thread is, and what it stands for."""
        found = self._found.setdefault(key, [0.0, 0.0])
        found[0] += wall_s
        found[1] += ran_s + waited_s

    def key(self, frame: FrameType) -> Key:
        """The innermost line of the program's own, and what library code it is in. A function that only begins has
        taken no time: signals wait for that after an operator of tensors.
        """
        begins = frame.f_code.co_code[max(0, frame.f_lasti)] == _RESUME and frame.f_back is not None
        within, each = Within.ITSELF, frame.f_back if begins else frame
        while each is not None:
            if each.f_code.co_name == _IMPORTS:
                within = Within.ITSELF
            place = self._place(each.f_code)
            if place is None:
                at = _ran(each.f_code.co_code, max(0, each.f_lasti), begins=begins and each is frame.f_back)
                within = within or self._called_by(each.f_back) or self._computes(each, at)
                return each.f_code, at, within, *self._caller(each)
            if place and (not within or (within in _GENERAL and place not in _GENERAL)):
                within = place
            each = each.f_back
        return None, 0, within, None, 0

    def _computes(self, frame: FrameType, instruction: int) -> Within:
        """Whether the expression that runs in the program's own frame, and in no other, is of tensors."""
        key = id(frame.f_code), instruction
        if key not in self._of_tensors:
            self._of_tensors[key] = Within.OPS if is_of_tensors(frame, instruction) else Within.ITSELF
        return self._of_tensors[key]

    def _caller(self, frame: FrameType) -> tuple[CodeType | None, int]:
        """The line of the program's own that called a function of it."""
        name, each = function_of(frame.f_code), frame.f_back
        while each is not None:
            if self._place(each.f_code) is None and function_of(each.f_code) != name:
                return each.f_code, each.f_lasti
            each = each.f_back
        return None, 0

    def _called_by(self, frame: FrameType | None) -> Within:
        """What library code calls the program's line: the loader its dataset, checkpointing or backward a function."""
        while frame is not None:
            if place := self._place(frame.f_code):
                return place if place in _CALLERS else Within.ITSELF
            frame = frame.f_back
        return Within.ITSELF

    def _place(self, code: CodeType) -> Within | None:
        """What a library's code does, itself for nothing that has a name; None for the program's own."""
        if code not in self._places:
            file = code.co_filename
            named = next((name for part, name in _WITHIN if part in file), Within.ITSELF)
            self._places[code] = None if is_users(file) else named
        return self._places[code]

    of_a_sample = (take, key, _ran, _computes, _caller, _called_by, _place)


def skip_compiling(*functions: Any) -> None:
    """Tell torch.compile, once torch is there, that it is not to compile what a sample runs, nor such functions."""
    with suppress(ImportError, AttributeError):
        frames: Any = import_module("torch._C._dynamo.eval_frame")
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        ours = *Ticks.of_a_tick, *HostLines.of_a_sample, *own_code.of_a_sample
        for function in (*ours, *functions):
            frames.set_code_exec_strategy(function.__code__, skip)


def longest_lines(
    seconds: Mapping[Key, float], awake_s: Mapping[Key, float], fetched_s: Mapping[Key, float] | None = None
) -> tuple[HostLine, ...]:
    """The lines that took longest, each with the call that took most of it. They slept for what ticks by the wall saw
    more of them than ticks by the CPU's clock, in all for what the thread was not awake; for how long they were awake
    both say.
    """
    found: dict[tuple[Place | None, Within], HostLine] = {}
    asleep_s = {key: each_s - awake_s.get(key, 0.0) for key, each_s in seconds.items()}
    asleep_s = {key: each_s if each_s > _HARDLY * seconds[key] else 0.0 for key, each_s in asleep_s.items()}
    slept_s = max(0.0, sum(seconds.values()) - sum(awake_s.values()))
    scale = slept_s / max(sum(asleep_s.values()), 1e-12)
    for key in sorted(seconds, key=lambda key: -seconds[key]):
        code, instruction, within, caller, called_at = key
        its_asleep_s = min(asleep_s[key] * scale, seconds[key])
        its_s = its_asleep_s + (awake_s.get(key, 0.0) + max(0.0, seconds[key] - its_asleep_s)) / 2
        if its_s > 0:
            place = None if code is None else place_at(code, instruction, caller, called_at)
            line = place and structs.replace(place, calls="", caller="")
            first = found.get((line, within), HostLine(where=place, within=within, seconds=0.0, asleep_s=0.0))
            found[line, within] = replace(
                first,
                seconds=first.seconds + its_s,
                asleep_s=first.asleep_s + its_asleep_s,
                fetched_s=first.fetched_s + (fetched_s or {}).get(key, 0.0),
            )
    return tuple(sorted(found.values(), key=lambda each: -each.seconds)[:_MOST_LINES])


def host_lines(step: Callable[[], Any], least: int, *, again: bool = True) -> tuple[tuple[HostLine, ...], list[float]]:
    """Run ``step`` at least ``least`` times, ``again`` for ``LEAST_S``: where the thread that runs it was longest, and
    the seconds of each run.
    """
    lines, walls = HostLines(), list[float]()
    skip_compiling()
    with lines.sampling():
        while len(walls) < least or (again and sum(walls) < LEAST_S and len(walls) < _MOST_STEPS):
            begin = time.perf_counter()
            step()
            walls.append(time.perf_counter() - begin)
    return lines.lines(len(walls)), walls
