"""The examples, run as a reader would run them, and what they wrote read back."""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICE = "H100-SXM5-80GB"  # a machine that was never calibrated must not do so here
PHASES = ("rl/rollout", "rl/compute-logprobs", "rl/kl-estimation", "rl/train/forward", "rl/train/grpo-loss")
STEPS = 4

Scalars = dict[str, dict[int, float]]


def run(folder: Path, name: str, *arguments: str) -> str:
    """Run an example on the CPU, one thread, without network; give what it printed."""
    surroundings = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "ROOFLIGHT_CACHE": str(folder / "cache"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--steps", str(STEPS), "--rl-sol-device", DEVICE, *arguments],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rooflight:" not in done.stderr  # no warning of ours
    assert not (folder / "cache").exists()
    return done.stdout


def read_board(folder: Path) -> Scalars:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def check(scalars: Scalars) -> None:
    """What holds for every loop: figures for every iteration, positive, and parts that sum to the whole."""
    iterations = list(range(1, STEPS + 1))
    ours = {tag: values for tag, values in scalars.items() if tag.startswith("sol")}
    for tag in ("sol/iteration_s", "sol/op_bound_s", "sol/fused_bound_s", "sol/program_bound_s", "sol/matrix_flops"):
        assert list(ours[tag]) == iterations, tag
    for tag, values in ours.items():
        assert all(math.isfinite(value) for value in values.values()), tag
        if tag != "sol/recorded" and "efficiency" not in tag:  # a phase may do nothing that takes arithmetic or bytes
            assert all(value > 0 for value in values.values()), tag
    assert list(ours["sol/recorded"].values()) == [1, 1, 0, 0]
    assert list(ours["sol/efficiency"]) == [3, 4]  # one that is recorded takes longer than it would have
    for iteration, wall_s in ours["sol/iteration_s"].items():
        assert ours["sol/program_bound_s"][iteration] <= ours["sol/op_bound_s"][iteration] * (1 + 1e-6) < wall_s
        for prefix in ("sol_phase/", "sol_layer/"):
            parts = [
                values.get(iteration, 0.0)
                for tag, values in ours.items()
                if tag.startswith(prefix) and tag.endswith("/seconds")
            ]
            assert sum(parts) == pytest.approx(wall_s, rel=1e-4)


@pytest.mark.slow
def test_grpo(tmp_path):
    out = run(
        tmp_path, "grpo_loop.py", "--rl-enable-sol-tracking", "--rl-sol-report-interval", "4",
        "--prompts", "2", "--group", "4", "--completion-length", "8", "--layers", "2", "--width", "64",
        "--tensorboard-dir", "board", "--wandb",
    )  # fmt: skip
    assert f"Speed of light: iteration 4 on {DEVICE}" in out
    for phase in PHASES:
        assert f"\n  {phase} " in out
    scalars = read_board(tmp_path / "board")
    check(scalars)
    for name in [*(f"sol_phase/{phase}" for phase in PHASES), "sol_layer/Conv1D", "sol_layer/LayerNorm"]:
        assert list(scalars[f"{name}/seconds"]) == [1, 2, 3, 4]
        assert list(scalars[f"{name}/efficiency"]) == [3, 4]
        assert all(0 < value < 1 for value in scalars[f"{name}/efficiency"].values())

    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for name in ("sol/iteration_s", "sol_phase/rl/compute-logprobs/seconds", "sol_layer/Conv1D/efficiency"):
        assert name.encode() in kept.read_bytes()


@pytest.mark.slow
def test_hugging_face(tmp_path):
    out = run(tmp_path, "hf_trainer.py", "--interval", "4", "--tensorboard-dir", "board")
    assert f"Speed of light: iteration 4 on {DEVICE}" in out
    assert "'eval_loss'" in out
    scalars = read_board(tmp_path / "board")  # the trainer's own
    check(scalars)
    assert "train/loss" in scalars
    assert len(set(scalars["sol/matrix_flops"].values())) == 1  # no evaluation is part of an iteration
    assert {"sol_phase/forward/seconds", "sol_phase/backward/seconds", "sol_phase/optimizer/seconds"} <= set(scalars)


@pytest.mark.slow
def test_lightning(tmp_path):
    out = run(tmp_path, "lightning_trainer.py", "--interval", "4", "--tensorboard-dir", "board")
    assert f"Speed of light: iteration 4 on {DEVICE}" in out
    scalars = read_board(tmp_path / "board")  # the trainer's own
    check(scalars)
    assert "valid/loss" in scalars
    assert len(set(scalars["sol/matrix_flops"].values())) == 1
    assert {tag for tag in scalars if tag.startswith("sol_phase/") and tag.endswith("/seconds")} == {
        f"sol_phase/train/{name}/seconds" for name in ("data", "forward", "backward", "optimizer")
    }


@pytest.mark.slow
def test_torchtitan(tmp_path):
    out = run(
        tmp_path, "torchtitan_loop.py", "--rl-enable-sol-tracking", "--rl-sol-report-interval", "2", "--checkpoint"
    )
    assert out.count("Speed of light: iteration") == 2
    for phase in ("train/data", "train/forward", "train/loss", "train/backward", "train/optimizer"):
        assert f"\n  {phase} " in out


def test_a_loop_that_does_not_ask_for_tracking_is_left_alone(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("torchtitan_loop", EXAMPLES / "torchtitan_loop.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(sys, "argv", ["torchtitan_loop.py", "--steps", "1", "--width", "32", "--batch", "1"])
    example.main()
    assert "Speed of light" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "ranks"), [("ddp_vit.py", 8), ("megatron_layers.py", 2)])
def test_an_example_of_several_ranks_says_in_a_line_how_it_is_run(name: str, ranks: int) -> None:
    alone = {key: value for key, value in os.environ.items() if key != "RANK"}
    done = subprocess.run([sys.executable, EXAMPLES / name], env=alone, capture_output=True, text=True, check=False)
    said = f"run it with torchrun --nproc-per-node {ranks} examples/{name}\n"
    assert (done.returncode, done.stderr) == (2, said)
