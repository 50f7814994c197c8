"""Sizes: which values a parameter of an operator takes in each sweep, and the sizes that several operators share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any, Final

MUL, ADD = "mul", "add"


@dataclass(frozen=True, slots=True)
class Progression:
    """Values of one parameter from ``start`` to ``end``, ``end`` included, each ``step`` times or plus the last.

    Raises ValueError for steps that lead nowhere.
    """

    start: int
    step: int
    end: int
    operator: str

    def __post_init__(self) -> None:
        if self.operator not in (MUL, ADD):
            raise ValueError(f'unknown sweep operator "{self.operator}": use mul or add')
        if self.step < 0:
            raise ValueError(f"a step of {self.step} is negative: sweep upwards from the smallest value")
        stuck = self.step == 0 if self.operator == ADD else self.step < 2 or self.start < 1
        if stuck and self.end > self.start:
            raise ValueError(f"{self.operator} {self.step} never leads from {self.start} to {self.end}")

    def __len__(self) -> int:
        if self.end < self.start:
            return 0
        if self.end == self.start:
            return 1
        if self.operator == ADD:
            return (self.end - self.start) // self.step + 1
        count, value = 0, self.start
        while value <= self.end:
            count, value = count + 1, value * self.step
        return count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.start + index * self.step if self.operator == ADD else self.start * self.step**index

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Span:
    """Sizes from ``low`` to ``high``, spread by their logarithm, multiples of ``multiple``; or one of ``choices``."""

    low: int = 0
    high: int = 0
    multiple: int = 1
    choices: tuple[int, ...] = ()

    def at(self, fraction: float) -> int:
        """The size that lies at ``fraction`` of the span, from 0 to just below 1."""
        if self.choices:
            return self.choices[int(fraction * len(self.choices))]
        size = exp(log(self.low) + fraction * log(self.high / self.low))
        return max(self.low, round(size / self.multiple) * self.multiple)

    def place(self, value: int) -> float:
        """Where a size lies, from 0 to 1: the inverse of ``at``, choices at the middle of their share."""
        if self.choices:
            return (self.choices.index(value) + 0.5) / len(self.choices) if value in self.choices else 0.5
        return log(max(value, 1) / self.low) / log(self.high / self.low) if self.high > self.low else 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a parameter of an operator may be.

    ``test`` is its small value, ``collect`` its values in a full grid, ``smart`` the range that the smart sweep
    chooses from. ``default`` is taken where a shape leaves the parameter out; without one it must be given. A ``flag``
    is 0 or 1.
    """

    test: int = 64
    collect: Progression = Progression(64, 2, 4096, MUL)
    smart: Span = Span(16, 4096)
    default: int | None = None
    flag: bool = False


FLAG: Final = Size(test=0, collect=Progression(0, 1, 1, ADD), smart=Span(choices=(0, 1)), default=0, flag=True)
"""0 or 1, unless given 0."""
ELEMENTS: Final = Size(test=4096, collect=Progression(1 << 10, 2, 1 << 28, MUL), smart=Span(256, 1 << 28, 16))
"""Elements of one flat tensor."""

ROWS: Final = Size(test=64, collect=Progression(256, 2, 16_384, MUL), smart=Span(1, 32_768))
"""Tokens of a batch, as the rows of a matrix."""
WIDTH: Final = Size(test=16, collect=Progression(1024, 1024, 16_384, ADD), smart=Span(16, 16_384))
"""Elements of a row."""
HIDDEN_WIDTH: Final = Size(test=128, collect=WIDTH.collect, smart=Span(128, 8192, 64))
"""Elements of a row that is a token's hidden state."""
VOCABULARY: Final = Size(test=1000, collect=Progression(32_000, 16_000, 128_000, ADD), smart=Span(1000, 131_072))
"""Tokens that a model knows."""

PRODUCT_ROWS: Final = Size(test=64, collect=ROWS.collect, smart=Span(1, 16_384))
"""m of [m, k] @ [k, n]."""
PRODUCT_COLUMNS: Final = Size(test=64, collect=ROWS.collect, smart=Span(128, 65_536, 16))
"""n of [m, k] @ [k, n]."""
PRODUCT_DEPTH: Final = Size(test=64, collect=ROWS.collect, smart=Span(128, 16_384, 16))
"""k of [m, k] @ [k, n]."""

# What follows has the axes that estimate-train-time sweeps a transformer's layer with.
TENSOR_PARALLEL: Final = Size(test=1, collect=Progression(1, 2, 16, MUL), smart=Span(choices=(1, 2, 4, 8)))
"""Ranks that share a layer."""
BATCH: Final = Size(test=1, collect=Progression(2, 2, 8, MUL), smart=Span(choices=(1, 2, 4, 8, 16)))
"""Sequences of a micro-batch."""
ATTENTION_BATCH: Final = Size(test=1, collect=Progression(4, 2, 8, MUL), smart=BATCH.smart)
"""Sequences of a micro-batch, in the operators of attention."""
HEADS: Final = Size(test=4, collect=Progression(16, 8, 80, ADD), smart=Span(choices=(4, 8, 12, 16, 32)))
"""Attention heads of all ranks."""
LENGTH: Final = Size(test=64, collect=Progression(1024, 512, 5120, ADD), smart=Span(16, 8192, 16))
"""Tokens of a sequence."""
HIDDEN: Final = Size(test=128, collect=Progression(2048, 512, 8192, ADD), smart=Span(128, 8192, 64))
"""Elements of a hidden state, of all ranks."""
ENCODERS: Final = Size(test=1, collect=Progression(4, 1, 12, ADD), smart=Span(1, 12))
"""Layers of a pipeline stage."""
LAYER_SIZES: Final[Mapping[str, Any]] = {"mp": TENSOR_PARALLEL, "b": BATCH, "l": LENGTH, "dim": HIDDEN}
"""Of operators on one rank's part of a layer."""
ATTENTION_SIZES: Final[Mapping[str, Any]] = {
    "mp": TENSOR_PARALLEL,
    "b": ATTENTION_BATCH,
    "h": HEADS,
    "l": LENGTH,
    "dim": HIDDEN,
}
"""Of operators on one rank's heads."""
