"""Users' functions, whose work nobody knows: learned from their parameters, or from the features they declare."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from measured_tables import A100_FILE

from rooflight.prediction.fit.functions import learn_functions
from rooflight.prediction.model.functions import decode, encode
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import read

GRID = tuple(product((1, 2, 4), (1, 2), (256, 512, 768, 1024), (512, 1024, 1536, 2048)))
KEPT = ((1, 1, 640, 1280), (2, 2, 300, 1800), (4, 1, 900, 600))
FEATURES = [[0, 1, 1, 0], [-1, 0, 0, 1]]  # b l, dim / mp
CPU = "SomeCPU"


def seconds(shape) -> tuple[float, float]:
    """5 us and a nanosecond for each of the b l dim / mp elements; backward three times that."""
    mp, b, long, dim = shape
    forward = 5e-6 + 1e-9 * b * long * dim / mp
    return forward, 3 * forward


def write(folder: Path, shapes=GRID, *, device: str = CPU, kernel: str = "mine", **timing: str) -> Path:
    """The sampler's file of a user's function, on a CPU that nobody calibrated."""
    names = ("mp", "b", "l", "dim")
    header = {
        **dict.fromkeys(("kernel", "operator"), kernel),
        "precision": "fp32",
        "device": device,
        "columns": [(name, name) for name in names],
        "directions": ("fwd", "bwd"),
        "timing": timing,
        "environment": {"device_kind": "cpu" if device == CPU else "cuda"},
        "format": "rooflight.samples/1",
    }
    rows = [
        {
            "shape": dict(zip(names, shape, strict=True)),
            "status": "ok",
            "samples_s": {way: [time] * 6 for way, time in zip(("fwd", "bwd"), seconds(shape), strict=True)},
        }
        for shape in shapes
    ]
    folder.mkdir(exist_ok=True)
    path = folder / f"{device}_{kernel}_fp32_1_1.jsonl"
    path.write_text("\n".join(map(json.dumps, (header, *rows))) + "\n")
    return path


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    ((function,), few) = learn_functions(read(write(tmp_path_factory.mktemp("data"))))
    assert not few
    return function


@pytest.mark.parametrize("way", ["fwd", "bwd"])
def test_kept_back_shapes_are_predicted_within_five_percent(learned, way):
    for shape in KEPT:
        found = learned.predict(shape)[way]
        true = seconds(shape)[way == "bwd"]
        assert found.time_s == pytest.approx(true, rel=0.05)
        assert found.low_s <= true <= found.high_s
        assert (found.bound_s, found.extrapolated) == (0.0, False)


def test_a_shape_beyond_the_samples_is_extrapolated_with_a_wider_interval(learned):
    near, far = (learned.predict(shape)["fwd"] for shape in ((1, 2, 1024, 2048), (1, 2, 4096, 8192)))
    assert far.extrapolated
    assert far.high_s / far.time_s >= near.high_s / near.time_s
    # four times as long, four times as wide: the power law goes on
    assert 8 * near.time_s < far.time_s < 32 * near.time_s


def test_declared_features_tell_more_of_few_rows(tmp_path):
    few = [GRID[place] for place in np.random.default_rng(0).permutation(len(GRID))[:16]]
    plain, declared = (
        learn_functions(read(write(tmp_path / str(len(timing)), few, **timing)))[0][0]
        for timing in ({}, {"features": json.dumps(FEATURES)})
    )
    assert plain.features == ("mp", "b", "l", "dim")
    assert declared.features == ("b l", "dim / mp")
    plain_error, error = (sum(curve.error for curve in each.curves.values()) for each in (plain, declared))
    assert error < plain_error


def test_declared_features_that_tell_less_are_not_used(tmp_path):
    path = write(tmp_path / "data", features="[[0, 0, 0, 1]]")
    assert learn_functions(read(path))[0][0].features == ("mp", "b", "l", "dim")


@pytest.mark.parametrize("features", ["[[1]]", "[]", "[1, 2]", "{", '[["a", 0, 0, 0]]'])
def test_features_that_cannot_be_are_refused(features, tmp_path):
    with pytest.raises(ValueError, match="line 1: features"):
        read(write(tmp_path / "data", features=features))


def test_the_page_s_call_learns_of_a_cpu_that_nobody_calibrated(tmp_path):
    write(tmp_path / "data")
    predictor = Predictor.empty()
    asked = (CPU, "mine", "fp32", "bwd", [2, 2, 300, 1800], predictor.operator_dict, "config", tmp_path / "data")
    assert predictor.predict_operator(*asked) == pytest.approx(seconds((2, 2, 300, 1800))[1] * 1e6, rel=0.05)
    with pytest.raises(ValueError, match=r"mine has 4 parameters \(mp, b, l, dim\), not 5 values"):
        predictor.predict_operator(CPU, "mine", "fp32", "bwd", [1] * 5, None, None, tmp_path / "data")
    with pytest.raises(ValueError, match="no samples of mine in fp16"):
        predictor.predict_operator(CPU, "mine", "fp16", "bwd", [1] * 4, None, None, tmp_path / "data")


def test_the_page_s_call_takes_a_gpu_by_the_name_in_files(tmp_path):
    write(tmp_path / "data", device=A100_FILE)
    found = Predictor.empty().predict_operator(A100_FILE, "mine", "fp32", "fwd", KEPT[0], None, None, tmp_path / "data")
    assert found == pytest.approx(seconds(KEPT[0])[0] * 1e6, rel=0.05)


def test_too_few_rows_are_said_to_be_too_few(tmp_path, refused):
    data = write(tmp_path / "data", GRID[:11]).parent
    with pytest.raises(ValueError, match="too few samples of mine"):
        Predictor.empty().predict_operator(CPU, "mine", "fp32", "fwd", KEPT[0], None, None, data)
    assert "too few rows of any kind" in refused("fit", data, "--out", tmp_path / "models")


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
def test_from_a_fit_to_a_prediction_by_the_command(ok, tmp_path, on):
    models = tmp_path / "models"
    out = ok("fit", write(tmp_path / "data", device=A100_FILE, features=json.dumps(FEATURES)), "--out", models, *on)
    words = ("--mp", "2", "--b", "2", "--l", "300", "--dim", "1800", "--dtype", "fp32", "--device", A100_FILE)
    assert "mine float32 fwd" in out
    assert "mine: a function of yours: predicted without a bound, by b l, dim / mp." in " ".join(out.split())
    told = json.loads(ok("predict", "mine", *words, "--models", models, "--json", "-"))
    assert told["fwd"]["time_s"] == pytest.approx(seconds((2, 2, 300, 1800))[0], rel=0.05)
    assert told["fwd"]["bound_s"] is None
    assert "roofs from" not in ok("predict", "mine", *words, "--models", models)
    assert "nothing bounds it" in " ".join(told["notes"])
    if on:  # models of a base with functions keep these
        more = tmp_path / "more"
        ok("fit", write(tmp_path / "other", device=A100_FILE, kernel="other"), "--on", models, "--out", more)
        assert {each.name for each in Predictor.load(more).functions} == {"mine", "other"}


def test_a_function_named_like_an_operator_is_the_user_s(ok, tmp_path):
    write(tmp_path / "data", kernel="gelu", targets='[["gelu"], ["gelu_backward"]]')
    out = " ".join(ok("fit", tmp_path / "data", "--out", tmp_path / "models").split())
    assert "gelu: a function of yours, not Rooflight's gelu: predicted without a bound" in out
    assert "roofs from unknown" in out
    found = Predictor.load(tmp_path / "models").predict_shape("gelu", (2, 2, 300, 1800), "fp32", CPU)
    assert found["fwd"].time_s == pytest.approx(seconds((2, 2, 300, 1800))[0], rel=0.05)
    assert found["fwd"].bound_s == 0


def test_what_was_not_sampled_is_refused_by_name(learned):
    predictor = Predictor.of((), (learned,))
    for precision, device in (("fp16", CPU), ("fp32", "A100-SXM4-80GB")):
        with pytest.raises(ValueError, match="mine was sampled in float32 on SomeCPU, not in"):
            predictor.predict_shape("mine", KEPT[0], precision, device)
    with pytest.raises(ValueError, match="mine: mp=0 is too small"):
        predictor.predict_shape("mine", (0, 1, 1, 1), "fp32", CPU)


def test_a_file_holds_what_was_learned(learned):
    again = decode(encode(learned))
    assert again.predict(KEPT[0]) == learned.predict(KEPT[0])


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": ["mp", "b", "l"]},
        {"parameters": ["mp", "mp", "l", "dim"]},
        {"low": [1]},
        {"powers": [[1, 0, 0, 0]]},
        {"powers": [1, 0, 0, 0]},
        {"powers": [[1e300, 0, 0, 0]] * 4},
        {"powers": [["a", 0, 0, 0]] * 4},
        {"curves": {}},
        {"curves": {"fwd": None}},
        {"schema": "rooflight.function/0"},
        {"more": 1},
    ],
)
def test_other_files_are_refused(learned, change):
    whole = msgspec.json.decode(encode(learned))
    with pytest.raises(ValueError, match="no function of rooflight fit"):
        decode(msgspec.json.encode({**whole, **change}))


@pytest.mark.parametrize("change", [{"offset": 1e9}, {"slope": [1]}, {"error": 1e300}, {"inside": [1, 2]}])
def test_curves_that_cannot_be_are_refused(learned, change):
    whole = msgspec.json.decode(encode(learned))
    whole["curves"]["fwd"] |= change
    with pytest.raises(ValueError, match="impossible numbers"):
        decode(msgspec.json.encode(whole))
