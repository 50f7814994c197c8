"""What ``enable_hot_path_detection()`` alone gains, beside ``torch.compile`` placed by hand: the four workloads and
loops of functions.

    python benchmarks/hot_path_gain.py [--loops NAME ...] [--seconds 90] [--turns 200] [--csv]

Each loop runs in two processes with empty caches. In the first the detection, which is told nothing, runs the loop
until all is decided, or for ``--seconds``; then a copy of it is compiled by hand. In the second that comes first. Then
the loop, its copy and an eager one take turns of ten iterations, in changing order, in one process: two processes of
one program differ by more than the detection loses. Times are processor time, which other programs disturb less: the
fastest tenth of the turns' medians. ``kept`` is the gain with the detection over that by hand, in both processes.

``watching``: processor time of a loop of small ops in its first two seconds with the detection, less that without, by
op, alternating. ``short``: what the report says of loops that end in less than a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import permutations
from pathlib import Path
from time import perf_counter, process_time
from types import ModuleType
from typing import Any

SIDES = ("eager", "by_hand", "detected")
IN_A_TURN = 10
SAME_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}
"""glibc gives large tensors back to the system until a process has freed a larger block, as compiling does: eager runs
of one program have 0 to 440 page faults each, and take up to 1.5 times as long, by what ran before them.
"""
STAYS_S = 15.0  # for so long all must be decided: what a loop calls may be found after it


def copy_of(path: str) -> ModuleType:
    """A file as another module, so that its loops are other code: compilers keep what they make by code."""
    spec = spec_from_file_location("copy", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def functions_in_turn(*, each: bool = False) -> Callable[[], None]:
    """Functions of tensors that a loop calls one after the other, without modules; ``each`` compiled by hand alone."""
    import torch

    x, scale = torch.randn(256, 512), torch.randn(512)

    def normalized(value: torch.Tensor) -> torch.Tensor:
        centred = value - value.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * scale

    def gated(value: torch.Tensor) -> torch.Tensor:
        return torch.tanh(value) * torch.sigmoid(value) + 0.1 * value

    if SIDE == "by_hand" and each:
        normalized, gated = torch.compile(normalized), torch.compile(gated)

    def step() -> torch.Tensor:
        return gated(normalized(x))

    return torch.compile(step) if SIDE == "by_hand" and not each else step  # type: ignore[return-value]


def functional_training() -> Callable[[], None]:
    """A training step without a module or an optimizer object: gradients of a function, and an update in place."""
    import torch

    x, target = torch.randn(128, 64), torch.randn(128, 64)
    weights = [(torch.randn(64, 64) / 8).requires_grad_() for _ in range(4)]

    def loss_of(weights: list[torch.Tensor]) -> torch.Tensor:
        out = x
        for weight in weights:
            out = torch.nn.functional.gelu(out @ weight) + out
        return (out - target).square().mean()

    if SIDE == "by_hand":
        loss_of = torch.compile(loss_of)

    def train_step() -> None:
        gradients = torch.autograd.grad(loss_of(weights), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(0.001 * gradient)

    return train_step


def workload(name: str) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        import torch

        from rooflight.compiling import workloads

        made = copy_of(workloads.__file__).WORKLOADS[name]()
        run, model = made if isinstance(made, tuple) else (made, None)
        if SIDE == "by_hand" and model is not None:
            model.forward = torch.compile(model.forward)
        elif SIDE == "by_hand":
            run = torch.compile(run)
        return run  # type: ignore[no-any-return]

    return make


LOOPS: dict[str, Callable[[], Callable[[], None]]] = {
    **{
        name: workload(name)
        for name in ("simple-matmul-chain", "mlp-training-step", "attention-block", "mixed-operations")
    },
    "functions in turn": functions_in_turn,
    "functions in turn, each by hand": partial(functions_in_turn, each=True),
    "functional training": functional_training,
}
SIDE = ""


def loop(step: Callable[[], None], iterations: Iterable[object]) -> float:
    """The loop of the program: the median processor time of its iterations."""
    samples = []
    for _ in iterations:
        begin = process_time()
        step()
        samples.append(process_time() - begin)
    return statistics.median(samples)


def child(name: str, seconds: float, turns: int, *, hand_first: bool) -> dict[str, Any]:
    """One process: what was decided, after how long, and the fastest tenth of the turns of each side."""
    import torch

    from rooflight.compiling import enable_hot_path_detection

    warnings.simplefilter("ignore")

    def made(side: str, copy: ModuleType) -> Callable[[], None]:
        torch.manual_seed(0)
        copy.SIDE = side  # type: ignore[attr-defined]
        step: Callable[[], None] = copy.LOOPS[name]()
        loop(step, range(50))
        return step

    def detected() -> Callable[[], None]:
        detection = enable_hot_path_detection()
        step = made("detected", sys.modules["__main__"])
        begin = perf_counter()
        loop(step, _until_decided(seconds))
        found.update(loops=_loops(), warm_s=perf_counter() - begin)
        detection._look_no_more()  # the module of another side is its own
        return step

    found: dict[str, Any] = {}
    steps = {"by_hand": made("by_hand", copy_of(__file__))} if hand_first else {}
    steps["detected"] = detected()
    steps |= {side: made(side, copy_of(__file__)) for side in SIDES if side not in steps}
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    orders = list(permutations(SIDES))
    for turn in range(turns):
        for side in orders[turn % len(orders)]:
            samples[side].append(loop(steps[side], range(IN_A_TURN)))
    return {"tenths_s": {side: statistics.quantiles(times, n=10)[0] for side, times in samples.items()}, **found}


def _until_decided(seconds: float) -> Iterator[int]:
    begin = since = perf_counter()
    while perf_counter() - begin < seconds:
        if not _decided():
            since = perf_counter()
        elif perf_counter() - since > STAYS_S:
            return
        yield from range(100)


def _loops() -> list[dict[str, Any]]:
    from rooflight.compiling import hot_report

    return [
        {"name": each.name, "note": each.note, "compiled": each.compiled, "state": kind.state, "reason": kind.reason}
        for each in hot_report().data
        for kind in each.kinds
    ]


def _decided() -> bool:
    found = _loops()
    return bool(found) and all(each["state"] in {"compiled", "eager"} for each in found)


def beside(name: str, seconds: float, turns: int) -> list[dict[str, Any]]:
    """A loop in two processes."""
    found = []
    for order in ("detected", "by_hand"):
        words = ["--child", order, "--loops", name, "--seconds", str(seconds), "--turns", str(turns)]
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "ROOFLIGHT_CACHE": folder}
            done = subprocess.run(
                [sys.executable, __file__, *words],
                stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **caches, **SAME_ALLOCATOR},
            )  # fmt: skip
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def row(name: str, found: list[dict[str, Any]]) -> str:
    each = [one["tenths_s"] for one in found]
    gains = [(one["eager"] / one["by_hand"], one["eager"] / one["detected"]) for one in each]
    hand, detected = (statistics.mean(side) for side in zip(*gains, strict=True))
    kept = "–"
    if hand > 1.05:
        first, second = (f"{(with_it - 1) / (by_hand - 1):.0%}" for by_hand, with_it in gains)
        kept = f"{(detected - 1) / (hand - 1):.0%} ({first}, {second})"
    states = dict.fromkeys(
        f"{kind['name']}: {kind['state']}, {kind['reason'] or kind['compiled']}"
        for one in found
        for kind in one["loops"]
    )
    return (
        f"| {name} | {min(one['eager'] for one in each) * 1e3:.3f} ms | {hand:.3f} | {detected:.3f} | {kept} | "
        f"{max(one['warm_s'] for one in found):.0f} s | {'; '.join(states) or 'not seen'} |"
    )


def watching() -> dict[str, Any]:
    """µs per op of a loop of functions while the detection looks and watches, less those without; quartiles."""
    import torch

    from rooflight.compiling import enable_hot_path_detection

    x, count = torch.randn(8, 8), 30

    def step() -> torch.Tensor:
        value = x
        for _ in range(count):
            value = value + 1.0
        return value

    def spent(iterations: int) -> float:
        begin = process_time()
        for _ in range(iterations):
            step()
        return process_time() - begin

    iterations = int(1.9 / (spent(2000) / 2000))
    pairs = []
    for turn in range(8):
        sides = {}
        for detected in (True, False) if turn % 2 else (False, True):
            detection = enable_hot_path_detection(remember=False) if detected else None
            sides[detected] = spent(iterations)
            if detection is not None:
                detection.disable()
        pairs.append((sides[True] - sides[False]) / (iterations * count) * 1e6)
    low, middle, high = statistics.quantiles(pairs, n=4)
    return {"us_per_op": middle, "from": low, "to": high, "eager_us_per_op": sides[False] / (iterations * count) * 1e6}


def short() -> Iterator[str]:
    """What the report says after loops of 0.1 and 0.8 s."""
    import torch

    from rooflight.compiling import enable_hot_path_detection, hot_report

    x = torch.randn(256, 256)

    def step() -> torch.Tensor:
        return torch.tanh(x) * 2 + 1

    for seconds in (0.1, 0.8):
        with enable_hot_path_detection(remember=False):
            until = perf_counter() + seconds
            while perf_counter() < until:
                step()
            yield f"{seconds} s: {hot_report().conclusion}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", nargs="*", default=list(LOOPS))
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--csv", action="store_true", help="write benchmarks/results/notes/hot_paths_detected.csv")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        found = child(given.loops[0], given.seconds, given.turns, hand_first=given.child == "by_hand")
        print(json.dumps(found))
        return
    heads = ("loop", "eager", "by hand", "detected", "kept", "warm after", "what was decided")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    print("\n".join(lines))
    for name in given.loops:
        lines.append(row(name, beside(name, given.seconds, given.turns)))
        print(lines[-1], flush=True)
    lines += ["", *(f"{line}\n" for line in short())]
    cost = watching()
    lines.append(
        f"watching: {cost['us_per_op']:.2f} µs per op ({cost['from']:.2f} to {cost['to']:.2f}), "
        f"of ops of {cost['eager_us_per_op']:.2f} µs"
    )
    print("\n".join(lines[-4:]))
    if given.csv:
        sys.path.insert(0, str(Path(__file__).parent))
        from csv_results import write_csv

        rows = [line.strip("| ").split(" | ") for line in lines[2:] if line.startswith("| ")]
        write_csv("notes/hot_paths_detected", heads, rows)


if __name__ == "__main__":
    main()
