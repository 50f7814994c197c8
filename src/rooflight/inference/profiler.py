"""Profiler: the steps of an inference engine, run by run, without disturbing them.

Mistakes in its settings raise when it is made, and mistakes in what is attached when it is attached. No other method
raises: what cannot be measured is noted in the results (``problems``), logged once, and the engine goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflight.capture.time.timed_calls import Arounds
from rooflight.inference.bounds import RecordedBounds
from rooflight.inference.clocks import Meter
from rooflight.inference.config import Domain, ProfilerConfig, folder_name, generate_run_name, given_in
from rooflight.inference.engines.graphs import Capture, Graphs
from rooflight.inference.facts import LengthBins, Told, token_count
from rooflight.inference.problems import Problems, guarded
from rooflight.inference.runs import Results, Run, run_line
from rooflight.inference.saving import print_line, save_config_of, save_results
from rooflight.inference.serving import Objectives, Requests
from rooflight.inference.step import StepContext, rank_and_world
from rooflight.inference.timers import OFF, Labels, Timer
from rooflight.machine.timing import CudaDevice, Device

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rooflight.devices.spec import DeviceSpec
    from rooflight.inference.engines.hooks import EngineHooks
    from rooflight.inference.engines.mapping import EngineMapping
    from rooflight.inference.engines.model import ModelHooks
    from rooflight.inference.generation.trace import StepSpans
    from rooflight.inference.recording import StepRecorder
    from rooflight.inference.sections import WorkloadData

_log = logging.getLogger("rooflight")


class Profiler:
    """Measures steps as ``args`` say: a ``ProfilerConfig``, a namespace or a mapping (``ProfilerConfig.from_args``).

    ``device``: ``"cuda"`` times steps with CUDA events, ``"cpu"`` with the host's clock; None decides at each
    ``begin_run`` by whether torch uses CUDA in this process. Tests put a ``Device`` and a ``clock`` (nanoseconds) in
    their place. ``spans`` keeps when the buckets of the last steps were open, for a trace. Raises ValueError for
    settings that cannot be.

    Where ``collect_on_rank0_only`` is set and this is another rank it is ``disabled``: calls do nothing, but for the
    barriers of ``dist_barrier``, which rank 0 would wait in for ever.
    """

    def __init__(
        self,
        args: Any = None,
        *,
        device: Device | str | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        spans: StepSpans | None = None,
    ) -> None:
        if isinstance(device, str) and device not in ("cpu", "cuda"):
            raise ValueError(f'device is "{device}": give "cpu", "cuda" or None')
        self.cfg = cfg = ProfilerConfig.from_args(args)
        self.runner_args: Mapping[str, Any] = dict(given_in(args))
        self.rank, self.world = rank_and_world()
        self.created_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.disabled = cfg.collect_on_rank0_only and self.rank != 0
        self.run_name = folder_name(cfg.run_name) if cfg.run_name else generate_run_name(args)
        folder = Path(cfg.output_dir) / self.run_name
        self.out_dir = folder if self.rank == 0 else folder / f"rank{self.rank}"
        self.problems = Problems()
        profiled = {Domain.MODEL: cfg.model_profiling, Domain.ENGINE: cfg.engine_profiling}
        self.results = Results(
            bins=LengthBins(cfg.kv_bins),
            profiled=[domain for domain, on in profiled.items() if on],
            problems=self.problems,
            spans=spans,
        )
        self.workload: WorkloadData | None = None
        self.bounds = RecordedBounds()
        self.graphs = Graphs()
        self.requests = Requests(clock, Objectives(cfg.slo_ttft_ms, cfg.slo_tpot_ms, cfg.slo_e2e_ms), self.problems)
        self.timers_of_model, self.timers_of_engine = (
            Labels(self._bucket, domain, self.problems.note) for domain in (Domain.MODEL, Domain.ENGINE)
        )
        self.around_of_model = Arounds(self.timers_of_model)
        self._told = Told(cfg.kv_len_reduce, self.problems)
        self.step = StepContext(
            self._told,
            self.results,
            self.problems,
            clock=clock,
            barrier=cfg.dist_barrier,
            published=(self.timers_of_model, self.timers_of_engine) if self.results.profiled else None,
            on_unmeasured=self._outside_of_runs,
        )
        self._context: Timer = OFF if self.disabled and not cfg.dist_barrier else self.step
        self._device, self._clock = device, clock
        self._meter: Meter | None = None
        self._models: ModelHooks | None = None
        self._engines: EngineHooks | None = None
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
        self.end_capture()  # one that was never ended
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
        if self.step.recorder is not None:
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
            pack = self.results.finish(run, meter)
            if self.cfg.print_per_run:
                print_line(run_line(pack))

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
        if self.step.measuring or self._in_step("set_step_tokens"):
            self._told.said.tokens = self._copied(n)

    def set_step_seq_len(self, kv_len: Any) -> None:
        """The KV-cache length at the start of the open step: a number, or those of the batch in a list, array or
        tensor, which ``cfg.kv_len_reduce`` makes one. A tensor on a device is read when its step is.
        """
        if self.step.measuring or self._in_step("set_step_seq_len"):
            self._told.said.length = self._copied(kv_len)

    def set_step_batch(self, n: Any) -> None:
        """The number of sequences in the open step, where it is not that of the run, as with continuous batching: a
        number, or a tensor of one. Without it, a run of unknown batch has as many as KV lengths are given in a list.
        """
        if self.step.measuring or self._in_step("set_step_batch"):
            self._told.said.batch = self._copied(n)

    def set_step_speculation(self, proposed: Any, accepted: Any, depth: Any = None) -> None:
        """Draft tokens proposed in the open step, and those of them that the target accepted, without the token that it
        adds itself: numbers for one sequence, one per sequence in a list, array or tensor for a batch (``proposed`` and
        ``depth`` may be one number for all). Of a tree ``proposed`` are all nodes, and ``depth`` is the length of its
        longest path. A step in which this is called is *speculative*; its tokens are set with ``set_step_tokens``.
        """
        if self.step.measuring or self._in_step("set_step_speculation"):
            self._told.said.drafts = (self._copied(proposed), self._copied(accepted), self._copied(depth))

    def set_step_kv_cache(self, cache: Any) -> None:
        """The KV cache as it is now, in the open step: the object that holds its tensors (transformers' caches,
        containers of tensors), of which only sizes are read, or its bytes. A number is faster.
        """
        if self.step.measuring or self._in_step("set_step_kv_cache"):
            self._told.set_cache(cache)

    def set_step_phase(self, phase: str) -> None:
        """The open step is a ``"prefill"`` or ``"mixed"`` step, kept apart, instead of a ``"decode"`` step; or it is no
        step (``"idle"``): its time is in the gap.
        """
        if self.step.measuring or self._in_step("set_step_phase"):
            self._told.set_phase(phase)

    def cuda_bucket_timer(self, bucket: str) -> Timer:
        """``rooflight.inference.cuda_bucket_timer`` of this profiler, whether it is the active one or not."""
        return self.timers_of_model.timer(bucket) if self.step.measuring else OFF

    def cpu_bucket_timer(self, bucket: str) -> Timer:
        """``rooflight.inference.cpu_bucket_timer`` of this profiler, whether it is the active one or not."""
        return self.timers_of_engine.timer(bucket) if self.step.measuring else OFF

    def activate(self, publish: Callable[[Any], None] | None) -> None:
        """Call ``publish`` with the timers of both domains when a step begins, and with None when it ends."""
        self.step.activate(publish)

    # -- requests -----------------------------------------------------------------------------------------------------

    @guarded
    def begin_request(self, request_id: Hashable, prompt_tokens: int | None = None) -> None:
        """A request arrives, in an open run. Those of warm-up runs, baselines and recorded steps are not measured."""
        run = self.step.run
        skipped = self._warming_up or self.step.recorder is not None or (run is not None and run.baseline)
        self.requests.begin(request_id, prompt_tokens, None if skipped else run, warming_up=skipped)

    @guarded
    def request_tokens(self, request_id: Hashable, n: Any = 1) -> None:
        """``n`` tokens are delivered to a request now, all at once: a number, on the host."""
        self.requests.deliver(request_id, n)

    @guarded
    def end_request(self, request_id: Hashable) -> None:
        """A request is done; it may be after the end of its run."""
        self.requests.end(request_id)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def attach_model(self, model: Any, use_gated_lora: bool = False) -> None:
        """Open buckets around the modules of a model, by the names that transformers gives them, until ``detach()``.

        Several models can be attached, as a target and its draft. ``use_gated_lora``: time LoRA adapters apart, in
        ``<bucket>.lora``. Raises ValueError if this is no ``torch.nn.Module`` or is attached already. Without
        ``model_profiling`` nothing is put into the model.
        """
        if self.disabled or not self.cfg.model_profiling:
            return
        from rooflight.inference.engines.model import ModelHooks  # loads torch

        self._models = self._models or ModelHooks(self)
        self._models.attach(model, lora=use_gated_lora)

    def attach_engine(self, engine: Any, mapping: EngineMapping | str | None = None) -> None:
        """Make runs, steps, buckets and facts of steps of the calls of an engine's methods, until ``detach()``.

        ``mapping``: an ``EngineMapping``, the name of one, or None for that of the engine's class. Raises ValueError if
        there is none, if methods are missing or cannot be timed, and for an engine that is attached already.
        """
        if self.disabled:
            return
        from rooflight.inference.engines.hooks import EngineHooks

        self._engines = self._engines or EngineHooks(self)
        self._engines.attach(engine, mapping)

    def detach(self) -> None:
        """Leave every attached model and engine as it was before. Does nothing if there is none."""
        for hooks in (self._models, self._engines):
            if hooks is not None:
                hooks.detach()

    def has_attached(self, model: Any) -> bool:
        """Whether a model's buckets are opened by this profiler."""
        return self._models is not None and self._models.has(model)

    # -- bounds -------------------------------------------------------------------------------------------------------

    def record_steps(self, device: DeviceSpec | str | None = None) -> AbstractContextManager[None]:
        """Record the steps inside op by op, instead of timing them: results have the bounds of their buckets beside the
        times of steps of the same batch and KV length.

        ``device`` is what to bound for, a spec or a name; None is the one that the steps run on (a CPU is calibrated
        once). Raises ValueError for an unknown device.
        """
        from rooflight.inference.recording import recorded_steps

        return recorded_steps(self, device)

    def add_bounds(self, model: Any, device: DeviceSpec | str | None = None, *, use_gated_lora: bool = False) -> None:
        """After the runs: record, without hardware, a decode step of a transformers model at each batch and mean KV
        length that was measured, so that results have the bound of each bucket beside its time.

        The model is called on the meta device, with the cache that it makes itself, and is left as it was.
        ``use_gated_lora`` as in ``attach_model``, for a model that is not attached. Raises ValueError for an unknown
        device, for what is no model, and for one that cannot be called without values.
        """
        from rooflight.inference.recording import add_bounds

        add_bounds(self, model, device, lora=use_gated_lora)

    def switch_recorder(self, recorder: StepRecorder | None) -> StepRecorder | None:
        """Record steps from here on, or time them again. Returns what recorded them before."""
        if recorder is not None:
            recorder.batch = self._bsz
        before = self.step.record(recorder)
        self._renew_timers()
        return before

    def begin_capture(self) -> None:
        """A CUDA graph is captured from here on: buckets that open are noted, not timed."""
        self.graphs.capturing = Capture()
        self._renew_timers()
        self.step.capture(on=True)

    def end_capture(self, graph: Any = None) -> None:
        """The capture ends; ``graph`` is None if it failed."""
        capture, self.graphs.capturing = self.graphs.capturing, None
        if capture is not None:
            self._renew_timers()
            self.step.capture(on=False)
            if graph is not None:
                self.graphs.captured(graph, capture.calls)

    # -- results ------------------------------------------------------------------------------------------------------

    @guarded
    def save_config(self, extra: Mapping[str, Any] | None = None) -> Path | None:
        """Write ``config.json``: the settings, and what else was in ``args``. Returns its path, None without one."""
        return save_config_of(self, extra)

    @guarded
    def save_all(self) -> Path | None:
        """Write ``summary.json``, ``report.md`` and ``steps.csv`` (the raw samples). Returns their folder: ``out_dir``,
        or a new temporary one where that cannot be written; None if nothing could be written.
        """
        if self.step.run is not None:
            self.problems.note("save_all() while a run was open: it was ended there")
            self.end_run()
        folder = save_results(self)
        self._saved_steps = self.results.samples.seen
        return folder

    @property
    def unsaved_steps(self) -> int:
        """Steps that were measured since results were written."""
        return self.results.samples.seen + self.step.unread - self._saved_steps

    # -- inside -------------------------------------------------------------------------------------------------------

    def _outside_of_runs(self) -> None:
        if not self._warming_up and not self.disabled:
            self.problems.note("a step outside of a run was not measured: call begin_run() before it")

    def _copied(self, value: Any) -> Any:
        if type(value) is int:  # most often, and the fastest
            return value
        return self._told.copied(value, on_device=self._meter is not None and self._meter.device is not None)

    def _in_step(self, call: str) -> bool:
        if not (self.disabled or self._warming_up):
            self.problems.note(f"{call}() outside of a measured step was ignored")
        return False

    def _bucket(self, domain: Domain, name: str) -> Timer:
        timing = self.graphs.capturing or self.step.recorder or self._meter
        return timing.bucket(domain, name) if domain in self.results.profiled and timing is not None else OFF

    def _batch(self, bsz: Any) -> int | None:
        try:
            if bsz is not None and token_count(bsz) > 0:
                return token_count(bsz)
        except ValueError:
            pass
        if bsz is not None:
            self.problems.note(f"begin_run: a batch of {str(bsz)[:40]} sequences: give a whole number from 1 on")
        return None

    def _meter_now(self) -> Meter:
        """The meter of the device that is used now; a new one where that has changed, or its clock failed."""
        device = self._device_now()
        meter = self._meter
        if meter is None or meter.failed or (meter.device is None) != (device is None):
            meter = self._meter = Meter(
                clock=self._clock,
                device=device,
                strict=self.cfg.strict_sync,
                on_problem=self.problems.note,
                in_order=self.results.spans is not None,
            )
            self._renew_timers()
        return meter

    def _renew_timers(self) -> None:
        """What times buckets is another from here on."""
        self.around_of_model.clear()
        self.timers_of_model.clear()
        self.timers_of_engine.clear()
        if self._models is not None:
            self._models.renew()

    def _device_now(self) -> Device | None:
        if self._device is not None and not isinstance(self._device, str):
            return self._device
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        on_cuda = self._device == "cuda" or (self._device is None and cuda is not None and cuda.is_initialized())
        return CudaDevice() if on_cuda else None


def _save_at_exit(reference: weakref.ref[Profiler], process: int) -> None:
    """What was measured and not saved is saved when the process ends."""
    profiler = reference()
    if profiler is not None and os.getpid() == process and profiler.unsaved_steps:
        profiler.save_all()
