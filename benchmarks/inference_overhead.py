"""What the inference profiler costs an engine: a bucket timer on and off, a step, and memory over many steps.

    python benchmarks/inference_overhead.py [--steps 1000000]

Parts: minima of alternating rounds in process time of one thread, less an empty loop's; the profiler's code stays in
the processor's caches there. The slowdown of a step of about 5 ms (linear layers, whose weights leave the caches no
room) is measured: steps alternate between measured and not. Of 32 of each the sums are compared, which hold all that a
measured step costs, since the profiler reads 32 steps together. Printed is the median of the differences, with
quartiles. So is that of a decode step of a Llama whose modules ``attach_model`` times; its steps that are not measured
run through the same timers.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rooflight.inference import (
    Profiler,
    ProfilerConfig,
    cpu_bucket_timer,
    cuda_bucket_timer,
    register_active_profiler,
    release_active_profiler,
)
from rooflight.studies.inference.engines.mapping import Bucket, EngineMapping, Reads, Step

ROUNDS = 25
CALLS = 4_000
LAYERS = 30
WIDTH = 832
BLOCK = 32  # steps that the profiler reads together
BLOCKS = 30
BARS_US = {
    "bucket timer off": 0.1,
    "model bucket on": 2.0,
    "engine bucket on": 2.0,
    "step": 10.0,
    "hooked method off": 0.5,
    "hooked method on": 3.0,
    "hooked step": 15.0,
}


def profiler(folder: str, *, buckets: bool = True) -> Profiler:
    return Profiler(
        ProfilerConfig(
            output_dir=folder,
            run_name="overhead",
            model_profiling=buckets,
            engine_profiling=buckets,
            warmup_runs=0,
            print_per_run=False,
        ),
        device="cpu",
    )


def nothing() -> None:
    for _ in range(CALLS):
        pass


def model_buckets() -> None:
    for _ in range(CALLS):
        with cuda_bucket_timer("attn.rope"):
            pass


def engine_buckets() -> None:
    for _ in range(CALLS):
        with cpu_bucket_timer("sampler"):
            pass


def steps(prof: Profiler, count: int = CALLS) -> None:
    for number in range(count):
        with prof.step_timing_ctx():
            prof.set_step_seq_len(number % 5000)
            prof.set_step_tokens(1)


class Engine:
    """One whose methods do nothing."""

    def step(self, length: int) -> int:
        return length

    def sample(self) -> None:
        pass


def methods(engine: Engine) -> None:
    for _ in range(CALLS):
        engine.sample()


def hooked_steps(engine: Engine) -> None:
    for number in range(CALLS):
        engine.step(number % 5000)


def took(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def in_step(prof: Profiler, run: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        with prof.step_timing_ctx():
            return took(run)

    return timed


def costs_us(folder: str) -> dict[str, float]:
    """µs of each part."""
    prof = profiler(folder)
    register_active_profiler(prof)
    mapping = EngineMapping(
        name="engine",
        methods={
            "step": Step(after=Reads(tokens=lambda _: 1, kv_lengths=lambda call: call.result)),
            "sample": Bucket("sampler"),
        },
    )
    engine = Engine()
    prof.attach_engine(engine, mapping)
    prof.begin_run(bsz=1)
    rounds: dict[str, Callable[[], float]] = {
        "nothing": lambda: took(nothing),
        "bucket timer off": lambda: took(model_buckets),
        "model bucket on": in_step(prof, model_buckets),
        "engine bucket on": in_step(prof, engine_buckets),
        "step": lambda: took(lambda: steps(prof)),
        "hooked method off": lambda: took(lambda: methods(engine)),
        "hooked method on": in_step(prof, lambda: methods(engine)),
        "hooked step": lambda: took(lambda: hooked_steps(engine)),
    }
    least = dict.fromkeys(rounds, 9.9)
    for _ in range(ROUNDS):
        for name, timed in rounds.items():
            least[name] = min(least[name], timed())
    prof.end_run()
    prof.save_all()  # while the folder is there
    release_active_profiler()
    return {name: (least[name] - least["nothing"]) / CALLS * 1e6 for name in BARS_US}


def memory_mb(folder: str, count: int) -> list[float]:
    """The process's memory after a tenth of the steps, and after all. Each has buckets of both domains, and a batch."""
    prof = profiler(folder)
    register_active_profiler(prof)
    prof.begin_run(bsz=1)
    found = []
    for part in (count // 10, count - count // 10):
        for number in range(part):
            with prof.step_timing_ctx():
                with cpu_bucket_timer("decode"), cuda_bucket_timer("attn.rope"):
                    pass
                prof.set_step_seq_len(number % 20_000)
                prof.set_step_batch(1 + number % 300)
                prof.set_step_tokens(1)
        found.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
    prof.end_run()
    prof.save_all()
    release_active_profiler()
    return found


@dataclass(frozen=True)
class Slowdown:
    """Nanoseconds of a step that is not measured, and those that a measured one takes more, by blocks of steps."""

    off: list[float]
    more: list[float]

    def line(self, name: str, bar: str = "") -> str:
        off = statistics.median(self.off)
        low, more, high = statistics.quantiles(self.more)
        verdict = f"   bar 1%   {'ok' if more / off <= 0.01 else 'MISSED'}" if bar else ""
        return (
            f"a step of {off / 1e6:.2f} ms, {name}: {more / 1e3:+.0f} µs "
            f"(quartiles {low / 1e3:+.0f} and {high / 1e3:+.0f}), {more / off:+.2%}{verdict}"
        )


def slowdown(prof: Profiler, step: Callable[[], object], blocks: int) -> Slowdown:
    register_active_profiler(prof)
    prof.begin_run(bsz=1)
    times: dict[bool, list[int]] = {True: [], False: []}
    for number in range(2 * BLOCK * blocks):
        measured = number % 2 == 0
        start = time.process_time_ns()
        with prof.step_timing_ctx() if measured else nullcontext():
            step()
            if measured:
                prof.set_step_seq_len(number)
                prof.set_step_tokens(1)
        times[measured].append(time.process_time_ns() - start)
    prof.end_run()
    prof.save_all()
    release_active_profiler()
    off, on = ([sum(each) / BLOCK for each in zip(*[iter(times[key])] * BLOCK, strict=True)] for key in (False, True))
    return Slowdown(off, [mine - other for mine, other in zip(on, off, strict=True)])


def linear_layers() -> Callable[[], object]:
    """A step of layers in buckets of their own."""
    import torch

    layers = [torch.nn.Linear(1024, WIDTH) for _ in range(LAYERS)]
    x = torch.randn(1, 1024)

    def step() -> None:
        for layer in layers:
            with cuda_bucket_timer("mlp.down_proj"):
                layer(x)

    return step


def llama() -> tuple[object, Callable[[], object]]:
    """A small decoder, and a step of it without a cache."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.ones(1, 1, dtype=torch.long)
    return model, lambda: model(ids, use_cache=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    count = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        first, last = memory_mb(folder, count)
        print(f"memory after {count // 10:,} steps with buckets {first:.1f} MB, after {count:,} {last:.1f} MB")
        costs = costs_us(folder)
        for name, cost in costs.items():
            verdict = "ok" if cost <= BARS_US[name] else "MISSED"
            print(f"{name:18} {cost:6.3f} µs   bar {BARS_US[name]:4.1f} µs   {verdict}")
        import torch

        torch.set_num_threads(1)
        with torch.inference_mode():
            step = linear_layers()
            for buckets in (False, True):
                found = slowdown(profiler(folder, buckets=buckets), step, BLOCKS)
                print(found.line(f"{LAYERS if buckets else 'no'} buckets", "1%"))
            model, step = llama()
            prof = profiler(folder)
            prof.attach_model(model)
            print(slowdown(prof, step, BLOCKS // 2).line("a Llama of 6 layers with attach_model"))
            prof.detach()


if __name__ == "__main__":
    main()
