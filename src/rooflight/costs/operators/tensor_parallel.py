"""How tensor parallelism cuts a transformer's sizes, as GPT-NeoX cuts them, and which sizes it can cut."""

from __future__ import annotations

from collections.abc import Callable

from rooflight.costs.operators.operator import Shape

GPT2_VOCABULARY = 50_257
"""Tokens of GPT-2's vocabulary, which GPT-NeoX pads."""


def padded_vocabulary(ways: int) -> int:
    """Rows of one rank's part of the vocabulary: a multiple of 128 on each of ``ways`` ranks."""
    return -(-GPT2_VOCABULARY // (128 * ways)) * 128


def divides(shape: Shape, *pairs: tuple[str, str]) -> str | None:
    """Why some (whole, parts) pair of parameters does not divide evenly; None where all do."""
    for whole, parts in pairs:
        if shape[whole] % shape[parts]:
            return f"{whole}={shape[whole]} is not a multiple of {parts}={shape[parts]}"
    return None


def multiples(alignment: int, *names: str) -> Callable[[Shape], str | None]:
    """A check that parameters are multiples of what a kernel can address."""

    def check(shape: Shape) -> str | None:
        odd = [f"{name}={shape[name]} is not a multiple of {alignment}" for name in names if shape[name] % alignment]
        return odd[0] if odd else None

    return check


def at_most(**limits: int) -> Callable[[Shape], str | None]:
    """A check that parameters which make that many tensors, or ops, stay within what anyone runs: describing a shape
    takes memory and time for each of them.
    """

    def check(shape: Shape) -> str | None:
        over = [f"{name}={shape[name]} is more than {most}" for name, most in limits.items() if shape[name] > most]
        return over[0] if over else None

    return check


def hidden(shape: Shape) -> str | None:
    """Why ``dim`` cannot be cut into ``mp`` parts."""
    return divides(shape, ("dim", "mp"))


def heads(shape: Shape) -> str | None:
    """Why heads cannot be dealt to ranks, or ``dim`` to heads, where the operator has one."""
    return divides(shape, ("h", "mp"), *([("dim", "h")] if "dim" in shape else []))
