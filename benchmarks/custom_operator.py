"""A custom operator by the page's recipe: sampled, fitted, and predicted at shapes that were kept back.

    python benchmarks/custom_operator.py [ROUNDS]

Each round samples the grid and the kept-back shapes once, so that a slow minute of the machine falls on both; a time is
the first decile of the samples of all rounds. The noise: kept-back shapes in even rounds beside odd ones. 6 rounds take
four minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from rooflight.prediction.predictor import Predictor
from rooflight.records.samples import read, undisturbed_s

FUNCTION = '''
import torch


def my_custom_op(shapes, precision, device_num):
    """Profile a custom operation."""
    mp, b, l, dim = shapes
    dtype = torch.float16 if precision == "fp16" else torch.float32
    x = torch.randn(b, l, dim // mp, dtype=dtype, device=device_num, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()
'''
FEATURES = """
import numpy as np


def my_custom_op(input):
    mp, b, l, dim = input
    return np.array([b * l, dim // mp])
"""
CONFIG = {
    "module_name": "target_functions",
    "kernel_name": "my_custom_op",
    "function_name": "my_custom_op",
    "columns_name": ["mp", "b", "l", "dim", "F_dur(us)", "B_dur(us)"],
    "targets": [["aten::gelu"], ["aten::gelu_backward"]],
    "first_n_column": 4,
    "starts": [1, 1, 256, 512],
    "steps": [2, 2, 256, 512],
    "ends": [4, 2, 1024, 2048],
    "operators": ["mul", "mul", "add", "add"],
    "warmup_shapes": [1, 1, 256, 512],
    "wait": 1,
    "warmup": 1,
    "active": 20,
    "run": "get_all",
}
KEPT = 24


def kept_back() -> list[list[int]]:
    """Shapes between those of the grid."""
    draw = np.random.default_rng(0)
    mp, b = draw.choice([1, 2, 4], KEPT), draw.choice([1, 2], KEPT)
    long, wide = (8 * draw.integers(low // 8, high // 8, KEPT) for low, high in ((256, 1024), (512, 2048)))
    return np.stack([mp, b, long, wide], axis=1).tolist()


def sampled(folder: Path, config: Path, out: Path) -> Path:
    """The file of one sweep."""
    run(["sample", "--config", config, "--precision", "fp32", "--cpu", "--threads", "1", "--out", folder / out])
    (path,) = (folder / out / "sampling_data").glob("*.jsonl")
    return path


def run(words: list[object]) -> None:
    """One verb of the command."""
    subprocess.run([sys.executable, "-m", "rooflight", *map(str, words)], check=True, capture_output=True)


def times_of(paths: list[Path]) -> dict[tuple[int, ...], np.ndarray]:
    """Seconds [directions] by shape: of the samples of several files together."""
    found: dict[tuple[int, ...], list[list[float]]] = {}
    for path in paths:
        for key, row in read(path)[1].items():
            both = found.setdefault(key, [[], []])
            for samples, direction in zip(both, ("fwd", "bwd"), strict=True):
                samples.extend(row.samples_s[direction])
    return {key: np.array([undisturbed_s(each) for each in both]) for key, both in found.items()}


def together(paths: list[Path], out: Path) -> None:
    """One file with the samples of several."""
    header, rows = read(paths[0])
    others = [read(path)[1] for path in paths[1:]]
    lines = [msgspec.json.encode(header)]
    for key, row in rows.items():
        samples = {
            way: [*each, *(s for o in others for s in o[key].samples_s[way])] for way, each in row.samples_s.items()
        }
        lines.append(msgspec.json.encode({**msgspec.to_builtins(row), "samples_s": samples}))
    out.mkdir()
    (out / paths[0].name).write_bytes(b"\n".join(lines) + b"\n")


def benchmark(rounds: int, folder: Path) -> None:
    """Print how far predictions and repeated samples lie from kept-back samples."""
    (folder / "target_functions.py").write_text(FUNCTION)
    (folder / "layer_input_to_predictor_input.py").write_text(FEATURES)
    configs = {"grid": CONFIG, "kept": {**CONFIG, "run": "get_one", "shapes": kept_back()}}
    paths: dict[str, list[Path]] = {"grid": [], "kept": []}
    for name, config in configs.items():
        (folder / f"{name}.yml").write_bytes(msgspec.json.encode(config))
    for number in range(rounds):
        for name, found in paths.items():
            found.append(sampled(folder, folder / f"{name}.yml", Path(f"{name} {number}")))
    together(paths["grid"], folder / "data")
    device = read(paths["grid"][0])[0].device
    run(["fit", folder / "data", "--out", folder / "models"])
    predictor, true = Predictor.empty(), times_of(paths["kept"])
    odd, even = times_of(paths["kept"][1::2]), times_of(paths["kept"][::2])
    for place, way in enumerate(("fwd", "bwd")):
        told = {
            key: predictor.predict_operator(device, "my_custom_op", "fp32", way, key, data_folder=folder / "data")
            for key in true
        }
        missed = np.array([told[key] * 1e-6 / true[key][place] - 1 for key in true])
        apart = np.array([even[key][place] / odd[key][place] - 1 for key in true])
        for name, each in (("predicted beside kept-back", missed), ("even beside odd rounds", apart)):
            off = np.abs(each)
            print(f"{way} {name:27} mean {off.mean():6.1%}  median {np.median(off):6.1%}  largest {off.max():6.1%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        benchmark(int(sys.argv[1]) if len(sys.argv) > 1 else 6, Path(made))
