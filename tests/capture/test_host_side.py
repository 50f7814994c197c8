"""Ops of the host in a program for a GPU: a loader's tensors on the CPU beside a model on meta tensors."""

import numpy as np
import pytest
import torch
from builders import op, spec
from sessions import Call, session_of
from torch._subclasses.fake_tensor import FakeTensorMode

import rooflight as rl
from rooflight.costs.registry import cost_of
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
    assert not any(group.op == "aten::stack" for group in analysis.memory.alive)


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
        torch.ones(3, device=device) + 1
        torch.ones(3) + 1
    assert marks(recording.session)[-1] == ("aten::add", expected)
