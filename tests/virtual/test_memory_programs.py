"""Scripts of everyday kinds on a GPU that is not there: peaks against another counter, growth against its line."""

import csv
import json
from pathlib import Path

import pytest

import rooflight as rl

HERE = Path(__file__).parent
FEW = {"m01", "m14", "m22", "g02", "g09", "h01"}  # of each kind; the others are slow
H100 = 80 << 30


def rows(kind):
    for row in csv.DictReader((HERE / kind / "truth.csv").read_text().splitlines()):
        marks = [] if row["program"][:3] in FEW else [pytest.mark.slow]
        yield pytest.param(row, id=Path(row["program"]).stem, marks=marks)


def memory_of(ok, tmp_path, kind, row):
    script = HERE / kind / f"{Path(row['program']).stem}.py"
    ok("run", "--on", "H100-SXM5-80GB", "--save", tmp_path / "one.session", "--json", tmp_path / "one.json", script)
    return json.loads((tmp_path / "one.json").read_text())


@pytest.mark.parametrize("row", list(rows("memory")))
def test_the_peak_is_what_another_counts(ok, tmp_path, row):
    found, peak = memory_of(ok, tmp_path, "memory", row), int(row["peak_bytes"])
    assert found["memory"]["peak_bytes"] == pytest.approx(peak, rel=0.01)
    assert found["run"]["on"][0]["fits"] == (peak <= H100)


@pytest.mark.parametrize("row", list(rows("growth")))
def test_what_grows_is_named_with_its_line(ok, tmp_path, row):
    memory, grows = memory_of(ok, tmp_path, "growth", row)["memory"], float(row["bytes_per_iteration"])
    assert memory["growth_bytes"] == pytest.approx(grows / int(row["steps"]), rel=0.05)
    if grows:
        first = memory["growth"][0]["owner"]
        assert row["holder"] in first["holder"].split(".")
        assert first["where"]["line"] == int(row["line"])


TEACHER = """
import torch
from torch import nn
teacher = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4))).cuda().requires_grad_(False)
student = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(2))).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(8):
    x = torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        wanted = teacher(x)
    optimizer.zero_grad()
    (student(x) - wanted).square().mean().backward()
    optimizer.step()
"""


def test_what_every_iteration_computes_is_in_its_step(ok, tmp_path):
    script = tmp_path / "distil.py"
    script.write_text(TEACHER)
    ok("run", "--on", "H100-SXM5-80GB", "--json", tmp_path / "one.json", script)
    product = 2 * 64 * 256 * 256
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["totals"]["matrix_flops"] == (4 + 2 * 3 - 1) * product  # the first layer needs no gradient of x


SCRIPT = """
import torch
from torch import nn
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    model.train()
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    if step % EVERY == 0:
        model.eval()
        with torch.no_grad():
            seen = model(torch.randn(1 << 20, 1024, device="cuda")).exp().sum()
"""


def run_of(ok, tmp_path, script, *words):
    path, file = tmp_path / "train.py", tmp_path / "one.json"
    path.write_text(script)
    ok("run", "--on", "H100-SXM5-80GB", *words, "--save", tmp_path / "one.session", "--json", file, path)
    return json.loads(file.read_text())


def test_an_evaluation_is_recorded_beside_the_step(ok, tmp_path):
    found = run_of(ok, tmp_path, SCRIPT.replace("EVERY", "2"))
    (on,), batch = found["run"]["on"], 4 << 30  # bytes: 2 ** 20 rows of 1,024 floats
    assert on["phase"] == "evaluation"
    assert on["memory_bytes"] == pytest.approx(2 * batch, rel=0.01)  # the input and the result, then that and its exp()
    assert on["evaluation_s"] > on["evaluation_bound_s"] > 2 * (1 << 40) / 67e12  # 2.2 TFLOP at 67 TFLOP/s
    assert on["step_s"] < on["evaluation_s"] / 100
    held = {(each["kind"], each["holder"]): each["bytes"] for each in found["memory"]["rows"]}
    assert held["parameter", "model"] == 4 * (1024 * 1024 + 1024)
    session = rl.load(tmp_path / "one.session")
    assert [op.signature.name for op in session.evaluation.records].count("aten::addmm") == 1
    assert not session.run.memory.missed.line


def test_an_evaluation_that_was_not_reached_is_said(ok, tmp_path):
    found = run_of(ok, tmp_path, SCRIPT.replace("% EVERY == 0", "== 99_999"))
    assert found["run"]["on"][0]["evaluation_s"] is None
    assert "train.py:12): its memory is not in" in str(rl.analyze(tmp_path / "one.session", "H100-SXM5-80GB"))


def test_a_model_put_into_eval_mode_before_the_loop_awaits_no_evaluation(ok, tmp_path):
    teacher = "teacher = nn.Linear(4, 4).cuda().eval()\nmodel = "
    script = SCRIPT.replace("% EVERY == 0", "< 0").replace("model = ", teacher, 1)
    script = script.replace("        model.eval()\n", "")
    run_of(ok, tmp_path, script)
    assert not rl.load(tmp_path / "one.session").run.memory.missed.line


def test_memory_that_grows_is_a_finding_at_its_line(ok, tmp_path):
    found = memory_of(ok, tmp_path, "growth", {"program": "g09_logger_attribute"})
    finding = next(each for each in found["findings"] if each["id"] == "memory-growth")
    assert finding["predicted_gain_s"] == 0
    assert finding["where"][0]["line"] == found["memory"]["growth"][0]["owner"]["where"]["line"] > 0
    assert "grows by" in finding["evidence"]
