"""The words of an account: causes of a step's time, their regimes, and places in a program."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from rooflight.records.document import Fields


class Regime(StrEnum):
    """What a program, or a part of it, spends most of its time on.

    ``compute``, ``memory``, ``communication``: at the bound of this resource, or near it. ``kernels``: kernels far from
    any bound; ``latency``: kernels too short or too small to fill the device. ``overhead``: Python, dispatch, launches
    and compiling. ``idle``: waiting for data, for a result, for the clock. ``unknown``: what nothing explains.
    """

    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    KERNELS = "kernels"
    LATENCY = "latency"
    OVERHEAD = "overhead"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why a piece of a step's time passed; docs/concepts/account.md explains them."""

    LIGHT = "light"
    FUSION = "fusion"
    SLOW_KERNELS = "slow_kernels"
    UNBOUNDED = "unbounded_kernels"
    NO_OP = "no_op"
    COMMUNICATION = "communication"
    RANK = "rank"
    COPIES = "copies"
    LAUNCHES = "launches"
    PYTHON = "python"
    COMPILING = "compiling"
    ALLOCATOR = "allocator"
    LOADER = "loader"
    SUBPROCESS = "subprocess"
    CHECKPOINT = "checkpoint"
    ASLEEP = "asleep"
    SYNC = "sync"
    BUBBLE = "bubble"
    PROFILER = "profiler"
    OTHER_PROGRAMS = "other_programs"
    UNKNOWN = "unknown"

    @property
    def is_work(self) -> bool:
        """Whether the device works meanwhile, on what an op launched."""
        return self in _OF_WORK


CAUSES: Final = tuple(Cause)
REGIMES: Final = tuple(Regime)
_OF_WORK: Final = (Cause.LIGHT, Cause.FUSION, Cause.SLOW_KERNELS, Cause.UNBOUNDED, Cause.COMMUNICATION)

WORDS: Final[Mapping[Cause, str]] = {
    Cause.LIGHT: "light: what the work needs",
    Cause.FUSION: "bytes that fusion would save",
    Cause.SLOW_KERNELS: "kernels slower than their bound",
    Cause.UNBOUNDED: "kernels without a bound",
    Cause.NO_OP: "work of no recorded op",
    Cause.COMMUNICATION: "communication beyond its bound",
    Cause.RANK: "waiting for another rank",
    Cause.COPIES: "copies between host and device",
    Cause.LAUNCHES: "launches and dispatch",
    Cause.PYTHON: "the program's own lines",
    Cause.COMPILING: "compiling",
    Cause.ALLOCATOR: "memory allocated and freed, kernels loaded",
    Cause.LOADER: "data loader",
    Cause.SUBPROCESS: "waiting for another process",
    Cause.CHECKPOINT: "writing a checkpoint",
    Cause.ASLEEP: "asleep",
    Cause.SYNC: "waiting for results of the device",
    Cause.BUBBLE: "pipeline bubble",
    Cause.PROFILER: "the profiler",
    Cause.OTHER_PROGRAMS: "other programs",
    Cause.UNKNOWN: "unknown",
}
"""Causes as a table names them."""

IDLE: Final = (
    *(Cause.LAUNCHES, Cause.PYTHON, Cause.ALLOCATOR, Cause.LOADER, Cause.SYNC, Cause.COPIES, Cause.RANK),
    *(Cause.ASLEEP, Cause.PROFILER, Cause.UNKNOWN),
)
"""Causes for which a GPU has no work."""

REGIME_OF: Final[Mapping[Cause, Regime]] = {
    Cause.FUSION: Regime.MEMORY,
    **dict.fromkeys((Cause.LAUNCHES, Cause.PYTHON, Cause.COMPILING, Cause.ALLOCATOR), Regime.OVERHEAD),
    **dict.fromkeys(
        (Cause.ASLEEP, Cause.LOADER, Cause.SUBPROCESS, Cause.SYNC, Cause.COPIES, Cause.CHECKPOINT, Cause.BUBBLE),
        Regime.IDLE,
    ),
    **dict.fromkeys((Cause.COMMUNICATION, Cause.RANK), Regime.COMMUNICATION),
    **dict.fromkeys((Cause.NO_OP, Cause.PROFILER, Cause.OTHER_PROGRAMS, Cause.UNKNOWN), Regime.UNKNOWN),
}
"""The regime of a cause. That of ``light``, ``slow_kernels`` and ``unbounded_kernels`` is the op's."""


def shown_path(file: str) -> str:
    """A file as reports name it, which are run elsewhere: a path from the root by its name and its folder's."""
    return "/".join(file.split("/")[-2:]) if file.startswith("/") else file


class Place(Fields, frozen=True, kw_only=True):
    """Where in a program: a ``line`` of a ``file``, relative to the working folder, its ``function``, what that line
    ``calls``, as it is written there, the line of the ``caller`` of that function (``train.py:112``), or a ``module``
    of the model by its class; empty and 0 where it is not known. ``compiled``: torch.compile's code runs in its place.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    calls: str = ""
    caller: str = ""
    compiled: bool = False

    @property
    def at(self) -> str:
        """``train.py:52``; empty where no line is known."""
        return f"{self.file}:{self.line}" if self.line else ""

    def __bool__(self) -> bool:
        return bool(self.file or self.function or self.module)

    @property
    def named(self) -> str:
        """``Attention.forward (train.py:52)``; of a library's module its class and the line that calls it."""
        name = self.module if self.module and self.module not in self.function else self.function
        return f"{name} ({self.called_at})" if self.line else name

    @property
    def called_at(self) -> str:
        """``np.savetxt, train.py:52``."""
        return ", ".join(filter(None, (self.calls, self.path)))

    @property
    def path(self) -> str:
        """``tokens.py:52 from train.py:112``."""
        return f"{self.at} from {self.caller}" if self.caller else self.at

    def __str__(self) -> str:
        calls = f"{self.calls} in {self.function}" if self.calls and self.function else self.calls or self.function
        return ", ".join(filter(None, (calls, self.path or self.file))) or self.module


NO_PLACE: Final = Place()


def hottest(seconds: Mapping[Place, float], most: int) -> tuple[Place, ...]:
    """The line of each function at which most of its time is, of the functions that have most; never the same twice."""
    of_function: dict[tuple[str, str, str], float] = {}
    longest: dict[tuple[str, str, str], Place] = {}
    for place in sorted(seconds, key=lambda place: -seconds[place]):
        key = place.file, place.function, place.module
        of_function[key] = of_function.get(key, 0.0) + seconds[place]
        longest.setdefault(key, place)
    return tuple(longest[key] for key in sorted(of_function, key=lambda key: -of_function[key])[:most])


class Row(Fields, frozen=True, kw_only=True):
    """What a cause takes of an iteration: ``seconds`` in the mean, nine times in ten from ``low_s`` to ``high_s``, and
    their ``share`` of the wall, of 1. ``seen``: in how many iterations, of how many. ``where``: most of it, the longest
    first. ``source``: measured, predicted, bound or guessed.
    """

    cause: Cause
    regime: Regime
    seconds: float
    low_s: float
    high_s: float
    share: float
    source: str
    seen: tuple[int, int]
    where: tuple[Place, ...] = ()
