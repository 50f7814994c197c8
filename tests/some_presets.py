"""Names of the quick run: of presets one of each kind of model; ``make slow`` tries all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

QUICK = frozenset({"gpt2", "llama-3.1-8b", "mixtral-8x7b", "mamba-130m", "t5-3b", "resnet-50"})


def presets(names: Iterable[str]) -> list[object]:
    """Each name as a parameter of a test, marked slow if another preset stands for it."""
    return some(names, QUICK)


def some(names: Iterable[str], quick: Collection[str]) -> list[object]:
    """Each name as a parameter of a test, marked slow if it is not a ``quick`` one."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
