"""A target eager and compiled, each in fresh processes, with a cold and a warm cache of Inductor's."""

from __future__ import annotations

import inspect
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from rooflight.front.device import Progress, log_progress
from rooflight.front.options import RunOptions
from rooflight.front.targets import analyze_target
from rooflight.hardware.machine.hardware import kind_here, usable_cores
from rooflight.roofline.account.account import AccountFields
from rooflight.roofline.analysis import Analysis
from rooflight.sources.workloads.errors import RunFailed, TargetError, in_one_line
from rooflight.sources.workloads.targets import UserFunction, find_target
from rooflight.studies.compiling.bench.child import Request, checked, timed
from rooflight.studies.compiling.bench.result import Compiled, Trial
from rooflight.studies.compiling.options import LIMIT_S, BenchOptions, Options
from rooflight.studies.compiling.process import answered
from rooflight.studies.compiling.refusals import AOT_INDUCTOR, MODES, check_how, checked_target
from rooflight.studies.compiling.workloads import WORKLOADS

Kind = Literal["eager", "cold", "warm", "check"]
OF_A_MODE: Final[tuple[Kind, ...]] = ("cold", "warm", "check")
"""Programs of a mode, in the order in which they run. Eager runs once for all modes of a target."""
_EAGER: Final = "eager"
_Found = TypeVar("_Found")
_PROGRESS: Final[dict[Kind, str]] = {
    "cold": "compiling {}, from an empty cache",
    "warm": "compiling {}, from the cache",
    "check": "comparing results of {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix(BenchOptions):
    """Targets and modes, and how each of their programs runs."""

    targets: tuple[str, ...]
    options: Options = field(default_factory=Options)

    def check(self) -> None:
        """Raise ValueError (TargetError) for what cannot run, before anything has run."""
        iterations, warmup, modes = self.iterations, self.warmup, self.modes
        if not 1 <= warmup < iterations:
            raise ValueError(
                f"{iterations} iterations, {warmup} of them warm-up: at least 1 of warm-up, which compiles, and 1 more"
            )
        check_how(modes, MODES, threads=self.threads, limit_s=self.limit_s)
        for mode in modes:
            if modes.count(mode) > 1:
                raise ValueError(f"--mode {mode} is given twice: the second would find the cache that the first filled")
        if AOT_INDUCTOR in modes and self.backend != "inductor":
            raise ValueError(f"--backend {self.backend}: no effect on the mode {AOT_INDUCTOR}, which is Inductor's")
        for target in self.targets:
            checked_target(target, self.options, inputs=self.inputs, workloads="Workloads of compile-bench")

    @property
    def cells(self) -> list[Matrix]:
        """One target in one mode each, in order: by target, then by mode."""
        return [replace(self, targets=(target,), modes=(mode,)) for target in self.targets for mode in self.modes]


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
) -> tuple[Compiled, ...]:
    """A target eager and compiled, a result for each mode.

    ``target``: a workload of ``WORKLOADS``, a preset, a config.json, ``file.py:function`` or a problem file; ``inputs``
    names the function of the file that returns the arguments of one that takes some, if not ``get_inputs``. Eager runs
    once for all modes. Each program runs ``iterations`` times in a process of its own, on the GPU where there is one;
    ``threads`` is the number of CPU threads, None as many as there are cores. A step with a model has its model's
    forward compiled, one without is compiled whole.

    A target that does not compile gives a result that says why. Raises ValueError (TargetError) for what cannot run
    at all, RunFailed where the eager program breaks, BenchmarkInterrupted with what was measured after Ctrl-C.
    """
    asked = Matrix(
        targets=(target,), options=options or Options(), inputs=inputs, modes=tuple(modes), iterations=iterations,
        warmup=warmup, backend=backend, dynamic=dynamic, threads=threads, limit_s=limit_s,
    )  # fmt: skip
    return measured(asked, Pace(1, len(modes), progress))


def measured(cell: Matrix, pace: Pace) -> tuple[Compiled, ...]:
    """The one target of ``cell``, as ``benchmark`` has it, at the pace of the matrix that it is a part of."""
    cell.check()
    (target,), place = cell.targets, kind_here()
    takes_device = target not in WORKLOADS and not isinstance(find_target(target), UserFunction)
    request = Request(
        target=target,
        options=replace(cell.options, device=place) if takes_device else cell.options,
        inputs=cell.inputs,
        backend=cell.backend,
        dynamic=cell.dynamic,
        iterations=cell.iterations,
        place=place,
    )
    with tempfile.TemporaryDirectory(prefix="rooflight-inductor-") as folder:
        run = partial(_run, Path(folder), cell.threads or len(usable_cores()), cell.limit_s)
        begun = Compiled(target=target, mode="", warmup=cell.warmup, eager=_eager(request, run, pace, len(cell.modes)))
        results = [replace(begun, mode=mode, interrupted=True) for mode in cell.modes]
        try:
            for number, each in enumerate(results):
                for result in _compiled(each, request, run, pace):
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
    """A workload of your own under a name, with its table printed: ``fn`` makes a step, as ``file.py:function`` does on
    the command line.

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
    named = replace(found, target=name)
    named.show()
    return named


def _run(folder: Path, threads: int, limit_s: float, program: Callable[[Request], _Found], request: Request) -> _Found:
    cache = folder / (request.compile_mode or _EAGER)
    return answered(program, request, cache, threads=threads, limit_s=limit_s)


def _eager(request: Request, run: Callable[..., Any], pace: Pace, modes: int) -> Trial:
    pace.begins(f"running {request.target} eager, {request.iterations} times")
    try:
        eager: Trial = run(timed, request)
    except (RunFailed, TargetError):
        pace.skips(1 + modes * len(OF_A_MODE))
        raise
    pace.ended()
    return eager


def _compiled(begun: Compiled, eager: Request, run: Callable[..., Any], pace: Pace) -> Iterator[Compiled]:
    request = msgspec.structs.replace(eager, compile_mode=begun.mode)
    found = begun
    for number, kind in enumerate(OF_A_MODE):
        pace.begins(_PROGRESS[kind].format(f"{begun.target}, {begun.mode}"))
        try:
            if kind == "check":
                found = replace(found, check=run(checked, request), interrupted=False)
            else:
                found = replace(found, **{kind: run(timed, request)})
        except RunFailed as error:
            pace.skips(len(OF_A_MODE) - number)
            yield replace(begun, failed=str(error), interrupted=False)
            return
        pace.ended()
        yield found


def recorded(
    target: str,
    options: Options,
    *,
    inputs: str | None,
    device: str | None = None,
    measured: bool = False,
    progress: Progress,
) -> tuple[Analysis, list[str]]:
    """The bounds of a target's step on a device, this machine's by default, with notes; its times only if asked for."""
    if target in WORKLOADS:
        target = f"{inspect.getsourcefile(WORKLOADS[target])}:{WORKLOADS[target].__name__}"
    run = RunOptions(**{key: value for key, value in asdict(options).items() if key != "device"})
    return analyze_target(target, run, inputs=inputs, device=device, measured=measured, progress=progress)


def bounded(results: Sequence[Compiled], cell: Matrix, progress: Progress = log_progress) -> list[Compiled]:
    """The results of a target with the op and fused bound of its step on this machine, the bytes of both, and the
    kernels of its ops, and the account of an eager iteration; where its step cannot be recorded, or the machine not be
    calibrated, with the reason.
    """
    try:
        analysis, _ = recorded(results[0].target, cell.options, inputs=cell.inputs, measured=True, progress=progress)
    except Exception as error:  # the program ran: whatever the analysis meets, what was measured is kept
        why = str(error) if isinstance(error, RunFailed | ValueError) else in_one_line(error)
        return [replace(result, bounds_failed=why) for result in results]
    totals, program = analysis.totals, analysis.program
    return [
        replace(
            result,
            op_bound_s=totals.op_bound_s,
            fused_bound_s=program.fused_bound_s,
            op_kernels=int(analysis.queue.launches.sum()),
            op_bytes=totals.bytes_read + totals.bytes_written,
            fused_bytes=program.fused_bytes,
            account=AccountFields.view(analysis.account) if analysis.measurement is not None else None,
        )
        for result in results
    ]
