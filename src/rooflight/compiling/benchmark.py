"""A target eager and compiled, each in fresh processes, with a cold and a warm cache of Inductor's."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from rooflight.compiling.package import AOT_INDUCTOR
from rooflight.compiling.result import Compiled
from rooflight.compiling.trial import EAGER, Answer, Options, Request, Trial, answered
from rooflight.compiling.workloads import WORKLOADS
from rooflight.front.device import Progress, log_progress
from rooflight.front.targets import RunOptions, analyze_target
from rooflight.machine.caches import usable_cores
from rooflight.machine.presence import kind_here
from rooflight.workloads.errors import RunFailed, TargetError
from rooflight.workloads.targets import Target, UserFunction, find_target, require_libraries

MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", AOT_INDUCTOR)
"""Modes of torch.compile, and packages of AOTInductor."""
LIMIT_S: Final = 600.0
"""A process that takes longer is ended: a compilation may hang."""


def benchmark(
    target: str,
    options: Options | None = None,
    *,
    modes: Sequence[str] = ("default",),
    iterations: int = 100,
    warmup: int = 5,
    backend: str = "inductor",
    dynamic: bool | None = None,
    threads: int | None = None,
    limit_s: float = LIMIT_S,
    progress: Progress = log_progress,
) -> tuple[Compiled, ...]:
    """A target eager and compiled, a result for each mode.

    ``target``: a workload of ``WORKLOADS``, a preset, a config.json, ``file.py:function`` or a problem file. Eager runs
    once for all modes. Each program runs ``iterations`` times in a process of its own, on the GPU where there is one;
    ``threads`` is the number of CPU threads, None as many as there are cores. A step with a model has its model's
    forward compiled, one without is compiled whole.

    A target that does not compile gives a result that says why. Raises ValueError (TargetError) for what cannot run
    at all, RunFailed where the eager program breaks.
    """
    asked = options or Options()
    check_request(
        target, asked, modes, iterations=iterations, warmup=warmup, threads=threads, limit_s=limit_s, backend=backend
    )
    place = kind_here()
    request = Request(
        target=target,
        options=msgspec.structs.replace(asked, device=place) if _takes_device(target) else asked,
        program="eager",
        backend=backend,
        dynamic=dynamic,
        iterations=iterations,
        threads=threads or len(usable_cores()),
        place=place,
    )
    with tempfile.TemporaryDirectory(prefix="rooflight-inductor-") as folder:
        progress(f"running {target} eager, {iterations} times")
        eager = _trial(answered(request, Path(folder) / EAGER, limit_s=limit_s))
        found = Compiled(target=target, mode="", warmup=warmup, eager=eager)
        return tuple(
            _compiled(replace(found, mode=mode), request, Path(folder) / mode, limit_s, progress) for mode in modes
        )


def benchmark_workload(
    name: str,
    fn: Callable[..., Any],
    iterations: int = 100,
    warmup: int = 5,
    *,
    mode: str = "default",
    backend: str = "inductor",
    dynamic: bool | None = None,
) -> Compiled:
    """A workload of your own under a name: ``fn`` makes a step, as ``file.py:function`` does on the command line.

    Fresh processes import it again, so it must be a function at the top level of a file. Raises ValueError for
    one that is not.
    """
    target = next((known for known, workload in WORKLOADS.items() if fn is workload), None)
    if target is None:
        file = inspect.getsourcefile(fn) if inspect.isfunction(fn) else None
        if file is None or not fn.__qualname__.isidentifier() or not Path(file).is_file():
            raise ValueError(
                f"{name}: each program runs in a fresh process: pass a function at the top level of a file"
            )
        target = f"{file}:{fn.__name__}"
    (found,) = benchmark(target, modes=(mode,), iterations=iterations, warmup=warmup, backend=backend, dynamic=dynamic)
    return replace(found, target=name)


def check_request(
    target: str,
    options: Options,
    modes: Sequence[str],
    *,
    iterations: int,
    warmup: int,
    threads: int | None,
    limit_s: float,
    backend: str = "inductor",
) -> None:
    """Raise ValueError (TargetError) for what cannot run, before a process is started for it."""
    if not 1 <= warmup < iterations:
        raise ValueError(
            f"{iterations} iterations, {warmup} of them warm-up: at least 1 of warm-up, which compiles, and 1 more"
        )
    if threads is not None and threads < 1:
        raise ValueError(f"--threads {threads}: at least 1")
    if not limit_s > 0:
        raise ValueError(f"--limit {limit_s:g}: seconds, more than 0")
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f'torch.compile has no mode "{mode}": take {", ".join(MODES)}')
    if AOT_INDUCTOR in modes and backend != "inductor":
        raise ValueError(f"--backend {backend}: no effect on the mode {AOT_INDUCTOR}, which is Inductor's")
    if target in WORKLOADS:
        given = [name for name, value in msgspec.structs.asdict(options).items() if value]
        if given:
            raise ValueError(f"{', '.join(f'--{name}' for name in given)}: no effect on the workload {target}")
        return
    require_libraries(_found(target))


def _found(text: str) -> Target:
    """The target, or an error that names the workloads too."""
    try:
        return find_target(text)
    except TargetError as error:
        if text.isidentifier() or "-" in text:
            raise TargetError(f"{error}. Workloads of compile-bench: {', '.join(WORKLOADS)}") from error
        raise


def _takes_device(target: str) -> bool:
    return target not in WORKLOADS and not isinstance(find_target(target), UserFunction)


def _compiled(found: Compiled, eager: Request, cache: Path, limit_s: float, progress: Progress) -> Compiled:
    """The result of a mode: cold, warm, then compared with the eager program."""
    request = msgspec.structs.replace(eager, program="compiled", compile_mode=found.mode)
    what = f"{found.target}, {found.mode}"
    try:
        progress(f"compiling {what}, from an empty cache")
        cold = _trial(answered(request, cache, limit_s=limit_s))
        progress(f"compiling {what}, from the cache")
        warm = _trial(answered(request, cache, limit_s=limit_s))
        progress(f"comparing results of {what}")
        check = answered(msgspec.structs.replace(request, program="check"), cache, limit_s=limit_s).check
    except RunFailed as error:
        return replace(found, failed=str(error))
    return replace(found, cold=cold, warm=warm, check=check)


def _trial(answer: Answer) -> Trial:
    assert answer.trial is not None
    return answer.trial


def bounded(results: Sequence[Compiled], options: Options, *, progress: Progress = log_progress) -> list[Compiled]:
    """The results of a target with the op and fused bound of its step on this machine, the bytes of both, and the
    kernels of its ops.
    """
    target = results[0].target
    if target in WORKLOADS:
        target = f"{inspect.getsourcefile(WORKLOADS[target])}:{WORKLOADS[target].__name__}"
    run = RunOptions(**{key: value for key, value in msgspec.structs.asdict(options).items() if key != "device"})
    analysis, _ = analyze_target(target, run, measured=False, progress=progress)
    return [
        replace(
            result,
            op_bound_s=analysis.totals.op_bound_s,
            fused_bound_s=analysis.program.fused_bound_s,
            op_kernels=int(analysis.queue.launches.sum()),
            op_bytes=analysis.totals.bytes_read + analysis.totals.bytes_written,
            fused_bytes=analysis.program.fused_bytes,
        )
        for result in results
    ]
