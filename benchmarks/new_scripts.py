"""Scripts of public repositories that nobody here had tried: does ``rooflight run`` find their step, and with ``--on``?

    python benchmarks/new_scripts.py CLONES [--only NAME ...] [--on DEVICE] [--jobs 2]

CLONES holds the repositories of ``new_scripts.toml`` as ``owner+name`` or ``owner+name/repo``. A script runs unedited
in a folder made anew, on data that the row's commands make there. With ``--on`` it is asked for a device, without it
the script runs twice alone and once under ``rooflight run``: its exit code must be the same, and what it prints, but
for times, where the two agree. Ends with 1 if a script has no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".toml")
LIMIT_S = 300
TIME = re.compile(r"[\d.]+ ?(ms|s|sec|min|it/s)\b")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--on", default="")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    table = tomllib.loads(given.table.read_text())
    rows = [row for row in table["script"] if not given.only or row["name"] in given.only]
    rows = [row for row in rows if row.get("only", "on" if given.on else "run") == ("on" if given.on else "run")]
    answered = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        asked = (pool.submit(answer, row, given.clones, given.on, table.get("data", {})) for row in rows)
        for row, waited in zip(rows, list(asked), strict=True):
            good, words = waited.result()
            answered += good
            print(f"{'  ' if good else 'NO'} {row['name']:24}{words}", flush=True)
    print(f"{answered} of {len(rows)} answered")
    return 0 if answered == len(rows) else 1


def answer(row: dict[str, Any], clones: Path, device: str, data: dict[str, str]) -> tuple[bool, str]:
    """Whether the script has an answer, and the answer or what stopped it."""
    name = row["repository"].replace("/", "+")
    clone = next((path for path in (clones / name / "repo", clones / name) if path.is_dir()), None)
    if clone is None:
        return False, f"no clone of {row['repository']}"
    if device:
        with tempfile.TemporaryDirectory(prefix="new-script-") as folder:
            return read(*run(row, unpacked(row, clone, Path(folder), data), "--on", device))
    ended = []
    for words in ([], [], [""]):
        with tempfile.TemporaryDirectory(prefix="new-script-") as folder:
            ended.append(run(row, unpacked(row, clone, Path(folder), data), *words))
    (first, _), (second, _), (watched, document) = ended
    if watched.returncode != first.returncode:
        return False, f"exit code {first.returncode} became {watched.returncode}: {last_line(watched.stderr)}"
    plain, again, under = (TIME.sub("", each.stdout) for each in (first, second, watched))
    if plain == again != under:
        return False, "its output changed"
    return read(watched, document)


def unpacked(row: dict[str, Any], clone: Path, folder: Path, data: dict[str, str]) -> Path:
    """The folder that the script runs in, with the repository's files of the row's commit and the data."""
    listed = subprocess.run(["git", "-C", clone, "ls-tree", "-r", row["commit"]], capture_output=True, check=True)
    for line in listed.stdout.decode().splitlines():
        (mode, kind, blob), path = line.split("\t")[0].split(), folder / line.split("\t")[1]
        if kind == "blob" and mode != "120000":
            path.parent.mkdir(parents=True, exist_ok=True)
            shown = subprocess.run(["git", "-C", clone, "cat-file", "blob", blob], capture_output=True, check=False)
            if shown.returncode == 0:  # a snapshot may lack large ones
                path.write_bytes(shown.stdout)
    place = folder / row.get("folder", ".")
    for name in row.get("data", []):
        subprocess.run([sys.executable, "-c", data[name]], cwd=place, check=True)
    if row.get("first"):
        subprocess.run(row["first"], shell=True, cwd=place, check=True, env=surroundings(row), capture_output=True)
    return place


def surroundings(row: dict[str, Any]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "MPLBACKEND": "agg",
            "HF_HUB_OFFLINE": "1"} | row.get("environment", {})  # fmt: skip


def run(row: dict[str, Any], place: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """How the script ended, alone or under ``rooflight run`` with these words, and Rooflight's document."""
    tool = ["-m", "rooflight", "run", *filter(None, words), "--json", "rooflight.json"] if words else []
    command = [sys.executable, *tool, row["file"], *row.get("arguments", "").split()]
    begin = time.monotonic()
    try:
        ended = subprocess.run(command, cwd=place, env=surroundings(row), capture_output=True, text=True, check=False,
                               timeout=LIMIT_S, stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired:
        ended = subprocess.CompletedProcess(command, 124, "", f"not in {LIMIT_S} s")
    written = place / "rooflight.json"
    document = json.loads(written.read_text()) if written.exists() else {}
    return ended, document | {"took_s": time.monotonic() - begin}


def read(ended: subprocess.CompletedProcess[str], document: dict[str, Any]) -> tuple[bool, str]:
    """What the document of a run says in a line."""
    said = document.get("run", {})
    step, on = said.get("step"), said.get("on") or []
    if not step or not step.get("count") or (said.get("virtual") and (not on or said.get("error"))):
        return False, said.get("error") or last_line(ended.stderr)
    words = f"{step['count']:>6} steps ({step['kind']})"
    for each in on:
        words += f", {each['step_s'] * 1e3:.3g} ms on {each['device']}, {each['memory_bytes'] / 1e9:.3g} GB"
    return True, f"{words}, in {document['took_s']:.0f} s"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was printed"])[-1][:160]


if __name__ == "__main__":
    raise SystemExit(main())
