"""A report as HTML: one file, nothing loaded, names inert, and as a real browser reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from builders import Nothing, op, spec
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.records.report import Axis, Column, Line, Mark, Report, Series, Table
from rooflight.reporting.html import render_html
from rooflight.roofline.analysis import analyze
from rooflight.roofline.tables.report import report_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>document.title='taken'</script>\"onload='x'{{7*7}}</style><img src=x onerror=alert(1)>\x00\x1b[31m"
BIG = spec((8192, 8192), "bfloat16")
MM = op("aten::mm", {"self": BIG, "mat2": BIG}, [BIG])
ADD = op("aten::add", {"self": BIG, "other": BIG}, [BIG])
ODD = op(f"nobody::{HOSTILE}", {"x": BIG}, [BIG])


def report_of_calls():
    calls = [
        Call(op=one, module=f"m.{HOSTILE}", layer=HOSTILE, reads=(0, 1), writes=(number + 2,))
        for number, one in enumerate((MM, ADD, ODD))
    ]
    session = session_of(calls, times=[[2e-3, 1e-3, 1e-3]], walls=[5e-3], storage_bytes=[1 << 20] * 5)
    return report_of(analyze(session, get("H100-SXM5-80GB"), f"a test {HOSTILE}"), notes=[HOSTILE])


class Reader(HTMLParser):
    """Which elements and attributes a document has, and the text outside of script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        if not self.tags or self.tags[-1] not in ("script", "style"):
            self.text += data


def test_every_table_and_series_is_there_under_its_id():
    report = report_of_calls()
    assert {"roofline", "account", "memory"} == {series.id for series in report.series}
    read = Reader(render_html(report))
    assert read.ids == [
        *(f"series-{series.id}" for series in report.series),
        *(f"table-{table.id}" for table in report.tables),
    ]
    assert read.tags.count("svg") == 2 * 3  # each for a wide and for a narrow screen
    rows = sum(len(table.rows) + 1 for table in report.tables)
    assert read.tags.count("tr") == rows
    for part in (report.title.split(" <")[0], report.conclusion, "989 TFLOP/s", "By layer type"):
        assert part in read.text


def test_names_of_the_program_are_text_and_nothing_else():
    read = Reader(render_html(report_of_calls()))
    assert read.tags.count("script") == read.tags.count("style") == 1  # ours
    assert "img" not in read.tags
    assert not {name for name in read.attributes if name.startswith("on")}
    assert "{{7*7}}" in read.text  # shown, not computed
    assert "<script>document.title" in read.text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", read.text)


def test_nothing_is_loaded_from_anywhere():
    text = render_html(report_of_calls())
    assert not {"src", "href", "style", "srcset"} & Reader(text).attributes
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_numbers_sort_by_their_value_and_not_by_what_is_shown():
    text = render_html(report_of_calls())
    assert 'data-value="0.002"' in text  # 2.00 ms


def test_a_report_without_pictures_has_none():
    read = Reader(render_html(report_of(analyze(session_of([]), get("H100-SXM5-80GB")))))
    assert not [name for name in read.ids if name.startswith(("series-", "table-"))]
    assert "open it in the thread that works" in read.text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the HTML was not opened in a browser")
def test_a_browser_shows_it_without_an_error_and_sorts(tmp_path):
    text = render_html(report_of_calls())
    click = """
    const button = document.querySelector("#table-by_op th:nth-child(2) button");
    button.click(); button.click();
    document.body.dataset.sorted = button.closest("th").getAttribute("aria-sort");
    console.log("reached the end");
    """
    # the policy of the real file lets no other script run, so the click comes with a file that has none
    clicked = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    clicked = clicked.replace("</body>", f"<script>{click}</script></body>")
    dom, console = browse(tmp_path / "report.html", text)
    assert console == []
    assert "<title>Speed of light: a test &lt;script&gt;" in dom  # not "taken"
    for part in ('id="table-account"', 'id="series-roofline"', "<circle", "<polygon", "<rect"):
        assert part in dom
    dom, console = browse(tmp_path / "clicked.html", clicked)
    assert 'data-sorted="ascending"' in dom
    assert len(console) == 1  # the console is heard
    assert "reached the end" in console[0]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the HTML was not opened in a browser")
def test_no_name_runs_in_a_browser_even_without_the_policy(tmp_path):
    names = [
        HOSTILE,
        "</script><script>document.title='taken'</script>",
        "'\"><svg onload=document.title='taken'>",
        "--><script>document.title='taken'</script>",
        "javascript:document.title='taken'",
        "]]></title></style></svg><body onload=\"document.title='taken'\">",
    ]
    calls = [Call(op=MM, module=name, layer=name, phase=name, function=name) for name in names]
    session = replace(session_of(calls), environment={"target": names[1], "cpu": names[2]}, notes=tuple(names))
    text = render_html(report_of(analyze(session, get("H100-SXM5-80GB")), notes=names))
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    dom, console = browse(tmp_path / "hostile.html", text)
    assert console == []
    assert "<title>taken" not in dom
    assert dom.count("<script>") == text.count("<script>") == 1  # the page's own


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the HTML was not opened in a browser")
def test_a_phone_page_does_not_scroll_sideways_and_its_letters_have_their_size(tmp_path):
    name = "torch._dynamo.config.reorderable_logging_functions." + "x" * 80
    bars = Line(name="t", x=(name, "b"), y=(1.0, 2.0), mark=Mark.BARS)
    series = Series(id="s", title=name, x=Axis(name="x"), y=Axis(name="y", unit="s"), lines=(bars,), note=name)
    table = Table(id="t", title=name, columns=(Column(name),), rows=((name,),), note=name)
    line = Line(name="l", x=(1e-6, 1e3), y=(1e8, 1e15), mark=Mark.LINE)
    axes = {"x": Axis(name="x", logarithmic=True), "y": Axis(name="speed", unit="FLOP/s", logarithmic=True)}
    roofline = Series(id="r", title="r", lines=(line,), **axes)
    wide = Table(id="w", title="w", columns=tuple(Column(f"a column {n}") for n in range(20)), rows=((1e6,) * 20,))
    texts = {"title": name, "notes": (name,), "conclusion": f"Mend first: {name}.", "facts": ((name, name),)}
    report = Report(data=Nothing(), tables=(table, wide), series=(series, roofline), **texts)
    measure = """
    const letter = [...document.querySelectorAll("svg text")].find(text => text.getBoundingClientRect().width);
    const figure = document.querySelector("figure").getBoundingClientRect().width;
    const scale = letter.getScreenCTM().a;
    const box = document.querySelector("#table-w .scroll");
    const cut = [...document.querySelectorAll("svg text")].filter(text => {
      const [of, svg] = [text, text.ownerSVGElement].map(each => each.getBoundingClientRect());
      return of.width && (of.left < svg.left - 0.5 || of.right > svg.right + 0.5);
    }).map(text => text.textContent);
    console.log("widths", document.documentElement.scrollWidth, innerWidth, "letters", scale.toFixed(2), figure);
    console.log("scrolls", box.scrollWidth > box.clientWidth, "cut", JSON.stringify(cut));
    """
    page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", render_html(report))
    (tmp_path / "page.html").write_text(page.replace("</body>", f"<script>{measure}</script></body>"))
    frame = '<body style="margin:0"><iframe src="page.html" width="390" height="800" style="border:0"></iframe></body>'
    _, (said, more) = browse(tmp_path / "phone.html", frame)
    assert "scrolls true cut []" in more  # the wide table, in its own box
    content, shown, scale = re.search(r"widths (\d+) (\d+) letters ([\d.]+)", said).groups()
    assert shown == "390"
    assert int(content) <= 390
    assert 0.85 < float(scale) < 1.25


def browse(path, text) -> tuple[str, list[str]]:
    path.write_text(text, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        f"--user-data-dir={path.parent / 'profile'}", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
