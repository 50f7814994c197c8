"""Measured data as users name them: tables of samples, and sessions and traces whose ops were timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rooflight.front.device import find_device, log_progress
from rooflight.front.sources import is_session, read_session, reading
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.read import find
from rooflight.prediction.read.measured import SUFFIXES, MeasuredOps, measured_ops
from rooflight.records.package import need
from rooflight.records.samples import SUFFIX
from rooflight.records.session import Session
from rooflight.sources.traces.file.discovery import is_trace

_SESSION: Final = ".session"
"""The ending by which saved sessions are found in a folder; named alone, they may have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFiles:
    """``tables`` hold samples, ``sessions`` timed ops; ``skipped`` are CSV and JSON-lines files of neither."""

    tables: tuple[Path, ...]
    sessions: tuple[Path, ...]
    skipped: tuple[Path, ...]


def find_measured(paths: Iterable[Path]) -> MeasuredFiles:
    """The files of measured data under several paths, each once however it is named.

    Raises ValueError for a path that does not exist, and for a folder that holds none.
    """
    tables: dict[Path, Path] = {}
    sessions: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for path in paths:
        found = list(_sessions(path))
        sessions.update((each.resolve(), each) for each in found if each.resolve() not in sessions)
        if path.is_file() and found:
            continue
        try:
            files, others = find(path)
        except ValueError:
            if not found:
                raise
            continue
        tables.update((each.resolve(), each) for each in files if each.resolve() not in tables)
        skipped.update((each.resolve(), each) for each in others if each.resolve() not in skipped)
    return MeasuredFiles(
        tables=tuple(tables.values()), sessions=tuple(sessions.values()), skipped=tuple(skipped.values())
    )


def read_measured(
    paths: Iterable[Path], device: str | None = None, progress: Callable[[str], None] = log_progress
) -> list[MeasuredOps]:
    """The timed ops of sessions and traces. ``device`` is that of those which do not name one that is known.

    Raises ValueError, naming the file, for one without times, damaged, or of a device that is not known.
    """
    found = []
    for path in paths:
        progress(f"reading {path.name}")
        session = _whole(path, progress)
        found.append(measured_ops(session, _device_of(session, path, device, progress), path))
    return found


def _sessions(path: Path) -> Iterator[Path]:
    if path.is_file():
        if not path.name.endswith((*SUFFIXES, SUFFIX)) and is_session(str(path)):
            yield path
    elif path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_file() and (each.suffix == _SESSION or is_trace(each)):
                yield each


def _whole(path: Path, progress: Callable[[str], None]) -> Session:
    """The session of a file; of a trace all steps, not only those that are alike."""
    if not is_trace(path):
        return read_session(str(path))
    need("torch", "reading a trace")
    from rooflight.sources.traces.session import read_trace

    return read_trace(path, whole=True, progress=reading(path, progress))


def _device_of(session: Session, path: Path, device: str | None, progress: Callable[[str], None]) -> DeviceSpec:
    try:
        own = find_device(session=session, progress=progress)
        if not (own.datasheet or own.calibrated):  # a trace of it has a timeline, and no bounds to learn from
            raise ValueError(" ".join(own.notes))
    except ValueError as error:
        if device is not None:
            return find_device(device, progress=progress).as_listed
        raise ValueError(f"{path}: {error}") from None
    return own.as_listed
