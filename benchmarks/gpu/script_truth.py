"""Unedited CUDA scripts on a real GPU: the time and the peak of memory of each step, as the truth for a virtual one.

    python benchmarks/gpu/script_truth.py --json FILE [--compile] [SCRIPT...]      default: all of tests/scripts/cuda

A step ends when an optimizer's step returns; without optimizer with a backward pass; without that with a model's call.
Times are by the host's clock with the device waited for at each step's end. Each script runs in this process after the
one before, its memory given back between.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import runpy
import statistics
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

SCRIPTS = Path(__file__).resolve().parents[2] / "tests" / "scripts" / "cuda"
COMPILED = {
    "nano_gpt": ["compile=True"],
    "resnet_amp": ["--compile"],
    "vit_tf32": ["--compile"],
    "llama_checkpointed": ["--compile"],
}


class Watch:
    """Ends of steps by kind: (seconds, peak bytes allocated since the end before)."""

    def __init__(self) -> None:
        self.ends: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.depth = 0

    def end(self, kind: str) -> None:
        torch.cuda.synchronize()
        self.ends[kind].append((time.perf_counter(), torch.cuda.max_memory_allocated()))
        torch.cuda.reset_peak_memory_stats()

    def __enter__(self) -> Watch:
        def before(*_: Any) -> None:
            self.depth += 1

        def after(*_: Any) -> None:
            self.depth -= 1
            if not self.depth and not torch.is_grad_enabled():
                self.end("call")

        real = self.backward = torch.Tensor.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            if "step" not in self.ends:
                self.end("backward")

        torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
        self.hooks = [
            modules.register_module_forward_pre_hook(before),
            modules.register_module_forward_hook(after, always_call=True),
            optimizers.register_optimizer_step_post_hook(lambda *_: self.end("step")),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        torch.Tensor.backward = self.backward  # type: ignore[method-assign]
        for hook in self.hooks:
            hook.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts [default: all]")
    parser.add_argument("--compile", action="store_true", help="those that can be compiled, compiled")
    parser.add_argument("--json", type=Path, required=True, help="write the rows here")
    options = parser.parse_args()
    names = options.scripts or sorted(COMPILED if options.compile else (path.stem for path in SCRIPTS.glob("*.py")))
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(row(name, COMPILED[name] if options.compile else []))
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(rows[-1]), flush=True)
    return 0


def row(name: str, args: list[str]) -> dict[str, Any]:
    script = SCRIPTS / f"{name}.py"
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    sys.argv = [str(script), *args]
    failure = None
    with Watch() as watch:
        try:
            namespace = runpy.run_path(str(script), run_name="__main__")
            namespace.clear()
        except Exception:
            failure = traceback.format_exc()[-600:]
    ends = next((watch.ends[kind] for kind in ("step", "backward", "call") if watch.ends.get(kind)), [])
    steps = [after[0] - before[0] for before, after in itertools.pairwise(ends)]
    reset()
    return {
        "script": name,
        "args": args,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "held_before_bytes": held,
        "step_s": steps,
        "median_step_s": statistics.median(steps[1:]) if len(steps) > 1 else None,
        "peak_bytes": [peak for _, peak in ends],
        "failure": failure,
    }


def reset() -> None:
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
