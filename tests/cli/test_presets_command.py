"""``rooflight presets``: every preset, in every format, without torch."""

from __future__ import annotations

import csv
import json

import msgspec

from rooflight.sources.workloads.presets import PRESETS, PresetsDocument


def test_every_preset_is_listed_with_its_source(ok):
    out = ok("presets", "--json", "-")
    listed = msgspec.json.decode(out, type=PresetsDocument).presets
    assert {each.name: each.source for each in listed} == {name: known.source for name, known in PRESETS.items()}
    by_name = {each["name"]: each for each in json.loads(out)["presets"]}
    assert by_name["gpt2"]["parameters"] == 124_439_808  # OpenAI's 124M
    assert (by_name["gpt2"]["batch"], by_name["gpt2"]["seq"], by_name["resnet-50"]["seq"]) == (1, 256, None)
    assert by_name["whisper-large-v3"]["steps"] == ["forward", "train"]


def test_every_format_has_every_preset(run, tmp_path):
    _, console, _ = run("presets")
    _, markdown, _ = run("presets", "--markdown", "-")
    _, table, _ = run("presets", "--csv", "-")
    run("presets", "--html", str(tmp_path / "presets.html"))
    html = (tmp_path / "presets.html").read_text()
    for name in PRESETS:
        assert all(name in text for text in (console, markdown, html))
    assert [row["preset"] for row in csv.DictReader(table.splitlines())] == list(PRESETS)


def test_listing_needs_no_torch(without_torch):
    done = without_torch("presets")
    assert done.returncode == 0, done.stderr
    assert "llama-3.1-405b" in done.stdout


def test_help_of_analyze_says_where_presets_are_listed(run):
    assert "rooflight presets" in run("analyze", "--help")[1]
