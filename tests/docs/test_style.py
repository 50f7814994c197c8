"""Pages stay short, of one purpose and in plain words. The limits are in docs/style.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STYLE = tomllib.loads((ROOT / "docs" / "style.toml").read_text())
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def kind(path: Path) -> str:
    return path.parent.name if path.parent.name in STYLE["words"] else path.name


def prose(text: str) -> str:
    """What a reader reads as sentences: no code, no tables, no headings, no link targets."""
    text = re.sub(r"\]\([^)]*\)", "]", FENCED.sub("", text))
    text = re.sub(r"`[^`\n]*`", "x", text)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<!--")))


def sentences(text: str) -> list[str]:
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(text))
    return [s for block in blocks for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z*\[x])", " ".join(block.split())) if s]


def complaints(path: Path, text: str) -> list[str]:
    home, lower, blocks = {kind(path), path.name}, prose(text).lower(), FENCED.findall(text)
    tables = re.findall(r"(?:^ *\|.*\n)+", FENCED.sub("", text), re.MULTILINE)
    words, limit = len(text.split()), STYLE["words"].get(path.name) or STYLE["words"][kind(path)]
    found = [f"{words} words, at most {limit}"] if words > limit else []
    if path == ROOT / "README.md" and (lines := text.count("\n")) > STYLE["readme_lines"]:
        found.append(f"{lines} lines, at most {STYLE['readme_lines']}")
    rows = [table.count("\n") - 2 for table in tables]
    found += [f"a table of {count} rows: make it a CSV file" for count in rows if count > STYLE["rows"]]
    outputs = [block.count("\n") for language, block in blocks if language in ("", "console")]
    found += [f"an output of {lines} lines: cut it" for lines in outputs if lines > STYLE["output_lines"]]
    long = [s for s in sentences(text) if len(s.split()) > STYLE["sentence_words"]]
    found += [f"{len(s.split())} words: {s[:60]}…" for s in long]
    for rule in STYLE["banned"]:
        hits = re.findall(rule["words"], lower)
        if not home & {*rule.get("allowed", [])} and len(hits) > rule.get("at_most", 0):
            found.append(f"{len(hits)} x {sorted(set(hits))[:6]}: {rule['why']}")
    for heading, places in STYLE["belongs"].items():
        if kind(path) not in places and re.search(rf"^#+ (?:{heading})", text, re.MULTILINE):
            found.append(f"a heading {heading!r} belongs into {places}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_short_plain_and_of_one_purpose(path):
    assert complaints(path, path.read_text()) == []


def test_all_pages_together_are_read_in_an_afternoon():
    assert sum(len(path.read_text().split()) for path in PAGES) <= STYLE["all_words"]


def test_a_sentence_stands_on_one_page_only():
    seen: dict[str, str] = {}
    for path in PAGES:
        for sentence in sentences(path.read_text()):
            if len(sentence.split()) >= 12:
                assert seen.setdefault(sentence, path.name) == path.name, sentence


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A plain sentence.\n", 0),
        ("word " * 36 + ".\n", 1),
        ("| a |\n|---|\n" + "| 1 |\n" * 21, 1),
        ("```\n" + "line\n" * (STYLE["output_lines"] + 1) + "```\n", 1),
        ("The model knows it, as before.\n", 2),
        ("## Tried\n", 1),
    ],
)
def test_what_a_page_should_not_have_is_seen(text, found):
    assert len(complaints(ROOT / "docs" / "guide" / "analyze.md", text)) == found
