"""OpRecord: one execution of an operation. Direction: which part of a step it served."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rooflight.records.account import NO_PLACE, Place
from rooflight.records.signature import OpSignature


class Direction(IntEnum):
    """What an operation was executed for."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2

    @property
    def label(self) -> str:
        """The name in lower case, as reports show it."""
        return self.name.lower()


def phase_name(phase: str, direction: Direction, *, others: bool) -> str:
    """The name of a phase in reports. Work outside named phases has the name of its direction; if the session has named
    phases (``others``), forward work outside them may be data, clipping or logging, and is "(outside phases)".
    """
    if phase:
        return phase
    return "(outside phases)" if others and direction is Direction.FORWARD else direction.label


def outside_modules(direction: Direction) -> str:
    """The name in reports of work outside all modules; the optimizer's has a name of its own."""
    return "(optimizer)" if direction is Direction.OPTIMIZER else "(outside modules)"


class StorageKind(IntEnum):
    """What a piece of memory was for."""

    DATA = 0  # allocated before the step, and of no other kind
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4  # made by the forward pass, still there in the backward pass
    TEMPORARY = 5
    OTHER = 6  # allocated before the step, which does not touch it
    BUFFER = 7  # of a module
    CACHE = 8  # as its name says: keys and values of earlier tokens

    @property
    def key(self) -> str:
        """The name in lower case, as documents have it."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """The name in lower case, as reports show it."""
        return self.key.replace("_", " ")


OF_MODULES: Final = (StorageKind.PARAMETER, StorageKind.BUFFER)
GIVEN: Final = (StorageKind.DATA, StorageKind.CACHE)
"""What the step is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who keeps memory, and the line ``where`` it was allocated, as far as they are known. ``holder`` is a variable,
    attribute or container of the program's own.
    """

    holder: str = ""
    where: Place = NO_PLACE


NO_OWNER: Final = Owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """``bytes`` of memory, and whose they are."""

    bytes: int
    owner: Owner


STEP: Final = "step"
"""The phase of a script in which it runs its steps."""
EVALUATION: Final = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The most that was allocated in a phase of a script, by its line ``where``, in whole blocks, and what was reserved
    by then. ``rows``: what was alive, by the line that made it.
    """

    phase: str
    allocated_bytes: int
    reserved_bytes: int
    where: Place
    rows: tuple[Held, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMemory:
    """Memory that a script held: the most in each of its phases, and as ``growth`` what an iteration left behind, as
    seen after so many ``followed`` it. ``missed`` is the line of an evaluation that was not reached.
    ``resident_bytes``: the most that the process had in the host's memory, all of it; 0 where that is not known.
    """

    phases: tuple[PhaseMemory, ...] = ()
    growth: tuple[Held, ...] = ()
    followed: int = 0
    missed: Place = NO_PLACE
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """A module of the recorded program: its qualified name and class name. The empty path is outside any module."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """Facts of one execution. ``reads`` and ``writes`` are ids of storages, unique within the session; ``function`` is
    the torch function that was called, empty where it was not recorded, and
    ``place`` the line of the user's own that called it. ``read_starts`` and ``write_starts`` are where
    in those storages the tensors begin, in elements, ``NOWHERE`` (-1) where that is not known; empty if it never is.

    ``parent`` is the index of the record that accounts for this one (the SDPA call that the host split into several
    ops), or None; only records without a parent are counted. ``times_s`` holds the measured samples, empty if none.
    """

    signature: OpSignature
    module: ModuleEntry
    phase: str
    direction: Direction
    function: str = ""
    place: Place = NO_PLACE
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    read_starts: tuple[int, ...] = ()
    write_starts: tuple[int, ...] = ()
    parent: int | None = None
    times_s: tuple[float, ...] = ()
