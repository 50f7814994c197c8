"""The gain of torch.compile for whole networks on an RTX 4090, predicted beside measured: forward passes of timm's.

    ROOFLIGHT_DATA=... python benchmarks/timm_gains.py [fit] [--sessions FOLDER] [--networks N]

Reads ``timm/whole_models_timm.csv.gz`` in the folder that ROOFLIGHT_DATA names: networks measured eager and compiled at
one batch, under float16 autocast. Each is recorded without hardware. A fifth of the families is held out in turn, in
five ways. Printed are the median error and the rank of the held-out gains, those of what ships, and of a constant.
``fit`` prints the multiples fitted to all, which ``prediction/gain/half.py`` has. ``make .venv/timm`` installs timm.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import os
import random
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import spearmanr

import rooflight as rl
from rooflight.prediction.gain.half import COMPILED, EAGER, bounds_of

sys.path += [str(Path(sys.prefix) / "timm"), str(Path(__file__).parent.parent / "tests")]
DEVICE, TORCH = "RTX 4090", "2.9.1"
FOLDS, SEEDS = 5, 5
OF_TIMES = 0.1  # what both times' errors count beside the gain's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("score", "fit"), nargs="?", default="score")
    parser.add_argument("--sessions", type=Path, help="keep recordings in this folder, and take those that are there")
    parser.add_argument("--networks", type=int, help="at most so many, drawn at random")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import architectures

    architectures.families()  # timm is imported so
    found = sorted(pairs().items())
    random.Random(0).shuffle(found)
    names, bounds, times = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for (model, batch, size), measured in found[: options.networks]:
            saved = (options.sessions or Path(folder)) / f"{model}-{batch}-{size}.session"
            try:
                session = rl.load(saved) if saved.exists() else recorded(model, int(batch), int(size), saved)
            except Exception as error:  # a network of today may differ, or read values
                print(f"{model}: {type(error).__name__}: {str(error)[:80]}", file=sys.stderr)
                continue
            names.append(re.match(r"[a-z]*", model)[0])
            bounds.append(bounds_of(rl.analyze(session, DEVICE))[:2])  # all of a network is compiled
            times.append([measured["0"], measured["1"]])
    report(np.array(names), np.array(bounds), np.array(times), fits=options.what == "fit")


def report(names: np.ndarray, bounds: np.ndarray, times: np.ndarray, *, fits: bool) -> None:
    gains = times[:, 0] / times[:, 1]
    constant = np.abs(np.median(gains) / gains - 1)
    shipped = gain_of(bounds, np.array([EAGER, COMPILED]))
    print(f"{len(gains)} networks of {len(set(names))} families, median gain {np.median(gains):.2f}")
    print(f"the constant: error {np.median(constant):.1%}")
    print(f"as shipped, fitted to all: {score(shipped, gains)}")
    held = [held_out(names, bounds, times, seed) for seed in range(SEEDS)]
    errors, ranks = zip(*(measures(each, gains) for each in held), strict=True)
    print(f"families held out, mean of {SEEDS}: error {np.mean(errors):.1%}, rank {np.mean(ranks):.2f}")
    ends = np.quantile(np.concatenate([gains / each for each in held]), (0.05, 0.95))
    print("nine in ten lie between {:.2f} and {:.2f} times the predicted gain".format(*ends))
    if fits:
        for each in fitted(bounds, times):
            print(", ".join(f"{multiple:.2f}" for multiple in each))


def measures(predicted: np.ndarray, gains: np.ndarray) -> tuple[float, float]:
    return float(np.median(np.abs(predicted / gains - 1))), float(spearmanr(predicted, gains)[0])


def score(predicted: np.ndarray, gains: np.ndarray) -> str:
    return "error {:.1%}, rank {:.2f}".format(*measures(predicted, gains))


def gain_of(bounds: np.ndarray, multiples: np.ndarray) -> np.ndarray:
    eager_s, compiled_s = (bounds * multiples).sum(axis=2).T
    return eager_s / compiled_s


def held_out(names: np.ndarray, bounds: np.ndarray, times: np.ndarray, seed: int) -> np.ndarray:
    families = sorted(set(names))
    random.Random(seed).shuffle(families)
    part = {family: place % FOLDS for place, family in enumerate(families)}
    mine, found = np.array([part[name] for name in names]), np.zeros(len(names))
    for fold in range(FOLDS):
        found[mine == fold] = gain_of(bounds[mine == fold], fitted(bounds[mine != fold], times[mine != fold]))
    return found


def fitted(bounds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The multiples [2, kinds] with the least absolute errors, of logarithms, of gains and, less so, of both times."""
    count, wanted = bounds.shape[2], np.log(times)

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        shares = bounds * np.exp(logs).reshape(2, count)
        total = shares.sum(axis=2)
        error = np.log(total) - wanted  # of eager, of compiled
        of_gain = error[:, 0] - error[:, 1]
        smooth, smooth_gain = np.sqrt(error**2 + 1e-3), np.sqrt(of_gain**2 + 1e-3)
        slope = OF_TIMES * error / smooth + np.outer(of_gain / smooth_gain, (1, -1))
        gradient = (shares * (slope / total)[:, :, None]).mean(axis=0).ravel()
        value = (OF_TIMES * smooth.sum(axis=1) + smooth_gain).mean()
        return value + 1e-3 * (logs**2).sum(), gradient + 2e-3 * logs

    found = minimize(loss, np.zeros(2 * count), jac=True, method="L-BFGS-B", bounds=[(-4, 4)] * (2 * count))
    return np.exp(found.x).reshape(2, count)


def pairs() -> dict[tuple[str, str, str], dict[str, float]]:
    """Seconds by model, batch and pixels of a side, eager ("0") and compiled ("1"), where both were measured."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    with gzip.open(Path(os.environ["ROOFLIGHT_DATA"]) / "timm" / "whole_models_timm.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["device"], row["torch"]) == (DEVICE, TORCH):
                key = row["model"], row["batch"], row["img_size"]
                found[key][row["compiled"]] = float(row["step_ms"]) * 1e-3
    return {key: times for key, times in found.items() if len(times) == 2}


def recorded(model: str, batch: int, size: int, saved: Path) -> rl.Session:
    net = made(model, size).eval()
    images = torch.empty(batch, 3, size, size, device="meta")
    as_measured = (torch.inference_mode, rl.as_on_gpu, lambda: torch.autocast("cuda", torch.float16))
    with contextlib.ExitStack() as stack:
        for each in as_measured:  # autocast, which is off without a GPU, is made within the others
            stack.enter_context(each())
        recording = stack.enter_context(rl.record(net, memory=True))
        net(images)
    recording.session.save(saved)
    return recording.session


def made(model: str, size: int) -> torch.nn.Module:
    import timm

    for options in ({"img_size": size}, {}):
        try:
            with torch.device("meta"):
                return timm.create_model(model, **options)
        except TypeError:  # it takes no size
            continue
        except NotImplementedError:  # it reads values while it is built
            return timm.create_model(model).to("meta")
    raise ValueError(model)


if __name__ == "__main__":
    main()
