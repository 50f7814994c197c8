"""``rooflight calibrate``: the table, the JSON and what is kept."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from rooflight.cli.calibrate import calibrate
from rooflight.cli.options import verb
from rooflight.devices import calibrations
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.devices.spec import MemoryLevel, Roofs
from rooflight.hardware.machine import calibration

app = typer.Typer()
app.command()(verb(calibrate))

MEASURED = Calibration(
    fingerprint="abc",
    device_name="Test CPU",
    kind="cpu",
    roofs=Roofs(
        source="calibration on Test CPU",
        matrix_flops_per_s={"float32": 200e9},
        memory=(MemoryLevel(name="L3", capacity_bytes=1 << 20), MemoryLevel(name="DRAM", bytes_per_s=60e9)),
        launch_latency_s=6e-7,
    ),
    measured_at="2026-01-02T03:04:05+00:00",
    environment={
        "calibration: matrix float32": "200 GFLOP/s by mm 512",
        "calibration: memory L3": "not measured: no trial",
        "calibration: memory DRAM": "60 GB/s by mul_",
        "calibration: launch": "1.67 Mop/s by neg_",
        calibration.BUSY: "0 %",
    },
)


@pytest.fixture(autouse=True)
def measure(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    asked = []

    def fake(kind, progress, *, threads, quick):
        asked.append((kind, quick, *([threads] if threads else [])))
        progress("matrix float32", 0.5)
        return MEASURED

    monkeypatch.setattr(calibration, "calibrate", fake)
    return asked


def run(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_the_table_shows_figures_with_units_and_unknowns(measure):
    result = run("--device", "cpu")
    assert measure == [("cpu", False)]
    for text in (
        "matrix float32",
        "200 GFLOP/s",
        "60.0 GB/s",
        "600 ns",
        "not measured: no trial",
        "unknown",
        "saved:",
    ):
        assert text in result.stdout
    assert calibrations.load("abc") == MEASURED


def test_json_on_stdout_is_all_there_is(measure):
    result = run("--device", "cpu", "--json", "-")
    assert json.loads(result.stdout)["roofs"]["matrix_flops_per_s"] == {"float32": 200e9}


def test_json_into_a_file(tmp_path):
    run("--device", "cpu", "--json", str(tmp_path / "roofs.json"))
    assert json.loads((tmp_path / "roofs.json").read_text())["device_name"] == "Test CPU"


def test_quick_saves_nothing(measure):
    result = run("--device", "cpu", "--quick")
    assert measure == [("cpu", True)]
    assert calibrations.load("abc") is None
    assert "nothing saved" in result.stdout


def test_an_earlier_higher_roof_stays_unless_forced():
    earlier = replace(MEASURED, roofs=replace(MEASURED.roofs, matrix_flops_per_s={"float32": 300e9}))
    calibrations.save(earlier)
    run("--device", "cpu")
    assert calibrations.load("abc").roofs.matrix_flops_per_s == {"float32": 300e9}
    run("--device", "cpu", "--force")
    assert calibrations.load("abc").roofs.matrix_flops_per_s == {"float32": 200e9}


def test_a_busy_machine_is_warned_about(monkeypatch):
    busy = replace(MEASURED, environment={**MEASURED.environment, calibration.BUSY: "38 %"})
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: busy)
    assert "other programs took 38 % of the CPU" in run("--device", "cpu").stderr


def test_nothing_is_drawn_where_nobody_looks():
    result = run("--device", "cpu")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_a_number_of_threads_is_asked_for_and_kept(measure):
    assert run("--device", "cpu", "--threads", "2").exit_code == 0
    assert measure == [("cpu", False, 2)]
    assert run("--device", "cpu", "--threads", "0").exit_code == 2
    with pytest.raises(ValueError, match="--threads: for this machine"):
        run("--threads", "2", "--executor", "slurm")
