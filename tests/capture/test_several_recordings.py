"""Recordings inside each other, one after the other, and in several threads at once."""

import threading
import time
from typing import Any

import numpy as np
import torch
from recorded_model import in_thread, model, recorded, x
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch_state import torch_state

import rooflight as rl


def test_nested_recordings_see_the_same_records() -> None:
    net = model()
    with rl.record(net) as outer:
        torch.ones(3).neg()
        before = len(outer._tape)
        session = recorded(lambda: net(x()).sum().backward(), net)
        torch.ones(3).neg()
    inside = list(outer.session.records)[before : before + len(session)]
    assert len(outer.session) == before + len(session) + 2
    for one, other in zip(inside, session.records, strict=True):
        assert (one.signature, one.module, one.phase, one.direction) == (
            other.signature, other.module, other.phase, other.direction)  # fmt: skip
        assert len(one.reads) == len(other.reads)
        assert (one.parent is None) == (other.parent is None)
        assert one.parent is None or one.parent - before == other.parent


def test_recordings_may_end_in_the_order_they_began() -> None:
    first, second = rl.record(), rl.record()
    first.__enter__()
    torch.ones(3).neg()
    second.__enter__()
    torch.ones(3).exp()
    first.__exit__(None, None, None)
    torch.ones(3).tanh()
    second.__exit__(None, None, None)
    names = [[op.signature.name.removeprefix("aten::") for op in r.session.records] for r in (first, second)]
    assert names == [["ones", "neg", "ones", "exp"], ["ones", "exp", "ones", "tanh"]]


def test_phases_belong_to_their_thread() -> None:
    def elsewhere() -> None:
        with rl.phase("elsewhere"), rl.record() as recording:
            torch.ones(3)
        sessions.append(recording.session)

    sessions: list[rl.Session] = []
    with rl.record() as recording, rl.phase("here"):
        in_thread(elsewhere)
        torch.zeros(3)
    assert [(op.signature.name, op.phase) for op in recording.session.records] == [("aten::zeros", "here")]
    assert [(op.signature.name, op.phase) for op in sessions[0].records] == [("aten::ones", "elsewhere")]


def test_threads_record_each_their_own() -> None:
    """Recordings of different programs overlap in every order; none sees another's ops, and the last out cleans up."""
    programs = {
        "relu": lambda: model()(x()).sum().backward(),
        "conv": lambda: nn.Conv1d(2, 3, 2)(torch.ones(1, 2, 5)).sum().backward(),
        "attention": lambda: (
            scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4, requires_grad=True)] * 3).sum().backward()
        ),
        "step": lambda: torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1).step(),
    }

    def seen(session: rl.Session) -> list[tuple[Any, ...]]:
        return [(op.signature, op.module, op.direction) for op in session.records]

    alone = {name: seen(recorded(program)) for name, program in programs.items()}
    errors: list[BaseException] = []

    def work(name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        clean = torch_state()["dispatch modes"], torch_state()["listeners"]
        try:
            for _ in range(10):
                time.sleep(float(rng.uniform(0, 2e-3)))
                with rl.record() as recording:
                    programs[name]()
                    time.sleep(float(rng.uniform(0, 2e-3)))
                assert seen(recording.session) == alone[name]
                assert clean == (torch_state()["dispatch modes"], torch_state()["listeners"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name, seed)) for seed, name in enumerate([*programs, *programs])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_workers_started_inside_are_not_recorded_and_not_disturbed() -> None:
    """A recording belongs to its thread, as torch's modes do."""
    results: list[torch.Tensor] = []

    def work() -> None:
        net = model()
        net(x()).sum().backward()
        results.append(scaled_dot_product_attention(x(), x(), x()))

    with rl.record() as recording:
        torch.zeros(3)
        in_thread(work)
        torch.zeros(3)
    assert [op.signature.name for op in recording.session.records] == ["aten::zeros"] * 2
    assert torch.equal(results[0], scaled_dot_product_attention(x(), x(), x()))
