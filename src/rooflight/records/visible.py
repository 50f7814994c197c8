"""Text from outside (names of modules, phases, ops, devices, files) without control and invisible characters.

A terminal obeys escape sequences, wherever they come from; bidirectional overrides and characters without width make
one name look like another. ``visible`` is the one place where such characters become text: nouns of a report pass all
their texts through it when they are made (``make_visible``), and so does every line that the command prints.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

_BLANK: Final = frozenset(
    [
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),  # a joiner, fillers, an empty Braille cell
        *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),  # variation selectors
    ]
)
"""Characters that Unicode calls printable and that show nothing (most of the rest of Default_Ignorable_Code_Point)."""


LONGEST: Final = 8192
"""Characters of a name or a note that are kept; names of C++ templates have some thousand."""


def shortened(text: str) -> str:
    """The text, cut where it is longer than any that a profiler or a recording writes, with what it had."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… (cut: {len(text):,} characters)"


def visible(text: str) -> str:
    r"""The text with every character that a reader could not see as an escape, as ``repr`` writes it: ``\x1b``,
    ``\n``, ``\u202e``. Those are the controls (C0, DEL, C1), formats (bidirectional, zero-width), line separators,
    blanks other than the space, halves of surrogate pairs, and characters that are private or unassigned.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() and ord(character) not in _BLANK:
        return character
    return character.encode("unicode_escape").decode("ascii")


def make_visible(noun: Any) -> None:
    """Make every text of a frozen dataclass visible, those inside tuples too; called while the noun is made."""
    for field in fields(noun):
        value = getattr(noun, field.name)
        if isinstance(value, str | tuple):
            object.__setattr__(noun, field.name, _visible_in(value))


def _visible_in(value: Any) -> Any:
    if type(value) is str:  # the text of an enum comes from Rooflight
        return visible(shortened(value))
    return tuple(map(_visible_in, value)) if type(value) is tuple else value
