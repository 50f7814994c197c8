"""Answer, for problem files, what a tool counts and how long it takes: the process behind ``solar_bounds.py``.

``python solar_count.py rooflight`` or ``python solar_count.py solar CLONE`` reads one JSON line a problem (``path``,
``devices``) and answers with one. Each problem is counted in a forked child, with limits on seconds and memory; what it
prints is dropped. Seconds are CPU seconds of one thread, without what a tool does once: each counts a small problem
before the first.

SOLAR is run as its documentation says: graph, einsum graph, analysis, prediction. Its packages' ``__init__`` files are
passed by, because they import what counting does not need (the Timeloop export, the agent that asks a language model).
It moves ``torch.randn`` of a problem's inputs to the meta device and leaves ``torch.rand`` on the CPU, where the larger
inputs take gigabytes; here ``rand`` and ``randint`` go where ``randn`` goes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

SECONDS = int(os.environ.get("SOLAR_COUNT_SECONDS", "300"))
GIGABYTES = int(os.environ.get("SOLAR_COUNT_GIGABYTES", "10"))

SMALL = """
import torch
from torch import nn

class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))

get_init_inputs = lambda: []
get_inputs = lambda: [torch.rand(2, 3, 8, 8)]
"""

Request = dict[str, Any]
Answer = dict[str, Any]
Count = Callable[[Request], Answer]


def rooflight() -> Count:
    import rooflight as rl
    from rooflight.devices import get
    from rooflight.sources.workloads.problem_step import load_problem

    def count(request: Request) -> Answer:
        started = time.process_time()
        step = load_problem(Path(request["path"]))
        with rl.record(step.model, memory=True) as recording:
            step.run()
        analysis = rl.analyze(recording.session, get(request["devices"][0]))
        seconds = time.process_time() - started
        bounds = {}
        for name in request["devices"]:
            there = analysis.on(get(name))
            program = there.program
            bounds[name] = {
                "op": there.totals.op_bound_s,
                "fused": program.fused_bound_s,
                "program": program.program_bound_s,
                "warm op": program.warm.op_bound_s,
                "warm fused": program.warm.fused_bound_s,
                "warm program": program.warm.program_bound_s,
            }
        return {
            "seconds": seconds,
            "flops": analysis.totals.matrix_flops,
            "op_bytes": analysis.totals.bytes_moved,
            "fused_bytes": analysis.program.compulsory_bytes,
            "bounds": bounds,
        }

    return count


def solar(clone: Path) -> Count:
    for name in ("solar", *(f"solar.{room}" for room in ("common", "graph", "einsum", "analysis", "perf"))):
        package = ModuleType(name)
        package.__path__ = [str(clone.joinpath(*name.split(".")))]
        sys.modules[name] = package
    import torch
    from solar.common.types import ProcessingConfig
    from solar.einsum.analyzer import EinsumAnalyzer

    sys.modules["solar.einsum"].EinsumAnalyzer = EinsumAnalyzer  # type: ignore[attr-defined]
    from solar.analysis.graph_analyzer import EinsumGraphAnalyzer
    from solar.einsum.pytorch_to_einsum import PyTorchToEinsum
    from solar.graph.pytorch_processor import PyTorchProcessor
    from solar.perf.perf_model import EinsumGraphPerfModel

    creators = torch.randn, torch.rand, torch.randint

    def following_randn(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **settings: Any) -> Any:
            if torch.randn is not creators[0]:  # SOLAR has moved it to the meta device
                settings["device"] = "meta"
            return make(*args, **settings)

        return made

    def count(request: Request) -> Answer:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            arch = Path("device.yaml")
            arch.write_text("{name: device, freq_GHz: 1.0, DRAM_byte_per_cycle: 1.0, MAC_per_cycle_fp32_tc: 1.0}")
            # torchview puts back what it found when it was imported
            torch.rand, torch.randint = map(following_randn, creators[1:])
            started = time.process_time()
            if not PyTorchProcessor(ProcessingConfig(force_rerun=True)).process_model_file(request["path"], "graph"):
                raise ValueError("no graph")
            PyTorchToEinsum().convert("graph/pytorch_graph.yaml", "einsum", copy_graph=False)
            einsum = "einsum/einsum_graph_renamed.yaml"
            analysis = EinsumGraphAnalyzer().analyze_graph(einsum, "analysis", precision="fp32", copy_graph=False)
            if not analysis:
                raise ValueError("no analysis")
            EinsumGraphPerfModel().predict(
                "analysis/analysis.yaml", "perf", arch_config=str(arch.resolve()), precision="fp32"
            )
            seconds = time.process_time() - started
        total = analysis["total"]
        return {
            "seconds": seconds,
            "flops": 2 * total["macs"],
            "op_bytes": total.get("unfused_bytes", 4 * total["unfused_elements"]),
            "fused_bytes": total.get("fused_bytes", 4 * total["fused_elements"]),
            "layers": {name: [one["type"], one["macs"]] for name, one in analysis["layers"].items()},
        }

    return count


def answered(count: Count, request: Request) -> Answer:
    said = io.StringIO()
    warnings.simplefilter("ignore")  # the problems' own
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return count(request)
    except Exception as error:  # whatever a tool trips over, it does not handle the problem
        last = [line for line in said.getvalue().splitlines() if "rror" in line][-1:]
        return {"refused": " | ".join([f"{type(error).__name__}: {error}", *last])[:500]}


def in_child(count: Count, request: Request) -> Answer:
    """The answer of a forked process, which may run out of time or memory without harm to others."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES << 30, GIGABYTES << 30))
        with os.fdopen(writing, "w") as out:
            json.dump(answered(count, request), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        text = result.read()
    _, status = os.waitpid(child, 0)
    if text:
        answer: Answer = json.loads(text)
        return answer
    over_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    return {"refused": f"not done in {SECONDS} s" if over_time else f"died with status {status}"}


def answers(count: Count) -> Iterator[Answer]:
    """An answer a line of standard input."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(SMALL)
        file.flush()
        answer = answered(count, {"path": file.name, "devices": ["T4"]})
        if "refused" in answer:
            raise SystemExit(f"a small problem fails: {answer['refused']}")
    for line in sys.stdin:
        yield in_child(count, json.loads(line))


def main() -> None:
    import torch

    torch.set_num_threads(1)  # a pool of threads does not survive the fork
    count = rooflight() if sys.argv[1] == "rooflight" else solar(Path(sys.argv[2]).resolve())
    for answer in answers(count):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
