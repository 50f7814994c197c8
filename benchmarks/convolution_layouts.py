"""What the layout of images is worth to whole networks: predicted beside measured, timm's on two GPUs.

    ROOFLIGHT_DATA=... python benchmarks/convolution_layouts.py [--task train] [--device "RTX 4090"] [--networks 100]

Reads ``timm/whole_models_timm.csv.gz`` in the folder that ROOFLIGHT_DATA names: networks measured in NCHW and in NHWC,
in float16, at one batch, with one release of torch. Each is recorded without hardware in both layouts, two of each
family, and only those with a convolution that NCHW transposes for. Printed is the error of the ratio of the two times,
where both layouts are predicted equal and as they are. ``make slow`` installs timm. Nothing is fitted to these times.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import os
import re
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

import rooflight as rl

sys.path += [str(Path(sys.prefix) / "timm"), str(Path(__file__).parent.parent / "tests")]
TORCH = {("infer", "RTX 3090"): "2.4.0", ("infer", "RTX 4090"): "2.4.0", ("train", "RTX 3090"): "1.12"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("infer", "train"), default="infer")
    parser.add_argument("--device", choices=("RTX 3090", "RTX 4090"), default="RTX 3090")
    parser.add_argument("--networks", type=int, default=100, help="at most so many, drawn by their names' hashes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import architectures

    architectures.families()  # timm is imported so
    predictor, errors = rl.Predictor(), defaultdict[int, list[tuple[float, float]]](list)
    for model, batch, size, measured in drawn(options.task, options.device):
        if sum(map(len, errors.values())) == options.networks:
            break
        try:
            nchw, nhwc = (predicted_s(model, batch, size, options, predictor, last) for last in (False, True))
        except Exception as error:  # a network of today may differ, or read values
            print(f"{model}: {type(error).__name__}", file=sys.stderr)
            continue
        if nchw <= 1.001 * nhwc:
            continue
        errors[half(model)].append((abs(1 / measured - 1), abs(nchw / nhwc / measured - 1)))
        print(f"{model:36} measured {measured:.3f} predicted {nchw / nhwc:.3f}", file=sys.stderr)
    for name, found in sorted(errors.items()):
        equal, ruled = (f"{statistics.median(each):.1%}" for each in zip(*found, strict=True))
        print(f"families {name}: {len(found)} networks, median error of NCHW / NHWC {ruled}, {equal} if taken as equal")


def drawn(task: str, device: str) -> Iterator[tuple[str, int, int, float]]:
    """Model, batch, pixels of a side, and time in NCHW over that in NHWC: two models of each family, as if shuffled."""
    pairs: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with gzip.open(Path(os.environ["ROOFLIGHT_DATA"]) / "timm" / "whole_models_timm.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["task"], row["device"], row["torch"], row["compiled"]) == (task, device, TORCH[task, device], "0"):
                pairs[row["model"], row["batch"], row["img_size"]][row["memory_format"]] = float(row["step_ms"])
    found = [(*key, times["NCHW"] / times["NHWC"]) for key, times in pairs.items() if len(times) == 2]
    taken: dict[str, int] = defaultdict(int)
    for model, batch, size, ratio in sorted(found, key=lambda each: digest("|".join(each[:3]))):
        taken[family(model)] += 1
        if taken[family(model)] <= 2:
            yield model, int(batch), int(size), ratio


def predicted_s(
    model: str, batch: int, size: int, options: argparse.Namespace, predictor: rl.Predictor, last: bool
) -> float:
    import timm

    layout = torch.channels_last if last else torch.contiguous_format
    with torch.device("meta"):
        net = timm.create_model(model).half().to(memory_format=layout).train(options.task == "train")
        images = torch.empty(batch, 3, size, size, dtype=torch.float16).contiguous(memory_format=layout)
        labels = torch.empty(batch, dtype=torch.int64)
    with torch.set_grad_enabled(options.task == "train"), rl.record(net) as recording:
        out = net(images)
        if options.task == "train":
            torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple | list) else out, labels).backward()
    predicted = rl.analyze(recording, options.device, predictor=predictor).totals.predicted
    assert predicted is not None
    return predicted.time_s


def family(model: str) -> str:
    return re.match(r"[a-z]*", model)[0]  # type: ignore[index]


def half(model: str) -> int:
    return digest(family(model)) % 2


def digest(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


if __name__ == "__main__":
    main()
