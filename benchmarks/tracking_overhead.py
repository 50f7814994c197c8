"""What tracking costs a training loop: µs per module call and per phase, and the slowdown of a loop of about 50 ms.

    python benchmarks/tracking_overhead.py

Everything is measured in one process, alternating between tracked and not, in process time of one thread; minima of
many repetitions for the parts, medians for the loop.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

import rooflight as rl
from rooflight.devices import get
from rooflight.sources.capture.record.modules import models_of
from rooflight.sources.capture.time.spans import SpanTimer
from rooflight.studies.tracking.loop import Tracker

MODULES = 200
ROUNDS = 60


class Chain(nn.Module):
    """Many modules that do next to nothing, called one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Tanh() for _ in range(MODULES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def fail(error: Exception) -> None:
    raise error


def best(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def per_module_call() -> None:
    model, x = Chain(), torch.ones(8, requires_grad=True)
    timer = SpanTimer(models_of(model), fail)

    def forward() -> None:
        with torch.no_grad():
            for _ in range(10):
                model(x)

    def both() -> None:
        for _ in range(10):
            model(x).sum().backward()

    def attached() -> None:
        timer.attach()

    def detached() -> None:
        timer.detach()

    for name, run in (("forward", forward), ("forward and backward", both)):
        seconds: dict[str, float] = {}
        for _ in range(ROUNDS):
            for state, prepare, undo in (
                ("off", lambda: None, lambda: None),
                ("on", attached, detached),
                ("after", lambda: None, lambda: None),
            ):
                prepare()
                seconds[state] = min(seconds.get(state, 9.9), best(run))
                if state == "on":
                    timer.cut()
                undo()
        for state in ("on", "after"):
            cost = (seconds[state] - seconds["off"]) / (10 * (MODULES + 1)) * 1e6
            label = "timing on" if state == "on" else "off again"
            print(f"{name:22} {label}: {cost:5.2f} µs a module call over {seconds['off'] / (10 * MODULES) * 1e6:.1f}")


def per_phase() -> None:
    count = 100_000

    def phases() -> None:
        for _ in range(count):
            with rl.phase("rl/forward"):
                pass

    def nothing() -> None:
        for _ in range(count):
            pass

    cost = min(best(phases) for _ in range(7)) - min(best(nothing) for _ in range(7))
    print(f"phase, nothing attached: {cost / count * 1e6:.2f} µs")
    timer = SpanTimer(models_of(Chain()), fail)
    timer.attach()
    cost = min(best(phases) for _ in range(7)) - min(best(nothing) for _ in range(7))
    timer.detach()
    print(f"phase, timing on: {cost / count * 1e6:.2f} µs")


def loop(device: str) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=128, n_head=4, vocab_size=1000, n_positions=128))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 1000, (2, 128))

    def iteration() -> None:
        with rl.phase("forward"):
            loss = model(input_ids=tokens, labels=tokens).loss
        with rl.phase("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        iteration()
    with tempfile.TemporaryDirectory() as folder:
        for with_writer in (False, True):
            writer = SummaryWriter(folder) if with_writer else None
            times: dict[str, list[float]] = {"plain": [], "tracked": []}
            for block in range(12):
                for kind in ("plain", "tracked") if block % 2 else ("tracked", "plain"):
                    tracker = Tracker(model, device=get(device), interval=0) if kind == "tracked" else None
                    for number in range(13):
                        start = time.process_time()
                        iteration()
                        if tracker is not None:
                            tracker.log(number, writer)
                        if number >= 3:  # two are recorded, and the third meets what they left in the caches
                            times[kind].append(time.process_time() - start)
                    if tracker is not None:
                        tracker.close()
            plain, tracked = (statistics.median(times[kind]) for kind in ("plain", "tracked"))
            low = [min(times[kind]) for kind in ("plain", "tracked")]
            print(
                f"loop of {plain * 1e3:.1f} ms, {'TensorBoard' if with_writer else 'no writer'}: "
                f"{(tracked / plain - 1) * 100:+.1f} % (median), {(low[1] / low[0] - 1) * 100:+.1f} % (minimum)"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    per_module_call()
    per_phase()
    loop("H100-SXM5-80GB")
