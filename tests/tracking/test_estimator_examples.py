"""Loops of the SOL estimator's users; the code of its page runs in tests/docs/test_pages_code.py."""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from tracked import Model, calibrate_by_hand, tokens

from rooflight import LayerSOLHooks, initialize_sol, log_training_sol, sol_nvtx_range
from rooflight.studies.tracking.loop import add_sol_arguments, shutdown_sol


@pytest.fixture(autouse=True)
def _calibrated(tmp_path, monkeypatch) -> Iterator[None]:
    """The examples name no device, so they take the one at hand, which must not be measured for half a minute."""
    calibrate_by_hand(tmp_path, monkeypatch)
    yield
    shutdown_sol()


def test_manual_control_of_the_module_hooks(capsys):
    model = Model()
    hooks = LayerSOLHooks(model)
    hooks.attach()
    model(tokens())
    hooks.detach()
    hooks.print_report()
    assert "By layer type" in capsys.readouterr().out


class Losses:
    """The policy and the reference of a reinforcement-learning loop, small."""

    def __init__(self) -> None:
        self.model = nn.ModuleDict({"policy": Model(), "reference": Model()})
        self.optimizer = torch.optim.SGD(self.model["policy"].parameters(), lr=0.1)

    def get_logprobs(self, name: str) -> Any:
        return torch.log_softmax(self.model[name](tokens()), -1)

    def prepare_data_for_update(self) -> tuple[Any, Any]:
        with torch.no_grad():
            with sol_nvtx_range("rl/compute-logprobs"):
                old, reference = self.get_logprobs("policy"), self.get_logprobs("reference")
            with sol_nvtx_range("rl/kl-estimation"):
                ratio = reference - old
                kl = ratio.exp() - ratio - 1
        return old, kl

    def train_step(self) -> None:
        old, kl = self.prepare_data_for_update()
        with sol_nvtx_range("rl/train/forward"):
            logprobs = self.get_logprobs("policy")
        with sol_nvtx_range("rl/train/grpo-loss"):
            loss = (-(logprobs - old).exp() + kl).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_the_flow_of_megatron_rl(capsys):
    parser = add_sol_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--rl-enable-sol-tracking", "--rl-sol-report-interval", "100"])
    training = Losses()
    model = training.model

    initialize_sol(model, args)
    for iteration in range(1, 101):
        training.train_step()
        report = log_training_sol(iteration)

    printed = capsys.readouterr().out
    assert printed.count("Speed of light") == 1
    rows = {row.name: row for row in report.data.step.by_phase}
    phases = ["rl/compute-logprobs", "rl/kl-estimation", "rl/train/forward", "rl/train/grpo-loss"]
    assert set(phases) <= set(rows)
    # 2 * 8 * (2 * 256 + 80) a forward pass: two models, then one; kl and loss have no matrix
    assert [rows[name].matrix_flops for name in phases] == [2 * 9472, 0, 9472, 0]
    assert rows["backward"].matrix_flops == 2 * 9472
    assert all(rows[name].measured_s > 0 for name in phases)
    for title in ("By phase", "By layer type", "By function", "Top 10 modules"):
        assert title in printed
    assert "policy.layers.0.up" in {row.name for row in report.data.step.by_module}


def test_without_the_flag_the_same_loop_runs_untracked(capsys):
    args = add_sol_arguments(argparse.ArgumentParser()).parse_args([])
    training = Losses()
    initialize_sol(training.model, args)
    for iteration in range(2):
        training.train_step()
        log_training_sol(iteration)
    assert capsys.readouterr() == ("", "")
