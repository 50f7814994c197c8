"""How fast predictions come: `rooflight predict` from a cold start, and many products at once, warm.

    python benchmarks/prediction_speed.py

Cold: the least and the median of nine runs of the command, in a process of its own each, by the wall clock. Warm:
200,000 distinct products on a device whose expert was shown such work, by `Predictor.predict_products`, features and
intervals included; least and median of five, by the wall clock, as LightGBM uses every core.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np

from rooflight.prediction.predictor import Predictor

COMMAND = "predict gemm --m 4096 --n 4096 --k 4096 --dtype fp16 --device A100-SXM4-80GB --json -"
COUNT = 200_000


def cold() -> list[float]:
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rooflight", *COMMAND.split()], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return seconds


def warm() -> list[float]:
    predictor = Predictor()
    sizes = np.random.default_rng(0).integers(16, 2048, size=(3, COUNT)) * 8.0
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        batch = predictor.predict_products(*sizes, "fp16", "A100-SXM4-80GB")
        seconds.append(time.perf_counter() - start)
        assert (batch.low_s >= batch.bound_s).all()
        assert (batch.time_s <= batch.high_s).all()
    return seconds[1:]  # the first builds LightGBM's form of the trees


def main() -> None:
    seconds = cold()
    print(f"rooflight predict, cold: least {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s")
    rates = [COUNT / each for each in warm()]
    print(f"predict_products, warm: most {max(rates):,.0f} a second, median {statistics.median(rates):,.0f} a second")


if __name__ == "__main__":
    main()
