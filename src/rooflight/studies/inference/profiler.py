"""Profiler: the steps of an inference engine, run by run, without disturbing them; and the one that is active.

Mistakes in its settings raise when it is made, and mistakes in what is attached when it is attached. No other method
raises: what cannot be measured is noted in the results (``problems``), logged once, and the engine goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.hardware.machine.timing import Device
from rooflight.records.quantity import percent
from rooflight.studies.inference import timers
from rooflight.studies.inference.bounds import RecordedBounds
from rooflight.studies.inference.clocks import Meter, device_now
from rooflight.studies.inference.config import Domain, ProfilerConfig, folder_name, generate_run_name, given_in
from rooflight.studies.inference.facts import LengthBins, StepFacts, batch_size
from rooflight.studies.inference.problems import Problems, guarded
from rooflight.studies.inference.report import report_of
from rooflight.studies.inference.result import STEPS, ConfigDocument, SummaryDocument, SummaryMeta, WorkloadData
from rooflight.studies.inference.runs import Results, Run, run_line
from rooflight.studies.inference.saving import merge_saved, plain, print_line, save_config, save_results, summary_of
from rooflight.studies.inference.serving import Requests
from rooflight.studies.inference.step import OnStep, StepContext, rank_and_world
from rooflight.studies.inference.timers import OFF, BucketTimers, Timer

if TYPE_CHECKING:
    from rooflight.hardware.devices.spec import DeviceSpec
    from rooflight.studies.inference.engines.hooks import AttachedEngine
    from rooflight.studies.inference.engines.mapping import EngineMapping
    from rooflight.studies.inference.engines.model import ModelHooks

_log = logging.getLogger("rooflight")

_UNATTRIBUTED_SHARE: Final = 0.2
"""Of an engine's steps: from here on the methods that have no bucket are named."""


class Profiler:
    """Measures steps as ``args`` say: a ``ProfilerConfig``, a namespace or a mapping (``ProfilerConfig.from_args``).

    ``device``: ``"cuda"`` times steps with CUDA events, ``"cpu"`` with the host's clock; None decides at each
    ``begin_run`` by whether torch uses CUDA in this process. Tests put a ``Device`` and a ``clock`` (nanoseconds) in
    their place. ``on_step`` gets each measured step when it is read, for a trace. Raises ValueError for settings that
    cannot be.

    Where ``collect_on_rank0_only`` is set and this is another rank it is ``disabled``: calls do nothing, but for the
    barriers of ``dist_barrier``, which rank 0 would wait in for ever.
    """

    def __init__(
        self,
        args: Any = None,
        *,
        device: Device | str | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        on_step: OnStep | None = None,
    ) -> None:
        if isinstance(device, str) and device not in ("cpu", "cuda"):
            raise ValueError(f'device is "{device}": give "cpu", "cuda" or None')
        self.cfg = cfg = ProfilerConfig.from_args(args)
        self.runner_args: Mapping[str, Any] = dict(given_in(args))
        self.rank, self.world = rank_and_world()
        self.created_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.disabled = isinstance(self, NullProfiler) or (cfg.collect_on_rank0_only and self.rank != 0)
        self.run_name = folder_name(cfg.run_name) if cfg.run_name else generate_run_name(args)
        folder = Path(cfg.output_dir) / self.run_name
        self.out_dir = folder if self.rank == 0 else folder / f"rank{self.rank}"
        self.problems = Problems()
        switches = {Domain.MODEL: cfg.model_profiling, Domain.ENGINE: cfg.engine_profiling}
        profiled = [domain for domain, on in switches.items() if on]
        self.results = Results(bins=LengthBins(cfg.kv_bins), profiled=profiled, problems=self.problems)
        self.workload: WorkloadData | None = None
        self.bounds = RecordedBounds()
        self.requests = Requests(clock, cfg, self.problems)
        self._facts = StepFacts(cfg.kv_len_reduce, self.problems)
        self.step = StepContext(
            self._facts,
            self.results,
            self.problems,
            barrier=cfg.dist_barrier,
            on_step=on_step,
            on_unmeasured=self._outside_of_runs,
        )
        self.timers = BucketTimers(self.step, profiled, self.problems)
        self._context: Timer = OFF if self.disabled and not cfg.dist_barrier else self.step
        self._device, self._clock, self._in_order = device, clock, on_step is not None
        self._models: ModelHooks | None = None
        self._engines: list[AttachedEngine] = []
        self._runs_begun = self._saved_steps = 0
        self._bsz: int | None = None
        self._warming_up = False
        if not self.disabled:
            if cfg.run_name and self.run_name != cfg.run_name:
                _log.warning("rooflight: the folder of run %r is called %r", cfg.run_name, self.run_name)
            try:
                self.out_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.problems.error("making the output folder", error)
            atexit.register(_save_at_exit, weakref.ref(self), os.getpid())

    # -- runs ---------------------------------------------------------------------------------------------------------

    @guarded
    def begin_run(self, bsz: int | None = None, label: str = "decode", *, baseline: bool = False) -> None:
        """Begin a run of steps with a batch of ``bsz`` sequences, unless a step has another (``set_step_batch``). The
        first ``warmup_runs`` are not measured. A ``baseline`` is a run without a draft that others are compared with:
        apart from its own row it counts only in ``speculative``.
        """
        if self.disabled:
            return
        self.timers.end_capture()  # one that was never ended
        if self.step.recorder is not None:
            self.step.recorder.batch = self._bsz = self._batch(bsz)
            return
        if self.in_run:
            self.problems.note("begin_run() while a run was open: it was ended there")
            self.end_run()
        self._bsz = self._batch(bsz)
        number, self._runs_begun = self._runs_begun, self._runs_begun + 1
        self._warming_up = number < self.cfg.warmup_runs
        if self._warming_up:
            return
        meter = self._meter_now()
        run = Run(
            number=number,
            label=str(label)[:200],
            batch=self._bsz,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            clock=meter.clock,
            bins=self.results.bins,
            baseline=baseline,
            memory_before=meter.memory(),
        )
        self.step.measure(run, meter)

    @guarded
    def end_run(self) -> None:
        """End the run; waits for the device, so that its last steps are known."""
        if self.disabled or self.step.recorder is not None:
            return
        if self.step.is_open:
            self.problems.note("end_run() inside a step: that step was not measured")
            self.step.give_up()
        run, meter = self.step.run, self.step.meter
        if self._warming_up:
            self._warming_up = False
            self.results.warmup_runs += 1
        elif run is None or meter is None:
            self.problems.note("end_run() without begin_run(): nothing was ended")
        else:
            self.step.end_run()
            found = self.results.finish(run, meter)
            rest, step_ms = found.unattributed_engine_ms, found.stats.mean_ms
            for engine in self._engines:
                if engine.untimed and rest and step_ms and rest > _UNATTRIBUTED_SHARE * step_ms:
                    self.problems.note(
                        f"over {percent(_UNATTRIBUTED_SHARE)} of the steps of a run is in no bucket of the engine: "
                        f"an EngineMapping can time more methods of {engine.untimed}"
                    )
            if self.cfg.print_per_run:
                print_line(run_line(found))

    @property
    def in_run(self) -> bool:
        """Whether a run is open, a warm-up run or a measured one."""
        return self.step.run is not None or self._warming_up

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_timing_ctx(self) -> Timer:
        """A context around one step. Outside of a run, and in warm-up runs, it measures nothing."""
        return self._context

    def set_step_tokens(self, n: Any) -> None:
        """The number of tokens accepted in the open step: a number, or a tensor of one. A tensor on a device is read
        when its step is.
        """
        if self.step.measuring or self._ignored("set_step_tokens"):
            self._facts.set("tokens", n)

    def set_step_seq_len(self, kv_len: Any) -> None:
        """The KV-cache length at the start of the open step: a number, or those of the batch in a list, array or
        tensor, which ``cfg.kv_len_reduce`` makes one. A tensor on a device is read when its step is.
        """
        if self.step.measuring or self._ignored("set_step_seq_len"):
            self._facts.set("length", kv_len)

    def set_step_batch(self, n: Any) -> None:
        """The number of sequences in the open step, where it is not that of the run, as with continuous batching: a
        number, or a tensor of one. Without it, a run of unknown batch has as many as KV lengths are given in a list.
        """
        if self.step.measuring or self._ignored("set_step_batch"):
            self._facts.set("batch", n)

    def set_step_speculation(self, proposed: Any, accepted: Any, depth: Any = None) -> None:
        """Draft tokens proposed in the open step, and those of them that the target accepted, without the token that it
        adds itself: numbers for one sequence, one per sequence in a list, array or tensor for a batch (``proposed`` and
        ``depth`` may be one number for all). Of a tree ``proposed`` are all nodes, and ``depth`` is the length of its
        longest path. A step in which this is called is *speculative*; its tokens are set with ``set_step_tokens``.
        """
        if self.step.measuring or self._ignored("set_step_speculation"):
            self._facts.set_drafts(proposed, accepted, depth)

    def set_step_kv_cache(self, cache: Any) -> None:
        """The KV cache as it is now, in the open step: the object that holds its tensors (transformers' caches,
        containers of tensors), of which only sizes are read, or its bytes. A number is faster.
        """
        if self.step.measuring or self._ignored("set_step_kv_cache"):
            self._facts.set_cache(cache)

    def set_step_phase(self, phase: str) -> None:
        """The open step is a ``"prefill"`` or ``"mixed"`` step, kept apart, instead of a ``"decode"`` step; or it is no
        step (``"idle"``): its time is in the gap.
        """
        if self.step.measuring or self._ignored("set_step_phase"):
            self._facts.set_phase(phase)

    def cuda_bucket_timer(self, bucket: str) -> Timer:
        """``rooflight.inference.cuda_bucket_timer`` of this profiler, whether it is the active one or not."""
        return self.timers.model.timer(bucket) if self.step.measuring else OFF

    def cpu_bucket_timer(self, bucket: str) -> Timer:
        """``rooflight.inference.cpu_bucket_timer`` of this profiler, whether it is the active one or not."""
        return self.timers.engine.timer(bucket) if self.step.measuring else OFF

    # -- requests -----------------------------------------------------------------------------------------------------

    def begin_request(self, request_id: Hashable, prompt_tokens: int | None = None) -> None:
        """A request arrives, in an open run. Those of warm-up runs, baselines and recorded steps are not measured."""
        if self.disabled:
            return
        run = self.step.run
        skipped = self._warming_up or self.step.recorder is not None or (run is not None and run.baseline)
        of_run = None if run is None else (run.number, run.label)
        self.requests.begin_request(request_id, prompt_tokens, of_run, skipped=skipped)

    def request_tokens(self, request_id: Hashable, n: Any = 1) -> None:
        """``n`` tokens are delivered to a request now, all at once: a number, on the host."""
        if not self.disabled:
            self.requests.deliver(request_id, n)

    def end_request(self, request_id: Hashable) -> None:
        """A request is done; it may be after the end of its run."""
        if not self.disabled:
            self.requests.end_request(request_id)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def attach_model(self, model: Any, use_gated_lora: bool = False) -> None:
        """Open buckets around the modules of a model, by the names that transformers gives them, until ``detach()``.

        Several models can be attached, as a target and its draft. ``use_gated_lora``: time LoRA adapters apart, in
        ``<bucket>.lora``. Raises ValueError if this is no ``torch.nn.Module`` or is attached already. Without
        ``model_profiling`` nothing is put into the model.
        """
        if self.disabled or not self.cfg.model_profiling:
            return
        from rooflight.studies.inference.engines.model import ModelHooks  # loads torch

        self._models = self._models or ModelHooks(self.timers)
        self._models.attach(model, lora=use_gated_lora)

    def attach_engine(self, engine: Any, mapping: EngineMapping | str | None = None) -> None:
        """Make runs, steps, buckets and facts of steps of the calls of an engine's methods, until ``detach()``.

        ``mapping``: an ``EngineMapping``, the name of one, or None for that of the engine's class. Raises ValueError if
        there is none, if methods are missing or cannot be timed, and for an engine that is attached already.
        """
        if self.disabled:
            return
        from rooflight.studies.inference.engines.hooks import AttachedEngine

        engine = getattr(engine, "_orig_mod", engine)  # what torch.compile wrapped
        if any(each.engine() is engine for each in self._engines):
            raise ValueError(f"this {type(engine).__name__} is attached already: detach() first")
        self._engines.append(AttachedEngine(self, engine, mapping))

    def detach(self) -> None:
        """Leave every attached model and engine as it was before. Does nothing if there is none."""
        if self._models is not None:
            self._models.detach()
        while self._engines:
            self._engines.pop().remove()

    # -- bounds -------------------------------------------------------------------------------------------------------

    def record_steps(self, device: DeviceSpec | str | None = None) -> AbstractContextManager[None]:
        """Record the steps inside op by op, instead of timing them: results have the bounds of their buckets beside the
        times of steps of the same batch and KV length.

        ``device`` is what to bound for, a spec or a name; None is the one that the steps run on (a CPU is calibrated
        once). Raises ValueError for an unknown device.
        """
        if self.disabled:
            return nullcontext()
        from rooflight.front.device import find_device
        from rooflight.studies.inference.recording import recorded_steps  # loads what calibrates

        spec = None if device is None else find_device(device)  # an unknown one raises here
        return recorded_steps(self.timers, self.bounds, spec, self._bsz, whole=True)

    def add_bounds(self, model: Any, device: DeviceSpec | str | None = None, *, use_gated_lora: bool = False) -> None:
        """After the runs: record, without hardware, a decode step of a transformers model at each batch and mean KV
        length that was measured, so that results have the bound of each bucket beside its time.

        The model is called on the meta device, with the cache that it makes itself, and is left as it was.
        ``use_gated_lora`` as in ``attach_model``, for a model that is not attached. Raises ValueError for an unknown
        device, for what is no model, and for one that cannot be called without values.
        """
        if self.disabled:
            return
        from rooflight.studies.inference.recording import add_bounds

        attached = not self.cfg.model_profiling or (self._models is not None and self._models.has(model))
        lora = None if attached else use_gated_lora
        add_bounds(model, device, self.timers, self.bounds, self.results, self.cfg.kv_len_reduce, lora=lora)

    # -- results ------------------------------------------------------------------------------------------------------

    @guarded
    def save_config(self, extra: Mapping[str, Any] | None = None) -> Path | None:
        """Write ``config.json``: the settings, and what else was in ``args``. Returns its path, None without one."""
        if self.disabled:
            return None
        arguments = {"profiler_cfg": self.cfg, "runner_args": plain(self.runner_args), "extra": plain(extra or {})}
        return save_config(ConfigDocument.view(self, **arguments), self.out_dir, self.problems)

    @guarded
    def save_all(self) -> Path | None:
        """Write ``summary.json``, ``report.md`` and ``steps.csv`` (the raw samples). Returns their folder: ``out_dir``,
        or a new temporary one where that cannot be written; None if nothing could be written.
        """
        if self.disabled:
            return None
        if self.step.run is not None:
            self.problems.note("save_all() while a run was open: it was ended there")
            self.end_run()
        files = {STEPS: self.results.csv()} | self.requests.files()
        report = report_of(self.summary())
        folder = save_results(report, files, self.out_dir, self.problems)
        if folder == self.out_dir and self.world > 1 and not self.cfg.collect_on_rank0_only:
            merge_saved(report, folder, self.rank, self.problems)
        self._saved_steps = self.results.samples.seen
        return folder

    def summary(self) -> SummaryDocument:
        """All that finished runs measured, as ``summary.json`` has it."""
        results = self.results
        meta = SummaryMeta.view(
            self,
            config=self.cfg,
            output_dir=str(self.out_dir),
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            started_at=results.runs[0].meta.started_at if results.runs else None,
            clock=next(iter(results.clocks)) if len(results.clocks) == 1 else None,
        )
        return summary_of(meta, self.workload, results, self.bounds, self.requests, self.timers.graphs)

    @property
    def unsaved_steps(self) -> int:
        """Steps that were measured since results were written."""
        return self.results.samples.seen + self.step.unread - self._saved_steps

    # -- inside -------------------------------------------------------------------------------------------------------

    def _outside_of_runs(self) -> None:
        if not (self.disabled or self._warming_up):
            self.problems.note("a step outside of a run was not measured: call begin_run() before it")

    def _ignored(self, call: str) -> bool:
        if not (self.disabled or self._warming_up):
            self.problems.note(f"{call}() outside of a measured step was ignored")
        return False

    def _batch(self, bsz: Any) -> int | None:
        try:
            return None if bsz is None else batch_size(bsz)
        except ValueError:
            self.problems.note(f"begin_run: a batch of {str(bsz)[:40]} sequences: give a whole number from 1 on")
            return None

    def _meter_now(self) -> Meter:
        device, meter = device_now(self._device), self.step.meter
        self._facts.on_device = device is not None
        if meter is not None and not meter.failed and (meter.device is None) == (device is None):
            return meter
        self.timers.renew()
        return Meter(
            clock=self._clock,
            device=device,
            strict=self.cfg.strict_sync,
            on_problem=self.problems.note,
            in_order=self._in_order,
        )


def _save_at_exit(reference: weakref.ref[Profiler], process: int) -> None:
    profiler = reference()
    if profiler is not None and os.getpid() == process and profiler.unsaved_steps:
        profiler.save_all()


# -- the active profiler ----------------------------------------------------------------------------------------------


class NullProfiler(Profiler):
    """Stands for the profiler where none is active: it is ``disabled``, so that its calls do nothing."""


_NULL = NullProfiler()
_active: Profiler | None = None


def register_active_profiler(prof: Profiler | None) -> None:
    """Let the functions that time buckets be of ``prof``. One that is active already is replaced, which is logged."""
    global _active
    if _active is not None and _active is not prof:
        _log.warning("rooflight: another profiler was active: bucket timers are those of the new one from now on")
    release_active_profiler()
    if prof is not None and not prof.disabled:
        _active = prof
        prof.step.activate(timers.publish)


def get_active_profiler() -> Profiler:
    """The active profiler; a ``NullProfiler`` if there is none or it is disabled."""
    return _NULL if _active is None else _active


def release_active_profiler() -> None:
    """Let no profiler be active."""
    global _active
    if _active is not None:
        _active.step.activate(None)
    _active = None
    timers.publish(None)
