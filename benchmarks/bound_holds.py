"""Is any op of any preset, run small on this machine, measured faster than its bound? A row a preset and mode."""

from __future__ import annotations

import sys

import numpy as np

import rooflight as rl
from rooflight.roofline.tables.tables import shapes_text
from rooflight.sources.capture.time.measure import joined_share
from rooflight.sources.workloads.presets import PRESETS
from rooflight.sources.workloads.steps import make_step


def main(names: list[str]) -> int:
    device = rl.current_device()
    print(f"{device.name}; {device.calibrated.source if device.calibrated else 'not calibrated'}")
    print(
        f"{'preset':20} {'mode':8} {'ops':>6} {'timed':>7} {'op bound':>10} {'in ops':>10} {'step':>10} {'beaten':>6}"
    )
    beaten = 0
    for name in names or PRESETS:
        for mode in ("forward", "train"):
            step = make_step(name, step=mode, device="cpu", small=True)
            with rl.record(step.model) as recording:
                step.run()
            session = rl.measure(recording.session, step.run, max_seconds=3.0)
            analysis = rl.analyze(session, device)
            totals = analysis.totals
            share = joined_share(session, session.measurement.op_samples_s)
            beaten += len(analysis.contradictions)
            in_ops = totals.ops_measured_s if totals.ops_measured_s is not None else np.nan
            print(
                f"{name:20} {mode:8} {totals.calls:6} {share:7.1%} {totals.op_bound_s * 1e3:7.2f} ms "
                f"{in_ops * 1e3:7.2f} ms {totals.measured_s * 1e3:7.2f} ms {len(analysis.contradictions):6}",
                flush=True,
            )
            for found in analysis.contradictions:
                ratio, op = found.measured_s / found.bound_s, found.signature
                print(f"    {op.name} {shapes_text(op.input_shapes)}: {ratio:.3f} of its bound")
    print(f"{beaten} kinds of op beat their bound")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
