from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import rooflight as rl
from rooflight.cli.main import format_warning
from rooflight.front.device import CalibrationWarning
from rooflight.roofline.tables.document import AnalysisDocument

SMALL = ("gpt2", "--small", "--seq", "8", "--device", "H100-SXM5-80GB")


pytestmark = pytest.mark.usefixtures("calibrated")  # the command is on trial, not the machine


@pytest.fixture
def step_of(tmp_path):
    """The target that a script makes."""

    def target(text):
        (tmp_path / "train.py").write_text(text)
        return f"{tmp_path / 'train.py'}:make_step"

    return target


@pytest.fixture
def session(ok, tmp_path):
    """A saved session of a step."""
    path = tmp_path / "run.session"
    ok("analyze", *SMALL, "--save", path)
    return path


def test_a_preset_is_bounded_without_hardware(ok):
    out = ok("analyze", *SMALL, "--step", "train")
    for part in ("H100-SXM5-80GB", "By phase", "By layer type", "By op", "Top operations", "100% of calls"):
        assert part in out
    assert "not measured" in out
    assert "These ops, one by one, take at least" in out


def test_a_preset_is_measured_on_this_machine(ok):
    out = ok("analyze", "gpt2", "--small", "--seq", "8")
    assert "test CPU" in out
    assert "measured step" in out
    assert "the op bound of" in " ".join(out.split())  # where the line ends depends on the times


def test_json_alone_goes_to_standard_output(ok):
    out = ok("analyze", *SMALL, "--json", "-")
    data = json.loads(out)
    msgspec.json.decode(out, type=AnalysisDocument)  # no field too many
    assert data["schema"] == "rooflight.analysis/1"
    assert data["target"].startswith("gpt2")
    assert data["coverage"]["calls"] == 1.0


def test_files_are_written_and_a_saved_session_says_the_same(ok, tmp_path):
    session, first, second, markdown = names = [tmp_path / name for name in ("a.session", "1.json", "2.json", "r.md")]
    assert "By op" in ok("analyze", *SMALL, "--save", session, "--json", first, "--markdown", markdown)
    assert markdown.read_text().startswith("# Speed of light: gpt2")
    ok("analyze", session, "--device", "H100-SXM5-80GB", "--json", second)
    one, two = (json.loads(path.read_text()) for path in (first, second))
    assert (one["totals"], one["ops"]) == (two["totals"], two["ops"])
    assert {path for path in tmp_path.iterdir() if path.is_file()} == set(names)


TRAINING = """
import torch

def make_step():
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 64)

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model
"""


def test_a_users_own_step_is_recorded_and_measured(as_json, step_of):
    data = as_json("analyze", step_of(TRAINING))
    # forward 2*16*64*32 = 65536, weight gradient the same; the input needs no gradient
    assert data["totals"]["matrix_flops"] == 2 * 65536
    assert data["totals"]["measured_s"] > 0
    assert {row["name"] for row in data["by_phase"]} == {"forward", "backward", "optimizer"}


FAILING = "def make_step():\n    def step():\n        raise"
SCRIPTS = {
    "raises at import": ("import nothing_of_that_name\ndef make_step(): ...", 2, "nothing_of_that_name"),
    "raises in make_step": ("def make_step():\n    raise KeyError('lost')", 2, "lost"),
    "returns no callable": ("def make_step():\n    return 3", 2, "callable"),
    "is no Python": ("def make_step(:", 2, "syntax error"),
    "has another function": ("def other():\n    return print", 2, "other"),
    "fails in the step": (f"{FAILING} OSError('gone')\n    return step", 1, "gone"),
    "is interrupted": (f"{FAILING} KeyboardInterrupt\n    return step", 130, "interrupted"),
    "runs no torch": ("def make_step():\n    return lambda: None", 2, "no torch operation"),
}


@pytest.mark.parametrize("measure", ["--measure", "--no-measure"])
@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_that_fails_says_where(run, tmp_path, step_of, case, measure):
    text, expected, said = SCRIPTS[case]
    saved = tmp_path / "x.session"
    code, _, err = run("analyze", step_of(text), measure, "--save", saved)
    assert (code, err.count("\n")) == (expected, 1)
    assert said in err
    assert not saved.exists()


def test_a_config_that_transformers_refuses_is_one_line(run, tmp_path):
    config = tmp_path / "config.json"
    for text in ("{", "[]", '{"model_type": "no-such-model"}', '{"model_type": "gpt2", "n_head": 0}'):
        config.write_text(text)
        code, _, err = run("analyze", str(config), "--device", "H100-SXM5-80GB")
        assert code in (1, 2)
        assert err.count("\n") == 1, err
        assert "Traceback" not in err


def test_any_transformers_config_will_do(as_json, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 100}')
    data = as_json("analyze", config, "--device", "A100-SXM4-80GB", "--seq", "8")
    # 8 tokens: 2*8*(4*32*32 + 8*32*32 + 32*100) linear and 4*2 heads*36 pairs*16 attention
    assert data["totals"]["matrix_flops"] == 2 * 8 * (12 * 32 * 32 + 3200) + 4 * 2 * 36 * 16


def test_a_damaged_session_is_one_line(refused, session):
    whole = session.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:100], b"", b"\0" * 500):
        session.write_bytes(damage)
        err = refused("analyze", str(session), "--device", "H100-SXM5-80GB")
        assert "record it again" in err or "this is no session" in err


def test_the_head_names_the_class_in_every_format(ok, as_json, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"], "n_layer": 1, "n_embd": 32,'
        ' "n_head": 2, "vocab_size": 100}'
    )
    session = tmp_path / "x"
    words = ("--device", "H100-SXM5-80GB")
    for target in (
        ["analyze", str(config), *words, "--seq", "8", "--save", str(session)],
        ["analyze", str(session), *words],
    ):
        assert "GPT2ForSequenceClassification" in ok(*target)
        assert "GPT2ForSequenceClassification" in ok(*target, "--markdown", "-")
        assert as_json(*target)["model_class"] == "GPT2ForSequenceClassification"
    assert as_json("analyze", *SMALL)["model_class"] == "GPT2LMHeadModel"


def test_a_model_that_does_not_fit_here_is_bounded_and_not_measured(ok, monkeypatch):
    monkeypatch.setattr("rooflight.hardware.machine.hardware.free_memory_bytes", lambda kind: 1000)
    out = ok("analyze", "gpt2", "--small", "--seq", "8")
    assert "Not measured: the step needs at least" in out
    assert "too little" in out


def test_a_model_that_barely_fits_is_not_risked(as_json, ok, monkeypatch):
    needed = as_json("analyze", "gpt2", "--small", "--seq", "8", "--no-measure")["memory"]["peak_bytes"]
    monkeypatch.setattr("rooflight.hardware.machine.hardware.free_memory_bytes", lambda kind: int(needed * 1.1))
    assert "too tight for a real run" in ok("analyze", "gpt2", "--small", "--seq", "8")


def test_debug_shows_the_traceback(run):
    assert "Traceback" in run("analyze", "gpt2", "--step", "fly", "--debug")[2]


def test_a_saved_session_is_analysed_without_torch(without_torch, session):
    done = without_torch("analyze", str(session), "--device", "H100-SXM5-80GB")
    assert done.returncode == 0, done.stderr
    assert "By op" in done.stdout


def test_recording_without_torch_says_what_to_install(without_torch):
    done = without_torch("analyze", "gpt2", "--device", "H100-SXM5-80GB")
    assert done.returncode == 2
    assert 'pip install "rooflight[' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_session_of_another_cpu_asks_for_a_device(refused, session):
    loaded = rl.load(session)
    replace(loaded, environment={**loaded.environment, "fingerprint": "another"}).save(Path(session))
    assert "never calibrated" in refused("analyze", str(session))


PRINTING = """
def make_step():
    import torch
    x = torch.ones(4)
    def step():
        print("hello")
        x + x
    return step
"""


def test_what_the_program_prints_stays_out_of_the_json(run, step_of):
    code, out, err = run("analyze", step_of(PRINTING), "--no-measure", "--json", "-")
    assert code == 0, err
    assert json.loads(out)["totals"]["calls"] == 1
    assert "hello" in err


def test_markdown_alone_goes_to_standard_output(ok):
    assert ok("analyze", *SMALL, "--markdown", "-").startswith("# Speed of light")


def test_a_session_remembers_what_it_is(ok, session):
    assert "gpt2 (reduced): forward pass" in ok("analyze", session, "--device", "B200-SXM")


def test_measuring_another_device_is_refused_in_a_note(ok):
    assert "Not measured: H100-SXM5-80GB is another device" in ok("analyze", *SMALL, "--measure")


def test_files_are_as_readable_as_any_other(run, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    run("analyze", *SMALL, "--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md"))
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "x.md").stat().st_mode == plain.stat().st_mode


def test_a_warning_of_ours_is_one_line_and_others_keep_their_place():
    ours = format_warning(CalibrationWarning("roofs may be low"), CalibrationWarning, "train.py", 7)
    assert ours == "rooflight: roofs may be low\n"
    others = format_warning(UserWarning("of the user"), UserWarning, "train.py", 7)
    assert others.startswith("train.py:7: UserWarning: of the user")


def test_what_was_wrong_with_a_calibration_goes_to_standard_error(tmp_path):
    program = (
        "import sys; from rooflight.hardware.machine import calibration; from rooflight.devices import calibrations\n"
        "from rooflight.hardware.machine.environment import fingerprint\n"
        "kept = calibrations.saved()[0]\n"
        "busy = {calibration.BUSY: '38 %'}\n"
        "calibration.calibrate = lambda *_, **__: calibrations.Calibration(fingerprint='new', device_name='test CPU',\n"
        "    kind='cpu', roofs=kept.roofs, measured_at='2026-02-01', environment=busy)\n"
        "calibrations.load = lambda *_: None\n"
        "words = 'predict gemm --m 8 --n 8 --k 8 --device cpu --json -'\n"
        "sys.argv = ['rooflight', *words.split()]\n"
        "from rooflight.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "step" in json.loads(done.stdout)
    announced, once_more, doubted = done.stderr.splitlines(keepends=True)
    assert re.fullmatch(
        r"rooflight: calibrating this CPU on \d+ threads?, about 20 s, once: its roofs are kept for later runs\n",
        announced,
    )
    assert once_more.endswith(" once more: other programs are running\n")
    assert doubted == (
        "rooflight: these roofs may be low, as other programs are running: run rooflight calibrate when it is quiet\n"
    )


def test_inputs_of_a_function_that_takes_arguments(as_json, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\ndef f(x): return x @ x\ndef square(): return torch.ones(8, 8) @ torch.ones(8, 8)\n"
        "def small(): return [torch.ones(4, 4)]\n"
    )
    words = ("--no-measure", "--device", "H100-SXM5-80GB")
    found = as_json("analyze", f"{path}:f", "--inputs", "small", *words)
    assert found["totals"]["matrix_flops"] == 128  # 2 * 4 * 4 * 4
    assert as_json("analyze", f"{path}:square", *words)["totals"]["matrix_flops"] == 1024  # 2 * 8 * 8 * 8


def test_several_devices_are_ranked_and_priced(run):
    words = "analyze gpt2 --small --step train --device A100-SXM4-80GB,L4 --price L4=0.8 --price A100-SXM4-80GB=2"
    code, out, err = run(*words.split(), "--json", "-")
    assert code == 0, err
    first, second = json.loads(out)["run"]["on"]
    assert (first["device"], second["device"]) == ("A100-SXM4-80GB", "L4")
    for row in (first, second):
        assert row["dollars_per_million_tokens"] == pytest.approx(
            row["price_per_hour"] / 3600 / row["tokens_per_s"] * 1e6
        )
        assert row["samples_per_s"] is None
    code, out, err = run(*words.split())
    assert "Fastest where it fits" in out
    assert "$ per" in out
    assert "--price: no effect on one device" in run("analyze", "gpt2", "--device", "L4", "--price", "L4=1")[2]
