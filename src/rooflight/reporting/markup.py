"""Markup built as a tree and written once, so that every text and attribute is escaped by construction."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, tostring

_CONTROLS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that no document may hold: browsers read them in different ways."""


def element(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """An element with its children, texts among them, and attributes: ``class_`` is class, ``stroke_width``
    stroke-width.
    """
    texts = {name: value if isinstance(value, str) else f"{value:.6g}" for name, value in attributes.items()}
    made = Element(tag, {name.rstrip("_").replace("_", "-"): _clean(text) for name, text in texts.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + _clean(child)
        else:
            last.tail = (last.tail or "") + _clean(child)
    return made


def html_text(root: Element) -> str:
    """The tree as HTML. The text of ``script`` and ``style`` is not escaped: give them nothing of the program's."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def fragment_text(root: Element) -> str:
    """The tree as a piece of HTML."""
    return tostring(root, encoding="unicode", method="html")


def _clean(text: str) -> str:
    return _CONTROLS.sub("\ufffd", text)
