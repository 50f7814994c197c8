"""A recurrent network written as a loop over time steps, recorded and bounded without hardware: CPU seconds.

    .venv/bin/python benchmarks/recurrence_on_meta.py [STEPS]

With the memory of results on meta and without it, in turns, three times each; both record the same.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

import rooflight as rl
from rooflight.sources.capture.record import dispatch

STEPS, LAYERS, BATCH, WIDTH = 512, 12, 10, 256


class Gru(nn.Module):
    """A GRU of cells, 16 calls of ops each."""

    def __init__(self) -> None:
        super().__init__()
        self.of_inputs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.of_states = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        states = list(state)
        for step in x:
            inputs = step
            for layer, (of_input, of_state) in enumerate(zip(self.of_inputs, self.of_states, strict=True)):
                a, b = of_input(inputs).chunk(3, -1), of_state(states[layer]).chunk(3, -1)
                reset, update = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
                new = torch.tanh(a[2] + reset * b[2])
                inputs = states[layer] = new + update * (states[layer] - new)
        return torch.stack(states)


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    remembering = dispatch.remembering
    seconds: dict[str, list[tuple[float, float]]] = {"with memory": [], "without": []}
    bounds = set()
    for _ in range(3):
        for name, wrap in (("with memory", remembering), ("without", lambda _, run: run)):
            dispatch.remembering = wrap
            with torch.device("meta"), torch.no_grad():
                model, x, state = Gru(), torch.empty(steps, BATCH, WIDTH), torch.empty(LAYERS, BATCH, WIDTH)
            start = time.process_time()
            with torch.no_grad(), rl.record(model, memory=True) as recording:
                model(x, state)
            recorded = time.process_time()
            analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
            bounds.add((analysis.totals.calls, analysis.totals.op_bound_s, analysis.program.program_bound_s))
            seconds[name].append((recorded - start, time.process_time() - recorded))
    dispatch.remembering = remembering
    assert len(bounds) == 1, bounds
    print(f"{bounds.pop()[0]:,} calls")
    for name, taken in seconds.items():
        recording_s, analysis_s = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name:12} recorded in {recording_s:.2f} s, bounded in {analysis_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
