"""The matrix of targets and modes, here or spread over a cluster: a cell is one target in one mode.

As a program: ``python -m rooflight.studies.compiling.bench.matrix REQUEST REPLY`` measures the cell of the request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from rooflight.front.device import Progress, log_progress
from rooflight.records.files import write_whole
from rooflight.sampling.executor.programs import Reply, on_ray, on_slurm
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.studies.compiling.bench.benchmark import OF_A_MODE, BenchmarkInterrupted, Matrix, Pace, bounded, measured
from rooflight.studies.compiling.bench.result import Compiled
from rooflight.studies.compiling.workloads import WORKLOADS

Executor = Literal["local", "slurm", "ray"]
_MODULE: Final = "rooflight.studies.compiling.bench.matrix"
_PROGRAMS: Final = 1 + len(OF_A_MODE)  # of a cell, each of which may take as long as the limit


def benchmark_matrix(
    matrix: Matrix,
    *,
    executor: Executor = "local",
    address: str = "auto",
    partition: str | None = None,
    progress: Progress = log_progress,
) -> list[Compiled]:
    """A result for each target and mode, in order. What breaks in a cell is the result of that cell (``failed``).

    ``local``: one after the other, and eager once for all modes of a target. ``ray``: a task per cell on the cluster at
    ``address``; ``slurm``: a task per cell of an array in ``partition``, whose nodes see the folder of this process.
    There each cell runs eager itself, with a GPU for itself or all the cores of a node, and bounds and calibration are
    those of its node. Raises ValueError for what cannot run at all, and where no cluster answers; the error of the
    first cell where no eager program ran; BenchmarkInterrupted with what was measured after Ctrl-C.
    """
    matrix.check()
    if executor == "local":
        return _local(matrix, progress)
    cells = matrix.cells
    requests = [msgspec.json.encode(_anywhere(cell)) for cell in cells]
    replies: Iterable[Reply]
    if executor == "ray":
        replies = on_ray(_MODULE, requests, address=address, progress=progress)
    else:
        minutes = math.ceil((_PROGRAMS * matrix.limit_s) / 60) + 10
        replies = on_slurm(
            _MODULE, requests, shared=Path.cwd(), partition=partition, minutes=minutes, progress=progress
        )
    by_number: dict[int, Reply] = {}
    try:
        for reply in replies:
            by_number.setdefault(reply.number, reply)  # the reason why a program ended badly comes after its reply
    except KeyboardInterrupt:
        raise BenchmarkInterrupted(
            [_result(cells[number], by_number[number]) for number in sorted(by_number)]
        ) from None
    return _some_ran([_result(cell, by_number[number]) for number, cell in enumerate(cells)], RunFailed)


def measure_cell(cell: Matrix, progress: Progress = log_progress, pace: Pace | None = None) -> list[Compiled]:
    """The results of one target, with bounds where they are asked for.

    Raises RunFailed where the eager program breaks, ValueError (TargetError) for what cannot run, BenchmarkInterrupted
    with what was measured after Ctrl-C.
    """
    found = measured(cell, pace or Pace(1, len(cell.modes), progress))
    try:
        return bounded(found, cell, progress) if cell.bounds else list(found)
    except KeyboardInterrupt:
        raise BenchmarkInterrupted(found) from None


def _local(matrix: Matrix, progress: Progress) -> list[Compiled]:
    found: list[Compiled] = []
    kind: Callable[[str], Exception] = RunFailed
    pace = Pace(len(matrix.targets), len(matrix.modes), progress)
    for number, target in enumerate(matrix.targets):
        cell = replace(matrix, targets=(target,))
        try:
            found += measure_cell(cell, progress, pace)
        except (RunFailed, TargetError) as error:
            kind = type(error) if not number else kind
            found += [_failed(each, str(error)) for each in cell.cells]
        except KeyboardInterrupt as stop:
            some = stop.results if isinstance(stop, BenchmarkInterrupted) else ()
            raise BenchmarkInterrupted([*found, *some]) from None
    return _some_ran(found, kind)


def _some_ran(results: list[Compiled], kind: Callable[[str], Exception]) -> list[Compiled]:
    if any(result.eager is not None for result in results):
        return results
    raise kind(results[0].failed)


def _failed(cell: Matrix, reason: str) -> Compiled:
    return Compiled(target=cell.targets[0], mode=cell.modes[0], warmup=cell.warmup, eager=None, failed=reason)


def _anywhere(cell: Matrix) -> Matrix:
    (target,) = cell.targets
    path, colon, name = target.rpartition(":")
    if not (colon and path.endswith(".py")):
        path, colon, name = target, "", ""
    if target in WORKLOADS or not Path(path).exists():
        return cell
    return replace(cell, targets=(f"{Path(path).resolve()}{colon}{name}",))


class CellAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the program of a cell writes: its result, or why there is none."""

    result: Compiled | None = None
    failed: str = ""


def _result(cell: Matrix, reply: Reply) -> Compiled:
    if reply.reply is None:
        return _failed(cell, reply.reason)
    try:
        answer = msgspec.json.decode(reply.reply, type=CellAnswer)
    except msgspec.DecodeError as error:
        return _failed(cell, f"its node wrote no result of this version: {error}")
    if answer.result is None:
        return _failed(cell, answer.failed)
    return replace(answer.result, target=cell.targets[0])


def answer_of(cell: Matrix) -> CellAnswer:
    """What measuring a cell gives; errors of the program are an answer too."""
    try:
        (result,) = measure_cell(cell)
    except (RunFailed, ValueError) as error:
        return CellAnswer(failed=str(error))
    return CellAnswer(result=result)


def _main(words: Sequence[str]) -> None:
    request, reply = map(Path, words)
    cell = msgspec.json.decode(request.read_bytes(), type=Matrix)
    write_whole(reply, msgspec.json.encode(answer_of(cell)))


if __name__ == "__main__":
    _main(sys.argv[1:])
