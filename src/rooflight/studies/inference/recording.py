"""Recording steps for their bounds: those of an engine, and decode steps of a model on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING, Any, Final

from rooflight.front.device import find_device
from rooflight.records.session import Session
from rooflight.roofline.time_by_place import UNATTRIBUTED
from rooflight.sources.capture.time.buckets import IN_STEP, Bucket, RecordedBuckets
from rooflight.studies.inference.bounds import RecordedBounds, RecordedStep
from rooflight.studies.inference.config import Domain
from rooflight.studies.inference.facts import DECODE, Facts
from rooflight.studies.inference.runs import Results
from rooflight.studies.inference.sums import UNKNOWN
from rooflight.studies.inference.timers import BucketTimers

if TYPE_CHECKING:
    from torch import nn

    from rooflight.hardware.devices.spec import DeviceSpec
    from rooflight.sources.capture.record.recorder import record

_MOST_STEPS: Final = 256

MOST_BOUNDED: Final = 64
"""Pairs of batch size and KV length of which a step is recorded: each takes a prefill and a step without values."""


class StepRecorder:
    """Records steps between ``begin`` and ``end``. ``on_problem`` gets sentences (``RecordedBuckets``).

    ``batch`` is that of the next steps which give none. Of steps with the same batch and KV length the last is kept.
    """

    def __init__(self, on_problem: Callable[[str], None], batch: int | None, *, whole: bool) -> None:
        self.batch = batch
        self._on_problem = on_problem
        self._whole = whole
        self._timer = RecordedBuckets(tuple(Domain), on_problem)
        self._recording: record | None = None
        self._steps: dict[tuple[int | None, float | None], RecordedStep] = {}

    @property
    def steps(self) -> tuple[RecordedStep, ...]:
        """The steps recorded so far."""
        return tuple(self._steps.values())

    def bucket(self, domain: Domain, name: str) -> Bucket:
        """The bucket of a domain that has a name."""
        return self._timer.bucket(domain, name)

    def begin(self) -> None:
        """A step begins."""
        from rooflight.sources.capture.record.recorder import record  # loads torch

        self._recording = record(phases=False, on_error=self._failed)
        self._recording.__enter__()
        self._timer.begin(self._recording.set_phase)

    def end(self, facts: Facts, *, raised: bool) -> None:
        """The step ends. A decode step is kept, unless it raised: then it did not do all that a step must."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            self._timer.end()
        finally:
            recording.__exit__()
        if not raised and facts.phase == DECODE:
            self._keep(recording.session, facts)

    def _keep(self, session: Session, facts: Facts) -> None:
        key = facts.batch, facts.length
        if not session.counted.any():
            self._on_problem(
                "a recorded step ran no op that torch sees in its thread, as the replay of a CUDA graph: no bound"
            )
        elif key not in self._steps and len(self._steps) >= _MOST_STEPS:
            self._on_problem(f"more than {_MOST_STEPS} different steps were recorded: the rest is left out")
        else:
            self._steps[key] = RecordedStep(
                batch=facts.batch,
                kv_length=facts.length,
                sessions={domain: self._by_bucket(session, domain) for domain in Domain},
                whole=self._whole,
                kv_cache_bytes=facts.cache_bytes,
            )

    def _by_bucket(self, session: Session, domain: Domain) -> Session:
        states = [int(name) if name else IN_STEP for name in session.phases]
        names = tuple(self._timer.innermost(domain, state) or UNATTRIBUTED for state in states)
        return replace(session, phases=names)

    def _failed(self, error: Exception) -> None:
        self._on_problem(f"recording a step: {type(error).__name__}: {error}")


@contextmanager
def recorded_steps(
    timers: BucketTimers, book: RecordedBounds, device: DeviceSpec | None, batch: int | None, *, whole: bool
) -> Iterator[None]:
    """Record steps, of ``batch`` sequences if they give none, and put their bounds for a device into ``book``."""
    recorder = StepRecorder(timers.problems.note, batch, whole=whole)
    before = timers.record(recorder)
    try:
        yield
    finally:
        timers.record(before)
        try:
            if recorder.steps:
                session = next(iter(recorder.steps[0].sessions.values()))
                book.add(recorder.steps, device or find_device(session=session))
        except Exception as error:
            timers.problems.error("bounding recorded steps", error)


def add_bounds(
    model: Any,
    device: DeviceSpec | str | None,
    timers: BucketTimers,
    book: RecordedBounds,
    results: Results,
    reduction: str,
    *,
    lora: bool | None,
) -> None:
    """``Profiler.add_bounds`` of what ``results`` has, whose KV lengths were reduced so. ``lora``: hook the model for
    this while, with LoRA adapters apart or not; None leaves it as it is.
    """
    import torch

    from rooflight.studies.inference.engines.model import ModelHooks

    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"add_bounds takes a torch.nn.Module, not {type(model).__name__}")
    kinds = {parameter.device.type for parameter in model.parameters()}
    spec = find_device(device or ("cuda" if "cuda" in kinds else "cpu"))
    wanted = measured_steps(results, reduction)
    if not wanted:
        timers.problems.note(
            "add_bounds: no step of known batch and KV length was measured: call it after the runs, with bsz given to "
            "begin_run() and set_step_seq_len() called in each step"
        )
        return
    hooks = nullcontext() if lora is None else ModelHooks(timers).attached(model, lora=lora)
    with hooks, _on_meta(model):
        for batch, length in wanted:
            with recorded_steps(timers, book, spec, batch, whole=False):
                _decode_step(timers, model, batch, length, length * batch if reduction == "sum" else length)


def measured_steps(results: Results, reduction: str) -> list[tuple[int, int]]:
    """Batch and mean KV length of what was measured, rounded down: the bound of a shorter step is one of a longer. Of
    more than ``MOST_BOUNDED`` those that took most time; the others are noted.
    """
    time_ns: dict[tuple[int, int], int] = {}
    for (batch, number), cell in results.cells.items():
        if batch != UNKNOWN and cell.length is not None and number in results.decode:
            key = batch, floor(cell.length / batch if reduction == "sum" else cell.length)
            time_ns[key] = time_ns.get(key, 0) + cell.time_ns
    if len(time_ns) > MOST_BOUNDED:
        results.problems.note(
            f"bounds: of {len(time_ns)} pairs of batch size and KV length, the {MOST_BOUNDED} that took most time were "
            "recorded"
        )
    return sorted(sorted(time_ns, key=lambda key: -time_ns[key])[:MOST_BOUNDED])


def _decode_step(timers: BucketTimers, model: nn.Module, batch: int, cached: int, length: int) -> None:
    import torch

    def ids(count: int) -> torch.Tensor:
        return torch.empty((batch, count), dtype=torch.int64, device="meta")

    try:
        with torch.inference_mode():
            cache = model(input_ids=ids(cached), use_cache=True).past_key_values if cached else None
            new = ids(1)
            with timers.step:
                timers.step.facts.set("length", length)
                timers.step.facts.set_cache(0 if cache is None else cache)
                model(input_ids=new, past_key_values=cache, use_cache=True)
    except Exception as error:  # whatever a model's own code raises
        raise ValueError(
            f"{type(model).__name__} cannot be called without values ({type(error).__name__}: {str(error)[:200]}): put "
            "some steps of the engine into record_steps() instead"
        ) from error


@contextmanager
def _on_meta(model: nn.Module) -> Iterator[None]:
    """The model with tensors of the meta device in the place of its own: shapes, but no values. Its own come back, and
    whatever else the calls inside changed in its modules.
    """
    import torch

    swapped: dict[int, Any] = {}

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in swapped:  # tied weights stay tied
            empty = value.detach().to("meta")
            is_parameter = isinstance(value, torch.nn.Parameter)
            swapped[id(value)] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return swapped[id(value)]

    own = [(module, dict(vars(module))) for module in model.modules()]
    try:
        for module, attributes in own:
            tensors = {
                name: {key: meta(each) for key, each in attributes[name].items()}
                for name in ("_parameters", "_buffers")
            }
            vars(module).update({name: meta(value) for name, value in attributes.items()} | tensors)
        yield
    finally:
        for module, attributes in own:
            vars(module).clear()
            vars(module).update(attributes)
