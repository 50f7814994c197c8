"""The Python of the pages parses, and what it takes from Rooflight is there. Pages of docs/extending run as a whole."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import rooflight as rl

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "extending"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*\brl\.(\w+)[^`\n]*`")


def missing(tree: ast.Module) -> set[str]:
    """Names that a block takes from Rooflight, and that are not there."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rooflight":
            module = importlib.import_module(node.module)
            found |= {f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name)}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rl":
            found |= set() if hasattr(rl, node.attr) else {f"rl.{node.attr}"}
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_takes_from_rooflight_is_there(path):
    text = path.read_text()
    assert [names for block in BLOCK.findall(text) if (names := missing(ast.parse(block)))] == []
    assert [name for name in INLINE.findall(text) if not hasattr(rl, name)] == []


def test_a_missing_name_is_seen():
    block = "import rooflight as rl\nfrom rooflight.inference import Profiler, Nobody\nrl.analize(rl.load('a'))"
    assert missing(ast.parse(block)) == {"rooflight.inference.Nobody", "rl.analize"}
