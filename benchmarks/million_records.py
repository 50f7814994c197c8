"""Save, load and analyse a session of a million records, then report it: seconds of CPU, peak memory.

    .venv/bin/python benchmarks/million_records.py [RECORDS]

The session is a recorded GPT-2 training step, its columns repeated. Analysis runs in a fresh process, without torch.
The report is of the whole session, and of one without storages, as those that rl.session_of makes of a log of a loop.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LIMIT_S, LIMIT_BYTES = 10.0, 1e9
RECORDS = 1_000_000


def main() -> int:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        record(small)
        total, peak = 0.0, 0.0
        for name, arguments in (
            ("repeat and save", ("save", small, large, records)),
            ("load and analyse", ("load", large)),
        ):
            seconds, rss = run(name, *arguments)
            total, peak = total + seconds, max(peak, rss)
        print(f"file: {large.stat().st_size / 1e6:.1f} MB")
        passed = total <= LIMIT_S and peak <= LIMIT_BYTES
        verdict = "ok" if passed else "TOO MUCH"
        print(f"all: {total:.2f} s of {LIMIT_S:.0f}, {peak / 1e9:.2f} GB of {LIMIT_BYTES / 1e9:.0f}: {verdict}")
        run("load and report", "report", large)
        bare = Path(folder) / "bare"
        run("leave out the storages", "bare", large, bare)
        run("load and report, without storages", "report", bare)
    return not passed


def run(name: str, *arguments: object) -> tuple[float, float]:
    """Seconds and peak bytes of a stage in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    seconds, rss = (float(word) for word in output[-1].split())
    print(f"{name}: {seconds:.2f} s, peak {rss / 1e9:.2f} GB")
    print(*(f"  {line}" for line in output[:-1]), sep="\n")
    return seconds, rss


def record(path: Path) -> None:
    import rooflight as rl
    from rooflight.sources.workloads.steps import make_step

    step = make_step("gpt2", small=True, device="cpu", step="train")
    step.run()
    with rl.record(step.model) as recording:
        step.run()
    recording.session.save(path)


def repeat_and_save(small: Path, large: Path, records: int) -> None:
    from dataclasses import replace

    import rooflight as rl
    from rooflight.records.session import NO_PARENT, Columns, Session

    session: Session = rl.load(small)
    columns, storages = session.columns, len(session.storage_bytes)
    times = -(-records // len(session))

    def shifted(column: np.ndarray, step: int, keep: int | None = None) -> np.ndarray:  # type: ignore[type-arg]
        shift = np.repeat(np.arange(times, dtype=np.int64) * step, len(column))
        tiled = np.tile(column, times)
        return (tiled + np.where(tiled == keep, 0, shift)).astype(column.dtype)

    def offsets(column: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.append(shifted(column[:-1], int(column[-1])), int(column[-1]) * times).astype(np.int64)

    tiled = Columns(
        signature=np.tile(columns.signature, times),
        module=np.tile(columns.module, times),
        phase=np.tile(columns.phase, times),
        function=np.tile(columns.function, times),
        direction=np.tile(columns.direction, times),
        parent=shifted(columns.parent, len(session), NO_PARENT),
        read_offsets=offsets(columns.read_offsets),
        read_ids=shifted(columns.read_ids, storages),
        read_starts=np.tile(columns.read_starts, times),
        written_offsets=offsets(columns.written_offsets),
        written_ids=shifted(columns.written_ids, storages),
        written_starts=np.tile(columns.written_starts, times),
    )
    start = time.process_time()
    replace(session, columns=tiled, storage_bytes=np.tile(session.storage_bytes, times)).save(large)
    finish(start)


def leave_out_storages(large: Path, bare: Path) -> None:
    from dataclasses import replace

    import rooflight as rl

    start = time.process_time()
    session = rl.load(large)
    offsets, ids, starts = np.zeros(len(session) + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    empty = {"offsets": offsets, "ids": ids, "starts": starts}
    columns = {f"{side}_{name}": array for side in ("read", "written") for name, array in empty.items()}
    lacking = replace(session, columns=replace(session.columns, **columns), storage_bytes=starts, lifetimes=None)
    lacking.save(bare)
    finish(start)


def load_and_report(path: Path) -> None:
    import rooflight as rl

    start = time.process_time()
    report = rl.analyze(rl.load(path), "H100-SXM5-80GB").report()
    print(f"{len(str(report))} characters")
    finish(start)


def load_and_analyse(path: Path) -> None:
    import rooflight as rl

    start = time.process_time()
    session = rl.load(path)
    print(f"loaded {len(session)} records in {time.process_time() - start:.2f} s")
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    for name, part in (
        ("totals", lambda: analysis.totals),
        ("coverage", lambda: analysis.coverage),
        *((f"by {key}", lambda key=key: analysis.by(key)) for key in ("phase", "module", "op")),
        ("operations", lambda: analysis.operations),
        ("memory", lambda: analysis.memory),
    ):
        before = time.process_time()
        part()
        print(f"{name}: {time.process_time() - before:.2f} s")
    finish(start)


def finish(start: float) -> None:
    print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    if sys.argv[1:2] == ["save"]:
        repeat_and_save(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["load"]:
        load_and_analyse(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["report"]:
        load_and_report(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["bare"]:
        leave_out_storages(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        raise SystemExit(main())
