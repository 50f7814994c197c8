"""``rooflight fit`` and ``rooflight predict``, from samples to a predicted time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Union

import msgspec
import pytest
from calibrated import calibration_of, roofs_of
from gemm_table import SLOWDOWN, fit_models
from measured_tables import A100_FILE, GRID, H100_FILE, VECTORS, write_table

from rooflight.costs.operators import registry
from rooflight.hardware.machine import calibration
from rooflight.prediction.work.facts import PRODUCT_KEY
from rooflight.reporting.schemas import documents

SHAPE = ("--m", "1024", "--n=1024", "--k", "1024", "--dtype", "fp16")
DEVICE = ("--device", "A100-SXM4-80GB")


@pytest.fixture
def told(ok):
    """What a command prints as JSON, of a published schema."""

    def data(*words: str | Path) -> Any:
        out = ok(*words, "--json", "-")
        msgspec.json.decode(out, type=Union[documents()])  # noqa: UP007 - made of a tuple
        return json.loads(out)

    return data


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_models(tmp_path_factory.mktemp("tables"))


def test_from_samples_to_a_prediction(told, tmp_path: Path):
    write_table(tmp_path / "data", noise=0.02)
    models = tmp_path / "deep" / "models"
    data = told("fit", tmp_path / "data", "--out", models)
    (model,) = data["models"]
    assert (model["key"], model["device"], model["rows"]) == (PRODUCT_KEY, "A100-SXM4-80GB", len(GRID))
    assert 0 < model["error"] < 0.05
    assert model["inside"][0] <= 0 <= model["inside"][1]
    assert list(data["unseen_device"]) == [PRODUCT_KEY]
    assert (data["times"], data["flagged"], data["too_few"]) == (len(GRID), 0, {})
    step = told("predict", "gemm", *SHAPE, *DEVICE, "--models", models)["step"]
    # 2 * 1024^3 / 312e12 = 6.88 us of bound, twice that
    assert step["bound_s"] == pytest.approx(2 * 1024**3 / 312e12)
    assert step["time_s"] == pytest.approx(2 * step["bound_s"], rel=0.1)
    assert step["bound_s"] <= step["low_s"] <= step["time_s"] <= step["high_s"]
    assert (step["source"], step["extrapolated"]) == ("regressed", False)


def test_several_files_and_folders_are_learned_together_each_once(ok, told, tmp_path: Path, monkeypatch):
    a = write_table(tmp_path / "a", shapes=GRID[:40])
    b = write_table(tmp_path / "b", shapes=GRID[40:])
    write_table(tmp_path / "c", device=H100_FILE, shapes=GRID[:10])
    models = tmp_path / "models"
    monkeypatch.chdir(tmp_path)
    here = Path(os.path.relpath(a, Path.cwd()))
    data = told("fit", a, tmp_path / "b", b, here, tmp_path / "c", "--out", models)
    assert [(model["device"], model["rows"]) for model in data["models"]] == [("A100-SXM4-80GB", len(GRID))]
    assert data["too_few"] == {f"{PRODUCT_KEY} on H100-SXM5-80GB": 10}
    markdown = tmp_path / "report.md"
    out = ok("fit", tmp_path, "--out", models, "--markdown", markdown)
    for text in (out, markdown.read_text()):
        assert f"{PRODUCT_KEY} on H100-SXM5-80GB: 10 times are too few to learn from." in " ".join(text.split())


def test_what_lint_flags_is_left_out_unless_it_is_asked_for(told, tmp_path: Path):
    path = write_table(tmp_path)
    lines = path.read_text().splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:3], "0.0001"])  # far faster than light
    path.write_text("\n".join(lines) + "\n")
    data = told("fit", path, "--out", tmp_path / "models")
    assert (data["flagged"], data["models"][0]["rows"]) == (1, len(GRID) - 1)
    data = told("fit", path, "--out", tmp_path / "models", "--keep-flagged")
    assert (data["flagged"], data["models"][0]["rows"]) == (0, len(GRID))


def test_this_cpu_is_predicted_by_its_calibration_which_is_made_once(told, models: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    made = [calibration_of(roofs_of(1e12, 1e11, matrix={"float16": 1e12}), "some CPU")]
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: made.pop())
    for name in ("cpu", "some CPU", "cpu"):
        step = told("predict", "gemm", *SHAPE, "--device", name, "--models", models)["step"]
        assert step["bound_s"] == pytest.approx(2 * 1024**3 / 1e12)


def test_unknown_operators_are_named(ok, tmp_path: Path):
    write_table(tmp_path, "relu", VECTORS)
    (tmp_path / f"{A100_FILE}_nobody_knows_fp16.csv").write_text("width,dur(us)\n8,1\n")
    out = ok("fit", tmp_path, "--out", tmp_path / "models")
    text = " ".join(out.split())
    assert "Skipped, because no such operator is registered: nobody_knows." in text
    assert "nobody_knows float16 on A100-SXM4-80GB: 1 time is too few to learn from." in text
    assert "aten::relu" in out


def test_models_of_earlier_fits_are_told_of(ok, tmp_path: Path):
    models = tmp_path / "models"
    outs = []
    for name, shapes in (("gemm", GRID), ("relu", VECTORS), ("relu", VECTORS)):
        data = write_table(tmp_path / name, name, shapes)
        out = ok("fit", data, "--out", models)
        outs.append("also holds 1 model of earlier fits" in " ".join(out.split()))
    assert outs == [False, True, True]


def test_a_collective_is_learned_and_predicted_by_its_topology(told, tmp_path: Path):
    sizes = [2**power for power in range(16, 28)]
    shapes = [(size, nodes, ranks) for size in sizes for nodes, ranks in ((1, 4), (2, 4))]
    path = write_table(tmp_path, "all_reduce", shapes, slowdown=1.5)
    lines = path.read_text().splitlines()
    slower = [f"{line.rpartition(',')[0]},{float(line.rpartition(',')[2]) * 10}" for line in lines if ",2,4," in line]
    path.write_text("\n".join([line for line in lines if ",2,4," not in line] + slower) + "\n")
    models = tmp_path / "models"
    (model,) = told("fit", path, "--out", models)["models"]
    assert (model["key"], model["rows"]) == ("all-reduce", len(shapes))
    for nodes, slowdown in ((1, 1.5), (2, 15)):
        words = ("--elements", str(3 << 20), "--nodes", str(nodes), "--gpus_per_node", "4", "--dtype", "fp32")
        step = told("predict", "all_reduce", *words, *DEVICE, "--models", models)["step"]
        assert step["time_s"] == pytest.approx(slowdown * step["bound_s"], rel=0.1)
        assert (step["source"], step["extrapolated"]) == ("regressed", False)


def test_a_prediction_says_what_it_rests_on(ok, models):
    for device, said in (("A100-SXM4-80GB", "regressed"), ("B200-SXM", "lie outside of the samples")):
        assert said in " ".join(ok("predict", "gemm", *SHAPE, "--device", device, "--models", models).split())
    out = ok("predict", "softmax_rows", "--rows=64", "--width=64", *DEVICE, "--models", models)
    assert "No model learned this kind of work" in " ".join(out.split())


def test_the_models_that_come_with_rooflight_are_the_default(told, models, monkeypatch):
    monkeypatch.setattr("rooflight.prediction.predictor.SHIPPED", models)
    assert told("predict", "gemm", *SHAPE, *DEVICE)["step"]["source"] == "regressed"


def test_a_prediction_has_every_direction(told, models):
    found = told("predict", "softmax_rows", "--rows", "64", "--width", "64", *DEVICE, "--models", models)
    what = ["schema", "operator", "shape", "dtype", "device", "what_if_precision", "what_if_clock_hz", "roofs_used"]
    assert list(found) == [*what, "notes", "threads", "fwd", "bwd"]
    assert (found["operator"], found["shape"]) == ("softmax_rows", {"rows": 64, "width": 64})
    found = told("predict", "batched_mm", "--b=1", "--m=512", "--n=512", "--k=512", "--dtype", "fp16", *DEVICE,
                 "--models", models)  # fmt: skip
    assert found["fwd"]["time_s"] == pytest.approx(SLOWDOWN * found["fwd"]["bound_s"], rel=0.05)


@pytest.mark.parametrize("columns", ["20", "60", "80"])
def test_reports_of_tables_fit_narrow_terminals(run, tmp_path: Path, monkeypatch, columns: str):
    """Optional columns are left out by name: a name that no column has would end the verb."""
    monkeypatch.setenv("COLUMNS", columns)
    path = write_table(tmp_path / "data", noise=0.02)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1].rsplit(",", 1)[0] + ",1e9"]) + "\n")  # 1000 s: an outlier
    for words in (("lint", path), ("fit", path, "--out", tmp_path / "models"), ("devices",), ("sample", "--list")):
        code, out, err = run(*words)
        assert code == (words[0] == "lint"), err  # it found the outlier
        assert err == ""
        assert out


OPERATORS = """
from dataclasses import replace

from rooflight.costs.operators.registry import find, register

register(replace(find("tanh"), name="{first}"))
register(replace(find("tanh"), name="{second}"))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    registry.find("tanh")  # loaded, so that only what the file registers is undone
    monkeypatch.setattr(registry, "_operators", dict(registry._operators))
    path = tmp_path / "mine.py"
    path.write_text(OPERATORS.format(first="my_tanh", second="my_other"))
    return path


ROWS = ("--rows", "64", "--width", "64", "--dtype", "fp16", "--device", "A100-SXM4-80GB")


def test_an_operator_of_a_file_is_predicted(ok, mine):
    assert "Predicted: my_tanh rows=64 width=64" in ok("predict", f"{mine}:my_tanh", *ROWS)


def test_one_of_several_must_be_named(refused, mine):
    err = refused("predict", str(mine), *ROWS)
    assert f"{mine} registers several operators: name one, as in {mine}:my_other" in err
