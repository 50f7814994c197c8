"""Loading: waits for the data loader, and how many workers end them, counted from its time, the cores, the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from rooflight.diagnosis.draft import LEAST, Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.remedies.own_lines import at_line, hottest_line
from rooflight.records.account import Cause
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.timeline import HostLine, IdleCause, Within

LOADER: Final = Remedy(
    id="loader",
    title="the step waits for data",
    short="num_workers=N in the DataLoader",
    rest="persistent_workers=True; cheaper transforms, or data prepared once",
    verify="the time in the data loader is gone from the step",
)
WORKERS: Final = Remedy(
    id="workers-anew",
    title="loader workers start anew in each step",
    short="persistent_workers=True",
    rest="in the DataLoader, and one loader that is kept",
)
_MOST_WORKERS: Final = 8
_AS_GOOD: Final = 1.05
_KEPT: Final = 0.5  # of the loading is taken to be left where data are prepared once


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """``waits_s`` of an iteration for a batch, the rest of it takes ``rest_s``. Who loads was such a share of its time
    ``asleep``: ``workers``, or none of them if the main thread does so itself. ``loads_s``: what the workers took for a
    batch, all together, where they were looked at. ``line``: where the dataset took longest.
    """

    waits_s: float
    rest_s: float
    asleep: float
    workers: int
    line: HostLine | None
    evidence: str
    loads_s: float = 0.0

    @property
    def batch_s(self) -> float:
        """What loading a batch takes one process."""
        return self.loads_s or (self.workers * (self.waits_s + self.rest_s) if self.workers else self.waits_s)

    def with_workers(self, cores: int, threads: int, busy_cores: float) -> tuple[int, float]:
        """How many workers suffice, and seconds of an iteration with them: no less than the step, than a worker's share
        of the loading, and than the cores need for all that computes. ``busy_cores``: those that workers keep busy now.
        """
        busy = min(1.0, busy_cores / self.workers) if self.workers and not self.loads_s else 1 - self.asleep
        least_s = max(self.rest_s, (self.rest_s * min(threads, cores) + self.batch_s * busy) / cores)
        takes = {count: max(least_s, self.batch_s / count) for count in range(1, _MOST_WORKERS + 1)}
        enough = min(takes.values()) * _AS_GOOD
        return next((count, seconds) for count, seconds in takes.items() if seconds <= enough)


def loading(of: Evidence) -> Loading | None:
    """What is known of the loader, in the step or before it; None where it takes no time."""
    between = of.session.run.between if of.session.run is not None else ()
    for each in between:
        if each.name == "loader":
            lines = each.inside or each.lines
            asleep_s = sum(line.asleep_s for line in lines)
            text = f"{Quantity(each.seconds, 's')} before each step, {percent(each.share)} of the time"
            text += f", with {count_of(each.workers, 'worker')} now" if each.workers else ""
            text += ", the first batch is the same in each epoch" if each.again else ""
            took_s = sum(line.seconds for line in lines)
            return Loading(
                waits_s=each.seconds,
                rest_s=of.whole_s - each.seconds,
                asleep=asleep_s / took_s if took_s else 0.0,
                workers=each.workers,
                line=hottest_line([(line.seconds, line) for line in lines]),
                evidence=text,
                loads_s=took_s if each.inside else 0.0,
            )
    waits_s, asleep_s, line = of.in_library(Within.LOADER)
    if not waits_s:
        return None
    # who only waits for workers has no line of the dataset; how many there are is not known
    workers = 0 if line is not None and line.where else 1
    return Loading(waits_s=waits_s, rest_s=of.step_s - waits_s, asleep=asleep_s / waits_s, workers=workers, line=line,
                   evidence=f"{Quantity(waits_s, 's')} a step in the data loader")  # fmt: skip


def loader(facts: Facts) -> Iterable[Draft]:
    """The data loader, in the step or between steps."""
    of = facts.of
    if of.idle is not None and of.idle.data_loader_s:
        lost_s, rest_s = of.idle.data_loader_s, max(0.0, of.step_s - of.idle.data_loader_s)
        text = f"the device is idle for {Quantity(lost_s, 's')} while the host fetches a batch"
        gain_s = lost_s - max(0.0, lost_s / 4 - rest_s)
        yield from facts.waiting(
            LOADER, (Cause.LOADER,), lost_s, gain_s, text + of.mostly_in(IdleCause.DATA_LOADER), 0.6
        )
        return
    found = loading(of)
    if found is None or of.in_library(Within.STARTING)[0] > 0.01 * of.step_s:
        return
    here = of.session.environment
    threads = int(here.get("torch_threads", "1"))
    cores = int(here.get("cores_usable", threads + 1))
    others = of.analysis.measurement.others_share if of.analysis.measurement is not None else None
    count, takes_s = found.with_workers(cores, threads, (others or 0.0) * cores)
    gain_s = found.waits_s + found.rest_s - takes_s
    text = f"{found.evidence}, {percent(found.asleep)} of the loading asleep: {at_line(found.line)}"
    place = found.line.where if found.line is not None else None
    if count > found.workers and gain_s >= LEAST * of.whole_s:
        remedy = replace(LOADER, short=LOADER.short.replace("=N", f"={count}"))
        yield from facts.waiting(
            remedy,
            (Cause.LOADER,),
            found.waits_s,
            gain_s,
            f"{text}; {count} would take {Quantity(takes_s, 's')}",
            0.6,
            place,
        )
    else:
        prepared = replace(LOADER, title=f"{LOADER.title}, and more workers would not help",
                           short="prepare the data once and keep it", rest="or make its lines cheaper")  # fmt: skip
        yield from facts.waiting(prepared, (Cause.LOADER,), found.waits_s, _KEPT * found.waits_s, text, 0.3, place)


def workers(facts: Facts) -> Iterable[Draft]:
    """Processes that start in the step, and the waits of those who start them."""
    started_s, _, line = facts.of.in_library(Within.STARTING)
    if line is None or started_s < 0.01 * facts.of.step_s:
        return
    waited_s, _, _ = facts.of.in_library(Within.PROCESS, Within.LOADER)
    lost_s = started_s + waited_s
    text = f"{Quantity(lost_s, 's')} a step to start workers and to wait for their first batch: {at_line(line)}"
    yield from facts.waiting(WORKERS, (Cause.LOADER, Cause.SUBPROCESS), lost_s, lost_s, text, place=line.where)


RULES: Final = (workers, loader)
