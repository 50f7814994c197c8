"""The roofs of a CPU belong to a number of threads: whatever runs is compared with the roofs of as many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from builders import op, spec
from calibrated import calibration_of, roofs_of
from sessions import Call, session_of

import rooflight as rl
from rooflight.devices import calibrations
from rooflight.front.device import UNCALIBRATED, current_device, find_device, without_calibrating
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import DeviceSpec, Roofs
from rooflight.hardware.machine import calibration, environment
from rooflight.hardware.machine import hardware as presence
from rooflight.hardware.machine.environment import cpu_model, fingerprint
from rooflight.roofline.analysis import analyze
from rooflight.roofline.tables.report import report_of

SQUARE = spec((64, 64), "float32")
MM = op("aten::mm", {"self": SQUARE, "mat2": SQUARE}, [SQUARE])
PER_THREAD = 1e11  # FLOP/s


def calibrated_on(threads: int, day: int) -> Calibration:
    roofs = roofs_of(threads * PER_THREAD, 1e10, source=f"calibration on {threads} threads", threads=threads)
    return calibration_of(roofs, cpu_model(), key=fingerprint("cpu"), at=f"2026-01-0{day}")


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> None:
    """Calibrated on 1, 2 and 4 threads, on 1 at last; nothing more is to be measured."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(presence, "cuda_name", lambda: None)
    monkeypatch.setattr("rooflight.hardware.machine.hardware.usable_cores", lambda: tuple(range(8)))
    monkeypatch.setattr(environment, "usable_cores", lambda: tuple(range(8)))
    for threads, day in ((4, 1), (2, 2), (1, 3)):
        calibrations.save(calibrated_on(threads, day))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: pytest.fail("measured again"))


pytestmark = pytest.mark.usefixtures("one_thread")  # puts back what a test sets


def ran_on(threads: int, **facts: str) -> rl.Session:
    described = {
        "device_kind": "cpu",
        "cpu": cpu_model(),
        "torch_threads": str(threads),
        "fingerprint": fingerprint("cpu"),
    }
    return session_of([Call(op=MM)], environment=described | facts, times=[[1e-3]], walls=[2e-3])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_cpu_at_hand_has_the_roofs_of_the_threads_that_run(threads):
    torch.set_num_threads(threads)
    for device in (rl.current_device("cpu"), find_device("cpu"), find_device()):
        assert device.threads == threads
        assert device.matrix_peak("fp32") == threads * PER_THREAD


@pytest.fixture
def asked(monkeypatch):
    """The kinds and threads that are calibrated."""
    found = []

    def fake(kind, _, *, threads):
        found.append((kind, threads))
        return calibrated_on(threads or torch.get_num_threads(), 4)

    monkeypatch.setattr(calibration, "calibrate", fake)
    return found


def test_roofs_of_threads_that_were_never_calibrated_are_measured(asked):
    torch.set_num_threads(3)
    assert find_device("cpu").threads == find_device("cpu").threads == 3
    assert asked == [("cpu", None)]  # once, on the threads that run


@pytest.mark.parametrize("here", [1, 2])
@pytest.mark.parametrize("ran", [1, 2, 4])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_session_has_the_roofs_of_the_threads_it_ran_on(here, ran, device):
    torch.set_num_threads(here)
    analysis = rl.analyze(ran_on(ran), device)
    assert analysis.device.threads == ran
    assert "Threads:" not in " ".join(report_of(analysis).notes)


def test_a_sessions_threads_are_calibrated_if_they_never_were(asked):
    torch.set_num_threads(1)
    assert rl.analyze(ran_on(3)).device.threads == rl.analyze(ran_on(5), "cpu").device.threads - 2 == 3
    assert asked == [("cpu", 3), ("cpu", 5)]


@pytest.mark.parametrize(
    "facts",
    [
        {"cpu": "another CPU"},
        {"device_kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3"},
        {"device_kind": "meta"},
        {"torch_threads": "64"},  # cannot be had here
        {"torch_threads": "many"},
        {"torch_threads": "0"},
    ],
)
def test_a_session_that_ran_elsewhere_is_bounded_for_the_threads_here(facts):
    torch.set_num_threads(2)
    assert rl.analyze(ran_on(4, **facts), "cpu").device.threads == 2


@pytest.mark.parametrize(("ran", "said"), [(4, "can be faster than this bound"), (1, "threads that it did not use")])
def test_roofs_of_other_threads_are_said_to_be(ran, said):
    notes = " ".join(report_of(analyze(ran_on(ran), calibrations.device_of(calibrated_on(2, 1)))).notes)
    assert f"Threads: the step ran on {ran}, the roofs are those of 2;" in notes
    assert said in notes


def test_a_name_means_the_most_threads_so_that_no_run_beats_its_bound():
    """Not those calibrated last: a script on one thread would lower the bound of everything after it."""
    assert rl.devices.get(cpu_model()).threads == find_device(cpu_model()).threads == 4
    newer = replace(calibrated_on(4, 5), fingerprint="the same CPU, with other cores")
    newer = replace(newer, roofs=replace(newer.roofs, source="newer"))
    calibrations.save(newer)
    assert rl.devices.get(cpu_model()).roofs_used == "newer"


def test_without_torch_a_cpu_has_its_roofs_of_the_wanted_threads_or_of_the_most(monkeypatch):
    monkeypatch.setattr(environment, "torch_threads", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert find_device("cpu").threads == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # never calibrated, and cannot be now
    assert find_device("cpu").threads == 4
    for nonsense in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert environment.threads_here() == 8  # a core each
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # of nested teams: the outer's
    assert environment.threads_here() == 2


def test_that_a_cpu_has_no_roofs_is_known_without_importing_torch(monkeypatch):
    """The report of a script's run would take seconds and 200 MB more."""
    monkeypatch.setattr(environment, "torch_threads", lambda: pytest.fail("torch was imported"))
    with without_calibrating():
        assert current_device("cpu", threads=3).notes == (UNCALIBRATED.format(" --threads 3"),)


def test_the_report_names_the_threads():
    report = report_of(rl.analyze(ran_on(2)))
    facts = dict(report.facts)
    assert str(facts["roofs"]).endswith(", 2 threads")
    assert report.data.device.threads == 2
    assert str(dict(report_of(rl.analyze(ran_on(1))).facts)["roofs"]).endswith(", 1 thread")
    gpu = DeviceSpec(name="a GPU", vendor="", architecture="", kind="cuda", datasheet=Roofs(source="s"))
    report = report_of(analyze(ran_on(2), gpu))
    assert "roofs" not in dict(report.facts)  # it has no memory to show any of
    assert report.data.device.threads is None


def test_a_prediction_names_the_threads(run):
    torch.set_num_threads(2)
    words = ("predict", "gemm", "--m", 64, "--n", 64, "--k", 64, "--dtype", "fp32", "--device", "cpu", "--json", "-")
    code, out, err = run(*words)
    assert code == 0, err
    found = json.loads(out)
    assert (found["threads"], found["roofs_used"]) == (2, "calibration on 2 threads")


def test_a_script_on_one_thread_changes_no_roofs_of_another(tmp_path):
    """Real processes: torch counts its threads from OMP_NUM_THREADS."""
    code = (
        "import rooflight as rl\n"
        "from rooflight.devices import calibrations\n"
        "from rooflight.hardware.machine.environment import cpu_model, fingerprint, threads_here\n"
        "from rooflight.hardware.devices.spec import MemoryLevel, Roofs\n"
        "n = threads_here()\n"
        "roofs = Roofs(source=f'{n}', matrix_flops_per_s={'float32': n * 1e11}, threads=n,\n"
        "              memory=(MemoryLevel(name='DRAM', bytes_per_s=1e10),))\n"
        "calibrations.save(calibrations.Calibration(fingerprint=fingerprint('cpu'), device_name=cpu_model(),\n"
        "                  kind='cpu', roofs=roofs, measured_at=f'2026-01-0{4 - n}'))\n"
        "print(rl.find_device('cpu').roofs_used, rl.find_device(cpu_model()).roofs_used)"
    )
    found = []
    for threads in ("2", "1", "2"):
        environment = {**os.environ, "ROOFLIGHT_CACHE": str(tmp_path / "own"), "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        found.append(done.stdout.split())
    assert found == [["2", "2"], ["1", "2"], ["2", "2"]]
