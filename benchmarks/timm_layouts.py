"""Which networks get slower with channels-last images, named beside measured: timm's with group norms.

    ROOFLIGHT_DATA=... python benchmarks/timm_layouts.py

Reads ``timm/whole_models_timm.csv.gz`` in the folder that ROOFLIGHT_DATA names: networks measured with both layouts at
one batch on an RTX 3090 or 4090. Each with a group norm is recorded and diagnosed; others are never named.
Printed is each that is named, how much faster it was measured, and how many of all that got over 5 % slower were named.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import torch
from timm_gains import made

import rooflight as rl
from rooflight.front.sessions import predicted

SLOWER = 1 / 1.05


def main() -> None:
    warnings.simplefilter("ignore")
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    import architectures

    architectures.families()  # timm is imported so
    predictor = rl.Predictor()
    named = right = slower = 0
    found = pairs()
    has_norms: dict[str, bool] = {}
    for (task, device, torch_version, model, size, batch), gain in sorted(found.items()):
        slower += gain < SLOWER
        if model not in has_norms:
            with contextlib.suppress(Exception):  # a network of today may differ, or read values
                has_norms[model] = any(
                    isinstance(each, torch.nn.GroupNorm) for each in made(model, int(size)).modules()
                )
        if not has_norms.get(model):
            continue
        session = recorded(model, int(batch), int(size), task)
        diagnosis = rl.diagnose(predicted(rl.analyze(session, device.replace(" ", "-")), predictor))
        if any(each.id == "channels-last" and "slower" in each.reason for each in diagnosis.not_worth_it):
            named, right = named + 1, right + (gain < SLOWER)
            print(
                f"{task} {device}, torch {torch_version}: {model}, {size} pixels, batch {batch}: {gain:.2f}", flush=True
            )
    print(f"{len(found)} pairs, {slower} over 5 % slower; named {named}, of which {right} were")


def pairs() -> dict[tuple[str, ...], float]:
    """How many times as fast channels-last was, of pairs at one batch."""
    times: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with gzip.open(Path(os.environ["ROOFLIGHT_DATA"]) / "timm" / "whole_models_timm.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["compiled"] == "0" and row["device"].startswith("RTX"):
                key = row["task"], row["device"], row["torch"], row["model"], row["img_size"], row["batch"]
                times[key][row["memory_format"]] = float(row["step_ms"])
    return {key: each["NCHW"] / each["NHWC"] for key, each in times.items() if len(each) == 2}


def recorded(model: str, batch: int, size: int, task: str) -> rl.Session:
    net = made(model, size).train(task == "train")
    images = torch.empty(batch, 3, size, size, device="meta")
    with contextlib.ExitStack() as stack:
        if task == "infer":
            stack.enter_context(torch.inference_mode())
        stack.enter_context(rl.as_on_gpu())
        stack.enter_context(torch.autocast("cuda", torch.float16))
        recording = stack.enter_context(rl.record(net, memory=True))
        out = net(images)
        if task == "train":
            out.float().sum().backward()
    return recording.session


if __name__ == "__main__":
    main()
