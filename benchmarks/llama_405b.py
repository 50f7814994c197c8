"""Llama-3.1-405B, batch 1 x 8192, forward + backward + AdamW, without hardware: seconds and peak memory, after imports.

Beside it FlopCounterMode on forward + backward alone. Each in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time


def rooflight_run() -> None:
    import torch._dynamo  # noqa: F401
    import transformers  # noqa: F401

    import rooflight as rl
    from rooflight.costs.registry import registered
    from rooflight.sources.workloads.steps import make_step

    _ = rl.record, rl.analyze, list(registered())
    make_step("gpt2", step="train", small=True)  # transformers imports a model's file when it is first named
    from transformers import LlamaForCausalLM  # noqa: F401

    start = time.perf_counter()
    step = make_step("llama-3.1-405b", step="train", batch=1, seq=8192)
    built = time.perf_counter()
    with rl.record(step.model) as recording:
        step.run()
    recorded = time.perf_counter()
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    totals, coverage = analysis.totals, analysis.coverage
    for key in ("phase", "module", "op"):
        analysis.by(key)
    end = time.perf_counter()
    print(
        f"rooflight: build {built - start:.2f} s, record {recorded - built:.2f} s, analyse {end - recorded:.2f} s, "
        f"total {end - start:.2f} s, peak {_peak_gb():.2f} GB"
    )
    print(
        f"  {totals.calls} ops, matrix {totals.matrix_flops:.4e} FLOP, op bound {totals.op_bound_s:.2f} s on an H100, "
        f"coverage {coverage.calls:.1%} of calls, {coverage.bytes:.1%} of bytes"
    )


def flop_counter_run() -> None:
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaForCausalLM  # noqa: F401

    from rooflight.sources.workloads.steps import make_step

    make_step("gpt2", step="train", small=True)
    start = time.perf_counter()
    step = make_step("llama-3.1-405b", step="train", batch=1, seq=8192, optimizer="none")
    built = time.perf_counter()
    with FlopCounterMode(display=False) as counter:
        step.run()
    end = time.perf_counter()
    print(
        f"FlopCounterMode, no optimizer, no bytes: build {built - start:.2f} s, count {end - built:.2f} s, "
        f"{counter.get_total_flops():.4e} FLOP, peak {_peak_gb():.2f} GB"
    )


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["rooflight", "flop-counter"])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.only:
        (rooflight_run if arguments.only == "rooflight" else flop_counter_run)()
        return
    for _ in range(arguments.runs):
        for only in ("rooflight", "flop-counter"):
            subprocess.run([sys.executable, __file__, "--only", only], check=True)


if __name__ == "__main__":
    main()
