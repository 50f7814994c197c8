"""Names are text, whatever is in them: no format lets a name do anything, hide, or look like another."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from html import unescape
from io import StringIO, TextIOWrapper

import pytest
from builders import op, spec
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from sessions import Call, session_of

import rooflight as rl
from rooflight.devices import get
from rooflight.records.document import Document
from rooflight.records.report import Axis, Column, Line, Mark, Report, Series, Table
from rooflight.records.visible import visible
from rooflight.reporting.console import print_report
from rooflight.reporting.csv import render_csv
from rooflight.reporting.html import render_html
from rooflight.reporting.json import ascii_json, render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.roofline.analysis import analyze
from rooflight.roofline.tables.report import report_of

CODES = "\x1b]0;title\x07\x1b[2J\x9b31m\b\r\n\x7f\u202e\u2066\u200b"
HOSTILE = f"[red]<script>alert(1)</script>`|*_[a](b)~~$x${CODES}"

names = st.text(st.characters(), max_size=20) | st.text("\x1b\x9b\n\r\t `|*_<>[]()#-+=1.~$&\\\u202e", max_size=20)


class Names(Document, frozen=True, kw_only=True, tag="rooflight.test_names/1"):
    """A document of one name."""

    name: str


def report_with(name: str) -> Report:
    """A report that has the name wherever a text can be."""
    line = Line(name=name, x=(name,), y=(1.0,), mark=Mark.BARS, labels=(name,))
    points = Line(name=name, x=(1.0,), y=(1.0,), mark=Mark.POINTS, labels=(name,))
    axis = Axis(name=name)
    return Report(
        title=name,
        data=Names(name=name),
        facts=((name, name),),
        tables=(Table(id="t", title=name, columns=(Column(f"a {name}"), Column("b")), rows=((name, 1),), note=name),),
        series=tuple(
            Series(id=f"s{number}", title=name, x=axis, y=axis, lines=(each, each), note=name)
            for number, each in enumerate((line, points))
        ),
        notes=(name,),
        conclusion=name,
    )


def on_console(report: Report, **options: bool) -> str:
    out = StringIO()
    print_report(report, Console(file=out, width=400, **options))
    return out.getvalue()


def renderings(report: Report) -> dict[str, str]:
    return {
        "console": on_console(report),
        "markdown": render_markdown(report),
        "json": render_json(report),
        "csv": render_csv(report),
        "html": render_html(report),
    }


def assert_harmless(text: str, where: str) -> None:
    raw = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not raw, (where, raw)


@given(names)
@example(HOSTILE)
@example("\ud800")
def test_no_format_has_a_raw_control_character(name):
    for where, text in renderings(report_with(name)).items():
        assert_harmless(text, where)


@given(names)
@example(HOSTILE)
def test_html_shows_the_name_and_has_no_element_of_its_own(name):
    text = render_html(report_with(name or "y"))
    plain = render_html(report_with("x"))
    tags = re.compile(r"<[a-zA-Z/!][^>]*>")
    kinds = [[re.split(r"[\s>]", tag)[0] for tag in tags.findall(each)] for each in (text, plain)]
    several = ("<text", "</text")  # a long name takes several lines of a picture
    assert [kind for kind in kinds[0] if kind not in several] == [kind for kind in kinds[1] if kind not in several]
    assert visible(name) in unescape(text)


@given(names)
@example(HOSTILE)
@example("    code")
@example("1. list")
@example("- list")
@example("---")
@example("&lt;")
@example("https://a.b")
def test_markdown_shows_the_name_and_nothing_else(name):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(render_markdown(report_with(name)))
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inline} <= {"text", "text_special", "strong_open", "strong_close"}
    assert {token.tag for token in tokens} <= {
        *("h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "")
    }
    assert sum(token.type == "td_open" for token in tokens) == 2
    assert sum(token.type == "list_item_open" for token in tokens) == 2  # a fact and a note
    shown = [
        "".join(child.content for child in token.children or () if child.type in ("text", "text_special"))
        for token in tokens
        if token.type == "inline"
    ]
    wanted = visible(name).strip(" ")  # Markdown keeps no blanks at the ends of cells and headings
    assert sum(text.strip(" ") == wanted for text in shown) >= 4 or not wanted


@given(names)
@example(HOSTILE)
def test_a_terminal_shows_the_name_as_it_is(name):
    shown = on_console(report_with(name), force_terminal=True, no_color=True)
    assert visible(name).strip() in shown.replace("\n", " ")


@given(st.text(st.characters(codec="utf-8")))
@example(CODES)
def test_json_keeps_the_name_of_the_program(name):
    text = render_json(report_with(name))
    assert json.loads(text)["name"] == name
    assert json.loads(ascii_json(text))["name"] == name
    assert ascii_json(text).isascii()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
def test_every_encoding_can_show_a_report(encoding, monkeypatch):
    from io import BytesIO

    got = BytesIO()
    stream = TextIOWrapper(got, encoding=encoding)
    before = stream.errors
    monkeypatch.setattr(sys, "stdout", stream)
    print_report(report_with("µ → × – … “模型” \udcff"))
    stream.flush()
    said = got.getvalue().decode(encoding)
    assert ("µ" if encoding != "ascii" else "u") in said
    assert ("→" if encoding == "utf-8" else "->") in said
    assert ("──" if encoding == "utf-8" else "--") in said
    assert stream.errors == before


def test_a_session_with_hostile_names_is_harmless_all_over(tmp_path):
    tensor = spec((64, 64), "float32")
    calls = [
        Call(
            op=op(f"nobody::{HOSTILE}", {"x": tensor}, [tensor]),
            module=f"m.{HOSTILE}",
            layer=HOSTILE,
            phase=HOSTILE,
            function=HOSTILE,
            reads=(0,),
            writes=(1,),
        )
    ]
    environment = {"target": HOSTILE, "cpu": HOSTILE}
    session = session_of(calls, times=[[1e-3]], walls=[2e-3], storage_bytes=[1 << 14] * 2, environment=environment)
    loaded = rl.load(session.save(tmp_path / "a.session"))
    report = report_of(analyze(loaded, get("H100-SXM5-80GB"), HOSTILE), notes=[HOSTILE])
    for where, text in renderings(report).items():
        assert_harmless(text, where)
        if where != "json":
            assert r"\x1b[2J" in text.replace("\\\\", "\\").replace("\\[", "["), where
    assert json.loads(render_json(report))["target"] == HOSTILE
    assert HOSTILE in loaded.phases


def test_a_name_of_a_file_that_is_no_utf8_can_be_saved_and_printed(tmp_path):
    session = session_of([], environment={"target": "run\udcff.py"})
    loaded = rl.load(session.save(tmp_path / "a.session"))
    assert loaded.environment["target"] == r"run\udcff.py"
