"""benchmarks/decode_bounds.py: what it counts of a recorded step, by hand; it fails where a figure beats light."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"gated": True, "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 256, "vocab": 512}
# attention 64 -> 64, 2 * 32, 64 -> 64 and a gated MLP, in 2 layers, and the head
WEIGHTS = 2 * (64 * 64 + 64 * 64 + 64 * 64 + 3 * 64 * 256) + 64 * 512
OUTPUTS = 2 * (64 + 64 + 64 + 2 * 256 + 64) + 512
COLUMNS = (
    *("table", "row_id", "model", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "top_k"),
    *("moe_ffn", "n_shared_experts", "gpu", "n_gpus", "precision", "phase", "batch_size", "num_requests", "isl"),
    *("osl", "out_tokens_per_s", "out_tokens_per_s_per_gpu", "ttft_ms"),
)
ROW = {"row_id": "x-0001", "model": "Tiny", "layers": "2", "hidden": "64", "heads": "4", "kv_heads": "2", "ffn": "256",
       "vocab": "512", "gpu": "A100-80GB 330W", "n_gpus": "1", "precision": "bf16"}  # fmt: skip


@pytest.fixture
def written() -> list[tuple]:
    """The rows that the benchmark writes."""
    return []


@pytest.fixture
def bench(monkeypatch, written):
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("decode_bounds")
    monkeypatch.setattr(module, "write_csv", lambda _name, _header, rows: written.extend(rows))
    yield module
    sys.modules.pop("decode_bounds", None)


def test_bytes_by_hand(bench):
    sizes = bench.Sizes(**SIZES)
    stored = {
        "bf16": 2 * WEIGHTS,
        "int8": WEIGHTS + 2 * OUTPUTS,
        "int4": WEIGHTS / 2 + WEIGHTS / 128 * 4,
        "FP8": WEIGHTS,
        "FP4": WEIGHTS / 2 + WEIGHTS / 16,
    }
    steps = {}
    for name, expected in stored.items():
        precision = bench.PRECISIONS[name]
        assert sizes.weight_bytes(precision) == expected
        model = bench.Model(sizes.config(), precision)
        short, long = model.decode(3, 128), model.decode(3, 256)
        # 2 layers, keys and values, 2 heads of 16, for 3 sequences
        assert long.bytes - short.bytes == 128 * 3 * 2 * 2 * 2 * 16 * precision.cache_bytes
        # a token that is seen more: 4 heads of 16, scores and sums, multiply and add
        assert long.matrix_flops - short.matrix_flops == 128 * 3 * 2 * 2 * 2 * 4 * 16
        steps[name] = short
    # beside the stored weights (groups of 128 do not divide 64 inputs) and the cache, steps are the same
    assert steps["bf16"].bytes - steps["int8"].bytes == 2 * WEIGHTS - (WEIGHTS + 2 * OUTPUTS)
    assert steps["FP8"].bytes - steps["FP4"].bytes == WEIGHTS - (WEIGHTS / 2 + WEIGHTS / 16)
    # every weight is multiplied with 3 rows; scores and sums over 129 tokens
    assert steps["FP4"].matrix_flops == 2 * 3 * WEIGHTS + 3 * 2 * 2 * 2 * 4 * 16 * 129


def published(tmp_path, monkeypatch, **changes: str) -> None:
    folder = tmp_path / "published_inference"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("ROOFLIGHT_DATA", str(tmp_path))
    for table in ("gpt_fast_decode", "trtllm_v05_first_token_latency", "trtllm_v061_peak_throughput",
                  "trtllm_v017_throughput", "trtllm_v10_throughput"):  # fmt: skip
        with (folder / f"{table}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            if table == changes["table"]:
                writer.writerow(dict.fromkeys(COLUMNS, "") | ROW | changes)


CASES = {
    "decode": {"table": "gpt_fast_decode", "phase": "decode, batch 1", "isl": "5", "out_tokens_per_s": "{}"},
    "speculative": {"table": "gpt_fast_decode", "phase": "speculative decoding", "out_tokens_per_s": "{}"},
    "static": {"table": "trtllm_v061_peak_throughput", "phase": "static batch end-to-end", "batch_size": "4",
               "isl": "16", "osl": "8", "out_tokens_per_s_per_gpu": "{}"},
    "in flight": {"table": "trtllm_v017_throughput", "phase": "offline max throughput", "num_requests": "30",
                  "isl": "16", "osl": "8", "out_tokens_per_s": "{}", "precision": "FP8", "gpu": "H100-80GB"},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_figure_that_beats_light_fails(bench, written, tmp_path, monkeypatch, case):
    monkeypatch.setattr(sys, "argv", ["decode_bounds.py"])
    for tokens_per_s, code in (("100", 0), ("1e12", 1)):
        changes = {name: value.format(tokens_per_s) for name, value in CASES[case].items()}
        published(tmp_path, monkeypatch, **changes)
        assert bench.main() == code
    assert [(row[1], row[2][:4]) for row in written] == [("0001", "Tiny")] * 2


def test_decode_by_hand(bench, tmp_path, monkeypatch):
    """A batch of one on one A100: the bytes over 2,039 GB/s."""
    published(tmp_path, monkeypatch, **{name: value.format(1) for name, value in CASES["decode"].items()})
    with (tmp_path / "published_inference" / "gpt_fast_decode.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    found = bench.Figure(row).bounded()
    work = bench.Model(bench.Sizes(**SIZES).config(), bench.PRECISIONS["bf16"]).decode(1, 5)
    assert found.limiter == "memory"
    assert found.bound_s == pytest.approx(work.bytes / 2039e9)
    assert found.published_s == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"gpu": "Abacus"}, "which device is Abacus"), ({"hidden": ""}, "Tiny: the table has no sizes")],
)
def test_what_cannot_be_bounded_fails(bench, tmp_path, monkeypatch, capsys, changes, reason):
    monkeypatch.setattr(sys, "argv", ["decode_bounds.py"])
    published(tmp_path, monkeypatch, **CASES["decode"] | {"out_tokens_per_s": "1"} | changes)
    assert bench.main() == 1
    assert reason in capsys.readouterr().out
