"""A target explained in a fresh process, after what cannot run was refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from rooflight.compiling.bench.benchmark import MODES, check_options
from rooflight.compiling.bench.package import AOT_INDUCTOR
from rooflight.compiling.explain.child import ExplainRequest, explanation
from rooflight.compiling.explain.result import ExplainDocument
from rooflight.compiling.options import Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.front.device import Progress, log_progress
from rooflight.machine.hardware import kind_here, usable_cores
from rooflight.workloads.errors import TargetError
from rooflight.workloads.targets import UserFunction, find_target, require_libraries

MOST_CALLS = 100
_MODES: Final = tuple(mode for mode in MODES if mode != AOT_INDUCTOR)


def explained_target(
    target: str,
    options: Options,
    cache: Path,
    *,
    inputs: str | None = None,
    calls: int = 3,
    compile_mode: str = "default",
    backend: str = "inductor",
    dynamic: bool | None = None,
    code: bool = False,
    dispatcher: bool = True,
    threads: int | None = None,
    limit_s: float = 600.0,
    progress: Progress = log_progress,
) -> ExplainDocument:
    """What each stage makes of a target, over ``calls`` calls; ``cache`` is Inductor's folder.

    Raises ValueError (TargetError) for what cannot run, RunFailed for a program that breaks or takes longer than
    ``limit_s``.
    """
    if not 1 <= calls <= MOST_CALLS:
        raise ValueError(f"--calls {calls}: 1 to {MOST_CALLS}")
    if threads is not None and threads < 1:
        raise ValueError(f"--threads {threads}: at least 1")
    if not limit_s > 0:
        raise ValueError(f"--limit {limit_s:g}: seconds, more than 0")
    if compile_mode not in _MODES:
        raise ValueError(f'torch.compile has no mode "{compile_mode}": take {", ".join(_MODES)}')
    place = kind_here()
    if target in WORKLOADS:
        check_options(target, None, options)
    else:
        options = _placed(target, options, place)
    progress(f"explaining {target}")
    request = ExplainRequest(
        target=target,
        options=options,
        calls=calls,
        inputs=inputs,
        compile_mode=compile_mode,
        backend=backend,
        dynamic=dynamic,
        code=code,
        dispatcher=dispatcher,
        threads=threads or len(usable_cores()),
        place=place,
    )
    return explanation(request, cache, limit_s=limit_s)


def _placed(target: str, options: Options, place: str) -> Options:
    try:
        found = find_target(target)
    except TargetError as error:
        if target.isidentifier() or "-" in target:
            raise TargetError(f"{error}. Workloads: {', '.join(WORKLOADS)}") from error
        raise
    check_options(target, found, options)
    require_libraries(found)
    if isinstance(found, UserFunction):
        return options
    return replace(options, device=place, mode=options.mode or "forward")
