"""One program in a process of its own: eager or compiled, timed or compared; and packages of AOTInductor, which are
exported once, compiled ahead of time into one file, loaded and run without Dynamo.
"""

from __future__ import annotations

import inspect
import os
import resource
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.sources.workloads.errors import RunFailed, first_words
from rooflight.sources.workloads.steps import Step, unguarded
from rooflight.sources.workloads.targets import open_target
from rooflight.sources.workloads.user_code import refuse_pending
from rooflight.sources.workloads.user_step import Calls
from rooflight.studies.compiling.bench.result import Check, Trial
from rooflight.studies.compiling.explain.breaks import logged_breaks, logged_recompile
from rooflight.studies.compiling.explain.kernels import generated_calls
from rooflight.studies.compiling.options import Options
from rooflight.studies.compiling.refusals import AOT_INDUCTOR, check_step
from rooflight.studies.compiling.torch_logs import AOT, DYNAMO, Artifact, hearing, stages_s
from rooflight.studies.compiling.workloads import WORKLOADS, open_workload

if TYPE_CHECKING:
    from torch import nn

Run = Callable[[], Any]
_LOGS: Final[tuple[Artifact, ...]] = ("graph_breaks", "recompiles", "output_code", "inductor_metrics")
_EXPORT: Final = "export"
"""The stage of ``torch.export``."""

_export_s: dict[str, float] = {}
_FILE: Final = "model.pt2"
_TRAINS: Final = (
    "an AOTInductor package has no backward: run the model under torch.no_grad(), or take another mode to train"
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run: a target, eager or compiled in a mode, so many times. ``inputs``: the function of its file that
    returns the arguments, if not ``get_inputs``; ``compile_mode`` None is eager.
    """

    target: str
    options: Options
    inputs: str | None = None
    compile_mode: str | None = None
    backend: str = "inductor"
    dynamic: bool | None = None
    iterations: int
    place: str


def opened(request: Request) -> Step:
    """The step of the request's target, from the same random numbers each time. One without a model raises its own
    errors, and may be compiled.
    """
    import torch

    torch.manual_seed(0)
    if request.target in WORKLOADS:
        return open_workload(request.target, request.place)
    step = open_target(request.target, inputs=request.inputs, **asdict(request.options))
    plain = unguarded(step.run)
    check_step(plain, step.model, request.target)
    return replace(step, run=plain) if step.model is None else step


def compiled(run: Run, model: nn.Module | None, request: Request) -> Run:
    """The step with its model compiled, or, without a model, the step itself, of calls the function that they call."""
    import torch

    if request.compile_mode == AOT_INDUCTOR:
        return packaged(run, model, dynamic=request.dynamic)
    compile_ = partial(torch.compile, backend=request.backend, dynamic=request.dynamic, mode=request.compile_mode)
    if model is None:
        return run.of(compile_(run.function)) if isinstance(run, Calls) else compile_(run)
    # Module.compile leaves containers of torch.nn itself as they are
    model.forward = compile_(model.forward)
    return run


def timed(request: Request) -> Trial:
    """Run the program, each iteration timed to its end on the device."""
    import torch

    step = opened(request)
    run, model = step.run, step.model
    cuda, compiles = request.place == "cuda", request.compile_mode is not None
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
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    return msgspec.structs.replace(
        trial,
        stages_s=_stages(request),
        graphs=int(counters["stats"]["unique_graphs"]),
        kernels=_kernels(logged["output_code"]),
        kernel_bytes=int(metrics.num_bytes_accessed) or None,
        cache_hits=int(counters["inductor"]["fxgraph_cache_hit"]),
        cache_misses=int(counters["inductor"]["fxgraph_cache_miss"]),
        graph_breaks=logged_breaks(logged["graph_breaks"]),
        recompiles=tuple(map(logged_recompile, logged["recompiles"])),
    )


def checked(request: Request) -> Check:
    """The compiled program beside the eager one and a float64 run, from the same weights, inputs and random numbers."""
    import torch._inductor.config

    from rooflight.studies.compiling.bench.check import check

    torch._inductor.config.fallback_random = True  # dropout draws what eager's does

    def program() -> tuple[Callable[[], Any], Any]:
        step = opened(request)
        return step.run, step.model

    eager, (run, model) = program(), program()
    return check(eager, (compiled(run, model, request), model), program)


def _stages(request: Request) -> dict[str, float]:
    if request.compile_mode != AOT_INDUCTOR:
        return stages_s()
    return {**_export_s, **{stage: taken for stage, taken in stages_s().items() if stage not in (DYNAMO, AOT)}}


def _kernels(codes: Sequence[str]) -> int:
    """Of a package, C++ code, Inductor's own count: one function of a CPU may be several kernels."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    generated = sum(map(generated_calls, codes)) or int(metrics.generated_kernel_count)
    return generated + int(counters["inductor"]["extern_calls"])


def packaged(run: Run, model: nn.Module | None, *, dynamic: bool | None) -> Run:
    """The step with its model as a package, or the step itself. The first call exports, compiles and loads it; where
    Inductor's folder has the package already, it only loads.

    Raises RunFailed for a step that trains, or cannot be exported.
    """
    import torch
    from torch import nn

    if model is None:
        whole = nn.Module()
        whole.forward = run.function if isinstance(run, Calls) else run
        package = _made_once(partial(_loaded, whole, dynamic))
        return run.of(package) if isinstance(run, Calls) else package
    forward = model.forward

    def load(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model.forward = forward
        try:
            return _loaded(model, dynamic, args, kwargs)
        finally:
            model.forward = called

    package = _made_once(load)

    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters()):
            raise RunFailed(_TRAINS)
        return package(*args, **kwargs)

    model.forward = called
    return run


def _made_once(make: Callable[[tuple[Any, ...], dict[str, Any]], Callable[..., Any]]) -> Callable[..., Any]:
    made: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(make(args, kwargs))
        return made[0](*args, **kwargs)

    return call


def _loaded(model: nn.Module, dynamic: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch._inductor

    path = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / _FILE
    if not path.is_file():
        begin = perf_counter()
        exported = _exported(model, args, kwargs, dynamic)
        _export_s[_EXPORT] = perf_counter() - begin
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own pytree
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    return torch._inductor.aoti_load_package(str(path))


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool | None) -> Any:
    import torch

    shapes = None
    if dynamic:
        shapes = torch.utils._pytree.tree_map(_any_size, (args, kwargs))
        names = inspect.signature(model.forward).parameters
        shapes = {**dict(zip(names, shapes[0], strict=False)), **shapes[1]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # strict: only Dynamo lifts the tensors that a function without a model closes over
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=not args and not kwargs)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if "backward" in reason:
            raise RunFailed(_TRAINS) from None
        raise RunFailed(f"torch.export: {first_words(reason) or type(error).__name__}") from None


def _any_size(leaf: Any) -> Any:
    import torch

    return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None
