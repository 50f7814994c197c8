"""Guards from torch's printed tree of them, and the values that it compiled for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from rooflight.compiling.explaining.explanation import Guard, Place

_SOURCE: Final = re.compile(r"\+- \w*GuardManager: source=(.+?), accessed_by=")
_GUARD: Final = re.compile(r"\+- ([A-Z][A-Z_]+): (.+?)(?:  # ?(.*))?$")
_PLACE: Final = re.compile(r"^(.*?)\s*# (\S*):(\d+) in (\S+)$")
_LATENCY: Final = re.compile(r"^Guard latency = ([\d.]+) us", re.MULTILINE)
_INTERNAL: Final = frozenset(
    ("DIMENSION_DYNAMIC_MARKING_GUARD", "NO_TENSOR_ALIASING", "RELATIONAL_GUARD", "TORCH_FUNCTION_MODE_STACK")
)
_EQUALS: Final = re.compile(r"^(.+?) == (.+)$")


def guards(text: str, files: Iterable[str] = ()) -> tuple[Guard, ...]:
    """The guards in a printed tree, those on marks that only torch sets left out. torch cuts the names of files:
    ``files`` are those that may be meant.
    """
    known = tuple(files)
    found: list[Guard] = []
    source = ""
    for row in text.splitlines():
        if (manager := _SOURCE.search(row)) is not None:
            source = readable(manager[1])
        elif (leaf := _GUARD.search(row)) is not None and leaf[1] not in _INTERNAL:
            top = row.startswith("| +-")
            found.append(
                Guard(
                    kind=leaf[1], source="" if top else source, check=readable(leaf[2].strip()),
                    place=_place(leaf[3] or "", known),
                )
            )  # fmt: skip
    return tuple(found)


def guard_s(text: str) -> float | None:
    """Seconds that checking all guards takes, as torch measured it."""
    found = _LATENCY.search(text)
    return None if found is None else float(found[1]) * 1e-6


def readable(source: str) -> str:
    """``L['x']``, torch's name of a local variable, as ``x``."""
    return re.sub(r"L\['(\w+)'\]", r"\1", source)


def _place(comment: str, files: tuple[str, ...]) -> Place | None:
    found = _PLACE.match(comment)
    if found is None or found[2].startswith("_dynamo/"):
        return None
    whole = next((file for file in files if file.endswith(found[2])), found[2])
    return Place(file=whole, line=int(found[3]), function=found[4], code=found[1].strip())


class Symbols:
    """What a compilation found: the values of symbols, and of what its guards compare; ``constants``: what it is
    compiled for one value of.
    """

    def __init__(self, created: Iterable[Any], checks: Iterable[Guard]) -> None:
        self.by_name: dict[str, int] = {}
        self._by_source: dict[str, str] = {}
        self.constants: set[str] = set()
        for fields in created:
            value = str(fields.get("val"))
            if value.lstrip("-").isdigit():
                self.by_name[str(fields.get("symbol"))] = int(value)
            self._by_source[readable(str(fields.get("source")))] = value
        for guard in checks:
            if (equal := _EQUALS.match(guard.check)) is not None:
                self.constants.add(equal[1])
                self._by_source.setdefault(equal[1], equal[2])

    def value_of(self, source: str) -> str:
        """What a source was at this compilation, as text; empty if torch does not tell."""
        return self._by_source.get(source, "")
