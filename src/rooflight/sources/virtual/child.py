"""The child: ``python -m rooflight.sources.virtual.child FACTS`` runs a script on a GPU that is not there, saves the
session of one step, and leaves by ``os._exit``, so that nothing has to be put back.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from multiprocessing.process import BaseProcess, active_children, parent_process
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final

import msgspec
from torch import nn
from torch.optim import Optimizer

from rooflight.records.account import Place
from rooflight.records.record import EVALUATION, STEP, ScriptMemory
from rooflight.records.session import COMPILED, PINS, Session
from rooflight.records.timeline import StepKind, VirtualRun
from rooflight.sources.capture.holders import lines_like
from rooflight.sources.capture.record.composites import route_composites
from rooflight.sources.capture.record.constants import know_fakes
from rooflight.sources.capture.run import hooks as run_hooks
from rooflight.sources.capture.run.callers import calling_place
from rooflight.sources.capture.run.elsewhere import Wanted
from rooflight.sources.capture.run.errors import reason_of
from rooflight.sources.capture.run.launch import first_path, mark_function, start
from rooflight.sources.capture.run.left import ENOUGH
from rooflight.sources.capture.run.listening import Listening
from rooflight.sources.capture.run.outcome import session_of
from rooflight.sources.capture.run.recording import Listener
from rooflight.sources.virtual import (
    absent,
    api,
    block_masks,
    copies,
    groups,
    hooks,
    operators,
    shapes,
    stand_ins,
    tensors,
)
from rooflight.sources.virtual.mode import VirtualMode

_QUIET_S: Final = 2.0
_LEFT_S: Final = 1.0
"""So long, after a step is recorded, others are waited for, to see what it left."""
_BUSY: Final = 3.0  # times as long, where the process waits or others take the CPU
_EVALUATES: Final = re.compile(r"\.eval\(\)")
_OF_THE_TIME: Final = 0.5
"""An evaluation that the script has is waited for: for this share of the time until a step was recorded."""
_ENOUGH_S: Final = 10.0
"""After a step without an optimizer was recorded, so long is looked for one that has one."""
_LONG_S: Final = 600.0
"""So long where the script made an optimizer: evaluation and many backward passes may come before it steps, and several
optimizers step in an order that shows late.
"""
_MOST_UNKNOWN: Final = 16
"""So many steps without an optimizer are waited for that their cycle shows."""


class Child(Listener):
    """The process in which the script runs."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.compiled, self.error = 0, ""
        self.at_end: list[Callable[[], None]] = []
        self._began = time.monotonic()
        self._kept_at: dict[str, float] = {}
        self._optimizes = self._leaves = False
        self._in_eval: set[tuple[str, int]] = set()  # lines that ended the training mode of a model

    def run(self) -> None:
        """Run the script until its step is recorded, or it ends. Never returns."""
        self._install()
        program, code = self.wanted.program, 1
        if not self.wanted.safe_path:
            sys.path.insert(0, first_path(program.target, as_module=program.module))
        try:
            with self.mode:
                start(program.target, program.arguments, as_module=program.module)
            for process in active_children():
                if not process.daemon:  # as Python does at its end
                    process.join()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
                self.error = reason_of(stop)
        except KeyboardInterrupt:
            code = -2
        except BaseException as error:
            self.error = reason_of(error)
            sys.excepthook(*sys.exc_info())
        self.leave(code)

    def _install(self) -> None:
        wanted = self.wanted
        ranks = wanted.gpus * wanted.nodes
        if ranks > 1:
            for name, value in groups.environment(wanted.gpus, wanted.nodes, wanted.rank).items():
                os.environ.setdefault(name, value)
        os.environ.setdefault("WANDB_MODE", "disabled")
        faults = wanted.faults.open("w")
        faulthandler.enable(faults)  # says the line that reads at an address of the device
        self.at_end += [faults.close, wanted.faults.unlink]
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # the script's errors, twice
        try:
            hooks.install(wanted.gpus)
        except hooks.NoVirtualDeviceError as error:
            sys.exit(f"rooflight: {error}")
        self.mode = VirtualMode(shapes.sized_by_values, wanted.gpus)
        api.install(self.mode, wanted.seen, wanted.gpus)
        copies.install()
        operators.install(self.mode)
        tensors.install(self.mode)
        groups.install(self.mode, ranks, wanted.rank)
        absent.install(self.mode, self)
        stand_ins.install()
        block_masks.install(self.mode)
        route_composites(always=True)
        know_fakes(self.mode.values.of)
        program = wanted.program
        only = StepKind(program.only) if program.only else None
        ear = Listening(skip=program.skip, only=only, named=program.named)
        self.finder = ear.finder
        run_hooks.install(ear)
        self.finder.recorder.standing = self.mode.memory.standing
        self.finder.recorder.allocated = self.mode.memory.now
        self.mode.memory.phase = self._phase
        if only is StepKind.FUNCTION:
            file, _, name = program.named.rpartition(":")
            mark_function(file, name, lambda: ear)
        run_hooks.follow_programs()
        self._watch()

    def _watch(self) -> None:
        """End when the step is recorded; say how far the script is."""
        self.finder.recorder.listener = self
        begin = Optimizer.__init__

        @wraps(begin)
        def optimizes(*args: Any, **kwargs: Any) -> None:
            self._optimizes = True
            begin(*args, **kwargs)

        Optimizer.__init__ = optimizes  # type: ignore[method-assign]
        ends_training = nn.Module.eval

        @wraps(ends_training)
        def evaluates(module: Any) -> Any:
            at = calling_place()
            self._in_eval.add((at.file, at.line))
            return ends_training(module)

        nn.Module.eval = evaluates  # type: ignore[method-assign, assignment]
        self._watch_processes()
        if self.wanted.loud:
            start_new_thread(self._say_where, ())

    def kept(self, kind: StepKind) -> None:
        """Leave once the step that is asked for was recorded, or none that is better is to come."""
        finder, recorder = self.finder, self.finder.recorder
        found = recorder.kept.get(kind)
        if found is None or recorder.records or found.place < self.wanted.program.skip:
            return
        if recorder.settled or finder.only is not None:
            self._leave_soon()
            return
        if finder.by_optimizer.count and kind is not StepKind.OPTIMIZER:  # a part of a step
            return
        self._kept_at.setdefault(kind, time.monotonic())
        unknown = finder.by_backward.length != found.cycle and finder.by_backward.count < _MOST_UNKNOWN
        enough_s = _LONG_S if self._optimizes or unknown or not found.whole else _ENOUGH_S
        if time.monotonic() - self._kept_at[kind] > enough_s:
            self.leave(0)

    def ended(self) -> None:
        """Leave where it shows what the recorded step left, and no evaluation is to come."""
        left = self.finder.recorder.left
        if self._leaves and (left is None or left.steps >= ENOUGH) and not self._to_come():
            self.leave(0)

    def _leave_soon(self) -> None:
        """Leave once it shows what the recorded step left behind and what an evaluation needs, or soon."""
        self._leaves = True
        if current_thread() is not main_thread():
            self.leave(0)
        spent_s = time.monotonic() - self._began
        limit_s = max(_LEFT_S, _OF_THE_TIME * spent_s if self._to_come() else 0.0)
        for timer, number, seconds in (
            (signal.ITIMER_PROF, signal.SIGPROF, limit_s),
            (signal.ITIMER_REAL, signal.SIGALRM, _BUSY * limit_s),
        ):
            signal.signal(number, lambda *_: self.leave(0))
            signal.setitimer(timer, seconds)

    def _to_come(self) -> Place | None:
        """The line at which the script would begin an evaluation, where it has done none."""
        if EVALUATION in self.mode.memory.phases:
            return None
        return next((each for each in lines_like(_EVALUATES) if (each.file, each.line) not in self._in_eval), None)

    def _phase(self) -> str:
        """What the script is doing, for the account of its memory."""
        finder = self.finder
        if finder.begun:
            return STEP
        if finder.waits.evaluates_since or not (finder.has_trained or finder.recorder.records):
            return EVALUATION if finder.modules.calls else "before the first step"
        return STEP if finder.recorder.records else "between steps"

    def _say_where(self) -> None:
        """Say every few seconds how far the script is, on a thread that no mode of torch's sees."""
        while True:
            time.sleep(_QUIET_S)
            seconds, number = time.monotonic() - self._began, self.finder.by_optimizer.count + 1
            calls = self.finder.recorder.calls
            what = f"recording step {number}, {calls:,} calls so far" if calls else f"before the end of step {number}"
            print(f"rooflight: {seconds:.0f} s: {what}", file=sys.__stderr__, flush=True)

    def leave(self, code: int) -> None:
        """Save what was recorded, and end the process."""
        bars = sys.modules.get("tqdm.std")
        with suppress(Exception):  # a report begins on a line of its own
            for bar in list(bars.tqdm._instances) if bars is not None else ():
                bar.close()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        wanted = self.wanted
        program = wanted.program
        script = program.target if program.module else Path(program.target).name
        session = session_of(self.finder, script, code, None, error=self.error)
        saved = Path(wanted.saved)
        if len(session) or not saved.exists():  # a process of the script's own may have left one
            self._as_virtual(session).save(saved)
        for end in self.at_end if parent_process() is None else ():
            end()
        for process in active_children():  # they would wait for this one for ever
            process.kill()
        os._exit(0)

    def _watch_processes(self) -> None:
        """A process that the script starts saves the step that it recorded."""
        boot = BaseProcess._bootstrap  # type: ignore[attr-defined]

        def bootstrap(*args: Any, **kwargs: Any) -> int:
            code: int = boot(*args, **kwargs)
            if self.finder.has_trained:
                self.leave(code)
            return code

        BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]

    def _as_virtual(self, session: Session) -> Session:
        wanted, run = self.wanted, session.run
        assert run is not None
        virtual = VirtualRun(devices=tuple(wanted.devices), gpus=wanted.gpus, nodes=wanted.nodes, rank=wanted.rank,
                             compiled=self.compiled)  # fmt: skip
        memory = run.memory or ScriptMemory()
        phases = self.mode.memory.phases
        if not self.finder.has_trained and EVALUATION in phases:
            phases[EVALUATION] = replace(phases[EVALUATION], phase="other calls")
        missed = self._to_come() if self.finder.has_trained else None
        memory = replace(memory, phases=tuple(phases.values()), missed=missed or memory.missed, resident_bytes=0)
        run = replace(run, memory=memory, virtual=virtual, assumed=tuple(self.mode.answers), between=(), alike=())
        described = {"target": text} if (text := os.environ.get("ROOFLIGHT_STEP")) else {}
        kind = {} if self.mode.was_used() else {"device_kind": "cpu"}
        environment = {**session.environment, **described, **kind, **({COMPILED: "yes"} if self.compiled else {})}
        environment[PINS] = "yes" if self.mode.pins else "no"
        beside = session.evaluation
        if beside is not None:
            beside = replace(beside, environment=environment)
        return replace(session, run=run, environment=environment, evaluation=beside, measurement=None)


def main() -> None:
    """Read what is wanted of the command line, and run it."""
    Child(msgspec.json.decode(sys.argv[1], type=Wanted)).run()


if __name__ == "__main__":
    main()
