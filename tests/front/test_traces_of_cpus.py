"""Profiles of programs that ran on a CPU: times without roofs, unless a device is named."""

import pytest
from kineto_traces import op, span, write

from rooflight.front.sessions import analyze_file

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}


def test_a_profile_of_a_cpu_is_measured_without_roofs(tmp_path, run):
    path = write(tmp_path / "trace.json", [op("aten::mm", 0, 10, **MM)], deviceProperties=[])
    analysis = analyze_file(str(path))
    assert analysis.totals.measured_s == pytest.approx(10e-6)
    assert (analysis.device.kind, analysis.totals.op_bound_s) == ("cpu", 0)
    code, out, err = run("analyze", path)
    assert (code, err) == (0, "")
    assert "unknown CPU" in out
    assert "name a device" in " ".join(out.split())
    assert analyze_file(str(path), "H100-SXM5-80GB").totals.op_bound_s > 0


def test_a_profile_of_compiled_code_says_that_its_kernels_are_not_there(tmp_path, run):
    region = [op("Torch-Compiled Region: 0/0", 0, 50), span("## Call CompiledFxGraph fabc ##", 5, 45)]
    path = write(tmp_path / "trace.json", region, deviceProperties=[])
    code, out, _ = run("analyze", path)
    assert code == 0
    assert "All that ran is code of torch.compile" in " ".join(out.split())
