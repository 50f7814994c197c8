"""Fitting: models from measured tables. Kinds and devices are learned side by side, on all cores."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import active_children, get_context
from operator import call
from pathlib import Path
from threading import Thread, current_thread, main_thread
from time import sleep
from typing import Any, Final

import numpy as np

from rooflight.prediction.fit.experts import LEAST_ROWS, join, teach, teach_others, with_reached
from rooflight.prediction.fit.few_rows import ENOUGH_ALONE, corrected, experts_beside
from rooflight.prediction.fit.refusals import refuse_constant, refuse_wrong_unit
from rooflight.prediction.fit.rows import Shown, as_tables_time, grouped, joined, shown_by, together, with_launches
from rooflight.prediction.lint.findings import Finding, beats_bound, left_out, lint_table, row_bounds
from rooflight.prediction.model.corrections import Refinement
from rooflight.prediction.model.functions import Function
from rooflight.prediction.model.model import Expert, Model
from rooflight.prediction.read import read_file
from rooflight.prediction.read.measured import MeasuredTable
from rooflight.prediction.work.facts import is_plain, key_of_others
from rooflight.records.document import Fields
from rooflight.records.quantity import count_of

_MANY_ROWS: Final = 20_000
"""Times from which several processes are worth their start."""
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the threads of libraries of linear algebra: one per worker, or they compete for the cores."""


def _start_worker(parent: int) -> None:
    """End when the parent was killed, else this waits for ever; look for no cycles among millions of tuples."""
    gc.disable()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def workers(rows: float, processes: bool) -> Iterator[Callable[..., Iterable[Any]]]:
    """A map over jobs: in this process, or for many rows, where allowed, in as many as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not processes or rows < _MANY_ROWS or cores < 2:
        yield map
        return
    pool = ProcessPoolExecutor(
        cores, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(os.getpid(),)
    )
    others = set(active_children())
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # workers read them when numpy is imported
    try:
        yield lambda *jobs: _map_deaf(pool, *jobs)
    except BaseException:
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _map_deaf(pool: ProcessPoolExecutor, *jobs: Any) -> Iterable[Any]:
    """``pool.map``, whose workers are deaf to Ctrl-C: each would print a traceback, and this process ends them."""
    if current_thread() is not main_thread():
        return pool.map(*jobs)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by what is started
    try:
        return pool.map(*jobs)
    finally:
        signal.signal(signal.SIGINT, before)


_LEAST_SHAPES: Final = 3
_FEW: Final = 300
"""Rows of tables that learn anew with those of sessions, however few: of more, what few rows add is lost among them."""
Progress = Callable[[str], None]
Run = Callable[..., Iterable[Any]]
"""A map over jobs, here or in several processes."""


class Added(Fields, frozen=True, kw_only=True):
    """What ``rows`` of a device taught on top of other models; ``how``: "nothing" (no scale would have predicted rows
    left out better), "scale", "Gaussian process" or "expert" (of the device's own). Mean absolute shares:
    ``error_before`` of what the other models predict of them, ``error`` of rows left out. ``inside`` and ``outside``
    are 90 % of log(true / predicted), for shapes within and beyond those sampled.
    """

    key: str
    device: str
    rows: int
    how: str
    error_before: float
    error: float
    inside: tuple[float, float]
    outside: tuple[float, float]

    @classmethod
    def of(cls, key: str, refinement: Refinement, expert: Expert | None = None) -> Added:
        """What became of rows that ``refinement`` learned from, or ``expert`` in its place."""
        added = "Gaussian process" if refinement.process else "scale" if refinement.offset else "nothing"
        how = "expert" if expert else added
        return cls.view(expert or refinement, refinement, key=key, how=how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """``models`` by kind of work; ``few``: kinds, with their devices, that had too few rows to learn from, and
    ``alike``, with their rows, those that had enough, but of fewer than three shapes. ``added``: what rows became on
    top of other models, None where there were none. ``functions``: those of users, whose work is unknown.
    """

    models: tuple[Model, ...]
    few: dict[str, int]
    alike: dict[str, int] = field(default_factory=dict)
    added: tuple[Added, ...] | None = None
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """A file: its tables, what lint found in them, and the work of the rows that remain, by kind and device.
    ``beats``: how many of these beat their bound.
    """

    tables: tuple[MeasuredTable, ...]
    findings: tuple[Finding, ...]
    shown: tuple[Shown, ...]
    beats: int


def read_for_fit(
    paths: Sequence[Path], *, keep_flagged: bool = False, progress: Progress = lambda _: None, processes: bool = False
) -> tuple[Read, ...]:
    """Files read, checked and costed, in order, without the times that lint flags. Raises ValueError as reading, and,
    unless ``keep_flagged``, for times in a wrong unit.

    With ``processes``, many rows are shared among as many processes as there are cores: only for programs whose main
    module can be imported once more.
    """
    size = sum(path.stat().st_size * (8 if path.suffix == ".gz" else 1) for path in paths)
    with workers(size // 50, processes) as run:
        found = []
        for number, read in enumerate(run(partial(_read, keep_flagged=keep_flagged), paths)):
            found.append(read)
            progress(f"read and checked {number + 1} of {count_of(len(paths), 'file')}")
        return tuple(found)


def _read(path: Path, keep_flagged: bool) -> Read:
    tables = read_file(path)
    findings: list[Finding] = []
    shown: list[Shown] = []
    beats = 0
    for table in tables:
        bounds = row_bounds(table)
        if not keep_flagged:
            refuse_wrong_unit(table, bounds)
            refuse_constant(table, bounds)
        found = () if keep_flagged else lint_table(table, bounds)
        findings += found
        flagged = left_out(found)
        shown += shown_by(table, flagged, bounds)
        beats += beats_bound(table, bounds, flagged)
    return Read(tables=tables, findings=tuple(findings), shown=tuple(shown), beats=beats)


def fit(tables: Iterable[MeasuredTable], findings: Iterable[Finding] = (), progress: Progress = lambda _: None) -> Fit:
    """Models from measured tables, without the times that ``findings`` flag. Operators that are not registered are
    passed over.
    """
    flagged = left_out(findings)
    return learn_all([each for table in tables for each in shown_by(table, flagged)], progress)


def learn_all(
    shown: Iterable[Shown],
    progress: Progress = lambda _: None,
    *,
    beside: Iterable[Shown] = (),
    processes: bool = False,
    trees_only: bool = False,
) -> Fit:
    """Models of all kinds of which some device has enough rows. ``beside`` are the ops of sessions and traces, few of
    each kind, which ``few_rows`` brings together with the tables' rows. ``processes`` as ``read_for_fit`` has it,
    ``trees_only`` as ``teach``.
    """
    whole = together(shown)
    with workers(sum(map(len, whole)), processes) as run:
        taught = teach_tables(whole, progress, run, trees_only=trees_only)
        progress("learning what ops and devices have in common")
        return learn_beside(taught, whole, beside, run, trees_only=trees_only)


def teach_tables(
    whole: Iterable[Shown], progress: Progress = lambda _: None, run: Run = map, *, trees_only: bool = False
) -> list[tuple[Expert, Shown]]:
    """An expert of each kind of work on each device that has enough rows, all of which are together."""
    enough = [each for each in whole if len(each) >= LEAST_ROWS and not _is_alike(each)]
    enough.sort(key=lambda each: -len(each))  # what takes longest begins first
    taught = []
    for each, expert in zip(enough, run(partial(teach, trees_only=trees_only), enough), strict=True):
        taught.append((expert, each))
        progress(f"learned {len(taught)} of {len(enough)}: {each.label}, {count_of(expert.rows, 'time')}")
    return taught


def learn_beside(
    taught: Sequence[tuple[Expert, Shown]],
    tables: Sequence[Shown],
    beside: Iterable[Shown],
    run: Run = map,
    *,
    trees_only: bool = False,
) -> Fit:
    """Models of the experts that ``tables`` taught, joined by what the ops of sessions teach ``beside`` them."""
    taught = with_launches(taught)
    launches: dict[str, float] = {}
    for expert, _ in taught:
        launches[expert.device] = max(expert.launch_s, launches.get(expert.device, 0.0))
    ops = all_ops = as_tables_time(together(beside), launches)
    taught, ops = _pooled(taught, ops, trees_only=trees_only)
    known = {key: [expert for expert, _ in pairs] for key, pairs in grouped(taught, lambda pair: pair[1].key).items()}
    own = experts_beside(ops, known, launches, run, trees_only=trees_only)
    models = _models(with_reached([*taught, *own]), [*tables, *all_ops], launches, run, trees_only=trees_only)
    alone = {each.place for _, each in own}
    rest = grouped((each for each in ops if each.place not in alone), lambda each: each.key)
    beside_each = [rest.get(model.key, []) for model in models]
    models = tuple(run(partial(corrected, trees_only=trees_only), models, beside_each))
    learned = {(model.key, device) for model in models for device in model.measured_devices}
    alike = {each.label: len(each) for each in tables if len(each) >= LEAST_ROWS and _is_alike(each)}
    few = {
        each.label: len(each) for each in (*tables, *all_ops) if each.place not in learned and each.label not in alike
    }
    return Fit(models=models, few=few, alike=alike)


def _is_alike(shown: Shown) -> bool:
    return len(np.unique(shown.facts, axis=0)) < _LEAST_SHAPES


def _pooled(
    taught: Sequence[tuple[Expert, Shown]], ops: Sequence[Shown], *, trees_only: bool
) -> tuple[list[tuple[Expert, Shown]], list[Shown]]:
    by_place = {each.place: each for each in ops}
    found = []
    for expert, shown in taught:
        more = by_place.get(shown.place)
        if more is None or (len(shown) > _FEW and len(more) < ENOUGH_ALONE):
            found.append((expert, shown))
            continue
        whole = joined([shown, by_place.pop(shown.place)], shown.key)
        found.append((replace(teach(whole, trees_only=trees_only), launch_s=expert.launch_s), whole))
    return found, list(by_place.values())


def _models(
    taught: Sequence[tuple[Expert, Shown]],
    whole: Sequence[Shown],
    launches: Mapping[str, float],
    run: Run,
    *,
    trees_only: bool,
) -> tuple[Model, ...]:
    # a kind with too few rows for its own model still teaches what ops have in common: a trace has few of each kind
    alike = grouped(
        (each for each in whole if is_plain(each.key, each.facts)),
        lambda each: (key_of_others(each.key), each.device.name),
    )
    plain = [together(each) for each in alike.values()]
    plain = [each for each in plain if sum(map(len, each)) >= LEAST_ROWS]
    kinds = grouped(sorted(taught, key=lambda pair: pair[0].device), lambda pair: pair[1].key)
    jobs: list[Callable[[], Any]] = [
        partial(teach_others, each, trees_only=trees_only, launch_s=launches.get(each[0].device.name, 0.0))
        for each in plain
    ]
    jobs += [partial(join, *zip(*kinds[key], strict=True)) for key in sorted(kinds)]
    found = list(run(call, jobs))
    of_others = grouped(zip(plain, found, strict=False), lambda pair: key_of_others(pair[0][0].key))
    models = []
    for key, pairs in sorted(of_others.items()):
        experts = tuple(expert for _, expert in pairs)
        # what to expect of an unknown op on an unknown device: at least what is missed by on known ones
        unseen = min(each.inside[0] for each in experts), max(each.inside[1] for each in experts)
        models.append(Model(key=key, experts=experts, unseen=unseen))
    return (*models, *found[len(plain) :])
