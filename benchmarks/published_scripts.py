"""Step times that modded-nanogpt published for 8 GPUs, beside those predicted for its programs, without a GPU.

    python benchmarks/published_scripts.py REPOSITORY [ROW...]      a clone of KellerJordan/modded-nanogpt

Each row of ``ROOFLIGHT_DATA/published_training/modded_nanogpt_records.csv`` names a folder of logs; a log begins with
its program. The program runs unedited by ``rooflight run --on`` in a temporary folder, on tokens made up here. One step
is recorded early, before windows and batches grow: it is compared with the time of early steps. Prints a line a row,
and then the errors and the order of rows that follow each other.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

DATA = Path(os.environ["ROOFLIGHT_DATA"]) / "published_training" / "modded_nanogpt_records.csv"
DEVICES = {"H100 SXM 80GB": "H100-SXM5-80GB", "H200 SXM": "H200-SXM"}
_MAGIC, _VERSION, _END = 20240520, 1, 50256
_TOKENS, _FILES = 24_000_000, 20
_MUCH = 0.03  # rows that differ by less have no order


def main() -> int:
    repository, *wanted = sys.argv[1:]
    table = list(csv.DictReader(DATA.open()))
    folders = [row["source_file"] for row in table]
    rows = [row for row in table if not wanted or row["row_id"].split("-")[-1] in wanted]
    print(f"{'row':<6}{'program':<42}{'published':>10}{'compiled':>10}{'error':>8}{'eager':>8}{'bound':>8}"
          f"{'peak':>7}{'published':>10}{'s':>6}")  # fmt: skip
    found = []
    for row in rows:
        begin = time.monotonic()
        answer: dict[str, float] | str = "no program in its logs"
        for program, own_ms in programs_of(repository, row, folders):
            answer, published = predicted(program, row), float(row["early_step_ms"] or row["step_avg_ms"])
            if "not repeats" in row["notes"]:  # the row has the mean of several programs
                published = own_ms
            if not isinstance(answer, str) or "No module named" not in answer:
                break
        name = f"{row['row_id'].split('-')[-1]:<6}{(row['record_folder'] + ' ' + row['variant'])[:41]:<42}"
        if isinstance(answer, str):
            print(f"{name}  {answer}", flush=True)
            continue
        ours = (answer["compiled_s"] or answer["step_s"]) * 1e3
        found.append((row["track"], published, ours))
        peak = f"{float(row['peak_alloc_mib']) / 1024:.1f}" if row["peak_alloc_mib"] else "–"
        print(f"{name}{published:>10.1f}{ours:>10.1f}{ours / published - 1:>+8.1%}{answer['step_s'] * 1e3:>8.0f}"
              f"{answer['bound_s'] * 1e3:>8.1f}{answer['memory_bytes'] / 2**30:>7.1f}{peak:>10}"
              f"{time.monotonic() - begin:>6.0f}", flush=True)  # fmt: skip
    summarize(found)
    return 0


def summarize(found: list[tuple[str, float, float]]) -> None:
    """The errors, and how many pairs of rows that follow each other and differ are predicted in their order."""
    if not found:
        return
    errors = sorted(abs(ours / published - 1) for _, published, ours in found)
    within = sum(error <= 0.3 for error in errors) / len(errors)
    print(f"{len(found)} programs: median error {statistics.median(errors):.1%}, {within:.0%} within 30 %")
    pairs = [(b[1] / a[1] - 1, b[2] / a[2] - 1) for a, b in itertools.pairwise(found) if a[0] == b[0]]
    told = [real * ours > 0 for real, ours in pairs if abs(real) > _MUCH]
    print(f"order of rows that follow each other and differ by more than 3 %: {sum(told)} of {len(told)}")


def programs_of(repository: str, row: dict[str, str], folders: list[str]) -> Iterator[tuple[str, float]]:
    """The programs at the heads of the logs in the row's folder, those of rows inside it left out, and what a step
    of each took by its log (ms), an early one where they change.
    """
    git = ["git", "-C", repository]
    listed = [*git, "ls-tree", "-r", "--name-only", "HEAD", row["source_file"]]
    inside = tuple(each for each in folders if each != row["source_file"] and each.startswith(row["source_file"]))
    for path in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines():
        if path.startswith(inside) or not path.endswith((".txt", ".log")):
            continue
        text = subprocess.run([*git, "show", f"HEAD:{path}"], capture_output=True, check=True).stdout.decode()
        parts = [part for part in re.split(r"^={20,}\n", text, flags=re.M) if part.strip()]
        if len(parts) > 1 and "import torch" in parts[0]:
            changes = "early" in row["notes"] or "grows" in row["notes"]
            yield parts[0], step_ms(text, until=0.25 if changes else 1.0)


def step_ms(log: str, until: float) -> float:
    """The mean of the steps after the first 2 % of them, ``until`` a share; NaN where the log has no times."""
    found = re.findall(r"^step:(\d+)/(\d+).*train_time:([\d.]+)ms", log, flags=re.M)
    times = [(int(step), float(ms)) for step, steps, ms in found if 0.02 <= int(step) / int(steps) <= until]
    return (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0]) if len(times) > 1 else math.nan


def predicted(program: str, row: dict[str, str]) -> dict[str, float] | str:
    """What ``rooflight run`` answers for a program; what went wrong where it has no answer."""
    with tempfile.TemporaryDirectory() as folder:
        main, *others = re.split(r"^-{40}\n# (\w+\.py)\n-{40}\n", program, flags=re.M)
        for name, text in [("train_gpt.py", main), *zip(others[::2], others[1::2], strict=True)]:
            (Path(folder) / name).write_text(text)
        for name in ("", *re.findall(r'run_id: str = f"(\w+)/', program)):
            (Path(folder) / "logs" / name).mkdir(parents=True, exist_ok=True)
        of_tokens = re.search(r"data/\w+(?=/fineweb_train)", program)
        tokens = Path(folder) / (of_tokens[0] if of_tokens else "data/fineweb10B") / "fineweb_train_000001.bin"
        write_tokens(tokens)
        for name in (
            f"{kind}_{number:06}" for kind in ("val", "train") for number in range(1 + (kind == "train"), _FILES)
        ):
            tokens.with_name(f"fineweb_{name}.bin").hardlink_to(tokens)
        words = [sys.executable, "-m", "rooflight", "run", "--on", DEVICES[row["gpu"]], "--gpus", row["n_gpus"],
                 "--json", "it.json", "--save", "it.session", "train_gpt.py"]  # fmt: skip
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        environment = {**os.environ, **(alone if row["n_gpus"] == "1" else {})}  # as by torchrun
        try:
            run = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
            )
        except subprocess.TimeoutExpired:
            return "not in 600 s"
        answered = Path(folder) / "it.json"
        run_of = json.loads(answered.read_text())["run"] if answered.exists() else {"on": []}
        on = [of_one_turn(each, run_of["step"]["turns"]) for each in run_of["on"]]
        if on and (keep := os.environ.get("KEEP")):
            (Path(folder) / "it.session").replace(Path(keep) / f"{row['row_id']}.session")
        said = r"(\[rank\d+\]: )?\w*(Error|Exception|Exit)|rooflight:"
        lines = [line for line in run.stderr.splitlines() if re.match(said, line)]
        return on[0] if on else (lines or ["no step"])[-1][:110]


def of_one_turn(answer: dict[str, float], turns: int) -> dict[str, float]:
    """What a turn of the program's loop takes, which its log times."""
    return {name: each / turns if name.endswith("_s") and each else each for name, each in answer.items()}


def write_tokens(path: Path) -> None:
    """Tokens as the programs read them: a header of 256 numbers, then one number of 16 bits each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    tokens = random.integers(0, _END, _TOKENS, dtype=np.uint16)
    tokens[np.cumsum(random.exponential(600, _TOKENS // 700).astype(np.int64) + 1)] = tokens[0] = _END
    header = np.zeros(256, dtype=np.int32)
    header[:3] = _MAGIC, _VERSION, _TOKENS
    path.write_bytes(header.tobytes() + tokens.tobytes())


if __name__ == "__main__":
    sys.exit(main())
