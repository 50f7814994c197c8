"""The process of one program: ``python -m rooflight.compiling.bench.child REPLY``, with a Request as JSON on standard
input.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.compiling.bench.check import check
from rooflight.compiling.bench.package import AOT_INDUCTOR, export_s, packaged
from rooflight.compiling.bench.trial import Answer, Check, Request, Trial
from rooflight.compiling.explain.graph_breaks import logged_breaks
from rooflight.compiling.explain.guards import logged_recompile
from rooflight.compiling.explain.kernels import generated_calls
from rooflight.compiling.refusals import check_step, reason_of
from rooflight.compiling.torch_logs import AOT, DYNAMO, Artifact, hearing, stages_s
from rooflight.compiling.workloads import WORKLOADS
from rooflight.machine.cpu_load import Bystander
from rooflight.records.files import write_whole
from rooflight.workloads.errors import TargetError
from rooflight.workloads.steps import Step, unguarded
from rooflight.workloads.targets import open_target
from rooflight.workloads.user_code import refuse_pending
from rooflight.workloads.user_step import Calls

if TYPE_CHECKING:
    from torch import nn

Run = Callable[[], Any]
_LOGS: Final[tuple[Artifact, ...]] = ("graph_breaks", "recompiles", "output_code", "inductor_metrics")


def opened(request: Request) -> Step:
    """The step of the request's target, from the same random numbers each time. One without a model raises its own
    errors, and may be compiled.
    """
    import torch

    torch.manual_seed(0)
    if (workload := WORKLOADS.get(request.target)) is not None:
        made = workload(request.place)
        run, model = made if isinstance(made, tuple) else (made, None)
        return Step(run=run, model=model, description=request.target)
    step = open_target(request.target, inputs=request.inputs, **asdict(request.options))
    plain = unguarded(step.run)
    check_step(plain, step.model, request.target)
    return replace(step, run=plain) if step.model is None else step


def compiled(run: Run, model: nn.Module | None, request: Request) -> Run:
    """The step with its model compiled, or, without a model, the step itself, of calls the function that they call."""
    import torch

    if request.compile_mode == AOT_INDUCTOR:
        return packaged(run, model, dynamic=request.dynamic)
    how: dict[str, Any] = {"backend": request.backend, "dynamic": request.dynamic}
    if request.compile_mode != "default":
        how["mode"] = request.compile_mode
    if model is None and isinstance(run, Calls):
        return run.of(torch.compile(run.function, **how))
    if model is None:
        return torch.compile(run, **how)
    # Module.compile leaves containers of torch.nn itself as they are
    model.forward = torch.compile(model.forward, **how)
    return run


def timed(request: Request) -> Trial:
    """Run the program, each iteration timed to its end on the device."""
    import torch

    step = opened(request)
    run, model = step.run, step.model
    cuda, compiles = request.place == "cuda", request.program == "compiled"
    samples: list[float] = []
    result = None
    with hearing(*(_LOGS if compiles else ())) as logged:
        run = compiled(run, model, request) if compiles else run
        watch = Bystander()
        for _ in range(request.iterations):
            begin = perf_counter()
            result = run()
            if cuda:
                torch.cuda.synchronize()
            samples.append(perf_counter() - begin)
    refuse_pending(result, request.target)
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    trial = Trial(
        samples_s=tuple(samples),
        peak_bytes=peak,
        others_share=watch.others(),
        step="" if request.target.endswith(step.description) else step.description,
        notes=step.notes,
    )
    return _with_what_was_compiled(trial, request, logged) if compiles else trial


def _with_what_was_compiled(trial: Trial, request: Request, logged: Mapping[Artifact, Sequence[str]]) -> Trial:
    return msgspec.structs.replace(
        trial,
        stages_s=_stages(request),
        graphs=_graphs(),
        kernels=_kernels(logged["output_code"]),
        kernel_bytes=_kernel_bytes(),
        graph_breaks=logged_breaks(logged["graph_breaks"]),
        recompiles=tuple(map(logged_recompile, logged["recompiles"])),
    )


def checked(request: Request) -> Check:
    """The compiled program beside the eager one and a float64 run, from the same weights, inputs and random numbers."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # dropout draws what eager's does
    eager, double, other = (opened(request) for _ in range(3))
    run = compiled(other.run, other.model, request)
    return check((eager.run, eager.model), (run, other.model), (double.run, double.model))


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


def _kernels(codes: Sequence[str]) -> int:
    """Kernels that the generated codes call, and calls of libraries. A package's code is C++, whose calls are not
    counted: of it Inductor's own count is taken, in which one function of a CPU may be several kernels.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    generated = sum(map(generated_calls, codes)) or int(metrics.generated_kernel_count)
    return generated + int(counters["inductor"]["extern_calls"])


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
