"""Snapshots of CUDA's allocator that a public repository has, beside what is predicted for the script that wrote them.

    python benchmarks/real_snapshots.py REPOSITORY      a clone of Wedsonlin/assignment2-systems at 87b08641

The repository has eight snapshots of a language model of 424 M parameters, of one step or one call at four lengths.
Its script needs einops, einx and jaxtyping (``pip install``). Whether autocast was on is not written there: both are
predicted, and the nearer is compared. The lines that a newer Python allows are rewritten; all else is as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rooflight.sources.traces.file.snapshot import read_snapshots

WORDS = (
    "--vocab_size 10000 --d_model 1024 --d_ff 4096 --num_layers 24 --num_heads 16 --model_name medium "
    "--memory-profiler pytorch"
)
PATTERNS = {"training": "full-training-step", "inference": "forward-only"}
FILES = (
    "cs336_systems/nsys_profile.py",
    *(f"cs336-basics/cs336_basics/{name}.py" for name in ("__init__", "model", "nn_utils", "optimizer", "data")),
)


def main() -> int:
    repository = sys.argv[1]
    print(f"{'snapshot':<20}{'allocated':>12}{'predicted':>12}{'off':>9}{'reserved':>12}{'predicted':>12}{'off':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            text = of_repository(repository, file).decode()
            (folder / file).write_text(text.replace('config["context_length"]}', "config['context_length']}"))
        (folder / "results").mkdir()
        for length in (128, 256, 512, 1024):
            for kind in PATTERNS:
                compare(repository, folder, length, kind)
    return 0


def of_repository(repository: str, path: str) -> bytes:
    return subprocess.run(["git", "-C", repository, "show", f"HEAD:{path}"], capture_output=True, check=True).stdout


def compare(repository: str, folder: Path, length: int, kind: str) -> None:
    """Print a line for one snapshot."""
    path = folder / "one.pickle"
    path.write_bytes(of_repository(repository, f"results/medium_{length}_{kind}_memory_snapshot.pickle"))
    real = max(read_snapshots(path), key=lambda each: each.peak_bytes)
    found = [predicted(folder, length, kind, autocast) for autocast in ("true", "false")]
    nearest = min(found, key=lambda each: abs(each["allocated_bytes"] - real.peak_bytes))
    pairs = [(real.peak_bytes, nearest["allocated_bytes"]), (real.peak_reserved_bytes, nearest["reserved_bytes"])]
    text = "".join(f"{a / 1e9:>12.3f}{b / 1e9:>12.3f}{b / a - 1:>+9.1%}" for a, b in pairs)
    print(f"{kind} {length}".ljust(20) + text, flush=True)


def predicted(folder: Path, length: int, kind: str, autocast: str) -> dict[str, int]:
    """What ``rooflight run --on`` says of the memory of the script."""
    words = [*WORDS.split(), "--context_length", str(length), "--pattern", PATTERNS[kind], "--autocast", autocast]
    run = ["-m", "rooflight", "run", "--on", "H100-SXM5-80GB", "--save", "it.session", "--json", "it.json"]
    place = folder / "cs336_systems"
    paths = os.pathsep.join([str(folder / "cs336-basics"), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, *run, "nsys_profile.py", *words], cwd=place, check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": paths})  # fmt: skip
    memory: dict[str, int] = json.loads((place / "it.json").read_text())["memory"]
    return memory


if __name__ == "__main__":
    sys.exit(main())
