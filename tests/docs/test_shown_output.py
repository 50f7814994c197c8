"""What pages show of commands is what the commands print today."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
refresh = sys.modules["refresh"] = importlib.util.module_from_spec(_SPEC)  # dataclasses look it up there
_SPEC.loader.exec_module(refresh)

COMPUTED = {block.command: block for block in refresh.BLOCKS if not block.measured}
MARKED = [pytest.param(each, marks=pytest.mark.slow if COMPUTED[each].slow else ()) for each in sorted(COMPUTED)]


@pytest.mark.parametrize("command", MARKED, ids=lambda command: " ".join(command.split()[:3]))
def test_pages_show_what_the_command_prints(command):
    text = refresh.printed(COMPUTED[command])
    for block in refresh.BLOCKS:
        if block.command == command:
            page = (ROOT / block.page).read_text()
            assert refresh.replaced(page, block, text) == page, "python docs/refresh.py writes it anew"


@pytest.mark.parametrize("block", refresh.BLOCKS, ids=lambda block: f"{block.page} {block.command[:30]}")
def test_every_block_has_its_place(block):
    assert refresh.replaced((ROOT / block.page).read_text(), block, "x\n")


def test_every_report_that_a_page_shows_can_be_refreshed():
    known = {(block.page, block.command) for block in refresh.BLOCKS}
    for path in [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")]:
        for command in re.findall(r"^```\w*\n\$ (.*)$", path.read_text(), re.MULTILINE):
            assert (str(path.relative_to(ROOT)), command) in known


def test_parts_are_chosen_and_what_is_left_out_is_marked():
    block = refresh.Block(page="", command="", parts=("A", "! b", "End"), rows=2)
    text = "\nA\n1  \n2\n\nB\n3\n\nC\n4\n\n  ! a\n  ! b\n\n  End\n"
    assert refresh.shown(block, text) == "A\n1\n  …\n  ! b\n\n  End\n"
