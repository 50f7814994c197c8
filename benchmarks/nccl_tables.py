"""All-gathers that aiconfigurator measured with NCCL, as tables of the sampler's operator.

    ROOFLIGHT_DATA=path/to/data python benchmarks/nccl_tables.py FOLDER

writes a file of each device and precision: of 2, 4 or 8 GPUs of one node. It needs polars, which Rooflight does not.
All-reduces are left out: Vidur's have more ranks and nodes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars

PRECISIONS = {"half": "fp16", "int8": "int8"}
GPUS = {"NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Blackwell", "NVIDIA GB200": "GB200-per-GPU"}


def main() -> int:
    """Write the tables."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rows = polars.read_parquet(Path(os.environ["ROOFLIGHT_DATA"]) / "aiconfigurator" / "nccl.parquet")
    rows = rows.filter(polars.col("op_name") == "all_gather")
    for (device, dtype), some in sorted(rows.group_by("device", "nccl_dtype"), key=lambda each: each[0]):
        table = some.select(
            polars.lit(1).alias("nodes"),
            polars.col("num_gpus").alias("gpus_per_node"),
            # sizes are of the whole, the operator's of what a rank has at first
            (polars.col("message_size") // polars.col("num_gpus")).alias("elements"),
            (polars.col("latency") * 1e3).alias("dur(us)"),
        )
        name = GPUS.get(device, device).replace(" ", "")
        table.sort(table.columns).write_csv(out / f"{name}_all_gather_{PRECISIONS[dtype]}.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
