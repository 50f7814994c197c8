"""``rooflight devices`` and ``rooflight devices show``."""

import json
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

from rooflight import devices
from rooflight.cli.catalogs import devices_app as app
from rooflight.devices import MemoryLevel, Roofs, calibrations
from rooflight.hardware.devices.calibrations import Calibration
from rooflight.hardware.machine.environment import fingerprint, threads_here


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    monkeypatch.delenv("ROOFLIGHT_DEVICES", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments):
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def calibrate(device_name, kind, source="rooflight calibrate", fingerprint="a machine", threads=None):
    roofs = Roofs(
        threads=threads,
        source=source,
        matrix_flops_per_s={"bfloat16": 700e12},
        memory=(MemoryLevel(name="L2", bytes_per_s=5.5e12), MemoryLevel(name="HBM", bytes_per_s=3.1e12)),
        launch_latency_s=4.2e-6,
    )
    calibrations.save(
        Calibration(fingerprint=fingerprint, device_name=device_name, kind=kind, roofs=roofs, measured_at="2026-01-01")
    )


def line(output, start):
    (found,) = [text.strip() for text in output.splitlines() if text.strip().startswith(start)]
    return found.removeprefix(start).split()


def test_the_list_has_a_line_a_device():
    output = run()
    assert line(output, "H100-SXM5-80GB ") == ["80", "3350", "989.4", "1978.9", "66.9", "450", "A"]
    assert line(output, "A10G ") == ["24", "600", "–", "–", "–", "31.508", "B"]
    assert all(f"\n  {spec.name} " in output for spec in devices.all_devices())


def test_the_list_fits_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in run()


def test_the_list_as_json_is_in_si_units():
    rows = {row["name"]: row for row in json.loads(run("--json", "-"))["devices"]}
    assert rows["H100-SXM5-80GB"]["bf16_flops_per_s"] == 989.4e12
    assert rows["H100-SXM5-80GB"]["link_bytes_per_s"] == 450e9
    assert rows["V100-SXM2-16GB"]["bf16_flops_per_s"] is None


def test_show_prints_every_figure_with_its_unit_and_source():
    output = run("show", "NVIDIA H100 80GB HBM3")
    assert line(output, "matrix bfloat16") == ["989.4", "TFLOP/s"]
    assert line(output, "matrix int8") == ["1978.9", "TOP/s"]
    assert line(output, "matrix float32 (vector units)") == ["66.9", "TFLOP/s"]
    assert line(output, "matrix float4") == ["unknown"]
    assert line(output, "L2 capacity") == ["50", "MiB"]
    assert line(output, "L2 bandwidth") == ["unknown"]
    assert line(output, "DRAM capacity") == ["80", "GiB"]
    assert line(output, "DRAM bandwidth") == ["3350", "GB/s"]
    assert line(output, "NVLink4 per direction") == ["450", "GB/s"]
    assert line(output, "clock of matrix peaks") == ["1830", "MHz"]
    assert "NVIDIA H100 Tensor Core GPU datasheet" in output
    assert "may exceed 100 percent" in " ".join(output.split())  # a note, which wraps
    assert "calibrated" not in output


def test_show_marks_doubts():
    output = run("show", "a10")
    assert line(output, "matrix tfloat32") == ["62.5", "TFLOP/s", "not", "verified"]
    assert line(output, "matrix bfloat16") == ["125", "TFLOP/s"]
    assert line(run("show", "b200"), "PCIe 5.0 x16 per direction") == ["63.015", "GB/s", "not", "verified"]


def test_show_puts_the_calibration_beside_the_datasheet():
    calibrate("NVIDIA H100 80GB HBM3", "cuda")
    output = run("show", "h100-sxm5-80gb")
    assert line(output, "matrix bfloat16") == ["989.4", "TFLOP/s", "700", "TFLOP/s"]
    assert line(output, "DRAM bandwidth") == ["3350", "GB/s", "3100", "GB/s"]
    assert line(output, "L2 bandwidth") == ["unknown", "5500", "GB/s"]
    assert line(output, "launch latency") == ["unknown", "4.2", "µs"]
    assert "rooflight calibrate" in output


def test_a_calibrated_processor_is_listed_and_shown():
    calibrate("AMD EPYC 7763", "cpu", fingerprint=fingerprint("cpu"), threads=threads_here())
    assert line(run(), "AMD EPYC 7763")[1] == "3100"
    for name in ("cpu", "amd epyc 7763"):
        assert line(run("show", name), "HBM bandwidth") == ["unknown", "3100", "GB/s"]


def test_show_as_json_has_both_sources():
    calibrate("NVIDIA H100 80GB HBM3", "cuda")
    shown = json.loads(run("show", "h100-sxm5-80gb", "--json", "-"))
    figures = {figure["figure"]: figure for figure in shown["figures"]}
    assert figures["matrix bfloat16"] == {
        "figure": "matrix bfloat16",
        "unit": "FLOP/s",
        "datasheet": 989.4e12,
        "calibrated": 700e12,
        "verified": True,
    }
    assert figures["matrix float4"]["datasheet"] is None
    assert shown["notes"]


def test_text_from_files_is_printed_as_it_is(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text('name = "[bold]X[/bold] :rocket:"\nvendor = "v"\nsource = ["[link=x]y"]\n')
    output = run("show", str(path))
    assert "[bold]X[/bold] :rocket:" in output
    assert "[link=x]y" in output


def test_an_unknown_device_is_a_value_error():
    with pytest.raises(ValueError, match='unknown device "NVIDIA H300"'):
        run("show", "NVIDIA H300")


def test_a_broken_calibration_is_told_once_and_all_devices_are_listed(tmp_path):
    (tmp_path / "calibration-x.json").write_text("{")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        assert "H100-SXM5-80GB" in run()
    assert {str(each.message) for each in told} == {str(told[0].message)}
    assert f"{tmp_path / 'calibration-x.json'} cannot be used" in str(told[0].message)


def test_importing_the_command_loads_neither_rich_nor_the_catalog():
    program = (
        "import sys; import typer; had = 'rich.table' in sys.modules; import rooflight.cli.catalogs;"
        "print(('rich.table' in sys.modules) > had, 'rooflight.devices' in sys.modules, 'torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False", "False"]
