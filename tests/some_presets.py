"""Presets of the quick run, one of each kind of model; ``make slow`` tries all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

QUICK = frozenset({"gpt2", "llama-3.1-8b", "mixtral-8x7b", "mamba-130m", "t5-3b", "resnet-50"})


def presets(names: Iterable[str]) -> list[object]:
    """Each name as a parameter of a test, marked slow if another preset stands for it."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]
