"""How fast traces are read and analysed: a gigabyte of JSON, and the traces of ROOFLIGHT_DATA.

    ROOFLIGHT_DATA=... python benchmarks/trace_speed.py [--trace NAME] [--gigabytes 1] [--gzip]

The gigabyte is a real trace, repeated: each copy begins when the one before it ended, and has correlation ids,
external ids, sequence numbers and flow ids of its own. It is written to a temporary folder and removed. Each reading
is a process of its own with one thread, so that its peak memory is its own. Bars: 60 s and 3 GB for the gigabyte, 30 s
for the traces together. On a machine that others use, the process's own seconds count; both are printed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

LARGE_S, LARGE_BYTES, ALL_S = 60.0, 3e9, 30.0
SHIFTED = ("correlation", "External id", "external id", "Sequence number", "Ev Idx", "Python id", "Python parent id")


def main() -> int:
    """Run both parts; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="a100_recommender_training", help="the trace that is repeated")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--gzip", action="store_true", help="write the gigabyte as gzip")
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--skip-small", action="store_true")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces"
    traces = sorted(folder.glob("*.json.gz"))
    if not traces:
        sys.exit("no traces: set ROOFLIGHT_DATA to the folder that has traces")
    passed = options.skip_small or small(traces)
    if not options.skip_large:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / f"large.json{'.gz' if options.gzip else ''}"
            events = write_repeated(folder / f"{options.trace}.json.gz", path, options.gigabytes * 1e9)
            passed &= large(path, events)
    return not passed


def small(traces: list[Path]) -> bool:
    """All traces, one after the other, in one process."""
    seconds, own_s, peak = read(*traces)
    print(f"{len(traces)} traces: {own_s:.1f} s of {ALL_S:.0f} ({seconds:.1f} s elapsed), peak {peak / 1e9:.2f} GB")
    return own_s <= ALL_S


def large(path: Path, events: int) -> bool:
    """The large trace."""
    seconds, own_s, peak = read(path)
    print(
        f"{path.name}, {events / 1e6:.2f} million events: {own_s:.1f} s of {LARGE_S:.0f} ({seconds:.1f} s elapsed), "
        f"peak {peak / 1e9:.2f} GB of {LARGE_BYTES / 1e9:.0f}"
    )
    return own_s <= LARGE_S and peak <= LARGE_BYTES


def read(*paths: Path) -> tuple[float, float, float]:
    """Elapsed and own seconds, and peak bytes, of a process that reads and analyses traces."""
    command = [sys.executable, __file__, "--read", *map(str, paths)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    *lines, last = done.stdout.splitlines()
    print(*lines, sep="\n")
    seconds, own_s, peak = map(float, last.split())
    return seconds, own_s, peak


def analyze(paths: list[Path]) -> None:
    """In the process of its own: what the command does with each trace."""
    import rooflight as rl

    told = 0.0

    def progress(done: int, size: int) -> None:
        nonlocal told
        if done / size >= told + 0.1:
            told = done / size
            print(f"  {told:.0%} after {time.perf_counter() - begun:.1f} s", file=sys.stderr)

    for path in paths:
        begun, own = time.perf_counter(), time.process_time()
        session = rl.read_trace(path, progress=progress if len(paths) == 1 else None)
        read_s = time.process_time() - own
        device = "V100-SXM2-32GB" if "v100" in path.name else None
        rl.analyze(session, device).report()
        print(f"  {path.name}: read in {read_s:.2f} s, analysed in {time.process_time() - own - read_s:.2f} s")
    elapsed = time.perf_counter() - STARTED
    print(elapsed, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def write_repeated(source: Path, path: Path, least: float) -> int:
    """Write copies of a trace, at least so many bytes of JSON. Returns the number of events."""
    trace = msgspec.json.decode(gzip.decompress(source.read_bytes()))
    events = trace.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    length = max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed)
    ids = 1 + max(int(number) for event in events for number in numbers(event))
    copies = written = 0
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(msgspec.json.encode(trace)[:-1] + b',"traceEvents":[\n')
        while written < least:
            text = b",\n".join(msgspec.json.encode(shifted(event, copies * length, copies * ids)) for event in events)
            file.write(b",\n" * bool(copies) + text)
            copies, written = copies + 1, written + len(text)
        file.write(b"\n]}")
    print(f"{path.name}: {copies} copies of {source.name}, {written / 1e9:.2f} GB of JSON")
    return copies * len(events)


def numbers(event: dict[str, Any]) -> Iterator[int]:
    """The ids in an event that are its own."""
    args = event.get("args") or {}
    yield from (args[key] for key in SHIFTED if isinstance(args.get(key), int))
    if isinstance(event.get("id"), int):
        yield event["id"]


def shifted(event: dict[str, Any], later: float, ids: int) -> dict[str, Any]:
    """The same event, in a later copy."""
    found = dict(event)
    if "ts" in found:
        found["ts"] += later
    if isinstance(found.get("id"), int):
        found["id"] += ids
    if args := found.get("args"):
        moved = {key: args[key] + ids for key in SHIFTED if isinstance(args.get(key), int) and args[key] > 0}
        found["args"] = {**args, **moved}
    return found


STARTED = time.perf_counter()

if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        analyze([Path(name) for name in sys.argv[2:]])
    else:
        raise SystemExit(main())
