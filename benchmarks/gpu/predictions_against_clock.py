"""Bounds and predicted times beside the GPU's clock: presets, and a step of random ops, recorded, measured, predicted.

    python benchmarks/gpu/predictions_against_clock.py --save FOLDER [--seconds 150]    on the GPU
    python benchmarks/gpu/predictions_against_clock.py --save FOLDER --mixes 100 160    on the GPU, more random ops
    python benchmarks/gpu/predictions_against_clock.py FOLDER/*.session                 anywhere, from what was saved

Measured: `rl.measure` (whole steps by the host's clock with nothing else running; ops by Kineto). A measured time below
its bound contradicts Rooflight. Nothing is fitted to these times.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rooflight as rl
from rooflight.roofline.analysis import Analysis

SHORTEST_S = 2e-6  # an op's time below it is the clock's grain more than the op's

PRESETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2", {"step": "forward", "batch": 8, "seq": 1024}),
    ("gpt2", {"step": "train", "batch": 8, "seq": 1024}),
    ("llama-3.1-8b", {"step": "prefill", "seq": 2048}),
    ("llama-3.1-8b", {"step": "decode", "seq": 2048}),
    ("resnet-50", {"step": "forward", "batch": 64}),
    ("resnet-50", {"step": "train", "batch": 64}),
    ("bert-large", {"step": "train", "batch": 16, "seq": 128}),
    ("vit-large", {"step": "forward", "batch": 32}),
    ("mamba-130m", {"step": "forward", "batch": 1, "seq": 64}),
    ("whisper-large-v3", {"step": "forward", "batch": 2}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", type=Path, help="sessions that were saved on a GPU")
    parser.add_argument("--save", type=Path, help="measure on this machine's GPU, and keep the sessions here")
    parser.add_argument("--mixes", nargs=2, type=int, help="measure random ops of these seeds, no presets")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--device", help="as a datasheet: bounds without a calibration [default: the session's]")
    parser.add_argument("--seconds", type=float, default=150, help="begin no program after so long")
    options = parser.parse_args()
    saved = ((path.stem, rl.load(path)) for path in options.sessions)
    found = measured(options.save, options.seconds, options.mixes) if options.save else saved
    if options.mixes:
        print(*(f"{name}: {len(session.signatures)} ops" for name, session in found), sep="\n")
        return 0
    rows = []
    print(HEAD)
    for name, session in found:
        analysis = rl.analyze(session, options.device, predictor=predictor())
        rows.append(row_of(name, analysis))
        print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows else 1


@functools.cache
def predictor() -> rl.Predictor:
    return rl.Predictor()


def measured(folder: Path, seconds: float, seeds: list[int] | None) -> Iterator[tuple[str, rl.Session]]:
    """Each program recorded and measured here."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    for name, make in mixes(range(*seeds)) if seeds else programs():
        if time.monotonic() > end:
            print(f"{name:<28} no time left")
            continue
        try:
            run, model = make()
            run()  # the optimizer's state, and libraries
            with rl.record(model) as recording:
                run()
            session = rl.measure(recording.session, run, warmup=1, max_seconds=2.0)
        except Exception as error:  # one program that fails must not take the others with it
            print(f"{name:<28} {type(error).__name__}: {str(error)[:200]}")
            continue
        finally:
            run = model = None
            torch.cuda.empty_cache()
        session.save(folder / f"{name.replace(' ', '_')}.session")
        yield name, session


def mixes(seeds: range) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    from op_mix import make_step as mix

    for seed in seeds:
        yield f"op-mix {seed}", lambda: (mix(seed=seed), None)  # noqa: B023 made before the next is drawn


def programs() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    import torch

    from rooflight.sources.workloads.steps import make_step

    def preset(target: str, wanted: dict[str, Any], layout: Any = None) -> tuple[Any, Any]:
        step = make_step(target, device="cuda", **wanted)
        if layout is not None:
            step.model.to(memory_format=layout)
        return step.run, step.model

    yield from mixes(range(7, 9))
    for target, wanted in PRESETS:
        yield f"{target} {wanted['step']}", functools.partial(preset, target, wanted)
    for target, wanted in PRESETS:
        if target == "resnet-50":
            yield f"{target} {wanted['step']} nhwc", functools.partial(preset, target, wanted, torch.channels_last)


def row_of(name: str, analysis: Analysis) -> dict[str, Any]:
    totals, program = analysis.totals, analysis.program
    ops = [op for op in analysis.operations if op.measured_s and op.measured_s / op.timed_calls >= SHORTEST_S]
    known = [op for op in ops if op.predicted_s]
    errors = [abs(op.predicted_s / op.measured_s - 1) for op in known]
    inside = [op.predicted_low_s <= op.measured_s <= op.predicted_high_s for op in known]
    shares = [
        (op.measured_s / (op.warm_op_bound_s / op.calls * op.timed_calls), op) for op in ops if op.warm_op_bound_s
    ]
    beaten = [(share, op.name, str(op.shapes), str(op.dtypes)) for share, op in shares if share < 1]
    return {
        "program": name,
        "device": analysis.device.name,
        "wall_s": totals.measured_s,
        "device_s": totals.ops_measured_s,
        "op_bound_s": totals.op_bound_s,
        "program_bound_s": program.program_bound_s,
        "predicted_s": totals.predicted_s,
        "predicted_low_s": totals.predicted_low_s,
        "predicted_high_s": totals.predicted_high_s,
        "predicted_wall_s": totals.predicted_wall_s,
        "ops": len(known),
        "op_error": statistics.median(errors) if errors else None,
        "op_inside": statistics.mean(inside) if inside else None,
        "beaten": sorted(beaten)[:20],
    }


HEAD = (
    f"{'program':<28}{'wall ms':>10}{'device':>10}{'op bound':>10}{'program':>10}{'predicted':>11}{'error':>8}"
    f"{'wall pred.':>11}{'ops':>5}{'med. err.':>10}{'inside':>8}{'beaten':>7}"
)


def line(row: dict[str, Any]) -> str:
    def ms(key: str) -> str:
        return "-" if row[key] is None else f"{row[key] * 1e3:.3f}"

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    error = row["predicted_s"] / row["device_s"] - 1 if row["predicted_s"] and row["device_s"] else None
    return (
        f"{row['program']:<28}{ms('wall_s'):>10}{ms('device_s'):>10}{ms('op_bound_s'):>10}{ms('program_bound_s'):>10}"
        f"{ms('predicted_s'):>11}{share(error):>8}{ms('predicted_wall_s'):>11}{row['ops']:>5}"
        f"{share(row['op_error']):>10}{share(row['op_inside']):>8}{len(row['beaten']):>7}"
    )


if __name__ == "__main__":
    sys.exit(main())
