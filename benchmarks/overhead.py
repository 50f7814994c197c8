"""What recording and timing cost per dispatched op, beside torch's own instruments.

All instruments take turns inside one process on one thread. Entering and leaving an instrument is part of its time. The
figure is the median (or the least) process time of many runs, less that of the plain program, over the number of ops
that a dispatch mode sees. Usage: python benchmarks/overhead.py
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import rooflight as rl
from rooflight.sources.workloads.steps import make_step

Program = tuple[nn.Module, Callable[[], object]]


class NullMode(TorchDispatchMode):
    """The floor: a dispatch mode that only calls each op."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def null_mode_and_hooks() -> Iterator[None]:
    """The floor with modules: a null mode and two global module hooks that do nothing."""
    before = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    after = nn.modules.module.register_module_forward_hook(lambda *_: None, always_call=True)
    try:
        with NullMode():
            yield
    finally:
        before.remove()
        after.remove()


def norm_step() -> Program:
    """Forward and backward of 50 layers of Linear, GELU and LayerNorm, with parameters in the norms."""
    layers = [layer for _ in range(50) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    model, x = nn.Sequential(*layers), torch.randn(8, 64)

    def step() -> None:
        model(x).sum().backward()

    return model, step


def mlp_step() -> Program:
    """A training step of 50 layers of Linear and ReLU, with foreach SGD."""
    layers = [layer for _ in range(50) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model, x = nn.Sequential(*layers), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    return model, step


def gpt2_step() -> Program:
    """A training step of a GPT-2 of reduced size, with foreach AdamW."""
    step = make_step("gpt2", step="train", small=True, seq=8, device="cpu")
    return step.model, step.run


def nothing() -> None:
    """A program without ops, for what entering and leaving costs."""


def measure(
    program: Program, instruments: Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]], runs: int
) -> dict[str, list[float]]:
    """Process seconds of each run under each instrument, made, entered and left inside the time."""
    model, step = program
    seconds: dict[str, list[float]] = {name: [] for name in instruments}
    for _ in range(runs):
        for name, instrument in instruments.items():
            model.zero_grad()
            gc.collect()  # what one instrument leaves behind is not collected at the cost of the next
            start = time.process_time()
            with instrument():
                step()
            seconds[name].append(time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {runs} alternating runs, 1 thread; µs per op over the plain program")
    programs = {"Linear-GELU-LayerNorm, 50 layers": norm_step, "Linear-ReLU, 50 layers, SGD": mlp_step,
                "GPT-2 reduced, AdamW": gpt2_step}  # fmt: skip
    for title, make in programs.items():
        model, step = make()
        step()  # optimizers make their state
        model.zero_grad()
        with rl.record(model) as recording:
            step()
        ops = len(recording.session)
        instruments = {
            "plain": contextlib.nullcontext,
            "null dispatch mode": NullMode,
            "null dispatch mode, empty module hooks": null_mode_and_hooks,
            "rooflight.record": lambda model=model: rl.record(model),
            "rooflight.record, following memory": lambda model=model: rl.record(model, memory=True),
            "rooflight.record, host times": lambda model=model: rl.record(model, times=True),
            "profiler, as rooflight.measure uses it": lambda: profile(use_cpu=True, use_kineto=True),
            "profiler with shapes": lambda: profile(use_cpu=True, use_kineto=True, record_shapes=True),
            "FlopCounterMode": lambda: FlopCounterMode(display=False),
        }
        seconds = measure((model, step), instruments, runs)
        entering = measure((model, nothing), {"record": instruments["rooflight.record"]}, runs)["record"]
        report(title, ops, seconds, entering)


def report(title: str, ops: int, seconds: Mapping[str, list[float]], entering: list[float]) -> None:
    """Print what each instrument adds per op, median and least."""
    plain = seconds["plain"]
    print(f"\n{title}: {ops} ops, plain {median(plain) / ops * 1e6:.2f} µs per op (median)")
    print(f"  {'':40} median  least")
    added: dict[str, tuple[float, float]] = {}
    for name, taken in seconds.items():
        if taken is not plain:
            middle, least = median(taken) - median(plain), min(taken) - min(plain)
            added[name] = middle, least
            print(f"  {name:40} {middle / ops * 1e6:6.2f} {least / ops * 1e6:6.2f}")
    middle, least = median(entering), min(entering)
    print(f"  {'of record, entering and leaving':40} {middle / ops * 1e6:6.2f} {least / ops * 1e6:6.2f}")
    ratios = [theirs / ours for theirs, ours in zip(added["FlopCounterMode"], added["rooflight.record"], strict=True)]
    print(f"  {'FlopCounterMode over record':40} {ratios[0]:5.2f}x {ratios[1]:5.2f}x")


if __name__ == "__main__":
    main()
