"""Do the spans of modules agree with the times of their ops?

    python benchmarks/spans_against_kineto.py

A GPT-2 of 4 layers is tracked for 14 steps (spans: median of the last 10), then recorded and profiled (ops: medians of
Kineto's times). By last part of the module's name and direction; spans hold the gaps between ops, so they should be the
larger by a little.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import rooflight as rl
from rooflight.studies.tracking.loop import Tracker

STEPS, SKIPPED, LEAST_S = 14, 4, 1e-3


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=2000, n_positions=256))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 2000, (4, 256))

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    spans: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * STEPS)
    tracker = Tracker(model, device="H100-SXM5-80GB", interval=0)
    for number in range(STEPS):
        step()
        tracker.log(number)
        if tracker.last_step is not None:
            for place, seconds in tracker.last_step.spans.seconds.items():
                spans[place.module.rpartition(".")[2], place.direction.label][number] += seconds
    tracker.close()
    with rl.record(model) as recording:
        step()
    session = rl.measure(recording.session, step)
    assert session.measurement is not None
    ops: Counter[tuple[str, str]] = Counter()
    for record, seconds in zip(session.records, session.measurement.op_s.tolist(), strict=True):
        if record.parent is None and np.isfinite(seconds):
            ops[record.module.path.rpartition(".")[2], record.direction.label] += seconds
    found = {key: float(np.median(values[SKIPPED:])) for key, values in spans.items()}
    for key, seconds in sorted(found.items(), key=lambda item: -item[1]):
        if seconds >= LEAST_S:
            name = f"{key[0] or '(outside modules)'}, {key[1]}"
            print(
                f"{name:32} spans {seconds * 1e3:7.2f} ms  ops {ops[key] * 1e3:7.2f} ms  {seconds / ops[key] - 1:+.1%}"
            )
    print(f"{'all':32} spans {sum(found.values()) * 1e3:7.2f} ms  ops {sum(ops.values()) * 1e3:7.2f} ms")


if __name__ == "__main__":
    main()
