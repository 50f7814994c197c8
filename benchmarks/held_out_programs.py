"""What models learn from KernelBench's programs, on programs and on GPUs that they did not learn from.

``problems``: a quarter of the problems in turn is held out, on all machines; ``machines``: each kind of GPU in turn, on
all its machines. The models of the tables and traces learn from attributed times of the rest
(``attributed_programs.py``), as those that come with Rooflight do (``fit_shipped.sh``). Programs that a host is fitted
from are learned from and not scored.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from attributed_programs import explained
from predictions_on_measured_programs import HOST, Row, Time, eager_times, markdown, recorded, scored
from taught import Tables, coarse, measured_traces

from rooflight.devices import get
from rooflight.prediction.read.measured import measured_ops

FOLDS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("held_out", choices=("problems", "machines"))
    parser.add_argument("--worst", type=int, default=0, help="print so many programs of each set and machine")
    options = parser.parse_args()
    root = Path(os.environ.get("ROOFLIGHT_DATA", ""))
    data = root / "kernelbench"
    if not (data / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    tables, traces = Tables.learned(root), list(measured_traces(root).values())
    base = coarse(root, traces)
    times = eager_times(data)
    sessions = dict(recorded(data, {time.file for time in times}))
    times = [time for time in times if time.file in sessions]
    rows: list[Row] = []
    for is_out in parts(times, options.held_out):
        shown = [time for time in times if not is_out(time)]
        asked = [time for time in times if is_out(time) or time.program in HOST]
        found = explained(shown, sessions, base).items()
        timed = [measured_ops(session, get(time.device), time.file) for time, session in found]
        rows += scored(asked, sessions, tables.with_ops([*traces, *timed]))
    print("\n".join(markdown(rows, options.worst)))
    return 0


def parts(times: Iterable[Time], held_out: str) -> Iterator[Callable[[Time], bool]]:
    """For each part, whether a program is held out."""
    if held_out == "machines":
        for device in sorted({time.device for time in times}):
            yield lambda time, device=device: time.device == device
        return
    programs = sorted({time.program for time in times} - set(HOST))
    order = np.random.default_rng(0).permutation(len(programs))
    fold = dict(zip(programs, (order % FOLDS).tolist(), strict=True))
    for number in range(FOLDS):
        yield lambda time, number=number: fold.get(time.program) == number


if __name__ == "__main__":
    sys.exit(main())
