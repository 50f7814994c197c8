"""Features, models and predictions, on tables written by hand."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from builders import op, spec
from typer.testing import CliRunner

from rooflight.cli.main import app
from rooflight.devices import get
from rooflight.prediction.features import features_of, names_of, product_sizes
from rooflight.prediction.model import LEAST_ROWS, check_trees, decode, learn
from rooflight.prediction.predictor import TYPICAL_SLOWDOWN, Predictor, fit
from rooflight.prediction.tables import read
from rooflight.records.estimate import Source
from rooflight.sampling import registry

A100 = get("A100-SXM4-80GB")
MM = op("aten::mm", {"self": spec((64, 32), "float16"), "mat2": spec((32, 16), "float16")}, [spec((64, 16), "float16")])
EFFICIENCY = 0.5


def write_table(folder: Path, operator: str = "gemm", *, noise: float = 0.0, rows: int = 200) -> Path:
    """gemm rows that take twice their bound on an A100, give or take ``noise``."""
    found = registry.find(operator)
    rng = np.random.default_rng(1)
    lines = ["m,n,k,dur(us)"]
    for m, n, k in rng.choice([256, 512, 768, 1024, 2048, 4096], size=(rows, 3)):
        features = features_of(
            found.work(found.shape({"m": int(m), "n": int(n), "k": int(k)}), "float16").forward, A100
        )
        assert features is not None
        seconds = features.bound_s / EFFICIENCY * exp(rng.normal(0, noise)) if noise else features.bound_s / EFFICIENCY
        lines.append(f"{m},{n},{k},{seconds * 1e6!r}")
    path = folder / f"NVIDIAA100-SXM4-80GB_{operator}_fp16.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    found, few = fit(read(write_table(tmp_path_factory.mktemp("tables"), noise=0.05)))
    assert few == {}
    return found


def test_features_have_the_names_of_their_key():
    for ops in ((MM,), (op("aten::exp", {"self": spec((8, 8))}, [spec((8, 8))]),), (MM, MM)):
        features = features_of(ops, A100)
        assert features is not None
        assert len(features.values) == len(names_of(features.key))


def test_the_bound_of_several_ops_is_the_sum_of_theirs():
    one, two = features_of((MM,), A100), features_of((MM, MM), A100)
    assert one is not None
    assert two is not None
    assert two.bound_s == pytest.approx(2 * one.bound_s)


def test_sizes_of_products():
    assert product_sizes(MM) == (1, 64, 16, 32)
    batched = op("aten::bmm", {"self": spec((3, 4, 5)), "mat2": spec((3, 5, 6))}, [spec((3, 4, 6))])
    assert product_sizes(batched) == (3, 4, 6, 5)
    added = op("aten::addmm", {"self": spec((6,)), "mat1": spec((4, 5)), "mat2": spec((5, 6))}, [spec((4, 6))])
    assert product_sizes(added) == (1, 4, 6, 5)
    assert product_sizes(op("aten::exp", {"self": spec((3, 4))}, [spec((3, 4))])) is None


def test_work_without_a_cost_has_no_features():
    assert features_of((op("nobody::knows", {"x": spec((4,))}, [spec((4,))]),), A100) is None
    assert features_of((), A100) is None


def test_a_constant_efficiency_is_learned(predictor: Predictor):
    # twice the bound, 5 % noise: the error of what is held out is that of the noise, about 0.8 x 5 %
    model = predictor.models["gemm"]
    assert model.rows == 200
    assert model.error < 0.07
    estimate = predictor.predict_shape("gemm", {"m": 1024, "n": 1024, "k": 1024}, "fp16", A100)["step"]
    assert estimate.time_s == pytest.approx(estimate.bound_s / EFFICIENCY, rel=0.1)
    assert estimate.source is Source.REGRESSED
    assert not estimate.extrapolated
    # 90 % of a normal distribution lies within 1.64 deviations: exp(1.64 * 0.05) = 1.085; of few rows, somewhat more
    assert estimate.high_s / estimate.time_s < 1.25


def test_what_was_never_shown_is_extrapolated_and_less_sure(predictor: Predictor):
    inside = predictor.predict_shape("gemm", [1024, 1024, 1024], "fp16", A100)["step"]
    for shape, device in (([65536, 1024, 1024], "A100-SXM4-80GB"), ([1024, 1024, 1024], "H100-SXM5-80GB")):
        outside = predictor.predict_shape("gemm", shape, "fp16", device)["step"]
        assert outside.extrapolated
        assert outside.high_s / outside.time_s >= inside.high_s / inside.time_s


def test_an_unknown_kind_takes_half_the_speed_of_light_within_a_factor_of_four(predictor: Predictor):
    estimate = predictor.predict_shape("softmax", [1, 4, 16, 1024], "fp16", A100)["fwd"]
    assert estimate.source is Source.TYPICAL
    assert estimate.extrapolated
    assert estimate.time_s == pytest.approx(estimate.bound_s * exp(TYPICAL_SLOWDOWN))
    assert estimate.low_s == estimate.bound_s  # a quarter of twice the bound would beat it
    assert estimate.high_s == pytest.approx(8 * estimate.bound_s)


def test_nothing_is_predicted_faster_than_light():
    values = np.random.default_rng(0).random((60, len(names_of("gemm"))))
    model = learn("gemm", values, np.zeros(60), ["A100-SXM4-80GB"])
    assert (model.predict(values) >= 0).all()
    assert model.inside[0] <= 0 <= model.inside[1]


def test_too_few_rows_make_no_model(tmp_path: Path):
    few = LEAST_ROWS - 1
    predictor, left = fit(read(write_table(tmp_path, rows=few)))
    assert not predictor.models
    assert left == {"gemm": few}
    with pytest.raises(ValueError, match="too few"):
        learn("gemm", np.zeros((few, 3)), np.zeros(few), [])


def test_saved_models_predict_the_same(predictor: Predictor, tmp_path: Path):
    loaded = Predictor.load(predictor.save(tmp_path / "models"))
    for shape in ([512, 768, 1024], [9999, 31, 7]):
        one, other = (each.predict_shape("gemm", shape, "fp16", A100)["step"] for each in (predictor, loaded))
        assert one == other
    assert loaded.models.keys() == predictor.models.keys()


def test_a_folder_without_models_says_what_to_do(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="rooflight fit DATA --out"):
            Predictor.load(folder)


def damaged(text: dict, **changes: object) -> bytes:
    return json.dumps({**text, **changes}).encode()


def test_damaged_and_hostile_models_are_refused_in_one_line(predictor: Predictor):
    good = predictor.models["gemm"].encode()
    decode(good)
    text = json.loads(good)
    trees = text["trees"]
    tree = trees[trees.index("Tree=0") : trees.index("Tree=1")]
    children = next(line for line in tree.splitlines() if line.startswith("left_child"))
    features = next(line for line in tree.splitlines() if line.startswith("split_feature"))
    leaves = next(line for line in tree.splitlines() if line.startswith("leaf_value"))
    cases = {
        "not JSON": b"\x80\x04\x95pickle",
        "half": good[: len(good) // 2],
        "another schema": damaged(text, schema="rooflight.model/9"),
        "other features": damaged(text, key="aten::exp"),
        "too few ranges": damaged(text, low=[0.0]),
        "no numbers": damaged(text, error=1e999),
        "an unknown field": damaged(text, code="import os"),
        "no trees": damaged(text, trees=""),
        "a child far outside": damaged(text, trees=trees.replace(children, "left_child=999999 " + children[13:])),
        "a loop": damaged(text, trees=trees.replace(children, "left_child=" + "0 " * len(children[11:].split()))),
        "a feature far outside": damaged(text, trees=trees.replace(features, features.replace("=", "=7777777 ", 1))),
        "a missing leaf": damaged(text, trees=trees.replace(leaves, leaves.rsplit(" ", 1)[0])),
    }
    for name, content in cases.items():
        with pytest.raises(ValueError, match=r"fit it again|not a model") as caught:
            decode(content)
        assert "\n" not in str(caught.value), name


def test_trees_as_they_are_pass_the_check(predictor: Predictor):
    check_trees(predictor.models["gemm"].trees, len(names_of("gemm")))


def test_flagged_times_teach_nothing(tmp_path: Path):
    from rooflight.prediction.lint import lint

    path = write_table(tmp_path)
    lines = path.read_text().splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:3], "0.0001"])  # far faster than light
    path.write_text("\n".join(lines) + "\n")
    tables = read(path)
    findings = lint(tables)
    assert findings
    predictor, _ = fit(tables, findings)
    assert predictor.models["gemm"].rows < 200
    assert predictor.models["gemm"].error < 0.01


def test_the_commands_go_from_samples_to_a_prediction(tmp_path: Path):
    runner = CliRunner()
    write_table(tmp_path, noise=0.02)
    done = runner.invoke(app, ["fit", str(tmp_path), "--out", str(tmp_path / "models"), "--json", str(tmp_path / "f")])
    assert done.exit_code == 0, done.output
    (model,) = json.loads((tmp_path / "f").read_text())["models"]
    assert model["key"] == "gemm"
    shape = ["--m", "1024", "--n=1024", "--k", "1024", "--dtype", "fp16", "--device", "A100-SXM4-80GB"]
    done = runner.invoke(app, ["predict", "gemm", *shape, "--models", str(tmp_path / "models"), "--json", "-"])
    assert done.exit_code == 0, done.output
    step = json.loads(done.output)["step"]
    # 2 * 1024^3 / 312e12 = 6.88 us at the speed of light, twice that
    assert step["bound_s"] == pytest.approx(2 * 1024**3 / 312e12)
    assert step["time_s"] == pytest.approx(2 * step["bound_s"], rel=0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gemm", "--m", "x"], "--name number"),
        (["gemm", "--m", "4", "--m", "5"], "twice"),
        (["gemm", "stray"], "--name number"),
        (["gemm", "--m", "4", "--n"], "--name number"),
    ],
)
def test_odd_shapes_are_one_clear_line(words: list[str], said: str):
    done = CliRunner().invoke(app, ["predict", *words, "--device", "H100-SXM5-80GB"])
    assert isinstance(done.exception, ValueError)
    assert said in str(done.exception)


def test_an_interval_holds_what_it_says(predictor: Predictor):
    """Nine in ten of fresh rows of the same making lie inside."""
    rng = np.random.default_rng(7)
    inside = 0
    for m, n, k in rng.choice([256, 512, 768, 1024, 2048, 4096], size=(300, 3)):
        estimate = predictor.predict_shape("gemm", [int(m), int(n), int(k)], "fp16", A100)["step"]
        true = estimate.bound_s * exp(log(1 / EFFICIENCY) + rng.normal(0, 0.05))
        inside += estimate.low_s <= true <= estimate.high_s
    assert 0.85 <= inside / 300 <= 0.97


def test_the_pages_call_learns_on_first_need(tmp_path: Path):
    write_table(tmp_path)
    predictor = Predictor()

    def microseconds(**changes: object) -> float:
        arguments: dict = {
            "gpu_name": "NVIDIAA100-SXM4-80GB",
            "function": "gemm",
            "precision": "fp16",
            "propagation": "step",
            "shape": [1024, 1024, 1024],
            "model_dict": predictor.operator_dict,
            "config_folder": "path/to/config",
            "data_folder": tmp_path,
        }
        return predictor.predict_operator(**{**arguments, **changes})

    first = microseconds()
    assert first == pytest.approx(2 * 2 * 1024**3 / 312e12 * 1e6, rel=0.02)  # twice the bound
    (learned,) = predictor.operator_dict.values()
    assert microseconds() == first
    assert list(predictor.operator_dict.values()) == [learned]
    for changes, said in (
        ({"propagation": "bwd"}, "it has step"),
        ({"function": "softmax", "shape": [1, 4, 16, 1024]}, "no samples of softmax"),
        ({"gpu_name": "NVIDIA H300"}, "H300"),
        ({"shape": [1, 2]}, "needs k"),
    ):
        with pytest.raises(ValueError, match=said):
            microseconds(**changes)
