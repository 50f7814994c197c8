"""Scripts as users write them, plain and under ``rooflight run``: does anything of theirs change, is the step found?

    python benchmarks/run_scripts.py [--only NAME ...] [--held-back] [--jobs 2] [--plain]

The scripts and what is true of them are in ``tests/scripts/truth.toml``. Each runs twice in the same folder, emptied
between: alone, and under ``rooflight run --steps 2 --skip 1``. Compared are exit code, standard output, the names and
bytes of files, and what is on standard error of a script that fails. The step, its count and the exit code are read
from the JSON document, and the session must load. ``--plain`` runs scripts twice without Rooflight, to check the
table. Ends with 1 if a row fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import rooflight as rl

SCRIPTS = Path(__file__).parents[1] / "tests" / "scripts"
LIMIT_S = 240
SIGNAL_AFTER_S = 0.5
FEW = 4  # of so few steps perhaps none is left to record
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b")
OWN_TRACEBACK = re.compile(r'File "[^"]*/rooflight/')


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is true of a script. The head of truth.toml says what each field means."""

    name: str
    script: str
    like: int = 0
    beside: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    launcher: str = "python"
    module: str = ""
    stdin: str = ""
    exit: int = 0
    steps: tuple[int, ...] = ()
    at_least: int | None = None
    kinds: tuple[str, ...]
    output: str = "same"
    varies: tuple[str, ...] = ()
    signal: str = ""
    after: str = ""
    report: str = "must"
    errors: bool = False
    wait: str = ""
    held_back: bool = False


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one run of a script left."""

    exit: int | None
    stdout: bytes
    stderr: str
    files: dict[str, str]


def rows() -> list[Row]:
    table = tomllib.loads((SCRIPTS / "truth.toml").read_text())["row"]
    return [Row(**{name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}) for row in table]


def prepare(row: Row, work: Path) -> str:
    """Put the script into an empty folder; its name there."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    source = SCRIPTS / row.script
    for path in (source, *(source.parent / name for name in row.beside)):
        if path.is_dir():
            shutil.copytree(path, work / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, work / path.name)
    return source.name


def words(row: Row, script: str, options: list[str]) -> list[str]:
    """The command; with ``options``, under ``rooflight run``."""
    tool = ["-m", "rooflight", "run", *options] if options else []
    if row.launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *tool, script,
                *row.args]  # fmt: skip
    target = ["-m", row.module] if row.launcher == "module" else [script]
    return [sys.executable, *tool, *target, *row.args]


def run(row: Row, work: Path, aside: Path, options: list[str]) -> Seen:
    """Run the script in ``work``, its streams and Rooflight's files in ``aside``."""
    script = prepare(row, work)
    aside.mkdir(parents=True)
    (aside / "in").write_text(row.stdin)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ROOFLIGHT_CACHE": str(aside / "cache")}
    with (aside / "in").open() as stdin, (aside / "out").open("wb") as out, (aside / "err").open("wb") as err:
        process = subprocess.Popen(
            words(row, script, options),
            cwd=work,
            env=environment,
            stdin=stdin,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        code = ended(process, row, aside / "out")
    deadline = time.monotonic() + 30
    while row.wait and not (work / row.wait).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    files = {
        str(path.relative_to(work)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(work.rglob("*"))
        if path.is_file()
    }
    errors = (aside / "err").read_text(errors="replace")
    return Seen(exit=code, stdout=(aside / "out").read_bytes(), stderr=errors, files=files)


def ended(process: subprocess.Popen[bytes], row: Row, out: Path) -> int | None:
    """Wait for the end, with the row's signal on the way. None: it took too long."""
    start, sent = time.monotonic(), not row.signal
    while (code := process.poll()) is None:
        if not sent and row.after.encode() in out.read_bytes():
            time.sleep(SIGNAL_AFTER_S)
            os.kill(process.pid, signal.Signals[row.signal])
            sent = True
        if time.monotonic() - start > LIMIT_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        time.sleep(0.02)
    return code


def changed(row: Row, plain: Seen, watched: Seen) -> list[str]:
    """What of the script's own is not as it was without Rooflight."""
    found = []
    if plain.exit != row.exit:
        found.append(f"the truth is wrong: plain exit code {plain.exit}, not {row.exit}")
    if watched.exit != plain.exit:
        found.append(f"exit code {watched.exit}, not {plain.exit}")
    if shown(row, watched.stdout) != shown(row, plain.stdout):
        found.append("standard output differs")
    if named(row, watched.files) != named(row, plain.files):
        found.append(f"files differ: {sorted(named(row, watched.files).items() ^ named(row, plain.files).items())}")
    if row.errors and plain.stderr not in watched.stderr:
        found.append("its own standard error is not there")
    if OWN_TRACEBACK.search(watched.stderr):
        found.append("a traceback shows Rooflight's files")
    return found


def shown(row: Row, output: bytes) -> bytes | Counter[str] | set[str]:
    if row.output == "same":
        return output
    masked = [" ".join(NUMBER.sub("#", line).split()) for line in output.decode(errors="replace").splitlines()]
    return set(masked) if row.output == "shapes" else Counter(masked)


def named(row: Row, files: dict[str, str]) -> dict[str, str]:
    """Files by name; those that vary without their bytes, and without the numbers in their names."""
    same = {name: digest for name, digest in files.items() if not any(fnmatch(name, v) for v in row.varies)}
    other = Counter(re.sub(r"\d+", "#", name.replace(os.uname().nodename, "")) for name in files.keys() - same.keys())
    return {**same, **{name: str(count) for name, count in other.items()}}


def reported(row: Row, aside: Path, stderr: str) -> tuple[list[str], str]:
    """What is wrong with the document and the session, and the step as the document tells it."""
    try:
        document = json.loads((aside / "run.json").read_text())
    except FileNotFoundError:
        return (["no JSON was written"] if row.report == "must" else []), "no report"
    document = document.get("slowest", document)  # of several ranks
    run = document["run"]
    step = run["step"]
    if row.report == "none":
        return ["JSON was written"], str(step)
    found = unsound(document["account"], document["findings"])
    found += [] if run["exit_code"] == row.exit else [f"run.exit_code is {run['exit_code']}, not {row.exit}"]
    if step is None:
        return found + ([] if "none" in row.kinds else ["no step was found"]), "no step"
    if step["kind"] not in row.kinds:
        found.append(f"a step is {step['kind']}, not {' or '.join(row.kinds)}")
    if not (step["count"] in row.steps or (row.at_least is not None and step["count"] >= row.at_least)):
        found.append(f"{step['count']} steps, not {' or '.join(map(str, row.steps)) or row.at_least}")
    if step["count"] > FEW and step.get("recorded") is None:
        found.append("no step was recorded")
    if not (step["where"]["line"] and step["begins"]):
        found.append("no place or beginning of the step")
    shares = [part["share"] for part in run["between"]]
    if not (all(0 <= share <= 1 for share in shares) and sum(shares) <= 1 + 1e-6):
        found.append(f"shares between steps: {shares}")
    if "step" not in stderr:
        found.append("no report on standard error")
    return found + session_problems(
        row, aside / "run.session"
    ), f"{step['kind']} {step['count']:,}, {step['where']['file']}:{step['where']['line']}"


def unsound(account: dict[str, Any] | None, findings: list[dict[str, Any]]) -> list[str]:
    """What an account must hold, and does not."""
    if account is None:
        return []
    rows, wall_s = account["rows"], account["wall_s"]
    total = sum(row["seconds"] for row in rows)
    found = [] if abs(total - wall_s) <= 1e-9 * wall_s else [f"rows sum to {total}, not to {wall_s}"]
    found += [f"{row['cause']}: {row['seconds']} s" for row in rows if row["seconds"] < 0]
    for each in findings:
        held_s = sum(row["seconds"] for row in rows if row["cause"] in each["causes"])
        if not each["predicted_gain_s"] <= each["seconds_lost"] * (1 + 1e-9) <= held_s * (1 + 1e-8):
            found.append(f"{each['id']} gains {each['predicted_gain_s']} of {each['seconds_lost']} of {held_s} s")
    return found


def session_problems(row: Row, path: Path) -> list[str]:
    if not path.is_file():
        return ["no session was saved"] if row.report == "must" else []
    try:
        session = rl.load(path)
    except ValueError as error:
        return [f"the session does not load: {error}"]
    return [] if len(session) else ["the session has no records"]


def checked(row: Row, root: Path, *, twice_plain: bool = False) -> tuple[Row, list[str], str, float]:
    """A row, what is wrong, its step as reported, and seconds of both runs."""
    start = time.monotonic()
    folder = root / row.name
    work, aside = folder / "work", folder / "watched"
    plain = run(row, work, folder / "plain", [])
    if twice_plain:
        return row, changed(row, plain, run(row, work, aside, [])), "", time.monotonic() - start
    options = ["--steps", "2", "--skip", "1", "--save", str(aside / "run.session"), "--json", str(aside / "run.json")]
    watched = run(row, work, aside, options)
    found, step = reported(row, aside, watched.stderr)
    if row.wait:
        time.sleep(1)  # the process left behind may still report
    return row, changed(row, plain, watched) + found, step, time.monotonic() - start


def chosen(only: list[str], *, held_back: bool) -> list[Row]:
    table = rows()
    if unknown := set(only) - {row.name for row in table}:
        raise SystemExit(f"no row {', '.join(sorted(unknown))} in {SCRIPTS / 'truth.toml'}")
    return [row for row in table if (row.name in only if only else row.held_back == held_back)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument("--held-back", action="store_true", help="those that the step finder's writer did not see")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time (1)")
    parser.add_argument("--plain", action="store_true", help="without Rooflight, to check the table")
    parser.add_argument("--keep", type=Path, help="folder in which streams, documents and sessions stay")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, and so in the scripts
    table = chosen(options.only, held_back=options.held_back)
    passed = 0
    with tempfile.TemporaryDirectory(prefix="run-scripts-", ignore_cleanup_errors=True) as temporary:
        root = options.keep or Path(temporary)
        if options.keep:
            for row in table:
                shutil.rmtree(root / row.name, ignore_errors=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            for row, found, step, seconds in pool.map(lambda row: checked(row, root, twice_plain=options.plain), table):
                passed += not found
                print(f"{'FAIL' if found else 'pass'}  {row.name:24} {step:48} {seconds:5.1f} s", flush=True)
                for problem in found:
                    print(f"      {problem}", flush=True)
    print(f"{passed} of {len(table)} pass")
    return passed < len(table)


if __name__ == "__main__":
    sys.exit(main())
