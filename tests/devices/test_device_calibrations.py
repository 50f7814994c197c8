"""Calibrations survive the disk, and a broken file is said rather than believed."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight import devices
from rooflight.devices import MemoryLevel, Roofs, calibrations
from rooflight.hardware.devices.calibrations import Calibration, CalibrationWarning
from rooflight.records.files import cache_folder

GPU = Calibration(
    fingerprint="NVIDIA H100 PCIe | driver 570.1 | torch 2.13",
    device_name="NVIDIA H100 PCIe",
    kind="cuda",
    roofs=Roofs(
        source="rooflight calibrate",
        matrix_flops_per_s={"bfloat16": 800e12, "float32": 40e12},
        memory=(MemoryLevel(name="L2", bytes_per_s=5e12), MemoryLevel(name="DRAM", bytes_per_s=1.8e12)),
        launch_latency_s=4e-6,
    ),
    measured_at="2026-01-02T03:04:05+00:00",
    environment={"driver": "570.1"},
)
CPU = Calibration(
    fingerprint="some CPU",
    device_name="AMD EPYC 7763",
    kind="cpu",
    roofs=Roofs(source="rooflight calibrate", vector_flops_per_s={"float32": 1e11}, memory=(MemoryLevel(name="DRAM"),)),
    measured_at="2026-01-03T00:00:00+00:00",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_calibration_is_read_as_it_was_saved(cache):
    path = calibrations.save(GPU)
    assert path.parent == cache
    assert [file.name for file in cache.iterdir()] == [path.name]  # no temporary left
    assert calibrations.load(GPU.fingerprint) == GPU
    assert json.loads(path.read_text())["schema"] == "rooflight.calibration/1"


@pytest.mark.parametrize("words", ["", ", beside other programs"])
def test_a_file_from_before_there_was_the_field_says_in_words_that_others_ran(words):
    path = calibrations.save(replace(GPU, roofs=replace(GPU.roofs, source=f"calibration{words}; raised by a program")))
    written = json.loads(path.read_text())
    assert written["roofs"].pop("disturbed") is False
    path.write_text(json.dumps(written))
    assert calibrations.load(GPU.fingerprint).roofs.disturbed == bool(words)


def test_saving_again_takes_the_place_of_the_old():
    first = calibrations.save(GPU)
    newer = replace(GPU, measured_at="2026-02-02T00:00:00+00:00")
    assert calibrations.save(newer) == first
    assert calibrations.load(GPU.fingerprint) == newer


def test_a_failed_save_leaves_the_old_file_and_nothing_else(cache, monkeypatch):
    calibrations.save(GPU)

    def refuse(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        calibrations.save(replace(GPU, measured_at="later"))
    assert len(list(cache.iterdir())) == 1
    assert calibrations.load(GPU.fingerprint) == GPU


def test_fingerprints_that_read_alike_are_kept_apart():
    one, other = replace(GPU, fingerprint="a/b"), replace(CPU, fingerprint="a b")
    assert calibrations.save(one) != calibrations.save(other)
    assert calibrations.load("a/b") == one
    assert calibrations.load("a b") == other


def test_a_cpu_has_a_calibration_for_each_number_of_threads():
    one, four = (replace(CPU, roofs=replace(CPU.roofs, threads=threads)) for threads in (1, 4))
    assert calibrations.save(one) != calibrations.save(four)
    assert [calibrations.load(CPU.fingerprint, threads) for threads in (1, 2, 4, None)] == [one, None, four, None]
    facts = {"fingerprint": CPU.fingerprint, "device_kind": "cpu"}
    assert calibrations.load_for(facts | {"torch_threads": "4"}) == four
    assert calibrations.load_for(facts | {"torch_threads": "many"}) is calibrations.load_for({}) is None


def test_no_file_is_no_calibration():
    assert calibrations.load("never measured") is None
    assert calibrations.saved() == ()


def test_saved_lists_the_newest_first():
    calibrations.save(GPU)
    calibrations.save(CPU)
    assert calibrations.saved() == (CPU, GPU)


def test_what_is_no_file_is_not_waited_for(cache):
    """As others may leave in a folder that all can write to: reading a pipe waits for ever, a device has no end."""
    kept = calibrations.save(GPU)
    os.mkfifo(cache / "calibration-pipe.json")
    (cache / "calibration-device.json").symlink_to("/dev/zero")
    (cache / "calibration-nowhere.json").symlink_to(cache / "nowhere")
    (cache / "calibration-folder.json").mkdir()
    with (cache / "calibration-large.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.warns(CalibrationWarning, match="delete it") as warned:
        assert calibrations.saved() == (GPU,)
    assert len(warned) == 5
    kept.unlink()
    os.mkfifo(kept)
    assert calibrations.load(GPU.fingerprint) is None
    assert calibrations.save(GPU).read_text() != ""


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("calibration/1", "calibration/2"),
        lambda text: text.replace('"kind": "cuda"', '"kind": "abacus"'),
        lambda text: text.replace("1800000000000.0", '"fast"'),
        lambda text: text.replace("1800000000000.0", "0.0"),
        lambda text: text.replace('"bfloat16"', '"bf16"'),
        lambda text: text.replace("driver 570.1 |", "driver 571 |"),
        lambda text: "[" * 100_000,
    ],
)
def test_a_broken_file_says_what_to_do_in_one_line(change):
    path = calibrations.save(GPU)
    assert change(path.read_text()) != path.read_text()
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match="delete it, or run rooflight calibrate --force") as error:
        calibrations.load(GPU.fingerprint)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_any_byte_flipped_is_read_or_refused_never_worse():
    path = calibrations.save(GPU)
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xA5]) + content[position + 1 :])
        try:
            calibrations.load(GPU.fingerprint)
        except ValueError as error:
            assert "delete it" in str(error)  # noqa: PT017


def test_a_gpu_is_its_catalog_entry_with_the_calibration():
    device = calibrations.device_of(GPU)
    assert device.name == "H100-PCIe-80GB"
    assert device.matrix_peak("bf16") == 800e12  # measured above the datasheet's 756
    assert device.dram_bytes_per_s == 2e12  # measured below it
    assert device.memory[0].bytes_per_s == 5e12
    assert device.launch_latency_s == 4e-6
    assert devices.get("h100-pcie-80gb").calibrated is None


def test_a_device_outside_the_catalog_has_measured_figures_only():
    for calibration in (CPU, replace(GPU, device_name="NVIDIA GeForce RTX 3090 Ti")):
        device = calibrations.device_of(calibration)
        assert device.name == calibration.device_name
        assert device.kind == calibration.kind
        assert device.datasheet is None
        assert device.calibrated == calibration.roofs


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ROOFLIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/rooflight")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder() == Path("/home/ada/.cache/rooflight")


def test_a_user_without_a_home_has_no_calibrations(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ROOFLIGHT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert calibrations.load("anything") is None
    assert calibrations.saved() == ()
    with pytest.raises(OSError, match="set ROOFLIGHT_CACHE to a folder"):
        calibrations.save(GPU)


def test_a_file_that_changed_is_read_again():
    calibrations.save(GPU)
    assert calibrations.load(GPU.fingerprint) is calibrations.load(GPU.fingerprint)
    newer = replace(GPU, measured_at="2026-01-02T03:04:06+00:00")  # as long as before
    calibrations.save(newer)
    assert calibrations.load(GPU.fingerprint) == newer
