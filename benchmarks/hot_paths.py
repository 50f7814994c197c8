"""Does ``rooflight.hot`` keep its promises? 16 loops, against eager and against a torch.compile placed by hand.

    python benchmarks/hot_paths.py [--loops NAME ...] [--steady 4] [--seconds 40] [--csv]

Each loop runs in a process of its own, with an empty cache of Inductor's. *Long*: with ``expected_runs=10_000_000`` the
loop runs until all its calls are decided, or for ``--seconds``. Then three instances run in turns, one timed iteration
of each after one that is not, in each order of them, until the eager one has run ``--steady`` seconds (42 to 2,400
times): eager, ``torch.compile`` by hand, hot. Where compiling by hand gains, another process does so once more, with
Inductor's cache filled, and compiles by hand before the hot loop instead of after it: what is compiled first may stay
slower by 2 %. Times are the mean of both medians.
``kept`` is the hot loop's steady gain over that of the one compiled by hand. ``until decided``: the iterations until
then, and their time, less the calls that compiled, over as many eager iterations (medians of the turns). *Of known
length*: a hot loop with ``expected_runs`` and an eager one run in turns for as many iterations as last about 2 s: too
short to compile in, so that the time is to be eager's.
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
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

SHORT = "5 iterations"


def timed(step: Callable[[int], Any], number: int) -> float:
    begin = perf_counter()
    step(number)
    return perf_counter() - begin


def by_hand(target: Any) -> Any:
    import torch
    from torch import nn

    if isinstance(target, nn.Module):
        target.forward = torch.compile(target.forward)
        return target
    return torch.compile(target)


def quartiles(samples: Sequence[float]) -> list[float]:
    return statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3


def by_hand_warm(make: Callable[[Any], Any]) -> Callable[[int], Any]:
    step: Callable[[int], Any] = make(by_hand)
    for number in range(35):
        step(number)
    return step


def measured(name: str, steady: float, seconds: float, *, hand_first: bool = False) -> dict[str, Any]:
    """One loop, in this process."""
    import torch
    from hot_loops import LOOPS

    import rooflight as rl

    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    make = LOOPS[name]
    eager = make(lambda target: target)
    for number in range(3):
        eager(number)
    known = {} if hand_first else _known(make, eager, short=name == SHORT)
    if name == SHORT:
        return {"loop": name, **known}
    torch._dynamo.reset()
    hand = by_hand_warm(make) if hand_first else None
    hot_step = make(lambda target: rl.hot(target, expected_runs=10**7))
    before, spent, number = [], 0.0, 0
    while spent < seconds and not _decided(rl.hot_report()):
        before.append(timed(hot_step, number))
        spent, number = spent + before[-1], number + 1
    for _ in range(12):  # until calls go straight to the code chosen
        before.append(timed(hot_step, number))
        number += 1
    (document,) = rl.hot_report().data[-1:]
    compile_s = sum(kind.compile_s or 0.0 for kind in document.kinds)
    hand = hand or by_hand_warm(make)
    sides: dict[str, list[float]] = {"eager": [], "hand": [], "hot": []}
    orders = list(permutations((("eager", eager), ("hand", hand), ("hot", hot_step))))
    for turn in range(max(42, min(2400, int(steady / timed(eager, 3) / 2)))):
        for side, step in orders[turn % len(orders)]:
            step(turn)  # so that none is timed with the other's code in the caches
            sides[side].append(timed(step, turn))
    medians = {side: statistics.median(samples) for side, samples in sides.items()}
    return {
        "loop": name,
        **{f"{side}_s": value for side, value in medians.items()},
        **{f"{side}_quartiles_s": quartiles(samples) for side, samples in sides.items()},
        "iterations": len(before),
        "hot_total_s": sum(before),
        "compile_s": compile_s,
        "compiled": document.compiled,
        "states": [kind.state for kind in document.kinds],
        "reasons": [kind.reason for kind in document.kinds if kind.reason],
        **known,
    }


def _decided(report: Any) -> bool:
    return bool(report.data) and bool(report.data[-1].settled)


def _known(make: Callable[[Any], Any], eager: Callable[[int], Any], *, short: bool) -> dict[str, Any]:
    """A loop of known length that is too short to compile in, beside eager: times of all iterations."""
    import rooflight as rl

    runs = 5 if short else max(12, min(2000, int(2.0 / timed(eager, 3))))
    sides: list[list[float]] = [[], []]
    for _ in range(11 if short else 1):  # one script's median is off by 5 %, eager beside eager too
        hot_step = make(lambda target: rl.hot(target, expected_runs=runs))
        for number in range(runs):
            for side, step in ((0, eager), (1, hot_step)) if number % 2 else ((1, hot_step), (0, eager)):
                sides[side].append(timed(step, number))
    ratios = sorted(hot / plain for plain, hot in zip(*sides, strict=True))
    return {
        "known_runs": runs,
        "known_ratio": sum(sides[1]) / sum(sides[0]),
        "known_median_ratio": statistics.median(sides[1]) / statistics.median(sides[0]),
        "known_ratio_quartiles": quartiles(ratios),
    }


def costs() -> dict[str, float]:
    """µs per op of watching, averaged over the iterations before the decision, and µs per call once decided."""
    import torch
    from torch import nn

    import rooflight as rl

    def layers() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(50)))

    x, threshold = torch.randn(4, 32), 10

    def watched(*, hot: bool) -> float:
        model, found = layers(), []
        with torch.no_grad():
            for _ in range(3):
                model(x)
            if hot:
                rl.hot(model, hot_threshold=threshold, on_hot=found.append, remember=False)
            begin = thread_time()
            for _ in range(threshold + 1):
                model(x)
            return thread_time() - begin

    watched(hot=True)  # imports
    pairs = [(watched(hot=True), watched(hot=False)) for _ in range(15)]
    operations = 150  # 50 x (t, addmm, relu)
    per_op = statistics.median(one - other for one, other in pairs) / ((threshold + 1) * operations)
    decided, plain = nn.Identity(), nn.Identity()
    rl.hot(decided, backend="eager", expected_runs=10**9, hot_threshold=2, remember=False)
    function = rl.hot(lambda value: value, remember=False)
    for _ in range(200):
        decided(x)
    _settle()
    bare = lambda value: value  # noqa: E731 - what `function` wraps
    calls = {"module": (decided, plain), "function": (function, bare)}
    found_us = {"watching_us_per_op": per_op * 1e6}
    for name, (hot, eager) in calls.items():
        pairs = [(_per_call(hot, x), _per_call(eager, x)) for _ in range(15)]
        found_us[f"decided_us_per_call_of_a_{name}"] = 1e6 * statistics.median(one - other for one, other in pairs)
    return found_us


def _settle() -> None:
    """What a loop does once all is decided, without waiting for it."""
    from rooflight.studies.compiling.hot.loop import _loops

    for loop in list(_loops):
        loop.stop()


def _per_call(call: Any, x: Any) -> float:
    begin = thread_time()
    for _ in range(5000):
        call(x)
    return (thread_time() - begin) / 5000


def in_both_orders(name: str, steady: float, seconds: float) -> dict[str, Any]:
    """One loop, in a process that compiles the hot one first and, where compiling gains, one that does so by hand."""
    given = ["--steady", str(steady), "--seconds", str(seconds), "--child"]
    with tempfile.TemporaryDirectory() as compiled:
        found = in_process([*given, name], compiled)
        if "eager_s" not in found or found["eager_s"] < 1.03 * found["hand_s"]:
            return found
        again = in_process([*given, f"hand-first:{name}"], compiled)
    if "failed" in again:
        return again
    both = {side: (found[side], again[side]) for side in ("eager_s", "hand_s", "hot_s")}
    kept = [(one["eager_s"] / one["hot_s"] - 1) / (one["eager_s"] / one["hand_s"] - 1) for one in (found, again)]
    return {**found, **{side: statistics.mean(pair) for side, pair in both.items()}, "kept": kept}


def in_process(arguments: Sequence[str], compiled: str = "") -> dict[str, Any]:
    """What a process of its own found, with empty caches, but for Inductor's in the folder ``compiled``."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": compiled or folder, "ROOFLIGHT_CACHE": folder}
        ended = subprocess.run(
            [sys.executable, __file__, *arguments], capture_output=True, text=True, env=environment, check=False
        )
    if ended.returncode:
        return {"loop": arguments[-1], "failed": ended.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def row(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"| {found['loop']} | {found['failed']} |"
    short = f"{found['known_ratio']:.3f} ({found['known_median_ratio']:.3f}), {found['known_runs']} runs"
    if "eager_s" not in found:
        return f"| {found['loop']} | – | – | – | – | – | – | – | {short} |"
    eager, hand, hot = (found[f"{side}_s"] for side in ("eager", "hand", "hot"))
    spread = (found["eager_quartiles_s"][2] - found["eager_quartiles_s"][0]) / eager
    gain = eager / hand
    orders = f" ({', '.join(f'{each:.0%}' for each in found['kept'])})" if "kept" in found else ""
    kept = f"{(eager / hot - 1) / (gain - 1):.0%}{orders}" if gain > 1.05 else "–"
    total = (found["hot_total_s"] - found["compile_s"]) / (found["iterations"] * eager)
    reasons = "; ".join(dict.fromkeys(found["reasons"])) or "waiting"
    what = found["compiled"] if "compiled" in found["states"] else reasons
    return (
        f"| {found['loop']} | {eager * 1e3:.2f} ms ± {spread:.0%} | {gain:.2f} | {eager / hot:.2f} | {kept} | "
        f"{found['compile_s']:.1f} s | {found['iterations']}: {total:.3f} | {what} | {short} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", nargs="*")
    parser.add_argument("--steady", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--csv", action="store_true", help="write benchmarks/results/notes/hot_paths.csv")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child == "costs":
        print(json.dumps(costs()))
        return
    if given.child:
        first, _, name = given.child.rpartition(":")
        print(json.dumps(measured(name, given.steady, given.seconds, hand_first=first == "hand-first")))
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from csv_results import write_csv
    from hot_loops import LOOPS

    heads = ("loop", "eager", "by hand", "hot", "kept", "compiling", "until decided", "what", "of known length")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    print("\n".join(lines))
    for name in given.loops or LOOPS:
        lines.append(row(in_both_orders(name, given.steady, given.seconds)))
        print(lines[-1], flush=True)
    for what, value in in_process(["--child", "costs"]).items():
        lines.append(f"\n{what}: {value:.3f}" if isinstance(value, float) else f"\n{what}: {value}")
        print(lines[-1])
    if given.csv:
        write_csv("notes/hot_paths", heads, [line.strip("| ").split(" | ") for line in lines[2:] if line[0] == "|"])


if __name__ == "__main__":
    main()
