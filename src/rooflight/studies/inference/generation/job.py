"""The job of ``rooflight profile-decode``: run a generation loop under a profiler, keep and report the results."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rooflight.front.device import find_device, log_progress
from rooflight.hardware.machine.cpu_load import Bystander
from rooflight.records.quantity import count_of
from rooflight.records.report import Report
from rooflight.sources.workloads.errors import RunFailed, TargetError, in_one_line
from rooflight.sources.workloads.targets import UserFunction, called, find_target
from rooflight.studies.inference.config import ProfilerConfig
from rooflight.studies.inference.generation.loops import PLAIN, EngineLoop, ModelLoop
from rooflight.studies.inference.generation.options import JobOptions, LoopOptions
from rooflight.studies.inference.generation.trace import StepSpans
from rooflight.studies.inference.profiler import Profiler, register_active_profiler, release_active_profiler
from rooflight.studies.inference.recording import measured_steps
from rooflight.studies.inference.report import report_of
from rooflight.studies.inference.result import SUMMARY, WorkloadData
from rooflight.studies.inference.saving import TRACE, read_summary, write

_EVERY_S: Final = 0.1  # how often progress is drawn; where nothing is drawn, it is logged:
_LOGGED_EVERY_S: Final = 15.0  # a minute of silence looks like a hang


class DecodeJob:
    """One call of the command. Raises ValueError when it is made for what cannot be, before anything is measured."""

    def __init__(
        self, text: str, loop: LoopOptions, job: JobOptions, *, progress: Callable[[str], None], command: str = ""
    ) -> None:
        ProfilerConfig.from_args(job.slo_ms)  # refuses limits that cannot be
        self._progress, self._options, self._job = progress, loop, job
        target = find_target(text)
        self._loop = (
            EngineLoop(text, target, loop)
            if isinstance(target, UserFunction)
            else ModelLoop(text, loop, progress=progress)
        )
        self._spans = StepSpans()
        self._kinds = len(self._loop.labels)
        self._bystander: Bystander | None = None
        self._others: float | None = None
        settings: dict[str, Any] = {
            "model_profiling": True,
            "engine_profiling": True,
            "print_per_run": False,
            "output_dir": str(job.output_dir),
            "run_name": job.run_name,
            "warmup_runs": job.warmup * self._kinds,
            "num_total_runs": (job.runs + job.warmup) * self._kinds,
            **job.slo_ms,
        }
        given = {"model": called(text).replace(":", "_"), "target": text, "command": command, **asdict(loop)}
        given |= {**settings, "batch_size": loop.batch}
        self._prof = Profiler(given, device=loop.device, on_step=self._spans.add)
        self.folder = self._prof.out_dir
        self._unsaved = ""

    @property
    def collects(self) -> bool:
        """Whether this process has results: of the ranks of a job, rank 0 has."""
        return not self._prof.disabled

    @property
    def measured_steps(self) -> int:
        """Steps of which there are results."""
        return self._prof.results.totals.steps

    def run(self) -> None:
        """Run all runs; warm-up runs first. Raises RunFailed for a loop that breaks; what was measured is on disk then.
        At KeyboardInterrupt, call ``save``.
        """
        register_active_profiler(self._prof)
        try:
            self._loop.attach(self._prof)
            for number in range(-self._job.warmup, self._job.runs):
                for label in self._loop.labels:
                    self._run(number, label)
            self._others = None if self._bystander is None else self._bystander.others()
            self.save()  # before anything else can go wrong
            if self._job.bounds and self.collects:
                self._bound()
        except (TargetError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise RunFailed(f"the run failed: {in_one_line(error)}; {self.state(self.save())}") from error
        finally:
            self._prof.detach()
            release_active_profiler()

    def _run(self, number: int, label: str) -> None:
        kind = f" {label}" if self._kinds > 1 else ""
        what = f"run {number + 1} of {self._job.runs}{kind}" if number >= 0 else f"warm-up run{kind}"
        self._progress(f"{what}: prefill")
        baseline = label == PLAIN and self._kinds > 1
        self._prof.begin_run(bsz=self._options.batch, label="baseline" if baseline else "decode", baseline=baseline)
        if number >= 0 and self._bystander is None:
            self._bystander = Bystander()
        try:
            self._loop.run(label, self._prof, _teller(self._progress, what))
        finally:
            self._prof.end_run()

    def _bound(self) -> None:
        if isinstance(self._loop, EngineLoop):
            self._bound_model(self._loop.model_alone)
            return
        device = find_device(self._options.device, progress=self._progress)
        for batch, length in measured_steps(self._prof.results, self._prof.cfg.kv_len_reduce):
            self._progress(f"recording a step after {length:,} tokens, for its bound")
            with self._prof.record_steps(device):
                self._prof.begin_run(bsz=batch)
                self._loop.record(self._prof, max(length, 1))

    def _bound_model(self, model: Any) -> None:
        """Of an engine the model alone can be recorded, if it is one of transformers and its steps are known."""
        if model is None or not measured_steps(self._prof.results, self._prof.cfg.kv_len_reduce):
            return
        device = find_device(self._options.device, progress=self._progress)
        self._progress("recording steps of the model, for their bounds")
        try:
            self._prof.add_bounds(model, device)
        except ValueError as error:
            self._prof.problems.note(f"no bounds: {error}")

    def save(self) -> Path | None:
        """Write what was measured until now. Returns the folder, None where nothing could be written."""
        self._prof.workload = self._workload()
        with redirect_stdout(StringIO()):  # the report comes on standard output, or nowhere
            folder = self._prof.save_all()
            found = [folder]
            if folder is not None:
                if folder != self._prof.out_dir:  # that cannot be written: all goes there, and says why
                    self._prof.out_dir = folder
                    self._prof.save_all()
                config = self._prof.save_config()
                trace = self._spans.chrome_trace(self._prof.run_name).decode()
                found += [config and config.parent, write({TRACE: trace}, self._prof.out_dir, self._prof.problems)]
            elsewhere = [
                f"results are in {each}" if each else "results are nowhere"
                for each in dict.fromkeys(found)
                if each != self.folder
            ]
            self._unsaved = ", ".join(elsewhere) if self.collects else ""
            return folder

    def state(self, folder: Path | None) -> str:
        """What there is now, for somebody who stopped it."""
        if folder is None and not self.collects:
            return "rank 0 has the results"
        if folder is None:
            return "results could not be written"
        return f"{count_of(self.measured_steps, 'measured step is', 'measured steps are')} in {folder}"

    def report(self) -> tuple[Report, list[Exception]]:
        """Write the results, and return their report, and errors of what could not be written where it was meant to."""
        folder = self.save()
        report = report_of(self._prof.summary() if folder is None else read_summary(folder / SUMMARY))
        report = replace(report, brief=None) if self._job.all else report
        why = f"{self.folder} cannot be written: {self._unsaved}"
        return report, [OSError(why)] if self._unsaved else []

    def _workload(self) -> WorkloadData:
        from rooflight.hardware.machine.environment import cpu_model, describe, threads_here

        facts = describe(self._options.device)
        return WorkloadData(
            batch=self._options.batch,
            prompt_tokens=self._options.prompt,
            new_tokens=self._options.new,
            machine=facts.get("gpu", cpu_model()) if self._options.device == "cuda" else cpu_model(),
            threads=threads_here() if self._options.device == "cpu" else None,
            torch=facts.get("torch"),
            transformers=getattr(sys.modules.get("transformers"), "__version__", None),
            others_share=self._others,
            traced_steps=len(self._spans),
            **self._loop.about(),
        )


def _log_aloud(text: str) -> None:
    logging.getLogger("rooflight").warning("rooflight: %s", text)


def _teller(progress: Callable[[str], None], what: str) -> Callable[[int, int], None]:
    """Says how far a run is, between steps: ten times a second at most where it is drawn, else each quarter minute."""
    say, every_s = (_log_aloud, _LOGGED_EVERY_S) if progress is log_progress else (progress, _EVERY_S)
    begun = last = time.monotonic()

    def progressed(tokens: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every_s or (tokens == of and say is progress):
            last = now
            say(f"{what}: token {tokens:,} of {of:,}, {now - begun:.0f} s")

    return progressed
