"""The Ray executor: a sweep as tasks on an existing cluster. Only this process writes, one file a kind of device.

A task samples a few shapes and returns their rows. A task whose node dies is run again elsewhere by Ray; what it had
sampled was not written yet, so no row is doubled, and what was written stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from rooflight.operators.operator import Shape
from rooflight.records.quantity import count_of
from rooflight.records.samples import SUFFIX, Row, Rows, Status, read
from rooflight.sampling import store as provenance
from rooflight.sampling.executor.ray import connect
from rooflight.sampling.job import DATA, Job, Keeper, Outcome
from rooflight.sampling.runner import Repeats, Sampler
from rooflight.sampling.store import Store
from rooflight.sampling.sweeps import Key, Sweep

RETRIES: Final = 5
CHUNK: Final = 8
_LOST: Final = "its node was lost more often than a task is retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """What a task needs: plain data, since it travels to another machine."""

    operator: str
    dtype: str
    kind: str
    cold: bool
    repeats: Mapping[str, Any]
    shapes: tuple[Mapping[str, int], ...]


@dataclass(slots=True)
class _RunningSweep:
    """The stores by device, and which shapes are under way."""

    job: Job
    sweep: Sweep
    progress: Callable[[str], object]
    every: Rows
    open: ExitStack
    keepers: dict[str, Keeper] = field(default_factory=dict)
    taken: set[Key] = field(default_factory=set)

    def keep(self, answer: Mapping[str, Any], shapes: Sequence[Shape]) -> None:
        """Take what a task sent."""
        keeper = self.keeper_of(answer["device"], answer["environment"], answer["calibration"])
        for line in answer["rows"]:
            row = msgspec.json.decode(line, type=Row)
            keeper.keep(row)
            self.every.add(row)
        self.taken.difference_update(self.every.key(shape) for shape in shapes)

    def lose(self, shapes: Sequence[Shape], note: str) -> None:
        """Rows of shapes that no node could finish; they belong to the first device there is a file of."""
        for shape in shapes:
            if not self.keepers:
                raise RuntimeError(f"no node has finished a task yet, and of one {note}")
            row = Row(shape=dict(shape), status=Status.FAILED, note=note)
            self.every.add(row)
            next(iter(self.keepers.values())).keep(row)
            self.taken.discard(self.every.key(shape))

    def keeper_of(self, device: str, environment: Mapping[str, str], calibration: Mapping[str, str]) -> Keeper:
        if device not in self.keepers:
            header = self.job.header(device, environment, calibration)
            store = self.open.enter_context(_store(self.job, device, header))
            self.keepers[device] = Keeper(self.job, self.sweep, store, self.progress)
        return self.keepers[device]


def run(job: Job, sweep: Sweep, *, address: str, cold: bool, progress: Callable[[str], object]) -> tuple[Outcome, ...]:
    """Sample a sweep on the cluster at ``address`` (``"auto"``: the one this machine belongs to).

    A task has one GPU to itself where the cluster has any, else all the cores of a node. Raises ValueError where no
    cluster answers or ray is not installed.
    """
    ray = connect(address)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    kind = "cuda" if any(node["Resources"].get("GPU") for node in nodes) else "cpu"
    cores = min((int(node["Resources"].get("CPU", 1)) for node in nodes if node["Resources"].get("CPU")), default=1)
    share = {"num_gpus": 1, "num_cpus": 1} if kind == "cuda" else {"num_cpus": cores}
    task = ray.remote(**share, max_retries=RETRIES)(sample)
    slots = max(1, sum(int(node["Resources"].get("GPU" if kind == "cuda" else "CPU", 0)) for node in nodes))
    slots = slots if kind == "cuda" else max(1, slots // cores)
    with ExitStack() as opened:
        running = _RunningSweep(job, sweep, progress, Rows(tuple(job.header("", {}, {}).parameters)), opened)
        _take_up(running)
        progress(f"{count_of(slots, 'task')} at a time on {count_of(len(nodes), 'node')}")
        try:
            _drive(ray, task, running, TaskInput(**_task_input(job, kind, cold), shapes=()), slots)
        finally:
            outcomes = tuple(keeper.end() for keeper in running.keepers.values())
    return outcomes


def sample(given: Mapping[str, Any]) -> dict[str, Any]:
    """The task: rows of a few shapes, as JSON lines, with the facts of the device that made them."""
    from rooflight.operators import registry

    operator = registry.find(given["operator"])
    kind = given["kind"]
    device = "cuda:0" if kind == "cuda" else "cpu"  # Ray shows a task its GPU alone
    sampler = Sampler(device, given["dtype"], Repeats(**given["repeats"]), cold=given["cold"])
    return {
        "device": provenance.device_label(kind),
        "environment": provenance.environment_of(kind),
        "calibration": provenance.calibration_of(kind),
        "rows": [msgspec.json.encode(sampler.row(operator, shape)) for shape in given["shapes"]],
    }


def _drive(ray: Any, task: Any, running: _RunningSweep, given: TaskInput, slots: int) -> None:
    """Keep every slot busy until the sweep has no more shapes and every task has answered."""
    under_way: dict[Any, tuple[Shape, ...]] = {}
    while True:
        while len(under_way) < 2 * slots and (shapes := _chunk(running, slots)):
            sent = {**asdict(given), "shapes": [dict(shape) for shape in shapes]}
            under_way[task.remote(sent)] = shapes
        if not under_way:
            return
        done, _ = ray.wait(list(under_way), num_returns=1)
        shapes = under_way.pop(done[0])
        try:
            answer = ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"a task failed: {str(error.cause).splitlines()[0]}") from None
        except ray.exceptions.RayError as error:
            running.lose(shapes, f"{_LOST}: {type(error).__name__}")
            continue
        running.keep(answer, shapes)


def _chunk(running: _RunningSweep, slots: int) -> tuple[Shape, ...]:
    """A few shapes for one task; fewer where little is left, so that all slots end at about the same time."""
    total = running.sweep.total
    left = CHUNK if total is None else max(1, (total - len(running.every)) // (2 * slots))
    shapes: list[Shape] = []
    while len(shapes) < min(CHUNK, left):
        shape = running.sweep.next(running.every, running.taken)
        if shape is None:
            break
        running.taken.add(running.every.key(shape))
        shapes.append(shape)
    return tuple(shapes)


def _take_up(running: _RunningSweep) -> None:
    """Rows of an earlier run, whichever devices made them."""
    for path in sorted((running.job.out / DATA).glob(f"*_{running.job.base('')[1:]}{SUFFIX}")):
        header, rows = read(path)
        running.keeper_of(header.device, header.environment, header.calibration)
        for key, row in rows.items():
            if key not in running.every:
                running.every.add(row)


def _store(job: Job, device: str, header: Any) -> Store:
    return Store(job.out / DATA / (job.base(device) + SUFFIX), header)


def _task_input(job: Job, kind: str, cold: bool) -> dict[str, Any]:
    return {
        "operator": job.operator.name,
        "dtype": job.dtype,
        "kind": kind,
        "cold": cold,
        "repeats": asdict(job.repeats),
    }
