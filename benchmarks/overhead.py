"""What recording and timing cost per dispatched op, beside torch's own instruments.

All instruments take turns inside one process on one thread; the figure is the least process time of many runs, less
that of the plain program, over the number of ops that a dispatch mode sees. Usage: python benchmarks/overhead.py
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import torch
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import rooflight as rl
from rooflight.workloads.steps import make_step


class NullMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def mlp_step() -> tuple[torch.nn.Module, Callable[[], object]]:
    layers = [layer for _ in range(50) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())]
    model, x = torch.nn.Sequential(*layers), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def gpt2_step() -> tuple[torch.nn.Module, Callable[[], object]]:
    step = make_step("gpt2", mode="train", small=True, seq=8, device="cpu")
    return step.model, step.run


def measure(step: Callable[[], object], instruments: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    best = dict.fromkeys(instruments, float("inf"))
    for _ in range(runs):
        for name, instrument in instruments.items():
            context = instrument()
            with context:
                start = time.process_time()
                step()
                best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, least of {runs} alternating runs, 1 thread; µs per op over the plain program")
    for title, make in (("MLP, 100 layers", mlp_step), ("GPT-2 reduced, foreach AdamW", gpt2_step)):
        model, step = make()
        step()
        with rl.record(model) as recording:
            step()
        ops = len(recording.session)
        instruments = {
            "plain": contextlib.nullcontext,
            "null dispatch mode": NullMode,
            "rooflight.record": lambda model=model: rl.record(model),
            "rooflight.record, memory watched": lambda model=model: rl.record(model, memory=True),
            "profiler, as rooflight.measure uses it": lambda: profile(use_cpu=True, use_kineto=True),
            "profiler with shapes": lambda: profile(use_cpu=True, use_kineto=True, record_shapes=True),
            "FlopCounterMode": lambda: FlopCounterMode(display=False),
        }
        best = measure(step, instruments, runs)
        print(f"\n{title}: {ops} ops, plain {best['plain'] / ops * 1e6:.2f} µs per op")
        for name, seconds in best.items():
            if name != "plain":
                print(f"  {name:40} +{(seconds - best['plain']) / ops * 1e6:6.2f}")


if __name__ == "__main__":
    main()
