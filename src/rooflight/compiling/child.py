"""The process of one program: ``python -m rooflight.compiling.child REPLY``, with a Request as JSON on standard
input.
"""

from __future__ import annotations

import inspect
import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from rooflight.compiling.check import check
from rooflight.compiling.package import AOT_INDUCTOR, export_s, packaged
from rooflight.compiling.refusals import check_result, check_step, is_compiled, reason_of
from rooflight.compiling.stages import AOT, DYNAMO, stages_s
from rooflight.compiling.trial import Answer, Check, Request, Trial
from rooflight.compiling.workloads import WORKLOADS
from rooflight.machine.bystander import Bystander
from rooflight.records.files import write_whole
from rooflight.workloads.errors import TargetError
from rooflight.workloads.targets import open_target

if TYPE_CHECKING:
    from torch import nn

Run = Callable[[], Any]


class _Reasons(logging.Handler):
    """Keeps why torch broke graphs, or compiled again: what it logs as one of its artifacts."""

    def __init__(self, artifact: str) -> None:
        super().__init__()
        self.told: list[str] = []
        for name in list(logging.root.manager.loggerDict):
            if name.endswith(f".__{artifact}"):
                logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.told.append(record.getMessage())


def _reasons() -> tuple[list[str], list[str]]:
    """Lists that fill with the reasons of graph breaks, and of recompiles; Inductor counts bytes from now on."""
    from torch._logging._internal import set_logs

    set_logs(graph_breaks=True, recompiles=True, inductor_metrics=True)
    return _Reasons("graph_breaks").told, _Reasons("recompiles").told


def opened(request: Request) -> tuple[Run, nn.Module | None]:
    """The step of the request's target with its model, from the same random numbers each time."""
    import torch

    torch.manual_seed(0)
    if (workload := WORKLOADS.get(request.target)) is not None:
        made = workload(request.place)
        run, model = made if isinstance(made, tuple) else (made, None)
        return run, model
    step = open_target(request.target, **msgspec.structs.asdict(request.options))
    plain = inspect.unwrap(step.run, stop=is_compiled)
    check_step(plain, step.model, request.target)
    return (plain if step.model is None else step.run), step.model


def compiled(run: Run, model: nn.Module | None, request: Request) -> Run:
    """The step with its model compiled, or, without a model, the step itself."""
    import torch

    if request.compile_mode == AOT_INDUCTOR:
        return packaged(run, model, dynamic=request.dynamic)
    how: dict[str, Any] = {"backend": request.backend, "dynamic": request.dynamic}
    if request.compile_mode != "default":
        how["mode"] = request.compile_mode
    if model is None:
        return torch.compile(run, **how)
    # Module.compile leaves containers of torch.nn itself as they are
    model.forward = torch.compile(model.forward, **how)
    return run


def timed(request: Request) -> Trial:
    """Run the program, each iteration timed to its end on the device."""
    import torch

    run, model = opened(request)
    if request.program == "compiled":
        breaks, recompiles = _reasons()
        run = compiled(run, model, request)
    else:
        breaks, recompiles = [], []
    cuda = request.place == "cuda"
    samples, watch, result = [], Bystander(), None
    for _ in range(request.iterations):
        begin = perf_counter()
        result = run()
        if cuda:
            torch.cuda.synchronize()
        samples.append(perf_counter() - begin)
    check_result(result, request.target)
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Trial(
        samples_s=tuple(samples),
        stages_s=_stages(request) if request.program == "compiled" else {},
        peak_bytes=peak,
        graphs=_graphs() if request.program == "compiled" else 0,
        kernels=_kernels() if request.program == "compiled" else 0,
        kernel_bytes=_kernel_bytes() if request.program == "compiled" else None,
        graph_breaks=tuple(breaks),
        recompiles=tuple(recompiles),
        others_share=watch.others(),
    )


def checked(request: Request) -> Check:
    """The compiled program beside the eager one and a float64 run, from the same weights, inputs and random numbers."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # dropout draws what eager's does
    run, model = opened(request)
    return check(opened(request), (compiled(run, model, request), model), opened(request))


def _stages(request: Request) -> dict[str, float]:
    if request.compile_mode != AOT_INDUCTOR:
        return stages_s()
    return {**export_s, **{stage: taken for stage, taken in stages_s().items() if stage not in (DYNAMO, AOT)}}


def _kernel_bytes() -> int | None:
    from torch._inductor import metrics

    return int(metrics.num_bytes_accessed) or None


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _kernels() -> int:
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    return int(metrics.generated_kernel_count) + int(counters["inductor"]["extern_calls"])


def answer(request: Request) -> Answer:
    """What the request asks for; the program's errors are an answer too."""
    try:
        if request.program == "check":
            return Answer(check=checked(request))
        return Answer(trial=timed(request))
    except TargetError as error:
        return Answer(wrong=str(error))
    except Exception as error:
        return Answer(failed=reason_of(error))


if __name__ == "__main__":
    os.environ.setdefault("TORCH_LOGS_OUT", os.devnull)  # read when torch is imported
    import torch

    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    torch.set_num_threads(asked.threads)
    write_whole(Path(sys.argv[1]), msgspec.json.encode(answer(asked)))
