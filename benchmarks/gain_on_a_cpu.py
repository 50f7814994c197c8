"""The gain of torch.compile on this CPU, predicted beside measured, of the steps of ``gain_workloads.py``.

``measure FOLDER`` runs them with ``rooflight compile-bench``; ``time FOLDER`` takes CPU seconds of eager and compiled
iterations in processes of their own, in turns, which other programs on the machine disturb less; ``score FOLDER`` puts
``rooflight compile-bench --predict-only`` beside both, of one half of the steps. All on one thread. What is in the
folder is left out, so that measuring can be stopped and run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from csv_results import write_csv
from gain_workloads import KEPT_BACK, PRESETS, SEEN

HERE = Path(__file__).parent
PROGRAMS = ("eager", "compiled")
TIMES = (1_000, 10_000, 100_000, 1_000_000)
"""Iterations within which compiling pays or does not."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A step: predicted speed-up and compile time, measured ones, and eager seconds of both."""

    name: str
    predicted: float
    low: float
    high: float
    predicted_eager_s: float
    predicted_compile_s: float
    measured: float
    eager_s: float
    wall: float | None
    compile_s: float | None

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)

    def right(self, iterations: int) -> bool | None:
        """Whether it is predicted right that so many iterations are faster compiled, compiling included."""
        if self.compile_s is None:
            return None
        return pays(self.predicted_eager_s, self.predicted, self.predicted_compile_s, iterations) == pays(
            self.eager_s, self.measured, self.compile_s, iterations
        )


def pays(eager_s: float, speedup: float, compile_s: float, iterations: int) -> bool:
    return iterations * eager_s * (1 - 1 / speedup) > compile_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "time", "one", "score"))
    parser.add_argument("folder", type=Path, help="where the measured times are")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--half", choices=("seen", "kept-back"), default="seen")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PROGRAM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "one":
        one(*options.one, options.folder)
    elif options.what == "score":
        names = SEEN if options.half == "seen" else KEPT_BACK
        print("\n".join(summary([score for name in names if (score := scored(name, options.folder)) is not None])))
        every = [score for name in (*SEEN, *KEPT_BACK) if (score := scored(name, options.folder)) is not None]
        write_csv("gains_cpu", HEADER, map(cells, every))
    else:
        for number in range(options.rounds):
            for pair in zip(SEEN, KEPT_BACK, strict=True):
                for name in pair:
                    (measure if options.what == "measure" else take_turns)(name, number, options.folder)
    return 0


def measure(name: str, number: int, folder: Path) -> None:
    file = folder / f"{plain(name)}.{number}.json"
    if not file.exists():
        command = [sys.executable, "-m", "rooflight", "compile-bench", *target_of(name), "--iterations", "200"]
        run(name, [*command, "--warmup", "10", "--threads", "1", "--no-bounds", "--json", str(file)])


def take_turns(name: str, number: int, folder: Path) -> None:
    for program in PROGRAMS:
        if not (folder / f"{plain(name)}.{program}.{number}.json").exists():
            run(name, [sys.executable, __file__, "one", str(folder), "--one", name, program], folder / "inductor")
            written = folder / f"{plain(name)}.{program}.json"
            if written.exists():
                written.rename(folder / f"{plain(name)}.{program}.{number}.json")


def run(name: str, command: list[str], cache: Path | None = None) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if cache is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    print(name, "measured" if done.returncode == 0 else f"failed: {done.stderr.strip()[-300:]}", flush=True)


def one(name: str, program: str, folder: Path) -> None:
    """CPU seconds of iterations after ten, for 15 seconds at most."""
    import gain_workloads
    import torch
    from msgspec.structs import replace

    from rooflight.studies.compiling.bench.child import Request, compiled, opened
    from rooflight.studies.compiling.options import Options

    torch.set_num_threads(1)
    preset = PRESETS.get(name)
    options = Options(step=preset[1], small=True, device="cpu") if preset else Options()
    own = name if "-" in name else f"{gain_workloads.__file__}:{name}"
    target = preset[0] if preset else own
    request = Request(target=target, options=options, iterations=1, place="cpu")
    opened_step = opened(request)
    step = opened_step.run
    if program == "compiled":
        step = compiled(step, opened_step.model, replace(request, compile_mode="default"))
    for _ in range(10):
        step()
    samples: list[float] = []
    begin = perf_counter()
    while len(samples) < 300 and (len(samples) < 40 or perf_counter() - begin < 15):
        at = process_time()
        step()
        samples.append(process_time() - at)
    found = {"median": statistics.median(samples), "min": min(samples)}
    (folder / f"{plain(name)}.{program}.json").write_text(json.dumps(found))


def scored(name: str, folder: Path) -> Score | None:
    """None for a step that was not measured."""
    medians = {}
    for program in PROGRAMS:
        files = sorted(folder.glob(f"{plain(name)}.{program}.*.json"))
        if not files:
            return None
        medians[program] = statistics.median(json.loads(file.read_text())["median"] for file in files)
    gain = predicted(name)
    walls = [json.loads(file.read_text())[0] for file in sorted(folder.glob(f"{plain(name)}.[0-9].json"))]
    return Score(
        name=name,
        predicted=gain.steady_speedup,
        low=gain.speedup_low,
        high=gain.speedup_high,
        predicted_eager_s=gain.eager_s,
        predicted_compile_s=gain.compile_s,
        measured=medians["eager"] / medians["compiled"],
        eager_s=medians["eager"],
        wall=statistics.median(each["steady_speedup"] for each in walls) if walls else None,
        compile_s=min(each["compile_s"] for each in walls) if walls else None,
    )


def predicted(name: str):
    import gain_workloads

    from rooflight.studies.compiling.bench.benchmark import Matrix
    from rooflight.studies.compiling.bench.predicted import predict
    from rooflight.studies.compiling.options import Options

    preset, mode = PRESETS.get(name, (name if "-" in name else f"{gain_workloads.__file__}:{name}", None))
    options = Options(step=mode, small=name in PRESETS)
    return predict(Matrix(targets=(preset,), options=options, threads=1), device="cpu")[0].gain


def target_of(name: str) -> list[str]:
    """The arguments of compile-bench that name a step."""
    if name in PRESETS:
        preset, mode = PRESETS[name]
        return [preset, "--small", "--step", mode]
    return [name] if "-" in name else [f"{HERE / 'gain_workloads.py'}:{name}"]


def plain(name: str) -> str:
    return name.replace(" ", "-")


HEADER = ("step", "predicted", "low", "high", "by CPU time", "by wall time", "error %", "compiling predicted, s",
          "compiling measured, s")  # fmt: skip


def cells(score: Score) -> tuple[str, ...]:
    speedups = (score.predicted, score.low, score.high, score.measured)
    wall = "" if score.wall is None else f"{score.wall:.2f}"
    compiling = "" if score.compile_s is None else f"{score.compile_s:.1f}"
    error, predicted = f"{100 * score.error:.0f}", f"{score.predicted_compile_s:.1f}"
    return score.name, *(f"{speedup:.2f}" for speedup in speedups), wall, error, predicted, compiling


def summary(scores: list[Score]) -> Iterator[str]:
    yield f"median error {statistics.median(score.error for score in scores):.1%} of {len(scores)}"
    for iterations in TIMES:
        known = [right for score in scores if (right := score.right(iterations)) is not None]
        if known:
            yield f"pays within {iterations:,}: right for {statistics.mean(known):.0%} of {len(known)}"
    held = statistics.mean(score.low <= score.measured <= score.high for score in scores)
    yield f"the interval holds {held:.0%}"
    off = [abs(math.log(score.predicted / score.measured)) for score in scores]
    yield f"mean factor {math.exp(statistics.mean(off)):.2f}"


if __name__ == "__main__":
    sys.exit(main())
