"""What models learn from KernelBench's programs, on programs and on GPUs that they did not learn from.

``problems``: a quarter of the problems in turn is held out, on all machines. ``machines``: each kind of GPU in turn, on
all its machines. The models of the rest, from attributed times (``attributed_programs.py``), join those that come with
Rooflight or of ``--models``: an expert for each kind of work and device that has none, and for convolutions, of which
tables have only the plain ones, in its place. Programs that a host is fitted from are learned from and not scored.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from attributed_programs import explained
from predictions_on_measured_programs import HOST, Row, Time, eager_times, markdown, recorded, scored

import rooflight as rl
from rooflight.devices import get
from rooflight.prediction.facts import CONVOLUTION_KEY, OTHERS_KEY
from rooflight.prediction.fitting import learn_all
from rooflight.prediction.measured_ops import measured_ops, shown_by_ops

FOLDS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("held_out", choices=("problems", "machines"))
    parser.add_argument("--models", type=Path, help="the models of this folder, instead of those that come along")
    parser.add_argument("--worst", type=int, default=0, help="print so many programs of each set and machine")
    options = parser.parse_args()
    data = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "kernelbench"
    if not (data / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    base = rl.Predictor.load(options.models) if options.models else rl.Predictor()
    times = eager_times(data)
    sessions = dict(recorded(data, {time.file for time in times}))
    times = [time for time in times if time.file in sessions]
    rows: list[Row] = []
    for is_out in parts(times, options.held_out):
        shown = [time for time in times if not is_out(time)]
        asked = [time for time in times if is_out(time) or time.program in HOST]
        rows += scored(asked, sessions, joined(base, explained(shown, sessions, base)))
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


def joined(base: rl.Predictor, programs: dict[Time, rl.Session]) -> rl.Predictor:
    """The base's models with experts for what programs taught."""
    timed = [measured_ops(session, get(time.device), time.file) for time, session in programs.items()]
    models = dict(base.models)
    for model in learn_all(shown_by_ops(timed).shown).models:
        known = models.get(model.key)
        if known is None:
            models[model.key] = model
        elif model.key != OTHERS_KEY:
            first, other = (model, known) if model.key == CONVOLUTION_KEY else (known, model)
            more = tuple(expert for expert in other.experts if expert.device not in first.devices)
            models[model.key] = replace(known, experts=(*first.experts, *more))
    return rl.Predictor.of(models.values())


if __name__ == "__main__":
    sys.exit(main())
