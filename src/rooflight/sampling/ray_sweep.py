"""A sweep as tasks on a Ray cluster. Only this process writes, one file a kind of device.

A task samples a few shapes and returns their rows. A task whose process or node dies is run again by Ray; what it had
sampled was not written yet, so no row is doubled, and what was written stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from rooflight.costs.operators.operator import Shape
from rooflight.records.quantity import count_of
from rooflight.records.samples import SUFFIX, Row, Rows, Status, read
from rooflight.sampling import store
from rooflight.sampling.executor.ray import Answer, Task, a_share, alive, answers, connect
from rooflight.sampling.job import DATA, Job, Keeper, Outcome
from rooflight.sampling.runner import Repeats, Sampler
from rooflight.sampling.store import Store
from rooflight.sampling.sweeps import Key, Sweep

RETRIES: Final = 5
CHUNK: Final = 8
_LOST: Final = "its process or node was lost more often than a task is retried"


def run(job: Job, sweep: Sweep, *, address: str, cold: bool, progress: Callable[[str], object]) -> tuple[Outcome, ...]:
    """Sample a sweep on the cluster at ``address`` (``"auto"``: the one this machine belongs to).

    A task has one GPU to itself where the cluster has any, else all the cores of a node. Raises ValueError where no
    cluster answers or ray is not installed.
    """
    ray = connect(address)
    nodes = alive(ray.nodes())
    cpus, gpus, slots = a_share(nodes)
    with ExitStack() as opened:
        running = _RunningSweep(job, sweep, progress, Rows(tuple(job.header("", {}, {}).parameters)), opened, slots)
        running.take_up()
        progress(f"{count_of(slots, 'task')} at a time on {count_of(len(nodes), 'node')}")

        def more() -> Task | None:
            shapes = running.chunk()
            arguments = (job.operator.name, job.dtype, "cuda" if gpus else "cpu", cold, asdict(job.repeats), shapes)
            task = Task(function=sample, arguments=arguments, cpus=cpus, gpus=gpus, retries=RETRIES, about=shapes)
            return task if shapes else None

        with closing(answers(ray, more, at_most=2 * slots)) as found:  # which cancels what runs
            for answer in found:
                running.keep(answer)
        return tuple(keeper.end() for keeper in running.keepers.values())


def sample(
    name: str, dtype: str, kind: str, cold: bool, repeats: Mapping[str, Any], shapes: Sequence[Shape]
) -> dict[str, Any]:
    """The task: rows of a few shapes, as JSON lines, with the facts of the device that made them."""
    from rooflight.costs.operators import registry

    device = "cuda:0" if kind == "cuda" else "cpu"  # Ray shows a task its GPU alone
    sampler = Sampler(device, dtype, Repeats(**repeats), cold=cold)
    operator = registry.find(name)
    return {
        "device": store.device_label(kind),
        "environment": store.environment_of(kind),
        "calibration": store.calibration_of(kind),
        "rows": [msgspec.json.encode(sampler.row(operator, shape)) for shape in shapes],
    }


@dataclass(slots=True)
class _RunningSweep:
    job: Job
    sweep: Sweep
    progress: Callable[[str], object]
    every: Rows
    open: ExitStack
    slots: int
    keepers: dict[str, Keeper] = field(default_factory=dict)
    taken: set[Key] = field(default_factory=set)

    def take_up(self) -> None:
        """Rows of an earlier run, whichever devices made them."""
        for path in sorted((self.job.out / DATA).glob(f"*_{self.job.base('')[1:]}{SUFFIX}")):
            header, rows = read(path)
            self.keeper_of(header.device, header.environment, header.calibration)
            for key, row in rows.items():
                if key not in self.every:
                    self.every.add(row)

    def chunk(self) -> list[dict[str, int]]:
        """A few shapes for one task; fewer where little is left, so that all slots end at about the same time."""
        total = self.sweep.total
        left = CHUNK if total is None else max(1, (total - len(self.every)) // (2 * self.slots))
        shapes: list[dict[str, int]] = []
        while len(shapes) < min(CHUNK, left) and (shape := self.sweep.next(self.every, self.taken)) is not None:
            self.taken.add(self.every.key(shape))
            shapes.append(dict(shape))
        return shapes

    def keep(self, answer: Answer) -> None:
        """Take the rows that a task sent, or that no node could finish. Raises RuntimeError for a task that failed."""
        if answer.error:
            raise RuntimeError(f"a task failed: {answer.error}")
        shapes: Sequence[Shape] = answer.task.about
        if answer.lost:
            note = f"{_LOST}: {answer.lost}"
            if not self.keepers:
                raise RuntimeError(f"no node has finished a task yet, and of one {note}")
            keeper = next(iter(self.keepers.values()))  # rows of no device belong to the first there is a file of
            rows = [Row(shape=dict(shape), status=Status.FAILED, note=note) for shape in shapes]
        else:
            sent = answer.value
            keeper = self.keeper_of(sent["device"], sent["environment"], sent["calibration"])
            rows = [msgspec.json.decode(line, type=Row) for line in sent["rows"]]
        for row in rows:
            keeper.keep(row)
            self.every.add(row)
        self.taken.difference_update(self.every.key(shape) for shape in shapes)

    def keeper_of(self, device: str, environment: Mapping[str, str], calibration: Mapping[str, str]) -> Keeper:
        if device not in self.keepers:
            header = self.job.header(device, environment, calibration)
            path = self.job.out / DATA / (self.job.base(device) + SUFFIX)
            opened = self.open.enter_context(Store(path, header))
            self.keepers[device] = self.open.enter_context(Keeper(self.job, self.sweep, opened, self.progress))
        return self.keepers[device]
