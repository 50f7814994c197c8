"""The models that come with Rooflight are there, whole, as small as promised, and answer as when they were fitted.

After a new fit: ``python tests/prediction/test_shipped_models.py`` writes what they answer now.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflight.prediction.model.files import NAME, read_manifest
from rooflight.prediction.predictor import SHIPPED, SUFFIX, Predictor
from rooflight.prediction.work.features import names_of

GOLDEN = Path(__file__).with_name("golden_predictions.json")
MOST_BYTES = 5 << 20
BLOCK = 4096  # of a disk
CONVOLUTION = {"b": 16, "c_in": 64, "height": 56, "width": 56, "c_out": 64, "kernel": 3, "padding": 1}
QUESTIONS = (
    # seen devices, by each study; a size and a dtype that GH200's own expert was never shown; devices never shown
    ("gemm", {"m": 4096, "n": 4096, "k": 4096}, "fp16", "A100-SXM4-80GB"),
    ("gemm", {"m": 16, "n": 4096, "k": 4096}, "fp16", "GH200-96GB"),
    ("gemm", {"m": 16, "n": 4096, "k": 4096}, "fp16", "H100-SXM5-80GB"),
    ("gemm", {"m": 4096, "n": 4096, "k": 4096}, "fp32", "GH200-96GB"),
    ("linear", {"rows": 2048, "inputs": 1024, "outputs": 4096}, "fp32", "V100-PCIE-32GB"),
    ("linear", {"rows": 2048, "inputs": 1024, "outputs": 4096}, "fp32", "L4"),
    ("batched_mm", {"b": 96, "m": 512, "n": 512, "k": 64}, "fp32", "T4"),
    ("batched_mm", {"b": 96, "m": 512, "n": 512, "k": 64}, "fp16", "MI300X"),
    ("add", {"rows": 4096, "width": 4096}, "fp16", "H100-SXM5-80GB"),
    ("add", {"rows": 1, "width": 1}, "fp16", "H100-SXM5-80GB"),
    ("softmax_rows", {"rows": 8192, "width": 1024}, "fp32", "P100-PCIE-16GB"),
    ("layernorm_rows", {"rows": 8192, "width": 1024}, "fp32", "MI210"),
    ("rmsnorm", {"rows": 4096, "dim": 4096}, "fp16", "A40"),
    ("embedding_rows", {"rows": 4096, "vocab": 32000, "width": 4096}, "fp16", "A40"),
    ("gelu_rows", {"rows": 4096, "width": 16384}, "fp16", "A100-SXM4-80GB"),
    ("flash_atten", {"mp": 1, "b": 4, "h": 32, "l": 2048, "dim": 4096}, "fp16", "GH200-96GB"),
    ("conv2d", CONVOLUTION, "fp32", "V100-PCIE-32GB"),
    ("adamw", {"elements": 124_000_000}, "fp32", "A100-SXM4-80GB"),
    ("all_reduce", {"elements": 1 << 24, "nodes": 1, "gpus_per_node": 8}, "fp16", "H100-SXM5-80GB"),
)


def answers() -> list[dict[str, object]]:
    predictor, found = Predictor(), []
    for operator, shape, dtype, device in QUESTIONS:
        for direction, each in predictor.predict_shape(operator, shape, dtype, device).items():
            found.append({
                "asked": f"{operator} {direction} {dtype} {device} {json.dumps(shape)}",
                "time_s": each.time_s, "low_s": each.low_s, "high_s": each.high_s,
                "source": each.source.value, "extrapolated": each.extrapolated,
            })  # fmt: skip
    return found


def test_they_answer_as_when_they_were_fitted():
    expected = json.loads(GOLDEN.read_text())
    found = answers()
    assert [each["asked"] for each in found] == [each["asked"] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == {name: pytest.approx(value, rel=1e-6) if name.endswith("_s") else value
                       for name, value in other.items()}, other["asked"]  # fmt: skip


def test_questions_of_what_was_sampled_are_answered_by_models_of_it():
    """Were the files gone, each source would be "typical"."""
    assert {each["source"] for each in answers()} == {"regressed"}


@pytest.mark.slow
def test_a_device_that_was_never_shown_is_less_sure():
    widths = {str(each["asked"]): float(each["high_s"]) / float(each["time_s"]) for each in answers()}  # type: ignore[arg-type]
    narrow, wide = (next(width for asked, width in widths.items() if f"linear fwd fp32 {device}" in asked)
                    for device in ("V100", "L4"))  # fmt: skip
    assert wide > 1.25 > narrow


def test_they_are_listed_with_what_they_learned_from():
    manifest = read_manifest(SHIPPED)
    assert manifest is not None
    assert set(manifest.models) == {path.name for path in SHIPPED.glob(f"*{SUFFIX}")}
    (fit,) = manifest.fits
    assert len(fit.commit) == 40
    assert {"rooflight", "numpy", "lightgbm"} <= set(fit.libraries)
    programs = {name for name in fit.files if name.startswith("programs/")}
    traces = {name for name in fit.files if name.startswith("data/traces/")}
    tables = {name for name in fit.files if name.endswith((".csv", ".csv.gz"))}
    random_ops = {name for name in fit.files if name.startswith(("h100/", "h200/"))}
    assert (len(programs), len(traces), len(tables), len(random_ops)) == (585, 11, 110, 60)
    assert programs | traces | tables | random_ops == set(fit.files)
    models = Predictor().models  # reads, and checks, every file
    assert {entry.key for entry in manifest.models.values()} == set(models)
    assert all(len(names_of(key)) == len(expert.low) for key, model in models.items() for expert in model.experts)


def test_an_all_gather_of_one_node_is_answered_by_measured_ones_and_one_of_several_as_an_all_reduce():
    for nodes, source in ((1, "regressed"), (2, "similar")):
        (found,) = Predictor().predict_shape("all_gather", [1 << 24, nodes, 8], "bf16", "H100-SXM5-80GB").values()
        assert found.source.value == source
        assert found.bound_s < found.time_s < 2.5 * found.bound_s


@pytest.mark.parametrize("foreach", [0, 1])
def test_a_steady_step_of_adamw_is_no_first_step(foreach):
    """estimate-train-time's stage optimizers, whose states are made in the step, take 44 µs a tensor more."""
    lists = {"elements": 838_000, "tensors": 148, "foreach": foreach}
    steady = Predictor().predict_shape("adamw", lists, "bf16", "A100-SXM4-80GB")["step"]
    assert steady.time_s < 3.5 * steady.bound_s  # a first step: 7.6 times


def test_columns_that_are_mostly_impossible_taught_nothing():
    devices = {key: model.devices for key, model in Predictor().models.items()}
    assert "GH200-96GB" not in devices["rooflight::scaled_dot_product_attention_backward"]
    assert "GH200-96GB" not in devices["aten::_foreach_zero_+aten::_fused_adamw_"]


def test_they_stay_small():
    sizes = [path.stat().st_size for path in (*SHIPPED.glob(f"*{SUFFIX}"), SHIPPED / NAME)]
    assert sum(-(-size // BLOCK) * BLOCK for size in sizes) < MOST_BYTES


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(answers(), indent=1) + "\n")
