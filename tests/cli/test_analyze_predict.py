"""``rooflight analyze ... --predict``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import op, spec
from gemm_table import SLOWDOWN, fit_models, gemm
from sessions import Call, session_of

DEVICE = ("--device", "A100-SXM4-80GB")
X = spec((1000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
PRODUCT = gemm(1024, 512, 1024)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fit_models(tmp_path_factory.mktemp("tables")))


@pytest.fixture
def session(tmp_path: Path) -> str:
    calls = [Call(op=PRODUCT, phase="one"), Call(op=ADD, phase="two")]
    return str(session_of(calls, storage_bytes=[4000], environment={"target": "a step"}).save(tmp_path / "x.session"))


def test_a_saved_session_is_predicted_from_models(ok, session, models):
    out = ok("analyze", session, *DEVICE, "--predict", "--models", models)
    for part in ("predicted", "predicted efficiency", "Top operations by predicted time", "regressed", "typical"):
        assert part in out
    assert "The step is predicted to take" in " ".join(out.split())


def test_the_wall_time_is_that_of_the_host_named(as_json, session, models):
    predicted = ("analyze", session, *DEVICE, "--models", models)
    walls = {}
    for option in ((), ("--host", "1e-3"), ("--graph",)):
        data = as_json(*predicted, *option)
        walls[option] = data["totals"]["predicted_wall_s"]
        assert data["prediction"]["predicted_wall_s"] == walls[option]
        assert data["totals"]["predicted_s"] < walls[option]
    # 1.2 before the first op, 2.1 for the product, 1 for the sum, 1 ms each; then the sum on the device
    assert walls["--host", "1e-3"] == pytest.approx(4.3e-3, rel=0.01)
    assert walls["--graph",] < walls[()] < walls["--host", "1e-3"]


def test_naming_models_is_asking_for_predictions(ok, as_json, session, models, tmp_path):
    markdown = tmp_path / "report.md"
    data = as_json("analyze", session, *DEVICE, "--models", models)
    phases = {row["name"]: row for row in data["by_phase"]}
    assert phases["one"]["predicted_s"] == pytest.approx(SLOWDOWN * phases["one"]["op_bound_s"], rel=0.1)
    total = sum(row["predicted_s"] for row in data["by_phase"])
    assert data["totals"]["predicted_s"] == pytest.approx(total)
    low, high = data["totals"]["predicted_low_s"], data["totals"]["predicted_high_s"]
    assert data["totals"]["op_bound_s"] <= low <= total <= high
    ok("analyze", session, *DEVICE, "--models", models, "--markdown", str(markdown))
    assert "| predicted |" in markdown.read_text()


def test_without_being_asked_nothing_is_predicted(ok, session):
    assert "redicted" not in ok("analyze", session, *DEVICE)


def test_the_models_that_come_with_rooflight_are_the_default(as_json, session, models, monkeypatch):
    monkeypatch.setattr("rooflight.prediction.predictor.SHIPPED", Path(models))
    rows = as_json("analyze", session, *DEVICE, "--predict")["ops"]
    sources = {row["name"]: row["prediction_source"] for row in rows}
    assert sources == {"aten::mm": "regressed", "aten::add": "typical"}


def test_no_models_is_one_line_before_anything_runs(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("rooflight.prediction.predictor.SHIPPED", tmp_path / "none")
    words = ("--save", tmp_path / "saved.session", "--predict")
    assert "no models came with Rooflight" in refused("analyze", "gpt2", "--small", *DEVICE, *words)
    assert not (tmp_path / "saved.session").exists()


def test_a_damaged_model_is_one_line_and_the_session_is_kept(refused, models, tmp_path):
    folder, saved = tmp_path / "damaged", tmp_path / "saved.session"
    folder.mkdir()
    for path in Path(models).iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[:1000])
    small = ("gpt2", "--small", "--seq", "8", *DEVICE)
    assert ".model.npz" in refused("analyze", *small, "--save", str(saved), "--models", str(folder))
    assert saved.exists()  # what was recorded is not lost with it


def test_ranks_are_predicted_each(ok, as_json, models, tmp_path):
    files = [
        str(session_of([Call(op=ADD)], environment={"rank": str(rank), "world_size": "2"}).save(tmp_path / f"r{rank}"))
        for rank in range(2)
    ]
    data = as_json("analyze", *files, *DEVICE, "--predict", "--models", models)
    assert all(rank["predicted_s"] >= rank["op_bound_s"] > 0 for rank in data["ranks"])
    assert data["slowest"]["prediction"]["unpredicted_calls"] == 0
    assert "predicted" in ok("analyze", *files, *DEVICE, "--models", models)


def test_a_preset_is_predicted_on_a_device_that_is_not_here(as_json, models):
    small = ("gpt2", "--small", "--seq", "8", "--step", "train")
    data = as_json("analyze", *small, "--device", "B200-SXM", "--predict", "--models", models)
    assert data["totals"]["predicted_s"] >= data["totals"]["op_bound_s"]
    assert all(row["predicted_low_s"] >= row["op_bound_s"] * (1 - 1e-9) for row in data["by_module"])
    assert {row["name"] for row in data["by_phase"]} == {"forward", "backward", "optimizer"}


def test_prediction_needs_no_torch(without_torch, session, models):
    done = without_torch("analyze", session, *DEVICE, "--models", models)
    assert done.returncode == 0, done.stderr
    assert "The step is predicted" in " ".join(done.stdout.split())


def test_a_decode_step_has_its_time_per_token_eager_replayed_and_compiled(ok):
    device = ("--device", "A100-SXM4-80GB")
    text = " ".join(ok("analyze", "gpt2", "--small", "--step", "decode", "--batch", "4", *device, "--predict").split())
    told = re.search(
        r"time per token predicted ([\d.]+) (\S+) \(([\d,.]+) tok/s\); predicted as if replayed from a graph "
        r"([\d.]+) (\S+) \(([\d,.]+) tok/s\); program bound",
        text,
    )
    assert told is not None, text
    seconds = float(told[1]) * {"ms": 1e-3, "µs": 1e-6}[told[2]]
    assert float(told[3].replace(",", "")) == pytest.approx(4 / seconds, rel=0.01)  # a token for each of 4 sequences
    assert re.search(r"Compiled by torch.compile\(mode='reduce-overhead'\).* is predicted to take .* tok/s\)", text)
    assert "time per token" not in ok("analyze", "gpt2", "--small", "--step", "prefill", *device)
