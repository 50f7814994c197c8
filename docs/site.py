"""Hooks of mkdocs (mkdocs.yml): the README is the first page of the site, measured tables that pages link are there,
and two pages are made from the code: the options of all commands and the keys of all JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from typer.main import get_command

from rooflight.cli.main import app

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SECTIONS = ("Guide", "Concepts", "Reference", "Extending", "Lab")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the measured tables and the generated pages."""
    for path in RESULTS.rglob("*.csv"):
        files.append(File.generated(config, f"data/{path.relative_to(RESULTS)}", abs_src_path=str(path)))
    for name, lines in {
        "options": ["# Options\n\nWhat each command's `--help` prints.", *options_of(get_command(app), "rooflight")],
        "json": ["# JSON keys\n\nThe documents of [schemas.json](schemas.json), and the objects inside.", *json_keys()],
    }.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the README before the index, and let links lead to the tables' places on the site."""
    if page.file.src_uri == "README.md":
        readme = (ROOT / "README.md").read_text().replace("](docs/", "](")
        markdown = f"{readme}\n{markdown.replace('# Documentation', '## All pages', 1)}"
    return markdown.replace("../../benchmarks/results/", "../data/")


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Guides first, and pages in the order of their index."""
    index = (ROOT / "docs" / "README.md").read_text()
    nav.items.sort(key=lambda item: SECTIONS.index(item.title) if item.title in SECTIONS else -1)
    for item in nav.items:
        (item.children or []).sort(key=lambda page: index.find(f"({page.file.src_uri})") % len(index))
    return nav


def options_of(command: Any, name: str) -> Iterator[str]:
    """The heading and the table of a command, then those of its commands."""
    yield f"\n## {name}\n\n{(command.help or '').partition(chr(10) * 2)[0]}\n\n| option | meaning |\n|---|---|"
    for option in command.params:
        words, text = option.get_help_record(command.context_class(command))
        yield "| `{}` | {} |".format(*(each.replace("|", " or ") for each in (words, text)))
    for word, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, f"{name} {word}")


def json_keys() -> Iterator[str]:
    """What the fields of each document are, and of what lies inside documents."""
    schema = json.loads((ROOT / "docs" / "reference" / "schemas.json").read_text())
    documents = [each["$ref"].rpartition("/")[2] for each in schema["anyOf"]]
    for name in (*documents, *sorted(schema["$defs"].keys() - set(documents))):
        found = schema["$defs"][name]
        yield f"\n## {name}\n\n{' '.join(found.get('description', '').replace('``', '`').split())}\n"
        yield "| key | type |\n|---|---|"
        yield from (f"| `{key}` | {type_of(value)} |" for key, value in found.get("properties", {}).items())


def type_of(value: dict[str, Any]) -> str:
    """The type of a field in words, with links to the objects inside."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(map(type_of, value["anyOf"]))
    if "enum" in value:
        return " or ".join(f"`{each}`" for each in value["enum"])
    if value.get("type") == "array":
        return f"list of {type_of(value['items'])}" if value.get("items") else "list"
    if isinstance(value.get("additionalProperties"), dict):
        return f"{type_of(value['additionalProperties'])} by name"
    return str(value.get("type", "any"))
