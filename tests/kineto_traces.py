"""Traces as torch's profiler writes them, event by event, and real ones of the CPU."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def op(name: str, start: float, stop: float, *, thread: int = 1, dims=None, types=None, **args: Any) -> dict[str, Any]:
    """A host op from ``start`` to ``stop`` (µs)."""
    if dims is not None:
        args |= {"Input Dims": dims, "Input type": types}
    return _event("cpu_op", name, start, stop, 1, thread, {key.replace("_", " "): value for key, value in args.items()})


def launch(start: float, correlation: int, *, thread: int = 1, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    """A call of 1 µs that launches work."""
    return _event("cuda_runtime", name, start, start + 1, 1, thread, {"correlation": correlation})


def kernel(
    start: float, stop: float, correlation: int, *, name: str = "k", stream: int = 7, cat: str = "kernel"
) -> dict[str, Any]:
    """A kernel on device 0."""
    return _event(cat, name, start, stop, 0, stream, {"correlation": correlation, "device": 0, "stream": stream})


def ran(name: str, start: float = 0, number: int = 5, *, by: str = "k", **described: Any) -> list[dict[str, Any]]:
    """An op of 10 µs, and its kernel of 6 µs, called ``by``."""
    kernels = [launch(start + 2, number), kernel(start + 3, start + 9, number, name=by)]
    return [op(name, start, start + 10, **described), *kernels]


def span(name: str, start: float, stop: float, *, thread: int = 1, cat: str = "user_annotation") -> dict[str, Any]:
    """An annotation, or another range on the host."""
    return _event(cat, name, start, stop, 1, thread, {})


def _event(cat: str, name: str, start: float, stop: float, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    common = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start}
    return {**common, "dur": stop - start, "args": args}


def write(path: Path, events: list[dict[str, Any]], gpu: str = "NVIDIA H100 80GB HBM3", **head: Any) -> Path:
    """A trace file."""
    properties = {"deviceProperties": [{"id": 0, "name": gpu}]}
    path.write_text(json.dumps({"schemaVersion": 1, **properties, **head, "traceEvents": events}))
    return path


def profiled(path: Path, step: Any, **options: Any) -> Path:
    """The trace of a step on the CPU, as torch.profiler exports it."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as found, torch.no_grad():
        step()
    found.export_chrome_trace(str(path))
    return path


_MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
_SUM = {
    "Collective_name": "allreduce",
    "dtype": "Float",
    "In_msg_nelems": 1000,
    "Out_msg_nelems": 1000,
    "Group_size": 4,
    "Process_Group_Name": "0",
    "Process_Group_Ranks": "[0, 1, 2, 3]",
}
_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def write_rank(path, rank, computing, *, size=4, name="aten::mm", steps=2, **head):
    """Steps of 100 µs: a product of ``computing`` µs, then an all-reduce that ends at 90 µs on every rank."""
    events = []
    for step in range(steps):
        at = 100 * step
        events += [
            span(f"ProfilerStep#{step}", at, at + 100),
            op(name, at, at + 3, **_MM),
            launch(at + 1, 2 * step + 1),
            op("record_param_comms", at + 5, at + 9, **_SUM),
            launch(at + 6, 2 * step + 2),
            kernel(at + 10, at + 10 + computing, 2 * step + 1),
            kernel(at + 10 + computing, at + 90, 2 * step + 2, name=_NCCL, stream=9),
        ]
    info = {"backend": "nccl", "rank": rank, "world_size": size} if rank is not None else {}
    return write(path, events, **({"distributedInfo": info} if info else {}), **head)
