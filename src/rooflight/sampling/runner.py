"""The runner: makes an operator's tensors, runs it, and returns a row with a status."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rooflight.costs.operators.operator import Operator, Prepared, RefusedError, Shape, Work
from rooflight.hardware.machine.hardware import free_memory_bytes, usable_cores
from rooflight.hardware.machine.timing import Clock, ColdClock, CudaEvents, SteadyClock, flush_of, measure
from rooflight.records.measurement import undisturbed
from rooflight.records.samples import Row, Status
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED

Run = Callable[[], object]
Sampled = tuple[Status, dict[str, tuple[float, ...]], str]
"""Status, seconds by direction, and why the status is not ok."""

FEWEST = 3
"""Samples of a direction below which a row is not ok."""
_LONG = 0.1
_MEMORY_SHARE = 0.9
_SHORT_S = 200e-6
_SPIN_CYCLES = 3_000_000  # more than a millisecond: what it takes to queue a backward of many small kernels
_NO_MEMORY: Final = ("out of memory", "can't allocate memory", "not enough memory")
_CANNOT: Final = ("not implemented", "not supported", "unsupported", "expected inputs of", "only supports", "requires")
_NOTE_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often a direction is run: untimed ``warmups``, then at least ``least`` samples, until they spread (quartiles
    over median) by at most ``spread``, ``most`` are taken, or ``box_s`` seconds are over.
    """

    warmups: int = 2
    least: int = 7
    most: int = 10
    spread: float = 0.05
    box_s: float = 5.0


class Sampler:
    """Times operators on one device: ``"cpu"``, or ``"cuda:1"`` and the like.

    ``cold`` samples start with caches that hold something else. ``meet`` is called before each sample, such as a
    barrier of ranks. ``clock`` replaces the device's, for tests.
    """

    def __init__(
        self,
        device: str,
        dtype: str,
        repeats: Repeats,
        *,
        cold: bool = True,
        meet: Run | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.device, self.dtype, self.repeats, self.cold, self._meet = device, dtype, repeats, cold, meet
        self.kind: str = "cuda" if device.startswith("cuda") else "cpu"
        self._clock = clock or self._device_clock()

    def row(self, operator: Operator, shape: Shape) -> Row:
        """Sample a shape. Never raises for what a shape can do wrong: that is the row's status."""
        return row_of(shape, lambda: self._outcome(operator, shape))

    def warm_up(self, operator: Operator, shape: Shape) -> None:
        """Run a shape once without timing it; one that cannot run is left alone."""
        if operator.refusal(shape) is None and not self._too_large(operator.work(shape, self.dtype)):
            self._outcome(operator, shape, warm_up=True)

    def _outcome(self, operator: Operator, shape: Shape, *, warm_up: bool = False) -> Sampled:
        import torch

        if why := operator.refusal(shape):
            return Status.REFUSED, {}, why
        if why := self._too_large(operator.work(shape, self.dtype)):
            return Status.OUT_OF_MEMORY, {}, why
        samples: dict[str, tuple[float, ...]] = {}
        try:
            with undisturbed():
                prepared = operator.prepare(torch, shape, self.dtype, self.device)
                for direction, run in _directions(operator, prepared):
                    if warm_up:
                        run()
                        continue
                    samples[direction] = self._samples(run, ranks=operator.ranks)
        except RefusedError as error:
            return Status.UNSUPPORTED, {}, str(error)
        except Exception as error:  # what a kernel refuses shows only when it runs
            status, note = failure_of(error, self.kind)
            return status, {}, note
        if any(len(taken) < FEWEST for taken in samples.values()):
            return Status.TIME_BOX, samples, f"{FEWEST} samples take more than {self.repeats.box_s:g} s"
        return Status.OK, samples, ""

    def _samples(self, run: Run, *, ranks: bool) -> tuple[float, ...]:
        """Time one direction. Ranks of a collective all take the same number of samples, so none waits for ever."""
        repeats = self.repeats
        first_s = SteadyClock().time_s(lambda: self._finish(run))
        if not ranks and first_s > repeats.box_s:
            return (first_s,)
        short = self.kind == "cuda" and first_s < _SHORT_S and not ranks
        timed = _replayed(run) if short else run
        timing = measure(
            timed,
            clock=self._clock,
            spread=0.0 if ranks else repeats.spread,
            box_s=1e6 if ranks else repeats.box_s,
            min_samples=repeats.least,
            max_samples=repeats.least if ranks else repeats.most,
            # a long run needs no second one to warm up: it would take the place of a sample
            warmups=0 if not ranks and first_s > _LONG * repeats.box_s else max(0, repeats.warmups - 1),
        )
        return timing.samples_s

    def _device_clock(self) -> Clock:
        before = [flush_of(self.device)] if self.cold else []
        before += [self._meet] if self._meet is not None else []

        def prepare() -> None:
            for each in before:
                each()

        if self.kind == "cuda":
            return CudaEvents(flush=prepare, spin_cycles=_SPIN_CYCLES)
        return ColdClock(SteadyClock(), prepare)

    def _finish(self, run: Run) -> None:
        run()
        if self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def _too_large(self, work: Work) -> str:
        free = free_memory_bytes(self.kind)
        needed = needed_bytes(work)
        if free is None or needed <= _MEMORY_SHARE * free:
            return ""
        return f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"


def failure_of(error: Exception, kind: str) -> tuple[Status, str]:
    """The status and note of a shape whose run raised on a device of a kind, "cpu" or "cuda".

    Raises RuntimeError where the device itself failed: this process can use it no more.
    """
    import torch

    words, kind_of_error = " ".join(str(error).split()), type(error).__name__
    # torch raises RuntimeError with a whole sentence; a KeyError says no more than the key
    whole = bool(words) and isinstance(error, RuntimeError)
    note = (words if whole else f"{kind_of_error}: {words}".removesuffix(": "))[:_NOTE_LENGTH]
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        raise RuntimeError(f"the device failed and needs a new process: {note}") from error
    text = str(error).lower()
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _NO_MEMORY):
        error.__traceback__ = None  # it holds the tensors that did not fit
        if kind == "cuda":
            torch.cuda.empty_cache()
        return Status.OUT_OF_MEMORY, note
    unsupported = isinstance(error, NotImplementedError) or any(words in text for words in _CANNOT)
    return (Status.UNSUPPORTED if unsupported else Status.FAILED), note


def row_of(shape: Shape, sample: Callable[[], Sampled]) -> Row:
    """The row of a shape, and what sampling it took."""
    began_s = time.perf_counter()
    status, samples_s, note = sample()
    return Row(
        shape=dict(shape),
        status=status,
        samples_s=samples_s,
        spent_s=round(time.perf_counter() - began_s, 6),
        when=datetime.now(UTC).isoformat(timespec="milliseconds"),
        note=note,
    )


def needed_bytes(work: Work) -> int:
    """About what a run holds at once: the inputs of its largest call, all results, and a gradient of the last."""
    calls = (*work.forward, *work.backward)
    inputs = max((call.input_bytes for call in calls), default=0)
    results = sum(_new_bytes(call) for call in calls)
    gradient = _new_bytes(work.forward[-1]) if work.backward else 0
    return inputs + results + gradient


@contextmanager
def pinned(threads: int | None) -> Iterator[int]:
    """Keep this process on as many cores as it has threads, so that the system moves none. Yields the threads.

    Raises ValueError for more threads than there are cores. Afterwards threads and cores are as before.
    """
    import torch

    cores, before = usable_cores(), torch.get_num_threads()
    count = min(before, len(cores)) if threads is None else threads
    if not 1 <= count <= len(cores):
        raise ValueError(f"--threads {count}: this process may use 1 to {len(cores)} cores")
    torch.set_num_threads(count)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores[:count])
    try:
        yield count
    finally:
        torch.set_num_threads(before)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)


def _directions(operator: Operator, prepared: Prepared) -> Iterator[tuple[str, Run]]:
    yield operator.directions[0], prepared.forward
    if prepared.backward is not None:
        result, backward = prepared.forward(), prepared.backward
        yield operator.directions[1], lambda: backward(result)


def _new_bytes(call: OpSignature) -> int:
    return sum(tensor.nbytes for tensor in call.outputs if tensor.storage == UNSHARED)


def _replayed(run: Run) -> Run:
    """The call as a CUDA graph, so that no launch lies between its kernels; the call itself where none can be made."""
    from rooflight.hardware.machine.cuda import graph_of

    try:
        return graph_of(run, 1)
    except RuntimeError:  # data-dependent sizes, a backward tied to another stream
        return run
