"""What the front door does that no room does alone: from a target or session to an analysis for the right device."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rooflight.devices import calibrations, get
from rooflight.devices.spec import DeviceSpec, Roofs
from rooflight.records.estimate import Estimate
from rooflight.records.quantity import Quantity
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.analysis import analyze as analyze_for
from rooflight.roofline.memory import memory_use

if TYPE_CHECKING:
    from rooflight.capture.recorder import record
    from rooflight.prediction.predictor import Predictor
    from rooflight.roofline.ranks import RankedAnalysis
    from rooflight.workloads.steps import Step

Progress = Callable[[str], None]

_ROOM = 1.2  # kernels take workspaces that no op shows, torch itself some, and allocators round up
_BUSY = 0.1  # share of the CPU taken by others, from which on a calibration is doubted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How a preset or config is to run; None leaves the choice to its defaults."""

    mode: str | None = None
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    optimizer: str | None = None
    small: bool = False

    @property
    def given(self) -> list[str]:
        """The options that were asked for, as they are typed."""
        return [f"--{option.name}" for option in fields(self) if getattr(self, option.name) not in (None, False)]


def analyze(
    session: Session | record,
    device: DeviceSpec | str | None = None,
    *,
    target: str = "",
    predictor: Predictor | None = None,
) -> Analysis:
    """Cost a session, or a finished recording, and bound it for a device: a spec, a name (``"H100-SXM5-80GB"``), or the
    one it was recorded on.

    Without ``device``, a session recorded on CUDA is bounded for that GPU; one recorded on a CPU, or without hardware,
    for that CPU, which is calibrated now if it is this machine's and never was. With a ``predictor``, times are
    predicted too, as ``predicted`` does. Raises ValueError for an unknown device.
    """
    if not isinstance(session, Session):
        session = session.session
    analysis = analyze_for(session, device_of(session) if device is None else device, target)
    return analysis if predictor is None else predicted(analysis, predictor)


def predicted(analysis: Analysis, predictor: Predictor) -> Analysis:
    """The same analysis with predicted times beside the bounds; each distinct op is predicted once, on its own.

    Raises ValueError for a model that turns out to be damaged when it is first needed.
    """
    session = analysis.session
    counted = np.unique(session.columns.signature[session.counted]).tolist()
    found = predictor.predict_many([(session.signatures[number],) for number in counted], _as_it_ran(analysis))
    estimates: list[Estimate | None] = [None] * len(session.signatures)
    for number, estimate in zip(counted, found, strict=True):
        estimates[number] = estimate
    return analyze_for(session, analysis.device, analysis.target, estimates)


def _as_it_ran(analysis: Analysis) -> DeviceSpec:
    """The device with the peak of float32 products that the run's settings allowed: a predictor knows no settings."""
    device = analysis.device
    peak = device.matrix_peak(analysis.float32_matrix)
    if analysis.float32_matrix == "float32" or peak is None:
        return device

    def faster(roofs: Roofs | None) -> Roofs | None:
        return roofs and replace(roofs, matrix_flops_per_s={**roofs.matrix_flops_per_s, "float32": peak})

    return replace(device, datasheet=faster(device.datasheet), calibrated=faster(device.calibrated))


def analyze_target(
    target: str,
    wish: Wish,
    *,
    device: str | None = None,
    measured: bool | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Analysis, list[str]]:
    """What ``rooflight analyze`` does up to the report: the analysis, and notes on what was not done as asked.

    A device other than this machine's is bounded without hardware, on the meta device. Raises ValueError for the
    user's mistakes, RunFailed for a step that breaks.
    """
    local = device is None or device in ("cpu", "cuda")
    spec = None if device is None or local else get(device)
    if _is_session(target):
        from rooflight.records.archive import load

        if wish.given:
            raise ValueError(f"{', '.join(wish.given)}: {target} is a saved session, what it ran is settled")
        session = load(target)
        return analyze(session, spec, target=session.environment.get("target", Path(target).name)), []
    from rooflight.workloads.targets import UserFunction, find_target

    kind = find_target(target)
    place = _place(device if local else None)
    progress("calibrating this machine, once (about half a minute)")
    here = current_device(place) if spec is None else None
    runs = here is not None and measured is not False
    if isinstance(kind, UserFunction):
        session, title, notes = _observe_function(target, wish, runs, progress)
    elif here is None:
        session, title, notes = _record_on_meta(target, wish, None, progress)
    else:
        session, title, notes = _observe_here(target, wish, here, place, runs, progress)
    if measured and here is None:
        notes.append(f"Not measured: {device} is another device than this machine's.")
    session = replace(session, environment={**session.environment, "target": title})
    return analyze(session, spec or here, target=title), notes


def analyze_ranks(
    targets: Sequence[str], wish: Wish, *, device: str | None = None, predictor: Predictor | None = None
) -> RankedAnalysis:
    """The saved sessions of a run's ranks, analysed and put together, for a device or the ones they ran on.

    Raises ValueError for a target that is no saved session, and for sessions that do not belong together.
    """
    from rooflight.records.archive import load
    from rooflight.roofline.ranks import merge

    others = [target for target in targets if not _is_session(target)]
    if others:
        raise ValueError(f"{others[0]} is no saved session: several targets are the sessions of a run, one a rank")
    if wish.given:
        raise ValueError(f"{', '.join(wish.given)}: the targets are saved sessions, what they ran is settled")
    spec = None if device in (None, "cpu", "cuda") else get(device)
    sessions = [load(target) for target in targets]
    return merge(
        [
            analyze(session, spec, target=session.environment.get("target", "a step"), predictor=predictor)
            for session in sessions
        ],
        [Path(target).name for target in targets],
    )


def device_of(session: Session) -> DeviceSpec:
    """The device a session was recorded on. Raises ValueError when that is a CPU nobody calibrated."""
    environment = session.environment
    mark = environment.get("fingerprint", "")
    calibration = calibrations.load(mark) if mark else None
    if calibration is not None:
        return calibrations.device_of(calibration)
    if environment.get("device_kind") == "cuda":
        return get(environment.get("gpu", "unknown GPU"))
    from rooflight.machine.environment import fingerprint

    if mark and mark == fingerprint("cpu"):
        return current_device("cpu")
    raise ValueError("the session's CPU was never calibrated: run rooflight calibrate there, or name a device")


def current_device(kind: str | None = None) -> DeviceSpec:
    """The device torch would use here, with its roofs: the GPU, else the CPU; "cpu" or "cuda" asks for one of the two.

    Calibrated now (about 20 s for a CPU, 40 s for a GPU, once a machine) if it never was. Raises ValueError for a GPU
    that the catalog does not know, or that is not there.
    """
    from rooflight.machine.environment import fingerprint
    from rooflight.machine.presence import cuda_name

    kind = kind or _place(None)
    calibration = calibrations.load(fingerprint(kind))
    if calibration is not None:
        return calibrations.device_of(calibration)
    known = get(cuda_name() or "no GPU") if kind == "cuda" else None
    print("rooflight: calibrating this machine, once (about half a minute)", file=sys.stderr)
    try:
        return calibrate(kind)
    except RuntimeError as error:
        if known is None:
            raise
        print(f"rooflight: not calibrated ({error}); bounds are the datasheet's", file=sys.stderr)
        return known


def calibrate(kind: str | None = None) -> DeviceSpec:
    """Measure the roofs of this machine (about 20 s for a CPU, 40 s for a GPU), keep them for later runs, and return
    the device with them. ``kind`` is "cpu" or "cuda"; None takes the GPU where there is one.

    A roof is the best ever seen: measuring again raises roofs and lowers none. Raises ValueError for a device that is
    not there or unknown.
    """
    from rooflight.machine import calibration

    place = _place(kind)
    if place not in ("cpu", "cuda"):
        raise ValueError(f'unknown kind of device "{kind}": use cpu or cuda')
    measured = calibration.calibrate("cuda" if place == "cuda" else "cpu")
    if calibration.busy_share(measured) >= _BUSY:  # too low a roof is a bound that real ops beat
        print("rooflight: other programs are running, calibrating once more", file=sys.stderr)
        measured = calibration.raised(calibration.calibrate(measured.kind), measured)
        if calibration.busy_share(measured) >= _BUSY:
            print("rooflight: these roofs may be low; run rooflight calibrate when it is quiet", file=sys.stderr)
    measured = calibration.best_known(measured)
    try:
        calibrations.save(measured)
    except OSError as error:  # a read-only home is no reason to stop
        print(f"rooflight: this calibration cannot be kept ({error}); set ROOFLIGHT_CACHE", file=sys.stderr)
    return calibrations.device_of(measured)


def _observe_function(target: str, wish: Wish, measured: bool, progress: Progress) -> tuple[Session, str, list[str]]:
    from rooflight.capture.measure import measure
    from rooflight.workloads.targets import open_target

    progress(f"making the step of {target}")
    step = open_target(target, mode=wish.mode, batch=wish.batch, seq=wish.seq, dtype=wish.dtype,
                       optimizer=wish.optimizer, small=wish.small)  # fmt: skip
    progress("running it once, so that lazily made state is not part of the record")
    step.run()
    session = _record(step, progress)
    if measured:
        session = measure(session, step.run, progress=progress)
    return session, step.description, list(step.notes)


def _observe_here(
    target: str, wish: Wish, here: DeviceSpec, place: str, measured: bool, progress: Progress
) -> tuple[Session, str, list[str]]:
    """Record without hardware first: that tells whether the step fits before any memory is taken."""
    dtype = wish.dtype or ("float32" if place == "cpu" else None)
    session, title, notes = _record_on_meta(target, wish, dtype, progress)
    if not measured:
        return session, title, notes
    needed, capacity = memory_use(session).peak_bytes, _free_bytes(place)
    if capacity is not None and needed * _ROOM > capacity:
        short = f"{Quantity(needed - capacity, 'B')} too little" if needed > capacity else "too tight for a real run"
        notes.append(
            f"Not measured: the step needs at least {Quantity(needed, 'B')}, {here.name} has {Quantity(capacity, 'B')} "
            f"free: {short}."
        )
        return session, title, notes
    from rooflight.capture.measure import measure

    progress("building the model")
    step = _open(target, wish, dtype, place)
    return measure(_record(step, progress), step.run, progress=progress), step.description, list(step.notes)


def _record_on_meta(target: str, wish: Wish, dtype: str | None, progress: Progress) -> tuple[Session, str, list[str]]:
    progress("building the model without memory")
    step = _open(target, wish, wish.dtype or dtype, "meta")
    return _record(step, progress), step.description, list(step.notes)


def _open(target: str, wish: Wish, dtype: str | None, place: str) -> Step:
    from rooflight.workloads.targets import open_target

    return open_target(target, mode=wish.mode or "forward", batch=wish.batch, seq=wish.seq, dtype=dtype,
                       device=place, optimizer=wish.optimizer, small=wish.small)  # fmt: skip


def _record(step: Step, progress: Progress) -> Session:
    from rooflight.capture.recorder import record

    progress("recording a step")
    with record(step.model, memory=True) as recording:
        step.run()
    if not len(recording.session):
        raise ValueError("the step ran no torch operation: there is nothing to analyse")
    return recording.session


def _is_session(target: str) -> bool:
    path = Path(target)
    if not path.is_file() or path.suffix in (".py", ".json"):
        return False
    return zipfile.is_zipfile(path) or not target.endswith((".py", ".json"))


def _place(kind: str | None) -> str:
    from rooflight.machine.presence import cuda_name

    return kind or ("cuda" if cuda_name() else "cpu")


def _free_bytes(place: str) -> int | None:
    from rooflight.machine.presence import free_memory_bytes

    return free_memory_bytes(place)
