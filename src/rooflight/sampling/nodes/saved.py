"""Keeping what was measured on a cluster: a file of each device, and the best of equal ones for later analyses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rooflight.devices import calibrations
from rooflight.devices.calibrations import Calibration
from rooflight.machine.calibration import best_known, raised
from rooflight.records.files import write_whole
from rooflight.sampling.nodes.roofs import NodeCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCalibration:
    """What came of calibrating a cluster; with ``interrupted``, nodes may be missing."""

    measured: tuple[NodeCalibration, ...]
    interrupted: bool = False


def collect(results: Iterable[NodeCalibration], folder: Path) -> ClusterCalibration:
    """Take results as they arrive, each calibration in a file of ``folder`` at once. Ctrl-C ends it."""
    found: list[NodeCalibration] = []
    interrupted = False
    try:
        for each in results:
            found.append(each)
            if each.calibration is not None:
                write_whole(folder / _file_name(each), _json(each.calibration))
    except KeyboardInterrupt:
        interrupted = True
    return ClusterCalibration(measured=tuple(found), interrupted=interrupted)


def keep_best(measured: Iterable[NodeCalibration], *, force: bool = False) -> tuple[Path, ...]:
    """Save the roofs of each kind of device, so that sessions recorded on any such node are analysed with them.

    Equal nodes have one fingerprint, and each roof is the best that one of them reached, or ever has: a session of a
    slow node is held against what its hardware can do. ``force`` forgets the roofs that were saved before.
    """
    best: dict[str, Calibration] = {}
    for each in measured:
        if (new := each.calibration) is not None:
            earlier = best.get(new.fingerprint)
            best[new.fingerprint] = new if earlier is None else raised(new, earlier)
    return tuple(calibrations.save(each if force else best_known(each)) for each in best.values())


def _file_name(found: NodeCalibration) -> str:
    # a node's name comes from the cluster: it must not lead out of the folder
    return re.sub(r"[^A-Za-z0-9.-]+", "-", found.name.replace(" GPU ", "-gpu")).lstrip(".") + ".json"


def _json(calibration: Calibration) -> bytes:
    return msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n"
