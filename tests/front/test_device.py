"""One name means one device, with the same roofs, for every verb and for Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import op, spec
from calibrated import calibration_of, roofs_of
from sessions import Call, session_of
from torch import nn
from tracked import CPU, calibrate_by_hand

import rooflight as rl
from rooflight.devices import calibrations, get
from rooflight.front.device import find_device, place_of
from rooflight.front.sessions import analyze_ranks
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.machine import calibration
from rooflight.hardware.machine import hardware as presence
from rooflight.hardware.machine.environment import cpu_model, fingerprint, threads_here
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import device_called
from rooflight.studies.tracking.functions import FunctionalPatcher
from rooflight.studies.tracking.layers import LayerSOLHooks

H100 = "H100-SXM5-80GB"
PEAK = 1200e12  # bf16, above the datasheet's 989.4
TORCH_NAME = "NVIDIA H100 80GB HBM3"
ROOFS = roofs_of(1e13, 3e12, matrix={"bfloat16": PEAK}, source=f"calibration on {TORCH_NAME}, 2026-01-02")
X = spec((4096, 4096), "bfloat16")
MM = op("aten::mm", {"self": X, "mat2": X}, [X])
FLOPS = 2 * 4096**3


@pytest.fixture(autouse=True)
def calibrated(tmp_path, monkeypatch):
    """This CPU was calibrated, and the calibration of an H100 was copied here; nothing is to be measured."""
    calibrate_by_hand(tmp_path / "cache", monkeypatch)
    calibrations.save(calibration_of(ROOFS, TORCH_NAME, kind="cuda", key="an H100 elsewhere"))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: pytest.fail("measured again"))


@pytest.mark.parametrize("name", [H100, TORCH_NAME])
def test_every_verb_finds_the_same_roofs(as_json, name):
    analysed = as_json("analyze", "gpt2", "--small", "--seq", 8, "--device", name)["device"]
    assert analysed["matrix_flops_per_s"]["bfloat16"] == PEAK
    assert ROOFS.source in analysed["roofs_used"]
    shape = ("--m", 4096, "--n", 4096, "--k", 4096)
    predicted = as_json("predict", "gemm", *shape, "--device", name)
    assert predicted["step"]["bound_s"] == pytest.approx(FLOPS / PEAK)
    shown = as_json("devices", "show", name)["figures"]
    assert next(figure for figure in shown if figure["figure"] == "matrix bfloat16")["calibrated"] == PEAK


def test_python_finds_the_same_roofs(tmp_path):
    wanted = get(H100)
    assert wanted.matrix_peak("bf16") == PEAK
    session = session_of([Call(op=MM)], environment={"rank": "0", "world_size": "1"})
    path = session.save(tmp_path / "rank0.session")
    model = nn.Linear(4, 4)
    found = {
        "find_device": find_device(H100),
        "analyze": rl.analyze(session, H100).device,
        "ranks": next(iter(analyze_ranks([str(path)], H100).analyses.values())).device,
        "tracking": _tracked(model),
        "hooks": _hooked(model),
        "patcher": _patched(model),
    }
    assert {name: device == wanted for name, device in found.items()} == dict.fromkeys(found, True)
    assert device_called("NVIDIAH10080GBHBM3", "a file") == wanted.as_listed  # what tables teach is of datasheets
    assert Predictor.empty().predict(MM, H100) == Predictor.empty().predict(MM, wanted)
    assert Predictor.empty().predict(MM, H100).bound_s == pytest.approx(FLOPS / PEAK)


def _tracked(model: nn.Module) -> DeviceSpec:
    tracker = rl.initialize_sol(model, {"rl_enable_sol_tracking": True, "rl_sol_device": H100})
    try:
        return tracker._observer.device
    finally:
        tracker.close()


def _hooked(model: nn.Module) -> DeviceSpec:
    hooks = LayerSOLHooks(model, H100).attach()
    hooks.detach()
    return hooks._device


def _patched(model: nn.Module) -> DeviceSpec:
    patcher = FunctionalPatcher(H100).patch()
    patcher.unpatch()
    return patcher.analyze().device


def test_what_is_here_is_the_same_for_all(as_json, monkeypatch):
    monkeypatch.setattr(presence, "cuda_name", lambda: None)
    here = rl.current_device()
    assert here.calibrated == replace(CPU.calibrated, threads=threads_here())
    assert find_device() == find_device("cpu") == find_device("CPU") == find_device("a CPU by hand") == here
    for words in ((), ("--device", "cpu")):
        analysed = as_json("analyze", "gpt2", "--small", "--seq", 8, "--no-measure", *words)["device"]
        assert (analysed["name"], analysed["roofs_used"]) == (here.name, "by hand")
    shown = as_json("devices", "show", "cpu")
    assert shown["name"] == here.name


def test_a_spec_is_taken_as_it_is():
    plain = DeviceSpec(name="mine", vendor="", architecture="", kind="cuda")
    assert find_device(plain) is plain
    assert rl.analyze(session_of([Call(op=MM)]), plain).device is plain


def test_a_session_without_a_device_has_the_one_it_was_recorded_on():
    gpu = {"device_kind": "cuda", "gpu": TORCH_NAME}
    known = session_of([Call(op=MM)], environment={**gpu, "fingerprint": "an H100 elsewhere"})
    assert find_device(session=known).calibrated == ROOFS
    other = session_of([Call(op=MM)], environment={**gpu, "fingerprint": "another H100"})
    assert find_device(session=other) == get(H100)
    facts = {"device_kind": "cpu", "fingerprint": fingerprint("cpu"), "torch_threads": str(threads_here())}
    here = session_of([Call(op=MM)], environment=facts)
    assert find_device(session=here).calibrated.source == CPU.calibrated.source
    nowhere = session_of([Call(op=MM)], environment={"device_kind": "cpu", "fingerprint": "far away"})
    with pytest.raises(ValueError, match="run rooflight calibrate there, or name a device"):
        find_device(session=nowhere)


def test_a_session_can_be_bounded_for_the_machine_at_hand(tmp_path, as_json):
    gpu = {"device_kind": "cuda", "gpu": TORCH_NAME}
    path = session_of([Call(op=MM)], environment=gpu).save(tmp_path / "run.session")
    assert as_json("analyze", path)["device"]["name"] == H100
    assert as_json("analyze", path, "--device", "cpu")["device"]["name"] == CPU.name


def test_another_device_is_never_said_to_be_calibrated():
    texts: list[str] = []
    find_device("A100-SXM4-80GB", progress=texts.append)
    find_device(H100, progress=texts.append)
    assert texts == []


def test_a_named_device_is_here_if_the_machine_says_so(monkeypatch):
    monkeypatch.setattr(presence, "cuda_name", lambda: TORCH_NAME)
    assert place_of(get(H100)) == "cuda"
    assert place_of(get("H100-PCIe-80GB")) is None
    monkeypatch.setattr(presence, "cuda_name", lambda: None)
    assert place_of(get(H100)) is None
    assert place_of(DeviceSpec(name=cpu_model(), vendor="", architecture="", kind="cpu")) == "cpu"
    assert place_of(CPU) is None


def test_a_named_device_that_is_here_is_timed(as_json, monkeypatch):
    monkeypatch.setattr(presence, "cuda_name", lambda: None)
    calibrations.save(calibration_of(CPU.calibrated, cpu_model(), key="named", at="2026-02-01"))
    step = ("analyze", "gpt2", "--small", "--seq", 8)
    assert as_json(*step, "--device", cpu_model())["totals"]["measured_s"] > 0
    assert as_json(*step, "--device", H100)["totals"]["measured_s"] is None
