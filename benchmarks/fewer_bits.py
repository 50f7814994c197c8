"""How good predicted products and attention of a decode step are in fewer bits: measured kernels beside `--predict`.

    ROOFLIGHT_DATA=FOLDER python benchmarks/fewer_bits.py [ROWS]

Products of at most 64 rows and attention of one query over at least 256 keys, at shapes drawn by chance from
``aiconfigurator/gemm.parquet`` and ``generation_attention.parquet`` in the folder, which polars reads: the median
error, and how many times lie in the 90 % interval. No model learned kernels of fewer bits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars

from rooflight.prediction.predictor import Predictor
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

DEVICES = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM",
}
DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "sq": "int8"}
SHAPE = ["batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"]


def product(row: Any, dtype: str) -> OpSignature:
    m, n, k = (row[name] for name in "mnk")
    given = TensorSpec((m, k), dtype), TensorSpec((k, n), dtype, strides=(1, k))
    return OpSignature(name="aten::mm", inputs=given, outputs=(TensorSpec((m, n), "bfloat16"),),
                       input_names=("self", "mat2"))  # fmt: skip


def attention(row: Any, dtype: str) -> OpSignature:
    batch, new, cached, heads, of_keys, size = (row[name] for name in SHAPE)
    query = TensorSpec((batch, heads, 1, size), "bfloat16")
    key = TensorSpec((batch, of_keys or heads, new + cached, size), dtype)
    return OpSignature(
        name="aten::scaled_dot_product_attention", inputs=(query, key, key), outputs=(query,),
        input_names=("query", "key", "value"), attributes=(("enable_gqa", True),),
    )  # fmt: skip


def measured() -> Iterator[tuple[str, Any, str, list[str], Callable[[Any, str], OpSignature]]]:
    folder = Path(os.environ["ROOFLIGHT_DATA"]) / "aiconfigurator"
    products = polars.read_parquet(folder / "gemm.parquet")
    yield (
        "products",
        products.filter((polars.col("m") <= 64) & (polars.min_horizontal("n", "k") >= 1024)),
        "gemm_dtype",
        list("mnk"),
        product,
    )
    decoding = polars.read_parquet(folder / "generation_attention.parquet")
    long = polars.col("isl") + polars.col("step") >= 256
    yield "attention", decoding.filter(long & (polars.col("window_size") == 0)), "kv_cache_dtype", SHAPE, attention


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    predictor = Predictor()
    print("| kernels | device | format | shapes | median error | bias | inside |\n|---|---|---|---|---|---|---|")
    for what, table, column, shape, made in measured():
        for (system, format_), rows in table.group_by("system", column, maintain_order=True):
            if system not in DEVICES or format_ not in DTYPES:
                continue
            fastest = rows.group_by(shape).agg(polars.col("latency").min()).sort(shape)
            drawn = fastest.sample(min(most, len(fastest)), seed=0)
            works = [(made(row, DTYPES[format_]),) for row in drawn.iter_rows(named=True)]
            found = [each for each in predictor.predict_many(works, DEVICES[system]) if each is not None]
            assert len(found) == len(drawn)
            seconds = drawn["latency"].to_numpy() / 1e3
            error = np.log([each.on_device.time_s for each in found] / seconds)
            low, high = (np.array([getattr(each, name) for each in found]) for name in ("low_s", "high_s"))
            print(
                f"| {what} | {DEVICES[system]} | {format_} | {len(drawn)} | {np.expm1(np.median(np.abs(error))):.0%} | "
                f"{np.expm1(np.median(error)):+.0%} | {np.mean((low <= seconds) & (seconds <= high)):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
