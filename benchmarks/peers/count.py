"""Ask one counter for the FLOPs of cases: ``python count.py TOOL`` prints a JSON line a case.

Runs under the interpreter that has the tool. Every case is counted in a child of its own, because calflops, thop and
DeepSpeed leave torch or the model patched. Tools that count multiply-adds are doubled. A tool that raises, or that
says it skipped what it met and found nothing else, is "unsupported".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from cases import CASES, Case
from torch import nn

SECONDS = 120


class UnsupportedError(Exception):
    """The tool itself says that it cannot count this."""


Answer = dict[str, Any]
Count = Callable[[nn.Module, tuple[Any, ...]], "float | Answer"]


def backward(out: Any) -> None:
    out = out[0] if isinstance(out, tuple) else out
    out.backward(torch.ones_like(out))


def tensors(inputs: Any) -> Iterator[torch.Tensor]:
    for item in inputs:
        if isinstance(item, torch.Tensor):
            yield item
        else:
            yield from tensors(item)


# -- tools: forward --------------------------------------------------------------------------------------------------


def rooflight(model: nn.Module, inputs: tuple[Any, ...]) -> Answer:
    import rooflight as rl

    with rl.record(model) as recording:
        model(*inputs)
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    if not analysis.totals.matrix_flops and analysis.coverage.uncosted:
        raise UnsupportedError(f"no cost for {[op.name for op in analysis.coverage.uncosted]}")
    return {"flops": analysis.totals.matrix_flops, "upper": bool(analysis.coverage.upper)}


def torch_counter(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops()


def fvcore(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, inputs).tracer_warnings("none")
    total = 2 * analysis.total()
    if not total and analysis.unsupported_ops():
        raise UnsupportedError(f"skipped {dict(analysis.unsupported_ops())}")
    return total


def calflops(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    from calflops import calculate_flops

    return calculate_flops(model, args=list(inputs), print_results=False, output_as_string=False)[0]


def torchinfo(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    import torchinfo

    mode = "train" if model.training else "eval"
    return 2 * torchinfo.summary(model, input_data=list(inputs), verbose=0, mode=mode).total_mult_adds


class Spread(nn.Module):
    """ptflops passes one argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[Any, ...]) -> Any:
        return self.model(*inputs)


def ptflops(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    from ptflops import get_model_complexity_info

    said = io.StringIO()
    macs, _ = get_model_complexity_info(
        Spread(model),
        (1,),
        input_constructor=lambda _: inputs,
        as_strings=False,
        print_per_layer_stat=False,
        verbose=True,
        ost=said,
    )
    if macs is None or (not macs and "zero-op" in said.getvalue()):
        raise UnsupportedError(said.getvalue().strip())
    return 2 * macs


def thop(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    import thop

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        macs, _ = thop.profile(model, inputs=inputs, report_missing=True)
    if not macs and "WARN" in said.getvalue():
        raise UnsupportedError(said.getvalue().strip())
    return 2 * macs


def deepspeed(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(*inputs)
    total = profiler.get_total_flops()
    profiler.end_profile()
    return total


# -- tools: forward and backward -------------------------------------------------------------------------------------


def rooflight_training(model: nn.Module, inputs: tuple[Any, ...]) -> Answer:
    return rooflight(Step(model), inputs)


def torch_training(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    return torch_counter(Step(model), inputs)


def calflops_training(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    """calflops multiplies the forward pass by 3."""
    from calflops import calculate_flops

    settings = {"include_backPropagation": True, "print_results": False, "output_as_string": False}
    return calculate_flops(model, args=list(inputs), **settings)[0]


class Step(nn.Module):
    """A forward pass that runs the backward too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> None:
        backward(self.model(*inputs))


FORWARD: dict[str, Count] = {
    "rooflight": rooflight,
    "torch": torch_counter,
    "fvcore": fvcore,
    "calflops": calflops,
    "torchinfo": torchinfo,
    "ptflops": ptflops,
    "thop": thop,
    "deepspeed": deepspeed,
}
TRAINING: dict[str, Count] = {
    "rooflight": rooflight_training,
    "torch": torch_training,
    "calflops": calflops_training,
}


def told(count: Count, case: Case, *, training: bool) -> Answer:
    """What a tool says of a case."""
    torch.manual_seed(0)
    model, inputs = case.make()
    if not training:
        for tensor in tensors(inputs):
            tensor.requires_grad_(False)
    try:
        with torch.set_grad_enabled(not case.no_grad):
            answer = count(model, inputs)
    except Exception as error:  # whatever a tool trips over, it does not support the case
        return {"unsupported": f"{type(error).__name__}: {error}"[:500]}
    return answer if isinstance(answer, dict) else {"flops": float(answer)}


def in_child(work: Callable[[], Answer]) -> Answer:
    """The result of ``work`` in a forked process; what it prints is dropped."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        with os.fdopen(writing, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        text = result.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"unsupported": f"died with status {status}"}


def version_of(tool: str) -> str:
    try:
        return version(tool)
    except PackageNotFoundError:
        return ""


def warm_up(tool: str) -> None:
    """Import the tool once, for all children."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ImportError):
        __import__("deepspeed.profiling.flops_profiler" if tool == "deepspeed" else tool)
        __import__("transformers")


def answers(tool: str, case: Case) -> Answer:
    """What a tool says of a case, forward and, where it can, training."""
    line: Answer = {"case": case.name, "forward": in_child(lambda: told(FORWARD[tool], case, training=False))}
    if tool in TRAINING and case.training is not None:
        line["training"] = in_child(lambda: told(TRAINING[tool], case, training=True))
    return line


def main() -> None:
    tool, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a pool of threads does not survive the fork
    warm_up(tool)
    print(json.dumps({"tool": tool, "version": version_of(tool), "torch": torch.__version__}), flush=True)
    for name in names or CASES:
        print(json.dumps(answers(tool, CASES[name])), flush=True)


if __name__ == "__main__":
    main()
