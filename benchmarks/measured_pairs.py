"""What ``rooflight diagnose`` says of small GPU programs whose remedy was measured, on a GPU that is not here.

    ROOFLIGHT_DATA=... python benchmarks/measured_pairs.py CLONE [--half 0|1] [--only NAME ...] [--json ROWS]

CLONE is the git folder of the repository that ``measured_pairs/SOURCE.md`` names. The baseline of each pair of plain
PyTorch is taken from the commit that was measured, recorded by the virtual GPU, predicted for a B200 at the clock that
this one ran at, and diagnosed. Its first remedy is beside the one that was measured; a promise is the largest gain that
findings of the pair's family have. Pairs are in halves by a hash of their names: rules are made on half 0.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.front.device import find_device
from rooflight.front.elsewhere import record_elsewhere
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run.elsewhere import Program

HERE = Path(__file__).resolve()
DEVICE, CLOCK_HZ = "B200-SXM", 1.2e9
REMEDIES = {
    "batching": "vectorise batch-products scan",
    "compile": "compile",
    "fusion": "compile",
    "cuda_graphs": "cuda-graphs",
    "attention_kernel": "sdpa attention-kernel",
    "sparse_attention": "sparse-attention attention-kernel sdpa",
    "dtype": "lower-precision float64",
    "tf32": "lower-precision",
    "quantise": "lower-precision casts",
    "overlap": "copy-overlap pageable-copy",
    "pinned_memory": "pageable-copy",
    "host_copy": "pageable-copy host-copy",
    "host_sync": "sync host-copy",
    "dataloader": "loader pageable-copy",
    "caching": "constant-work repeated-work",
    "kv_cache": "kv-cache copies",
    "recompiles": "recompiles",
    "checkpointing": "checkpointing",
}
"""By family of a pair the findings whose remedies are of it."""
NOTHING = 1.1
MOST_S = 150  # to record one: loops of half a million ops take longer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="beginnings of names of pairs")
    parser.add_argument("--sessions", type=Path, help="keep recordings in this folder, and take those that are there")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows, predictor = [], rl.Predictor()
    with TemporaryDirectory() as folder:
        for pair in pairs(options.half, tuple(options.only)):
            rows.append(diagnosed(pair, options.clone, Path(folder), options.sessions, predictor))
            print(line(rows[-1]), flush=True)
    for name in ("all", "same", "half 0", "half 1", "not contrived"):
        print(f"{name:14} {score([row for row in rows if name == 'all' or name in row['sets']])}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def pairs(half: int | None, only: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    path = Path(os.environ["ROOFLIGHT_DATA"]) / "measured_pairs" / "pairs.csv"
    for row in csv.DictReader(path.read_text().splitlines()):
        mine = sha256(row["pair"].encode()).digest()[0] % 2
        wanted = row["level"] == "torch" and row["machine"] == "b200" and half in (None, mine)
        if wanted and row["pair"].startswith(only):
            yield {**row, "half": mine}


def diagnosed(pair, clone: Path, folder: Path, kept: Path | None, predictor) -> dict[str, Any]:
    sets = [f"half {pair['half']}", *["same"] * (pair["programs_same"] == "1")]
    sets += ["not contrived"] * (pair["contrived"] == "no")
    row = {"pair": pair["pair"], "sets": sets, "family": [pair["family"], *pair["second"].split()]}
    row |= {"gain": float(pair["gain"]), "measured_s": float(pair["baseline_ms"]) / 1e3}
    saved = (kept or folder) / f"{pair['pair'].replace('/', '.')}.session"
    try:
        session = rl.load(saved) if saved.exists() else recorded(pair, clone, folder, saved)
    except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
        return row | {"failed": " ".join(str(error).split())[-150:]}
    if session.run is None or session.run.step is None or not len(session):
        return row | {"failed": "no step"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device = find_device(DEVICE, clock_hz=CLOCK_HZ)
        found = diagnose(rl.analyze(session, device, predictor=predictor))
    findings = [(each.id, each.predicted_gain_s / found.step_s) for each in found.findings]
    right = {word for family in row["family"] for word in REMEDIES.get(family, "").split()}
    mine = [each for each in found.findings if each.id in right]
    row |= {"step_s": found.step_s, "findings": findings, "promised": 1.0}
    row["right"] = bool(findings) and findings[0][0] in right if row["gain"] >= NOTHING else None
    if mine:
        best = max(mine, key=lambda each: each.predicted_gain_s)
        row["promised"] = 1 / max(1e-6, 1 - best.predicted_gain_s / found.step_s)
        saved_s = (1 - 1 / row["gain"]) * found.step_s
        row["holds"] = best.predicted_gain_low_s <= saved_s <= best.predicted_gain_high_s
    return row


def recorded(pair, clone: Path, folder: Path, saved: Path) -> rl.Session:
    """The step of a pair's baseline, as its program was when it was measured."""
    tree = folder / pair["measured_commit"]
    parts = ["code/core", "code/arch_config.py", str(Path(pair["baseline_path"]).parent)]
    parts += ["code/labs/__init__.py"] * pair["chapter"].startswith("labs")
    for part in parts:
        if not (tree / part).exists():
            tree.mkdir(exist_ok=True)
            git = ["git", "-C", str(clone), "archive", pair["measured_commit"], part]
            packed = subprocess.run(git, capture_output=True, check=False).stdout
            subprocess.run(["tar", "x", "-C", str(tree)], input=packed, stderr=subprocess.DEVNULL, check=False)
    arguments = ("--play", str(tree / "code"), str(tree / pair["baseline_path"]))
    program = Program(target=str(HERE), arguments=arguments, module=False, skip=0, only=StepKind.FUNCTION,
                      named=f"{HERE}:step")  # fmt: skip
    saved.parent.mkdir(parents=True, exist_ok=True)
    return record_elsewhere(program, [find_device(DEVICE)], saved)


def play(code: str, path: str) -> None:
    """Run a pair's program at the float32 precision that its harness gives it."""
    signal.alarm(MOST_S)
    sys.path[:0] = [code, str(Path(path).parent)]
    sys.modules["core.profiling.hta_integration"] = MagicMock()  # which Python 3.11 cannot parse
    os.chdir(code)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = sys.modules[Path(path).stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from core.harness.backend_policy import apply_backend_policy, normalize_backend_policy

    bench = module.get_benchmark()
    policy = getattr(bench.get_config(), "backend_policy", None)
    apply_backend_policy(normalize_backend_policy(policy), deterministic=False)
    bench.setup()
    step(bench)


def step(bench) -> None:
    bench.benchmark_fn()


def score(rows) -> str:
    known = [row for row in rows if "failed" not in row]
    gained = [row for row in known if row["gain"] >= NOTHING]
    promised = [row for row in gained if row["right"]]
    far = [math.exp(abs(math.log(row["promised"] / row["gain"]))) for row in promised]
    false = [row["pair"] for row in known if row["gain"] < NOTHING and row["promised"] > NOTHING]
    held = [row["holds"] for row in promised]
    off = [math.exp(abs(math.log(row["step_s"] / row["measured_s"]))) for row in known]
    if not promised:
        return f"{len(known)} of {len(rows)} recorded, no remedy right"
    return (
        f"{len(known)} of {len(rows)} recorded; first remedy right {len(promised)} of {len(gained)}, gain off by "
        f"{statistics.median(far):.2f} times, intervals hold {sum(held)} of {len(held)}; step off by "
        f"{statistics.median(off):.2f} times; promised where nothing was gained: {', '.join(false) or 'none'}"
    )


def line(row) -> str:
    if "failed" in row:
        return f"{row['pair'][-32:]:32} failed: {row['failed']}"
    mark = {True: "right", False: "WRONG", None: "-"}[row["right"]]
    found = ", ".join(f"{name} {share:.0%}" for name, share in row["findings"][:4])
    return (
        f"{row['pair'][-32:]:32} {row['measured_s'] * 1e3:9.3g} ms, predicted {row['step_s'] * 1e3:9.3g}; gain "
        f"{row['gain']:6.3g}, promised {row['promised']:6.3g} {mark} {'+'.join(row['family'])}: {found}"
    )


if __name__ == "__main__":
    sys.exit(play(*sys.argv[2:4]) if sys.argv[1:2] == ["--play"] else main())
