"""Memory peaks of recorded steps, beside two independent counts. Exits with 1 if one is further off than 3 %.

*Allocator*: torch.profiler's events of the CPU allocator, summed up from before the model was made; the most that is
allocated while the step runs, without any recording. *MemTracker*: torch's own, from the dispatched ops.
Usage: python benchmarks/memory_peak.py [--layers 4 --width 128 --vocab 1000 --batch 2 --seq 256] [--gpt2] [--presets]
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile, record_function

import rooflight as rl
from rooflight.roofline.memory.use import MemoryUse, memory_use

ALLOWED = 0.03
STEP = "the step under test"


@dataclass
class Case:
    """A program, built, and run up to the step that is looked at."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: torch.Tensor
    step: Callable[[], object]


Make = Callable[[], Case]


def training(arguments: argparse.Namespace, *, warm: int, checkpoint: bool = False, zero_first: bool = False) -> Make:
    def make() -> Case:
        model = gpt2(arguments).train()
        if checkpoint:
            model.activation_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=not checkpoint)
        batch = torch.randint(arguments.vocab, (arguments.batch, arguments.seq))

        def step() -> None:
            if zero_first:  # gradients of the last step stand before this one
                optimizer.zero_grad()
            model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()

        for _ in range(warm):
            step()
        return Case(model, optimizer, batch, step)

    return make


def inference(arguments: argparse.Namespace, *, use_cache: bool) -> Make:
    def make() -> Case:
        model = gpt2(arguments).eval()
        batch = torch.randint(arguments.vocab, (arguments.batch, arguments.seq))

        def step() -> object:
            with torch.no_grad():
                return model(input_ids=batch, use_cache=use_cache)

        return Case(model, None, batch, step)

    return make


def preset(name: str, mode: str) -> Make:
    def make() -> Case:
        from rooflight.sources.workloads.steps import make_step

        step = make_step(name, step=mode, small=True, device="cpu")
        step.run()
        return Case(step.model, None, torch.empty(0), step.run)

    return make


def all_presets() -> None:
    """What kernels take inside, which no op shows, differs from model to model: shown, not judged."""
    from rooflight.sources.workloads.presets import PRESETS

    print("\n| reduced preset | mode | Rooflight, MB | allocator, MB | off |\n|---|---|--:|--:|--:|")
    for name in PRESETS:
        for mode in ("train", "forward"):
            with clean():
                ours = recorded(preset(name, mode)).peak_bytes
            with clean():
                allocator = allocated(preset(name, mode))
            off = ours / allocator - 1
            print(f"| {name} | {mode} | {ours / 1e6:.3f} | {allocator / 1e6:.3f} | {off:+.2%} |", flush=True)


def gpt2(arguments: argparse.Namespace) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    heads = max(1, arguments.width // 64)
    config = GPT2Config(
        n_layer=arguments.layers,
        n_embd=arguments.width,
        n_head=heads,
        vocab_size=arguments.vocab,
        n_positions=max(1024, arguments.seq),
    )
    return GPT2LMHeadModel(config)


def recorded(make: Make) -> MemoryUse:
    case = make()
    with rl.record(case.model, memory=True) as recording:
        result = case.step()
    del result
    return memory_use(recording.session)


def allocated(make: Make) -> int:
    """Bytes of the CPU allocator at the step's peak, everything since before the model was made counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        case = make()
        with record_function(STEP):
            result = case.step()
        del result
    events = profiler.profiler.kineto_results.events()
    start, end = next((event.start_ns(), event.end_ns()) for event in events if event.name() == STEP)
    changes = sorted(
        (event.start_ns(), place, event.nbytes()) for place, event in enumerate(events) if is_memory(event)
    )
    total = most = 0
    for when, _, size in changes:
        total += size
        if start <= when <= end:
            most = max(most, total)
    return most


def is_memory(event: torch._C._autograd._KinetoEvent) -> bool:
    return event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU


def tracked(make: Make) -> int:
    case = make()
    tracker = MemTracker()
    tracker.track_external(*(part for part in (case.model, case.optimizer, case.batch) if part is not None))
    with tracker:
        result = case.step()
    del result
    snapshot = tracker.get_tracker_snapshot("peak")
    return max(sizes["Total"] for sizes in snapshot.values())


@contextmanager
def clean() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--gpt2", action="store_true", help="the full size, 124 M parameters; takes 6 GB")
    parser.add_argument("--presets", action="store_true", help="all reduced presets too")
    arguments = parser.parse_args()
    if arguments.gpt2:
        arguments.layers, arguments.width, arguments.vocab = 12, 768, 50257
    cases = {
        "first training step, AdamW": training(arguments, warm=0),
        "a later one": training(arguments, warm=1),
        "a later one, zero_grad first": training(arguments, warm=1, zero_first=True),
        "checkpointed, first step": training(arguments, warm=0, checkpoint=True),
        "checkpointed, a later one": training(arguments, warm=1, checkpoint=True),
        "inference": inference(arguments, use_cache=False),
        "inference, filling a cache": inference(arguments, use_cache=True),
    }
    print("| case | Rooflight, MB | allocator, MB | off | MemTracker, MB | off | stood before, MB | at op |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    worst = 0.0
    for name, make in cases.items():
        with clean():
            ours = recorded(make)
        with clean():
            allocator = allocated(make)
        with clean():
            tracker = tracked(make)
        worst = max(worst, abs(ours.peak_bytes / allocator - 1))
        print(
            f"| {name} | {ours.peak_bytes / 1e6:.3f} | {allocator / 1e6:.3f} | {ours.peak_bytes / allocator - 1:+.2%} "
            f"| {tracker / 1e6:.3f} | {ours.peak_bytes / tracker - 1:+.2%} | {ours.standing_bytes / 1e6:.3f} "
            f"| {ours.peak_record} of {len(ours.bytes_alive)} |"
        )
    print(f"\nworst, against the allocator: {worst:.2%}")
    if arguments.presets:
        all_presets()
    return int(worst > ALLOWED)


if __name__ == "__main__":
    raise SystemExit(main())
