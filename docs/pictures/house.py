"""Draws docs/pictures/house.svg from the code: floors from the top down, the rooms inside them, and their imports.

A floor is a layer of the first contract in pyproject.toml, what it does is the first sentence of its docstring, and a
dot is an import that some file of it has. `python docs/pictures/house.py` draws it anew.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rooflight"
PICTURE = Path(__file__).with_name("house.svg")

ROW, CELL, TOP, TEXT_WIDTH, NAME_WIDTH, MARGIN = 40, 30, 118, 680, 110, 16
INK, PALE, FAINT, DOT = "#1b1f24", "#59636e", "#d0d7de", "#0969da"


def floors() -> list[str]:
    """The floors from the top, as the first import contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [layer.removeprefix("rooflight.") for layer in layers]


def files_of(room: str) -> list[Path]:
    """The Python files of a room."""
    return sorted((SOURCE / room).rglob("*.py"))


def inside(room: str) -> str:
    """The rooms inside a room."""
    folders = {file.relative_to(SOURCE / room).parts[0] for file in files_of(room) if file.parent != SOURCE / room}
    return ", ".join(f"{folder}/" for folder in sorted(folders))


def does(room: str) -> str:
    """The first sentence of a room's docstring."""
    file = SOURCE / room / "__init__.py"
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
    return text.partition(". ")[0].removesuffix(".").replace("`", "")


@cache
def imports(room: str) -> set[str]:
    """The other rooms that a room imports, inside functions too."""
    found: set[str] = set()
    for file in files_of(room):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {name.split(".")[1] for name in names if name.startswith("rooflight.")}
    return found - {room}


def drawn() -> str:
    """The picture as SVG."""
    rooms = floors()
    place = {room: number for number, room in enumerate(rooms)}
    left = MARGIN + NAME_WIDTH + TEXT_WIDTH
    width, height = left + CELL * len(rooms) + MARGIN, TOP + ROW * len(rooms) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{TOP - 14}" fill="{INK}" font-weight="bold">room, and what it does</text>',
        f'<text x="{left + MARGIN}" y="22" fill="{INK}" font-weight="bold">● imports the room above the column</text>',
    ]
    for room in rooms:
        y, x = TOP + ROW * place[room], left + CELL * (place[room] + 0.5)
        middle = y + ROW / 2 - 0.5
        parts += [
            f'<line x1="{MARGIN}" y1="{y}" x2="{width - MARGIN}" y2="{y}" stroke="{FAINT}"/>',
            f'<text x="{MARGIN}" y="{middle}" fill="{INK}" font-weight="bold">{room}</text>',
            f'<text x="{MARGIN + NAME_WIDTH}" y="{middle}" fill="{INK}">{escape(does(room))}</text>',
            f'<text x="{MARGIN + NAME_WIDTH}" y="{middle + 14}" fill="{PALE}" font-size="11">{inside(room)}</text>',
            f'<text transform="translate({x + 4.5} {TOP - 8}) rotate(-60)" fill="{INK}">{room}</text>',
            f'<rect x="{x - 5}" y="{middle - 9.5}" width="10" height="10" fill="{FAINT}"/>',
        ]
        for other in sorted(imports(room) & place.keys(), key=rooms.index):
            over = left + CELL * (place[other] + 0.5)
            parts.append(f'<circle cx="{over}" cy="{middle - 4.5}" r="5" fill="{DOT}"/>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn())
