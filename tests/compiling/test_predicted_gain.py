"""``rooflight compile-bench --predict-only``: nothing compiles, nothing is timed, and no GPU is needed."""

import json

import msgspec
import pytest
import torch

from rooflight.roofline.host import Host
from rooflight.studies.compiling.bench.benchmark import Matrix
from rooflight.studies.compiling.bench.predicted import PredictedGainDocument, document, predict, report_of

FIXED = {
    "target", "mode", "eager_s", "compiled_s", "steady_speedup", "total_speedup", "warmup_eager_s",
    "warmup_compiled_s", "compile_s", "break_even_iterations", "correct", "verdict",
}  # fmt: skip
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(8, 64)

    def forward(self, x):
        return torch.tanh(self.norm(x) * 2.0 + 1.0).relu()

def get_inputs():
    return [torch.rand(64, 64, 128, 128)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def problem(tmp_path):
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM)
    return path


@pytest.fixture
def nothing_compiles(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr("rooflight.studies.compiling.bench.benchmark.answered", refuse)


def test_the_same_keys_as_measured_for_a_gpu_that_is_not_here(run, problem, nothing_compiles):
    words = ("--predict-only", "--device", "H100-SXM5-80GB", "--mode", "default", "--mode", "reduce-overhead")
    code, out, _ = run("compile-bench", *words, str(problem), "--json", "-", "--iterations", "50", "--warmup", "4")
    assert code == 0
    plain, replayed = json.loads(out)
    assert len(msgspec.json.decode(out, type=tuple[PredictedGainDocument, ...])) == 2  # strictly
    assert set(plain) >= FIXED
    assert [plain["mode"], replayed["mode"]] == ["default", "reduce-overhead"]
    assert plain["verdict"] == "pays"  # five passes over 268 MB become two or three
    assert plain["correct"] is None
    assert plain["steady_speedup"] == pytest.approx(plain["eager_s"] / plain["compiled_s"])
    assert plain["warmup_eager_s"] == pytest.approx(4 * plain["eager_s"])
    assert plain["warmup_compiled_s"] == pytest.approx(4 * plain["compiled_s"] + plain["compile_s"])
    spent = 50 * plain["compiled_s"] + plain["compile_s"]
    assert plain["total_speedup"] == pytest.approx(50 * plain["eager_s"] / spent)
    assert plain["speedup_low"] <= plain["steady_speedup"] <= plain["speedup_high"]
    assert plain["eager_bytes"] > plain["compiled_bytes"]
    assert plain["copy_s"] == 0.0
    assert replayed["copy_s"] > 2 * 4 * 64 * 64 * 128 * 128 / 3.4e12  # x, read and written, at most at HBM's peak


def test_the_backend_that_only_replays(run, problem, nothing_compiles):
    words = ("--predict-only", "--device", "L40S", "--backend", "cudagraphs", str(problem), "--json", "-")
    code, out, _ = run("compile-bench", *words)
    assert code == 0
    (found,) = json.loads(out)
    assert found["mode"] == "cudagraphs"
    assert found["compiled_bytes"] > found["eager_bytes"]  # nothing is fused, and the input is copied


def test_hosts_sources_and_what_the_model_never_saw(problem):
    asked = Matrix(targets=(str(problem),))
    fast, slow = (predict(asked, device="H100-SXM5-80GB", host=Host.of(each))[0].gain for each in (1e-6, 1e-4))
    assert slow.eager_s > fast.eager_s
    assert slow.compiled_s > fast.compiled_s
    (found,) = predict(asked, device="MI300X")
    assert not document(found).sure
    assert any("on NVIDIA's GPUs alone, not on AMD's" in doubt for doubt in found.gain.doubts)
    assert any(note.startswith("Unsure: ") for note in report_of([found]).notes)
    (found,) = predict(asked, device="H100-SXM5-80GB")
    gain = found.gain
    assert gain.eager.wall_s <= gain.eager.host_s + gain.eager.device_s
    for walls in (gain.eager, gain.compiled):
        assert walls.wall_s >= max(walls.host_s, walls.device_s)
    (table,) = (each for each in report_of([found]).tables if each.id == "sources_1")
    assert [row[0] for row in table.rows][:3] == ["launches by the host", "bytes moved", "device"]
    _, eager, compiled, saved = table.rows[0]
    assert saved == eager - compiled


def test_what_was_recorded_is_told_and_whether_it_fits(run):
    code, out, _ = run(
        "compile-bench", "--predict-only", "--device", "T4", "gpt2-xl", "--step", "train", "--seq", 1024, "--batch", 4
    )  # fmt: skip
    assert code == 0
    said = " ".join(out.split())
    assert "step gpt2-xl: training step, batch 4, sequence 1024, bfloat16, AdamW" in said
    assert "whether the step fits is not known" in said  # eager's peak is not that of compiled code
    assert "does not fit" not in said
    assert "of compiling after" in said or "never pay back" in said
