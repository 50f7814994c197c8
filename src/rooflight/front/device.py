"""The one way to a device, for every verb and for Python: a spec, a name, the CPU or GPU at hand, or that of a session.

Nothing is printed. What is being done goes to ``progress``, which the command line shows and Python logs (logger
``rooflight``, level INFO, but a calibration as a warning); what a user should know afterwards is a CalibrationWarning.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike, fspath
from typing import Final

from rooflight.hardware import devices
from rooflight.hardware.devices import calibrations
from rooflight.hardware.devices.calibrations import DeviceKind
from rooflight.hardware.devices.finding import HERE
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.devices.what_if import WhatIf
from rooflight.records.files import alone, cache_folder
from rooflight.records.measurement import BUSY_SHARE
from rooflight.records.package import is_missing, need
from rooflight.records.quantity import count_of
from rooflight.records.session import Session
from rooflight.records.visible import visible

Progress = Callable[[str], None]
CalibrationWarning = calibrations.CalibrationWarning

_TAKES_S: Final[dict[DeviceKind, int]] = {"cpu": 20, "cuda": 40}
UNCALIBRATED: Final = "rooflight calibrate{} measures the roofs, in 20 s"
_NO_CPU: Final = "the trace does not say which CPU it is of: for bounds, name a device (--device cpu: this machine's)"
_may_calibrate: ContextVar[bool] = ContextVar("may_calibrate", default=True)


@contextmanager
def without_calibrating() -> Iterator[None]:
    """In the block a device at hand that was never calibrated has no roofs, or those of its datasheet."""
    token = _may_calibrate.set(False)
    try:
        yield
    finally:
        _may_calibrate.reset(token)


def log_progress(text: str) -> None:
    """Log the text at level INFO, which is hidden unless logging is set up to show it."""
    logging.getLogger("rooflight").info("rooflight: %s", visible(text))


def find_device(
    device: DeviceSpec | str | PathLike[str] | None = None,
    *,
    session: Session | None = None,
    precision: str | None = None,
    clock_hz: float | None = None,
    progress: Progress = log_progress,
) -> DeviceSpec:
    """The device that ``device`` means, with its calibrated roofs where it was calibrated.

    - a spec: itself, as it is
    - ``"cpu"`` or ``"cuda"``: the one at hand, calibrated now if it never was, as ``current_device`` does; a CPU that
      ``session`` ran on has the roofs of as many threads as that
    - any other name: as ``rooflight.devices.get`` finds it, with its newest calibration among those kept on this
      machine; never calibrated now, even if it is here
    - a path to a TOML: the device that it describes
    - None: the one ``session`` was recorded on, with the calibration made there if it is kept here, and without roofs
      if nobody knows it, but it has a timeline; for a script of ``rooflight run --on`` the one that it saw; without a
      session the one at hand

    What-if roofs: matrix products may use the ``precision`` ("tf32", "bf16", "fp8") where a program says more bits, and
    the clock is locked at ``clock_hz`` (``rooflight.devices.what_if`` explains both); the device's name has them.

    ``DeviceSpec.roofs_used`` names its roofs. Raises ValueError for an unknown device, for a session whose
    CPU was calibrated nowhere that is known here, and for what-if roofs that the device cannot have; TypeError for
    anything else.
    """
    return find_what_if(device, WhatIf(precision=precision, clock_hz=clock_hz), session=session, progress=progress)


def find_what_if(
    device: DeviceSpec | str | PathLike[str] | None,
    what_if: WhatIf,
    *,
    session: Session | None = None,
    progress: Progress = log_progress,
) -> DeviceSpec:
    """``find_device`` with what-if roofs. A clock for the CPU at hand is refused before that is calibrated."""
    from rooflight.hardware.machine.hardware import kind_here

    at_hand = device is None and session is None
    if what_if.clock_hz is not None and (device == "cpu" or (at_hand and kind_here() == "cpu")):
        raise ValueError("a CPU's roofs were measured at a clock that is not known: they cannot be scaled to another")
    return what_if.of(_found(device, session, progress))


def _found(device: DeviceSpec | str | PathLike[str] | None, session: Session | None, progress: Progress) -> DeviceSpec:
    if isinstance(device, DeviceSpec):
        return device
    if device is None:
        return current_device(progress=progress) if session is None else _recorded_on(session, progress)
    if isinstance(device, PathLike):
        device = fspath(device)
    if not isinstance(device, str):
        raise TypeError(
            f'a device is a name such as "H100-SXM5-80GB", "cpu", "cuda", a path to a TOML, a DeviceSpec, or None for '
            f"the default, not {type(device).__name__}"
        )
    kind = device.lower()
    if kind in HERE:
        threads = None if session is None or kind != "cpu" else _threads_of(session)
        return current_device(kind, threads=threads, progress=progress)
    return devices.get(device)


def current_device(
    kind: str | None = None, *, threads: int | None = None, progress: Progress = log_progress
) -> DeviceSpec:
    """The device torch would use here, with its roofs: the GPU, else the CPU; "cpu" or "cuda" names one of the two.

    A CPU has the roofs of ``threads`` threads; None means those that torch runs on. Calibrated now (about 20 s for a
    CPU, 40 s for a GPU, once per machine and number of threads) if it never was, which is announced first. Where a GPU
    cannot be calibrated its datasheet serves, with a CalibrationWarning; where torch is not installed, a CPU has
    its calibration on the most threads. Raises ValueError for a GPU that the catalog does not know, or that is not
    there, RuntimeError for a CPU that cannot be calibrated.
    """
    from rooflight.hardware.machine.environment import cpu_model
    from rooflight.hardware.machine.hardware import cuda_name, kind_here

    kind = kind or kind_here()
    calibrated = _calibrated(kind, threads)
    if calibrated is not None:
        return calibrated
    if kind == "cpu" and is_missing("torch") and any(one.device_name == cpu_model() for one in calibrations.saved()):
        return devices.get(cpu_model())
    known = devices.get(cuda_name() or "no GPU") if kind == "cuda" else None
    if not _may_calibrate.get():
        how = UNCALIBRATED.format(f" --threads {threads}" if threads else "")
        return known or DeviceSpec(name=cpu_model(), vendor="", architecture="", kind="cpu", notes=(how,))
    try:
        return calibrate(kind, threads=threads, progress=progress)
    except RuntimeError as error:
        if known is None:
            raise
        _warn(f"not calibrated ({error}); bounds are those of: {known.roofs_used}")
        return known


def known_here(kind: str, threads: int | None) -> DeviceSpec | None:
    """The GPU or CPU at hand where its bounds are known: calibrated earlier, or a GPU of the catalog."""
    from rooflight.hardware.machine.hardware import cuda_name

    calibrated = _calibrated(kind, threads)
    printed = cuda_name() if kind == "cuda" else None
    try:
        return devices.get(printed) if calibrated is None and printed is not None else calibrated
    except ValueError:
        return None


def _calibrated(kind: str, threads: int | None) -> DeviceSpec | None:
    from rooflight.hardware.machine.environment import fingerprint, threads_here

    found = calibrations.load(fingerprint(kind), (threads or threads_here()) if kind == "cpu" else None)
    return None if found is None else calibrations.device_of(found)


def calibrate(kind: str | None = None, *, threads: int | None = None, progress: Progress = log_progress) -> DeviceSpec:
    """Measure the roofs of this machine (about 20 s for a CPU, 40 s for a GPU), keep them for later runs, and return
    the device with them. ``kind`` is "cpu" or "cuda"; None takes the GPU where there is one. A CPU's roofs are those of
    ``threads`` threads, and kept for that number; None means those that torch runs on.

    A roof is the best of all calibrations: measuring again raises roofs and lowers none. On a machine that other
    programs use, it is measured once more; a CalibrationWarning is issued if they still use it, and if the roofs cannot
    be kept. What takes long is announced to ``progress``; without one, it is logged as a warning, which Python shows on
    standard error.
    Raises ValueError for a device that is not there or unknown, RuntimeError where nothing could be measured.
    """
    need("torch", "calibrating this machine")  # before anything says that it begins
    from rooflight.hardware.machine import calibration
    from rooflight.hardware.machine.hardware import kind_here

    place = _checked(kind or kind_here())
    announcer = _Announcer(_what(place, threads), progress)
    announcer.announce(f"{announcer.what}, about {_TAKES_S[place]} s, once: its roofs are kept for later runs")
    measured = calibration.calibrate(place, announcer.done, threads=threads)
    if calibration.busy_share(measured) >= BUSY_SHARE:  # too low a roof is a bound that real ops beat
        announcer.announce(f"{announcer.what} once more: other programs are running")
        measured = calibration.raised(calibration.calibrate(place, announcer.done, threads=threads), measured)
        if calibration.busy_share(measured) >= BUSY_SHARE:
            _warn("these roofs may be low, as other programs are running: run rooflight calibrate when it is quiet")
    try:
        with alone(cache_folder()):
            measured = calibration.best_known(measured)
            calibrations.save(measured)
    except OSError as error:  # a read-only home is no reason to stop
        _warn(f"this calibration cannot be kept ({error}): set ROOFLIGHT_CACHE to a folder that can be written")
    return calibrations.device_of(measured)


class _Announcer:
    """Half a minute of silence looks like a program that hangs. A ``progress`` of the caller's hears everything; the
    log has the beginning and every quarter, as warnings.
    """

    def __init__(self, what: str, progress: Progress) -> None:
        self.what, self._progress, self._quarters = what, progress, 0

    def announce(self, text: str) -> None:
        self._quarters = 0
        if self._progress is log_progress:
            logging.getLogger("rooflight").warning("rooflight: %s", text)
        else:
            self._progress(text)

    def done(self, figure: str, fraction: float) -> None:
        """What is being measured, and what fraction is behind."""
        if self._progress is not log_progress:
            self._progress(f"{self.what}: {fraction:.0%}, {figure}".replace("%", " %"))
        elif self._quarters < (reached := int(4 * fraction)) < 4:
            logging.getLogger("rooflight").warning("rooflight: %s: %d %%", self.what, 25 * reached)
            self._quarters = reached


def _what(place: DeviceKind, threads: int | None) -> str:
    if place == "cuda":
        return "calibrating this GPU"
    from rooflight.hardware.machine.environment import threads_here

    return f"calibrating this CPU on {count_of(threads or threads_here(), 'thread')}"


def place_of(device: DeviceSpec) -> str | None:
    """Where a step would run on ``device`` itself: "cuda" or "cpu" if it is this machine's, None if it is not here."""
    from rooflight.hardware.machine.environment import cpu_model
    from rooflight.hardware.machine.hardware import cuda_name

    if device.kind == "cpu":
        return "cpu" if device.part_name == cpu_model() else None
    printed = cuda_name() if device.kind == "cuda" else None
    known = devices.find_by_torch_name(printed) if printed else None
    return "cuda" if device.part_name in (printed, known.name if known else None) else None


def _recorded_on(session: Session, progress: Progress) -> DeviceSpec:
    environment, run = session.environment, session.run
    if run is not None and run.virtual is not None:
        return devices.get(run.virtual.devices[0])
    if (calibration := calibrations.load_for(environment)) is not None:
        return calibrations.device_of(calibration)
    if environment.get("device_kind") == "cuda":
        measured = session.measurement
        return _gpu(environment.get("gpu", "unknown GPU"), timed=measured is not None)
    from rooflight.hardware.machine.environment import fingerprint

    threads = _threads_of(session)
    if threads is not None and environment.get("fingerprint") == fingerprint("cpu"):
        return current_device("cpu", threads=threads, progress=progress)
    if session.measurement is not None and "fingerprint" not in environment:  # a trace, which says nothing of its CPU
        return DeviceSpec(name="unknown CPU", vendor="", architecture="", kind="cpu", notes=(_NO_CPU,))
    raise ValueError("the session's CPU was never calibrated: run rooflight calibrate there, or name a device")


def _gpu(name: str, *, timed: bool) -> DeviceSpec:
    """The GPU of that name; one that nobody knows has no roofs, where a trace has a timeline to show all the same."""
    try:
        return devices.get(name)
    except ValueError as unknown:
        if not timed:
            raise
        return DeviceSpec(name=name, vendor="", architecture="", kind="cuda", notes=(str(unknown),))


def _threads_of(session: Session) -> int | None:
    """How many threads a session ran on, if it ran on this machine's CPU and they can be had here; None otherwise."""
    from rooflight.hardware.machine.environment import cpu_model
    from rooflight.hardware.machine.hardware import usable_cores

    facts = session.environment
    threads = facts.get("torch_threads", "")
    if facts.get("device_kind") != "cpu" or facts.get("cpu") != cpu_model() or not threads.isdecimal():
        return None
    return int(threads) if 1 <= int(threads) <= len(usable_cores()) else None


def _checked(kind: str) -> DeviceKind:
    kinds: dict[str, DeviceKind] = {"cpu": "cpu", "cuda": "cuda"}
    if kind not in kinds:
        raise ValueError(f'unknown kind of device "{kind}": use cpu or cuda')
    return kinds[kind]


def _warn(text: str) -> None:
    warnings.warn(visible(text), CalibrationWarning, stacklevel=3)
