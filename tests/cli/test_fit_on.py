"""``rooflight fit --on``: a few rows of a device on top of other models, and what predicts with them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from measured_tables import H100_FILE, write_table

import rooflight as rl
from rooflight.prediction.model.files import NAME
from rooflight.prediction.predictor import SHIPPED

SHAPE = ("--m", "1024", "--n=1024", "--k", "1024", "--dtype", "fp16")
FEW = tuple(product((1024, 2048, 4096), repeat=3))  # none that takes but the shortest kernel


def test_twenty_rows_of_an_h100_on_top_of_models_of_an_a100(as_json, ok, tmp_path: Path):
    """The H100 is five times as far from its bound as the A100, at all sizes."""
    write_table(tmp_path / "a100", noise=0.02)
    write_table(tmp_path / "h100", device=H100_FILE, shapes=FEW, slowdown=10.0)
    as_json("fit", tmp_path / "a100", "--out", tmp_path / "base")
    data = as_json("fit", tmp_path / "h100", "--on", tmp_path / "base", "--out", tmp_path / "models")
    (added,) = data["added"]
    assert (added["key"], added["device"], added["rows"]) == ("gemm", "H100-SXM5-80GB", len(FEW))
    assert added["how"] in ("scale", "Gaussian process")
    assert added["error"] < 0.2 < added["error_before"]
    assert data["models"] == []
    words = ("predict", "gemm", *SHAPE, "--device", "H100-SXM5-80GB", "--models")
    before, after = (as_json(*words, tmp_path / each)["step"] for each in ("base", "models"))
    assert after["time_s"] == pytest.approx(10 * after["bound_s"], rel=0.2)
    assert before["time_s"] < 0.6 * after["time_s"]
    assert (before["extrapolated"], after["extrapolated"]) == (True, False)
    assert after["high_s"] / after["time_s"] < before["high_s"] / before["time_s"]
    # in Python, and for the ops of a session
    predictor = rl.Predictor.load(tmp_path / "models")
    found = predictor.predict_shape("gemm", {"m": 1024, "n": 1024, "k": 1024}, "fp16", "H100-SXM5-80GB")["step"]
    assert found.time_s == pytest.approx(after["time_s"])
    out = ok("fit", tmp_path / "h100", "--on", tmp_path / "base", "--out", tmp_path / "models")
    assert "On top of the other models" in out


def test_the_shipped_models_are_a_base(as_json, tmp_path: Path):
    write_table(tmp_path / "data", device=H100_FILE, shapes=FEW, slowdown=3.0)
    as_json("fit", tmp_path / "data", "--on", "shipped", "--out", tmp_path / "models")
    names = {path.name for path in (tmp_path / "models").iterdir()}
    assert names == {path.name for path in SHIPPED.iterdir()}
    fits = json.loads((tmp_path / "models" / NAME).read_text())["fits"]
    assert fits[-1]["on"]["name"] == "shipped"
    assert len(fits[0]["files"]) > 50  # what the shipped models learned from
