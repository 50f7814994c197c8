"""What would need less memory, and the batch that fits: against recordings of the changed program."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.account import NO_PLACE
from rooflight.records.record import PhaseMemory, ScriptMemory
from rooflight.records.timeline import Run
from rooflight.roofline.memory.savings import batch_factor
from rooflight.roofline.memory.use import memory_use
from rooflight.sources.workloads.presets import PRESETS

H100 = "H100-SXM5-80GB"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(x).relu()))


class Net(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.layers = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


def recorded(*, again=False, batch=512, none=True, **options):
    with torch.device("meta"):
        net, x = Net(again), torch.empty(batch, 64)
        optimizer = torch.optim.Adam(net.parameters(), **options)

    def step():
        if not none:
            optimizer.zero_grad(set_to_none=False)
        net(x).square().mean().backward()
        optimizer.step()
        if none:
            optimizer.zero_grad()

    step()
    with rl.record(net, memory=True) as recording:
        step()
    return recording.session


def memory_of(**changes):
    return rl.analyze(recorded(**changes), H100).memory


def saving(memory, name):
    return next((each for each in memory.savings if each.id == name), None)


def test_checkpointing_is_what_a_checkpointed_program_needs():
    promised = saving(memory_of(), "checkpointing")
    assert promised.peak_bytes == pytest.approx(memory_of(again=True).peak_bytes, rel=0.1)
    assert promised.flops == 6 * 2 * 2 * 512 * 64 * 256


def test_an_optimizer_one_by_one():
    together, alone = memory_of(batch=8, foreach=True), memory_of(batch=8, foreach=False)
    assert saving(together, "one-by-one").peak_bytes == pytest.approx(alone.peak_bytes, rel=0.1)
    assert saving(alone, "one-by-one") is None


def test_states_are_the_first_and_second_moment():
    memory = memory_of(batch=8)
    states = 2 * 4 * 6 * (2 * 64 * 256 + 64 + 256)
    assert saving(memory, "offload-states").saved_bytes == pytest.approx(states, rel=0.02)
    assert saving(memory, "states-of-8-bits").saved_bytes == pytest.approx(0.746 * states, rel=0.05)


def test_gradients_that_stand_need_not_if_the_peak_is_in_the_forward_pass():
    kept, gone = memory_of(none=False, batch=4096), memory_of(batch=4096)
    found = saving(kept, "gradients-to-none")
    assert found is None or found.peak_bytes == pytest.approx(gone.peak_bytes, rel=0.02)
    assert kept.peak_bytes >= gone.peak_bytes


def test_a_wide_loss_in_chunks():
    with torch.device("meta"):
        head, x = nn.Linear(32, 32_000), torch.empty(4096, 32)
        target = torch.empty(4096, dtype=torch.long)
    with rl.record(head, memory=True) as recording:
        nn.functional.cross_entropy(head(x), target).backward()
    memory = rl.analyze(recording.session, H100).memory
    logits = 4 * 4096 * 32_000
    assert saving(memory, "chunked-loss").saved_bytes == pytest.approx(memory.peak_bytes * 7 / 8, rel=0.05)
    assert memory.peak_bytes > 2 * logits


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "resnet-50", "bert-large", "vit-large"])
def test_twice_the_batch_needs_what_is_said(name):
    from rooflight.front.options import RunOptions
    from rooflight.front.targets import record_without_hardware

    assert name in PRESETS
    one, two = (record_without_hardware(name, RunOptions(step="train", batch=batch), print).session for batch in (4, 8))
    needed = memory_use(two).peak_bytes
    assert batch_factor(one, needed) == pytest.approx(2, rel=0.02)


def test_emptying_the_cache_gives_back_what_only_another_phase_needs():
    session = recorded()
    own = memory_use(session)
    other = PhaseMemory(phase="evaluation", allocated_bytes=own.peak_bytes // 2, reserved_bytes=3 * own.reserved_bytes,
                        where=NO_PLACE, rows=())  # fmt: skip
    run = Run(script="train.py", exit_code=0, memory=ScriptMemory(phases=(other,)))
    found = memory_use(replace(session, run=run))
    (saving,) = (each for each in found.savings if each.id == "empty-cache")
    assert saving.saved_bytes == 2 * own.reserved_bytes
    assert (found.peak_bytes, found.phase) == (own.peak_bytes, "step")
