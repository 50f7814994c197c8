"""What the front door makes of a calibration: disturbed, kept, or not to be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

import pytest
import torch
from calibrated import calibration_of, roofs_of

import rooflight as rl
from rooflight.devices import calibrations
from rooflight.front.device import CalibrationWarning, calibrate, current_device, find_device
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.machine import calibration, environment
from rooflight.hardware.machine import hardware as presence

COUNT = torch.get_num_threads()
THREADS = f"{COUNT} thread{'s' if COUNT > 1 else ''}"


def measured(peak: float, busy: str) -> Calibration:
    return calibration_of(roofs_of(peak, 1e10), key="front-test", **{calibration.BUSY: busy})


@pytest.fixture
def trials(tmp_path, monkeypatch):
    """The calibrations that will be measured, one after the other."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    queue: list[Calibration] = []
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: queue.pop(0))
    return queue


def test_a_disturbed_calibration_is_measured_once_more_and_the_best_kept(trials):
    trials += [measured(140e9, "38 %"), measured(226e9, "0 %")]
    texts: list[str] = []
    assert calibrate("cpu", progress=texts.append).matrix_peak("float32") == 226e9
    assert trials == []
    assert texts == [
        f"calibrating this CPU on {THREADS}, about 20 s, once: its roofs are kept for later runs",
        f"calibrating this CPU on {THREADS} once more: other programs are running",
    ]
    assert calibrations.load("front-test").roofs.matrix_flops_per_s == {"float32": 226e9}


def test_a_machine_that_stays_busy_is_warned_of(trials):
    trials += [measured(140e9, "38 %"), measured(150e9, "12 %")]
    with pytest.warns(CalibrationWarning, match="these roofs may be low, as other programs are running"):
        assert rl.calibrate("cpu").matrix_peak("float32") == 150e9
    assert trials == []


def test_a_quiet_calibration_is_measured_once_and_lowers_no_saved_roof(trials):
    calibrations.save(measured(230e9, "0 %"))
    trials += [measured(226e9, "2 %")]
    assert rl.calibrate("cpu").matrix_peak("float32") == 230e9  # and nothing is warned of


def test_roofs_that_cannot_be_kept_are_used_all_the_same(trials, monkeypatch):
    def refuse(_):
        raise PermissionError("read-only")

    monkeypatch.setattr(calibrations, "save", refuse)
    trials += [measured(226e9, "0 %")]
    with pytest.warns(CalibrationWarning, match=r"cannot be kept \(read-only\): set ROOFLIGHT_CACHE"):
        assert rl.calibrate("cpu").matrix_peak("float32") == 226e9


def test_a_home_that_is_a_file_is_as_good_as_read_only(trials, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "home" / "cache"))
    trials += [measured(226e9, "0 %")]
    with pytest.warns(CalibrationWarning, match="set ROOFLIGHT_CACHE"):
        assert rl.current_device("cpu").matrix_peak("float32") == 226e9


def in_steps(monkeypatch, *fractions: float) -> None:
    """A calibration that says how far it is."""

    def fake(_, progress, *, threads=None):
        for fraction in fractions:
            progress("memory DRAM", fraction)
        return measured(226e9, "0 %")

    monkeypatch.setattr(calibration, "calibrate", fake)


def test_what_takes_long_is_announced_first_and_nothing_is_printed(trials, capfd, caplog, monkeypatch):
    in_steps(monkeypatch, 0.1, 0.26, 0.3, 0.8, 0.9, 1.0)
    rl.current_device("cpu")  # a warning: logging shows it without being set up
    start = f"rooflight: calibrating this CPU on {THREADS}"
    assert caplog.messages == [
        f"{start}, about 20 s, once: its roofs are kept for later runs",
        f"{start}: 25 %",
        f"{start}: 75 %",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert capfd.readouterr() == ("", "")


def test_a_progress_of_ones_own_hears_all_and_nothing_is_logged(trials, caplog, monkeypatch):
    in_steps(monkeypatch, 0.0, 0.5)
    texts: list[str] = []
    current_device("cpu", progress=texts.append)
    assert texts[1:] == [
        f"calibrating this CPU on {THREADS}: 0 %, memory DRAM",
        f"calibrating this CPU on {THREADS}: 50 %, memory DRAM",
    ]
    assert caplog.messages == []


def test_python_shows_the_announcement_before_it_begins(tmp_path):
    """A script that analyses on a machine that was never calibrated, as a notebook would: no logging is set up."""
    program = (
        "import sys, torch; import rooflight as rl; from rooflight.hardware.machine import calibration\n"
        "def stop(*_, **__): print('begins', file=sys.stderr); sys.exit()\n"
        "calibration.calibrate = stop\n"
        "with rl.record() as recording: torch.ones(4) + 1\n"
        "rl.analyze(recording.session)"
    )
    environment = {**os.environ, "ROOFLIGHT_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    announced, begins = done.stderr.splitlines()
    assert announced.startswith("rooflight: calibrating this CPU on ")
    assert announced.endswith(", about 20 s, once: its roofs are kept for later runs")
    assert begins == "begins"


def test_this_machine_is_calibrated_once(trials):
    trials += [calibration_of(roofs_of(226e9, 1e10))]
    texts: list[str] = []
    first = current_device("cpu", progress=texts.append)
    assert current_device("cpu", progress=texts.append) == first == find_device("cpu", progress=texts.append)
    assert len(texts) == 1


def broken(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("nothing could be measured")


def test_a_cpu_that_cannot_be_measured_has_no_roofs(trials, monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", broken)
    with pytest.raises(RuntimeError, match="nothing could be measured"):
        rl.current_device("cpu")


def test_a_gpu_that_cannot_be_measured_has_its_datasheet(trials, monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", broken)
    monkeypatch.setattr(presence, "cuda_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(environment, "fingerprint", lambda *_: "a GPU")
    with pytest.warns(CalibrationWarning, match=r"not calibrated \(nothing could be measured\); .*: datasheet"):
        found = rl.current_device()
    assert found == rl.devices.get("H100-SXM5-80GB")


def test_a_gpu_that_nobody_knows_is_not_measured(trials, monkeypatch):
    monkeypatch.setattr(presence, "cuda_name", lambda: "NVIDIA H300")
    monkeypatch.setattr(environment, "fingerprint", lambda *_: "a GPU")
    with pytest.raises(ValueError, match='unknown device "NVIDIA H300"'):
        rl.current_device()
