"""What ``enable_hot_path_detection()`` alone gains, beside ``torch.compile`` placed by hand: the four workloads and
loops of functions.

    python benchmarks/hot_path_gain.py [--loops NAME ...] [--seconds 90] [--turns 200] [--rounds 3] [--csv]

Each loop runs in three processes with empty caches: eager, compiled by hand, and with the detection on, which is told
nothing. First each runs alone until it is warm: the one with the detection until all is decided, or for ``--seconds``.
Then they take turns of ten iterations, one process at a time, in changing order. That is repeated ``--rounds`` times,
in the caches of the first, since two processes of one program differ by some per cent. Times are processor time, all
threads of a process together, which other programs disturb less: medians of the turns' medians, and of the rounds.
``kept`` is the gain with the detection over that by hand, with the least and largest of the rounds.

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
from itertools import permutations
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

SIDES = ("eager", "by_hand", "detected")
IN_A_TURN = 10
STAYS_S = 15.0  # for so long all must be decided: what a loop calls may be found after it


def functions_in_turn() -> Callable[[], None]:
    """Functions of tensors that a loop calls one after the other, without modules."""
    import torch

    x, scale = torch.randn(256, 512), torch.randn(512)

    def normalized(value: torch.Tensor) -> torch.Tensor:
        centred = value - value.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * scale

    def gated(value: torch.Tensor) -> torch.Tensor:
        return torch.tanh(value) * torch.sigmoid(value) + 0.1 * value

    if SIDE == "by_hand":
        normalized, gated = torch.compile(normalized), torch.compile(gated)
    return lambda: gated(normalized(x))  # type: ignore[no-any-return]


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

        from rooflight.compiling.workloads import WORKLOADS

        made = WORKLOADS[name]()
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
    "functional training": functional_training,
}
SIDE = ""


def loop(step: Callable[[], None], turns: Iterable[int]) -> None:
    """The loop of the program: as many iterations as each turn says; their median processor time is printed."""
    for count in turns:
        samples = []
        for _ in range(count):
            begin = process_time()
            step()
            samples.append(process_time() - begin)
        if count == IN_A_TURN:
            print(statistics.median(samples), flush=True)


def _turns(seconds: float) -> Iterator[int]:
    """Single iterations until the program is warm, then a turn for each line of standard input."""
    begin = decided = perf_counter()
    if SIDE == "detected":
        while (now := perf_counter()) - begin < seconds and now - decided < STAYS_S:
            decided = decided if _decided() else now
            yield from (1,) * 100
    else:
        yield from (1,) * 50
    print(json.dumps({"loops": _loops(), "warm_s": perf_counter() - begin}), flush=True)
    for _ in sys.stdin:
        yield IN_A_TURN


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


def beside(name: str, seconds: float, turns: int, rounds: int) -> dict[str, Any]:
    """A loop in three processes that take turns, ``rounds`` times: medians of each, in the caches of the first."""
    with tempfile.TemporaryDirectory() as folder:
        found = [_round(name, seconds, turns, folder) for _ in range(rounds)]
    return {"loop": name, "medians_s": [medians for medians, _ in found], **found[0][1]}


def _round(name: str, seconds: float, turns: int, folder: str) -> tuple[dict[str, float], dict[str, Any]]:
    programs, warm = {}, {}
    for side in SIDES:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/{side}", "ROOFLIGHT_CACHE": folder}
        programs[side] = subprocess.Popen(
            [sys.executable, __file__, "--child", side, "--loops", name, "--seconds", str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **caches},
        )  # fmt: skip
        warm[side] = json.loads(_line(programs[side]))
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    orders = list(permutations(SIDES))
    for turn in range(turns):
        for side in orders[turn % len(orders)]:
            samples[side].append(float(_asked(programs[side])))
    for program in programs.values():
        program.communicate()
    return {side: statistics.median(times) for side, times in samples.items()}, warm["detected"]


def _asked(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return _line(program)


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline()


def row(found: dict[str, Any]) -> str:
    rounds = found["medians_s"]
    eager, hand, detected = (statistics.median(each[side] for each in rounds) for side in SIDES)
    kept = "–"
    if eager > 1.03 * hand:
        each = [(one["eager"] / one["detected"] - 1) / (one["eager"] / one["by_hand"] - 1) for one in rounds]
        kept = f"{(eager / detected - 1) / (eager / hand - 1):.0%} ({min(each):.0%} to {max(each):.0%})"
    states = "; ".join(
        dict.fromkeys(
            f"{each['name']}: {each['state']}, {each['reason'] or each['compiled']}" for each in found["loops"]
        )
    )
    return (
        f"| {found['loop']} | {eager * 1e3:.3f} ms | {eager / hand:.3f} | {eager / detected:.3f} | {kept} | "
        f"{found['warm_s']:.0f} s | {states or 'not seen'} |"
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


def child(side: str, name: str, seconds: float) -> None:
    global SIDE
    import torch

    from rooflight.compiling import enable_hot_path_detection

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    SIDE = side
    step = LOOPS[name]()
    if side == "detected":
        enable_hot_path_detection()
    loop(step, _turns(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", nargs="*", default=list(LOOPS))
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", action="store_true", help="write benchmarks/results/notes/hot_paths_detected.csv")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        child(given.child, given.loops[0], given.seconds)
        return
    heads = ("loop", "eager", "by hand", "detected", "kept", "warm after", "what was decided")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    print("\n".join(lines))
    for name in given.loops:
        lines.append(row(beside(name, given.seconds, given.turns, given.rounds)))
        print(lines[-1], flush=True)
    lines += ["", *(f"{line}\n" for line in short())]
    found = watching()
    lines.append(
        f"watching: {found['us_per_op']:.2f} µs per op ({found['from']:.2f} to {found['to']:.2f}), "
        f"of ops of {found['eager_us_per_op']:.2f} µs"
    )
    print("\n".join(lines[-4:]))
    if given.csv:
        sys.path.insert(0, str(Path(__file__).parent))
        from csv_results import write_csv

        rows = [line.strip("| ").split(" | ") for line in lines[2:] if line.startswith("| ")]
        write_csv("notes/hot_paths_detected", heads, rows)


if __name__ == "__main__":
    main()
