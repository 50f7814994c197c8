"""A target eager and compiled, each in fresh processes, with a cold and a warm cache of Inductor's."""

from __future__ import annotations

import inspect
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rooflight.compiling.bench.package import AOT_INDUCTOR
from rooflight.compiling.bench.result import Compiled
from rooflight.compiling.bench.trial import EAGER, Answer, Request, Trial, answered
from rooflight.compiling.options import LIMIT_S, Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.front.device import Progress, log_progress
from rooflight.front.options import RunOptions
from rooflight.front.targets import analyze_target
from rooflight.machine.hardware import kind_here, usable_cores
from rooflight.workloads.errors import RunFailed, TargetError, told_in_one_line
from rooflight.workloads.targets import Target, UserFunction, find_target, no_inputs, require_libraries

Kind = Literal["eager", "cold", "warm", "check"]
OF_A_MODE: Final[tuple[Kind, ...]] = ("cold", "warm", "check")
"""Programs of a mode, in the order in which they run. Eager runs once for all modes of a target."""


def programs_of(targets: int, modes: int) -> int:
    """How many programs run for so many targets and modes, if none of them fails."""
    return targets * (1 + modes * len(OF_A_MODE))


class Pace:
    """Says before each program which one it is of how many, and about how long it and the rest take.

    The time that is left is the sum over these programs of the mean time of those of the same kind that have ended, or
    of all that have ended where none was of that kind. Nothing is said of it before the first has ended.
    """

    def __init__(
        self, targets: int, modes: int, progress: Progress, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        mode: list[Kind] = [*OF_A_MODE] * modes
        self._left: list[Kind] = (["eager", *mode]) * targets
        self._all = len(self._left)
        self._progress = progress
        self._clock = clock
        self._ended: defaultdict[Kind, list[float]] = defaultdict(list)
        self._began_s = 0.0

    def begins(self, text: str) -> None:
        """Show that the next program begins."""
        number = self._all - len(self._left) + 1
        left = self._left_s()
        about = "" if left is None else f", about {_rough(left)} left"
        self._progress(f"{text} (program {number} of {self._all}{about})")
        self._began_s = self._clock()

    def ended(self) -> None:
        """Note that the program that began has ended."""
        self._ended[self._left.pop(0)].append(self._clock() - self._began_s)

    def skips(self, count: int) -> None:
        """The next ``count`` programs do not run: the one that began, which has failed, and those that need it."""
        del self._left[:count]

    def _left_s(self) -> float | None:
        known = {kind: statistics.fmean(seconds) for kind, seconds in self._ended.items()}
        if not known:
            return None
        usual = statistics.fmean(known.values())
        return sum(known.get(kind, usual) for kind in self._left)


def _rough(seconds: float) -> str:
    return f"{max(5, 5 * round(seconds / 5))} s" if seconds < 90 else f"{round(seconds / 60)} min"


MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", AOT_INDUCTOR)
"""Modes of torch.compile, and packages of AOTInductor."""
_OPTIONS: Final = {"mode": "--step"}
"""Fields of ``Options`` whose option of the command line has another name."""
_SAYS: Final[dict[Kind, str]] = {
    "cold": "compiling {}, from an empty cache",
    "warm": "compiling {}, from the cache",
    "check": "comparing results of {}",
}


class BenchmarkInterrupted(KeyboardInterrupt):
    """Ctrl-C while programs ran. ``results``: what was measured until then; those of them that lack a program are
    marked ``interrupted``.
    """

    def __init__(self, results: Sequence[Compiled]) -> None:
        super().__init__()
        self.results = tuple(results)


def benchmark(
    target: str,
    options: Options | None = None,
    *,
    inputs: str | None = None,
    modes: Sequence[str] = ("default",),
    iterations: int = 100,
    warmup: int = 5,
    backend: str = "inductor",
    dynamic: bool | None = None,
    threads: int | None = None,
    limit_s: float = LIMIT_S,
    progress: Progress = log_progress,
    pace: Pace | None = None,
) -> tuple[Compiled, ...]:
    """A target eager and compiled, a result for each mode.

    ``target``: a workload of ``WORKLOADS``, a preset, a config.json, ``file.py:function`` or a problem file; ``inputs``
    names the function of the file that returns the arguments of one that takes some, if not ``get_inputs``. Eager runs
    once for all modes. Each program runs ``iterations`` times in a process of its own, on the GPU where there is one;
    ``threads`` is the number of CPU threads, None as many as there are cores. A step with a model has its model's
    forward compiled, one without is compiled whole. ``pace``: that of a matrix, which this target is a part of.

    A target that does not compile gives a result that says why. Raises ValueError (TargetError) for what cannot run
    at all, RunFailed where the eager program breaks, BenchmarkInterrupted with what was measured after Ctrl-C.
    """
    asked = options or Options()
    check_request(
        target, asked, modes, inputs=inputs, iterations=iterations, warmup=warmup, threads=threads, limit_s=limit_s,
        backend=backend,
    )  # fmt: skip
    place = kind_here()
    request = Request(
        target=target,
        options=replace(asked, device=place) if _takes_device(target) else asked,
        inputs=inputs,
        program="eager",
        backend=backend,
        dynamic=dynamic,
        iterations=iterations,
        threads=threads or len(usable_cores()),
        place=place,
    )
    pace = pace or Pace(1, len(modes), progress)
    with tempfile.TemporaryDirectory(prefix="rooflight-inductor-") as folder:
        eager = _eager(request, Path(folder) / EAGER, limit_s, pace, len(modes))
        begun = Compiled(target=target, mode="", warmup=warmup, eager=eager)
        results = [replace(begun, mode=mode, interrupted=True) for mode in modes]
        try:
            for number, each in enumerate(results):
                for result in _compiled(each, request, Path(folder) / each.mode, limit_s, pace):
                    results[number] = result
        except KeyboardInterrupt:
            raise BenchmarkInterrupted(results) from None
    return tuple(results)


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
    inputs: str | None = None,
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
        if list(modes).count(mode) > 1:
            raise ValueError(f"--mode {mode} is given twice: the second would find the cache that the first filled")
    if AOT_INDUCTOR in modes and backend != "inductor":
        raise ValueError(f"--backend {backend}: no effect on the mode {AOT_INDUCTOR}, which is Inductor's")
    found = None if target in WORKLOADS else _found(target)
    if inputs is not None and not isinstance(found, UserFunction):
        raise TargetError(no_inputs(inputs))
    check_options(target, found, options)
    if found is not None:
        require_libraries(found)


def check_options(target: str, found: Target | None, options: Options) -> None:
    """Raise ValueError (TargetError) for options without effect on a workload (``found`` is None) or a function."""
    given = [_OPTIONS.get(name, f"--{name}") for name, value in asdict(options).items() if value]
    if given and found is None:
        raise ValueError(f"{', '.join(given)}: no effect on the workload {target}: leave it out, or name a preset")
    if given and isinstance(found, UserFunction):
        raise TargetError(f"{', '.join(given)}: no effect on {target}: set it inside the function")


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


def _eager(request: Request, cache: Path, limit_s: float, pace: Pace, modes: int) -> Trial:
    pace.begins(f"running {request.target} eager, {request.iterations} times")
    try:
        eager = _trial(answered(request, cache, limit_s=limit_s))
    except (RunFailed, TargetError):
        pace.skips(1 + modes * len(OF_A_MODE))
        raise
    pace.ended()
    return eager


def _compiled(begun: Compiled, eager: Request, cache: Path, limit_s: float, pace: Pace) -> Iterator[Compiled]:
    """The result of a mode, with one more program each time: cold, warm, then compared with the eager program."""
    request = msgspec.structs.replace(eager, program="compiled", compile_mode=begun.mode)
    found = begun
    for number, kind in enumerate(OF_A_MODE):
        pace.begins(_SAYS[kind].format(f"{begun.target}, {begun.mode}"))
        try:
            if kind == "check":
                check = answered(msgspec.structs.replace(request, program="check"), cache, limit_s=limit_s).check
                found = replace(found, check=check, interrupted=False)
            else:
                trial = _trial(answered(request, cache, limit_s=limit_s))
                found = replace(found, cold=trial) if kind == "cold" else replace(found, warm=trial)
        except RunFailed as error:
            pace.skips(len(OF_A_MODE) - number)
            yield replace(begun, failed=str(error), interrupted=False)
            return
        pace.ended()
        yield found


def _trial(answer: Answer) -> Trial:
    assert answer.trial is not None
    return answer.trial


def bounded(
    results: Sequence[Compiled], options: Options, *, inputs: str | None = None, progress: Progress = log_progress
) -> list[Compiled]:
    """The results of a target with the op and fused bound of its step on this machine, the bytes of both, and the
    kernels of its ops; where its step cannot be recorded, or the machine not be calibrated, with the reason.
    """
    target = results[0].target
    if target in WORKLOADS:
        target = f"{inspect.getsourcefile(WORKLOADS[target])}:{WORKLOADS[target].__name__}"
    run = RunOptions(**{key: value for key, value in asdict(options).items() if key != "device"})
    try:
        analysis, _ = analyze_target(target, run, inputs=inputs, measured=False, progress=progress)
    except Exception as error:  # the program ran: whatever the analysis meets, what was measured is kept
        why = str(error) if isinstance(error, RunFailed | ValueError) else told_in_one_line(error)
        return [replace(result, bounds_failed=why) for result in results]
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
