"""Ops of the host in a program for a GPU: a loader's tensors on the CPU beside a model on meta tensors."""

import numpy as np
import pytest
import torch
from builders import op, spec
from sessions import Call, session_of
from torch._subclasses.fake_tensor import FakeTensorMode

import rooflight as rl
from rooflight.costs.registry import cost_of
from rooflight.records.quantity import Quantity
from rooflight.records.signature import FROM_HOST, ON_HOST, TO_HOST
from rooflight.roofline.host import device_cost_of, in_device_memory, units_of, with_host_side

H100 = "H100-SXM5-80GB"
MARKS = {ON_HOST, FROM_HOST, TO_HOST}


def loaded() -> torch.Tensor:
    images = [torch.ones(3, 8, 8, dtype=torch.uint8), torch.from_numpy(np.ones((3, 8, 8), dtype=np.uint8))]
    return torch.stack(images).float().div(255)


def step(model: torch.nn.Module, target: torch.Tensor) -> None:
    target.copy_(loaded())
    model(loaded().to("meta", non_blocking=True))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "memory"])
def session(request):
    with torch.device("meta"):
        model, target = torch.nn.Conv2d(3, 4, 3), torch.empty(2, 3, 8, 8)
    step(model, target)
    with rl.record(model, memory=request.param) as recording:
        step(model, target)
    return recording.session


def marks(session):
    return [(record.signature.name, MARKS & {*record.signature.attributes}) for record in session.records]


def test_ops_on_the_cpu_and_copies_across_are_marked(session):
    batch = [("aten::ones", ON_HOST), ("aten::stack", ON_HOST), ("aten::_to_copy", ON_HOST), ("aten::div", ON_HOST)]
    found = [(name, *mark) for name, mark in marks(session) if mark and name != "rooflight::written_outside"]
    assert found == [
        *batch,
        ("aten::copy_", FROM_HOST),
        *batch,
        ("aten::_to_copy", FROM_HOST),
    ]
    assert ("aten::convolution", set()) in marks(session)


def test_only_the_device_pays_for_what_moves_in_its_memory(session):
    analysis = rl.analyze(session, H100)
    bytes_by_op = {group.name: group.bytes_moved for group in analysis.by("op")}
    image = 2 * 3 * 8 * 8 * 4
    assert bytes_by_op["aten::copy_"] == bytes_by_op["aten::_to_copy"] == image  # written; read from the host
    assert bytes_by_op["aten::stack"] == bytes_by_op["aten::div"] == bytes_by_op["aten::ones"] == 0
    assert analysis.coverage.calls == 1
    notes = " ".join(analysis.report().notes)
    assert "ops work on tensors in the host's memory" in notes
    assert "2 copies to or from the host's memory" in notes


def test_memory_of_the_device_has_no_tensor_of_the_host(session):
    analysis = rl.analyze(session, H100)
    weights, image, result = (4 * 27 + 4) * 4, 2 * 3 * 8 * 8 * 4, 2 * 4 * 6 * 6 * 4
    assert analysis.memory.peak_bytes == weights + 2 * image + result  # of the images, the target and the input
    assert not any(group.op == "aten::stack" for group in analysis.memory.rows)


def test_the_host_waits_for_a_copy_that_blocks(session):
    names = [
        op.name for op, counts in zip(session.records, session.counted, strict=True) if counts for op in [op.signature]
    ]
    syncs = [name for name, waits in zip(names, rl.analyze(session, H100).queue.syncs, strict=True) if waits]
    assert syncs == ["aten::copy_"]  # not that of .to(..., non_blocking=True)


def test_host_time_grows_with_the_bytes():
    small, large = (op("aten::div", {"self": spec((n, 1000))}, [spec((n, 1000))], on_host=True) for n in (45, 4_500))
    assert units_of(small, cost_of(small)) == pytest.approx(1 + 8)  # 2 x 180 kB / 45 kB
    assert units_of(large, cost_of(large)) == pytest.approx(1 + 800)


def test_a_copy_to_the_host_reads_the_device_alone_by_hand():
    copy = op("aten::_to_copy", {"self": spec((10,))}, [spec((10,))])
    marked = with_host_side(session_of([Call(op=copy, reads=(0,), writes=(1,))], storage_bytes=(40, 40)), [1])
    assert TO_HOST in marked.signatures[-1].attributes
    assert device_cost_of(marked.signatures[-1]).bytes_moved == cost_of(copy).bytes_read == 40
    assert in_device_memory(marked).storage_bytes.tolist() == [40, 0]


def test_a_program_on_the_cpu_has_no_host_of_its_own():
    with rl.record() as recording:
        loaded()
    assert not any(mark for _, mark in marks(recording.session))


@pytest.mark.parametrize(("device", "expected"), [("cpu", set()), ("meta", {ON_HOST})])
def test_fake_tensors_of_the_cpu_alone_stand_for_the_device(device, expected):
    with FakeTensorMode(), rl.record() as recording:
        torch.ones(30, device=device) + 1
        torch.ones(3) + 1
    assert marks(recording.session)[-1] == ("aten::add", expected)


X, WEIGHT = torch.ones(8, 64), torch.ones(64, 64)


def functional(stray: int) -> None:
    torch.relu(X @ WEIGHT) @ WEIGHT
    torch.ones(stray, 64, device="meta") @ torch.ones(64, 64, device="meta")


def trained() -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    torch.ones(640, 64, device="meta") @ torch.ones(64, 640, device="meta")


def copied_alone() -> None:
    torch.stack([X, X]).clone()
    torch.ones(1, device="meta").clone()


@pytest.mark.parametrize(
    "program",
    [lambda: functional(1), lambda: functional(8), trained, copied_alone],
    ids=["stray", "twin", "weights", "copies"],
)
def test_a_program_of_the_cpu_that_makes_meta_tensors_keeps_its_work(program):
    with rl.record() as recording:
        program()
    session = recording.session
    assert not any(mark for _, mark in marks(session))
    assert session.environment["device_kind"] == "cpu"
    notes = rl.analyze(session, H100).report().notes
    assert any("all count as the device's" in note for note in notes)


class Buffered(torch.nn.Module):
    """A model on meta with a buffer and a number on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 5, device="meta")
        self.register_buffer("places", torch.arange(2))
        self.scale = torch.tensor(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.places + 1
        return self.inner(x)[self.places] * self.scale


def buffered() -> None:
    Buffered()(torch.stack([torch.ones(3)] * 100).mul(2).to("meta"))


def offloaded() -> None:
    with FakeTensorMode():
        model = torch.nn.Linear(64, 64, device="meta")
        model(torch.ones(32, 64, device="meta")).sum().backward()
        master = [each.detach().cpu().requires_grad_() for each in model.parameters()]
        optimizer = torch.optim.AdamW(master)
        for ours, its in zip(master, model.parameters(), strict=True):
            ours.grad = its.grad.cpu()
        optimizer.step()


def without_modules() -> None:
    weight = torch.ones(64, 640, device="meta")
    torch.stack([torch.ones(64)] * 8).mul(2).to("meta") @ weight


@pytest.mark.parametrize("program", [buffered, offloaded, without_modules])
def test_the_host_s_part_of_a_program_for_a_gpu_is_told_with_its_work(program):
    with rl.record() as recording:
        program()
    session = recording.session
    analysis = rl.analyze(session, H100)
    on_host = [op for op in analysis.operations if ON_HOST in op.signature.attributes]
    assert on_host
    assert not any(cost_of(op.signature).matrix_flops for op in on_host)
    assert analysis.totals.matrix_flops > 0
    assert session.environment["device_kind"] != "cpu"
    flops = sum(op.calls * cost_of(op.signature).vector_flops for op in on_host)
    moved = sum(op.calls * cost_of(op.signature).bytes_moved for op in on_host)
    told = f"({Quantity(flops, 'FLOP')}, {Quantity(moved, 'B')})"
    assert any(told in note and "none of H100" in note for note in analysis.report().notes)
