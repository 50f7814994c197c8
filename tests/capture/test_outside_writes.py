"""Tensors that kernels outside the dispatcher write are listed; what programs do with ``torch.empty`` is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outside_kernels import Doubling, doubled, write
from outside_memory import DEVICE, found, found_in
from recorded_function import Calls
from recorded_model import recorded
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import rooflight as rl
from rooflight.records.assembly import Insertion, Scope, with_insertions
from rooflight.records.record import Direction
from rooflight.records.signature import WRITTEN_OUTSIDE, OpSignature
from rooflight.roofline.tables.report import report_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.kernel = nn.Linear(4, 8), Doubling()

    def forward(self, x):
        return self.kernel(self.up(x)).relu()


# -- what is found ----------------------------------------------------------------------------------------------------


def test_a_kernel_that_bypasses_the_dispatcher_is_listed_with_its_module():
    model = Net()
    with rl.record(model) as recording:
        out = model(torch.ones(3, 4))
    assert torch.equal(out, (2 * model.up(torch.ones(3, 4))).relu())
    (op,) = found_in(recording.session)
    assert (op.module.path, op.module.class_name, op.direction) == ("kernel", "Doubling", Direction.FORWARD)
    analysis = rl.analyze(recording.session, DEVICE)
    (missing,) = analysis.coverage.uncosted
    assert (missing.reason, missing.calls, missing.modules) == ("written outside the dispatcher", 1, ("kernel",))
    assert missing.bytes == 3 * 8 * 4
    # ones, t, addmm, empty_like, the kernel, relu, detach
    assert analysis.coverage.calls == pytest.approx(6 / 7)
    assert analysis.coverage.bytes < 1


def test_the_record_stands_between_the_allocation_and_the_first_reader():
    with rl.record() as recording:
        x = torch.ones(3)
        y = doubled(x)
        x.add_(1)
        y.exp()
    records = [op for op in recording.session.records if op.signature.name != "aten::detach"]
    names = [op.signature.name.removeprefix("aten::") for op in records]
    assert names == ["ones", "empty_like", "add_", WRITTEN_OUTSIDE, "exp"]
    ones, empty, add, outside, exp = records
    assert outside.writes == empty.writes == exp.reads
    assert (outside.reads, add.writes) == ((), ones.writes)


@pytest.mark.parametrize(
    "use",
    [
        lambda y: y.add_(1),
        lambda y: y[1:].mul_(2),
        lambda y: y.t() @ y,
        lambda y: y.clone(),
        lambda y: y.to(torch.bfloat16),
        lambda y: y.sum().item(),
        lambda y: torch.empty(3, 3).copy_(y),
        lambda y: torch.add(y, 1, out=torch.empty(3, 3)),
        lambda y: torch._foreach_add_([y], 1),
        lambda y: torch.cat([torch.ones(1, 3), y]),
        lambda y: y.index_select(0, torch.tensor([1])),
        lambda y: torch.where(torch.ones(3, 3) > 0, 1.0, y),
        lambda y: torch.addmm(y, torch.ones(3, 4), torch.ones(4, 3)),
        lambda y: y.addmm_(torch.ones(3, 4), torch.ones(4, 3), beta=0.5),
    ],
)
@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(3, 3),
        lambda: torch.empty_strided((3, 3), (3, 1)),
        lambda: torch.ones(2).new_empty(3, 3),
        lambda: torch.empty(0).resize_(3, 3),
        lambda: torch.empty(3, 3).t_(),
    ],
)
def test_whatever_reads_it_and_however_it_was_allocated(allocate, use):
    def program() -> None:
        y = allocate()
        write(y.t() if not y.is_contiguous() else y, np.ones((3, 3)))
        use(y)

    (op,) = found(program)
    assert op.signature.output_bytes == 36


def test_each_call_counts():
    model = Net()
    ops = found(lambda: [model(torch.ones(3, 4)) for _ in range(5)], model)
    assert [op.module.path for op in ops] == ["kernel"] * 5


def test_a_gradient_written_outside_belongs_to_the_backward_of_its_module():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return doubled(x)

        @staticmethod
        def backward(ctx, grad):
            return doubled(grad)

    model = nn.Sequential(nn.Linear(4, 4), Calls(Twice.apply))
    ops = found(lambda: (model(torch.ones(2, 4)) * 3).sum().backward(), model)
    assert [(op.module.path, op.direction.label) for op in ops] == [("1", "forward"), ("1", "backward")]


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_what_a_kernel_leaves_open_without_memory_is_found_too(kind):
    def program() -> None:
        (torch.empty_like(torch.ones(3, 3)) + 1).sum()  # all that a kernel does there

    with torch.device("meta") if kind == "meta" else FakeTensorMode():
        assert len(found(program)) == 1


def test_following_memory_and_taking_times_go_together_with_it():
    model = Net()
    session = recorded(lambda: model(torch.ones(3, 4)).sum(), model, memory=True, times=True)
    (place,) = [index for index, op in enumerate(session.records) if op.signature.name == WRITTEN_OUTSIDE]
    assert np.isnan(session.measurement.op_s[place])
    assert np.isfinite(np.delete(session.measurement.op_s, place)).all()
    (storage,) = session.record(place).writes
    assert session.lifetimes.made[storage] < place
    assert rl.analyze(session, DEVICE).memory.peak_bytes > 0


def test_it_does_not_keep_op_times_from_being_found():
    model = Net()
    x = torch.ones(3, 4)

    def step() -> None:
        for _ in range(20):
            model(x)

    recording = recorded(step, model)
    session = rl.measure(recording, step, warmup=1, max_runs=3, profiled=1)
    assert session.measurement.clock == "ops by Kineto"


def test_the_report_names_it():
    model = Net()
    session = recorded(lambda: model(torch.ones(3, 4)), model)
    report = report_of(rl.analyze(session, DEVICE))
    (table,) = [table for table in report.tables if table.id == "not_costed"]
    assert table.rows == (("written_outside", "kernel", 1, 96, "written outside the dispatcher"),)


# -- what is no kernel of that sort ------------------------------------------------------------------------------------


def out_of_an_empty_one() -> None:
    torch.mm(torch.ones(3, 3), torch.ones(3, 3), out=torch.empty(0)).sum()
    torch.cat([torch.ones(1), torch.ones(2)], out=torch.empty(3)).sum()


def filled_in_parts() -> None:
    cache = torch.empty(2, 8, 4)
    cache[:, :3] = torch.ones(2, 3, 4)
    (cache * 2).sum()
    for fill in (
        lambda t: t.index_copy_(0, torch.tensor([1]), torch.ones(1, 4)),
        lambda t: t.masked_fill_(torch.ones(5, 4) > 0, 0),
        lambda t: t.scatter_(0, torch.zeros(1, 4, dtype=torch.long), 1.0),
        lambda t: t.index_put_((torch.tensor([1]),), torch.tensor(1.0)),
        lambda t: t.index_fill_(0, torch.tensor([1]), 1.0),
        lambda t: t.normal_(),
        lambda t: t.zero_(),
        lambda t: t.resize_(3, 4).uniform_(),
        lambda t: t.t_().fill_(1),
        lambda t: torch._foreach_copy_([t], [torch.ones(5, 4)]),
        lambda t: t.set_(torch.ones(5, 4)),
        lambda t: t.untyped_storage().copy_(torch.ones(5, 4).untyped_storage()),
    ):
        tensor = torch.empty(5, 4)
        fill(tensor)
        tensor.sum()


def ignored_for_beta_0() -> None:
    """Megatron's and Bloom's way to multiply into a buffer."""
    torch.baddbmm(torch.empty(2, 3, 3), torch.ones(2, 3, 4), torch.ones(2, 4, 3), beta=0.0).sum()
    torch.addmm(torch.empty(3, 3), torch.ones(3, 4), torch.ones(4, 3), beta=0).sum()
    torch.empty(3, 3).addmm_(torch.ones(3, 4), torch.ones(4, 3), beta=0).sum()


def only_a_shape() -> None:
    scratch = torch.empty(3, 3)
    (torch.zeros_like(scratch) + scratch.new_ones(3, 3) + torch.rand_like(scratch)).sum()
    (scratch.view(9).unsqueeze(0).shape, scratch.is_contiguous(), scratch.numel(), scratch.stride())


def nothing_inside() -> None:
    (torch.empty(0).sum(), torch.empty(3, 0) @ torch.empty(0, 3), torch.empty(2, 0).add_(1))


def given_by_numpy() -> None:
    (torch.from_numpy(np.ones((3, 3))) + 1).sum()
    (torch.tensor([1.0, 2.0]) + torch.frombuffer(bytearray(8), dtype=torch.float32)).sum()


def built_and_not_initialised() -> None:
    nn.utils.skip_init(nn.Linear, 3, 3)(torch.ones(2, 3)).sum()


def states_of_optimizers() -> None:
    for make in (
        lambda p: torch.optim.SGD(p, momentum=0.9, fused=True),
        lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True),
        lambda p: torch.optim.AdamW(p, foreach=True),
    ):
        layer = nn.Linear(4, 4)
        optimizer = make(layer.parameters())
        for _ in range(2):
            layer(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def random_states() -> None:
    state = torch.get_rng_state()
    torch.set_rng_state(state)
    (state.float().sum(), torch.Generator().get_state() + 1)


def attention() -> None:
    q = torch.ones(2, 2, 8, 4, requires_grad=True)
    functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


@torch.library.custom_op("outside_writes::fill", mutates_args={"out"})
def custom_fill(x: torch.Tensor, out: torch.Tensor) -> None:
    write(out, x.numpy())


@torch.library.custom_op("outside_writes::double", mutates_args=())
def custom_double(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


def custom_ops() -> None:
    """Listed as ops without a formula; that they use a pointer is their own affair."""
    out = torch.empty(3)
    custom_fill(torch.ones(3), out)
    (out + custom_double(torch.ones(3))).sum()


@pytest.mark.parametrize(
    "program",
    [
        out_of_an_empty_one,
        filled_in_parts,
        ignored_for_beta_0,
        only_a_shape,
        nothing_inside,
        given_by_numpy,
        built_and_not_initialised,
        states_of_optimizers,
        random_states,
        attention,
        custom_ops,
    ],
    ids=lambda program: program.__name__,
)
def test_no_false_alarm(program):
    assert found(program) == []


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("give", [lambda y: y, lambda y: (y, {"y": y}), lambda y: [y.view(-1)[1:]]])
def test_a_result_that_the_model_returns_is_found_without_a_reader(give, memory):
    model = nn.Sequential(nn.Linear(4, 4), Calls(lambda x: give(doubled(x))))
    results = []
    with rl.record(model, memory=memory) as recording:
        for _ in range(2):
            results.append(model(torch.ones(2, 4)))
        model(torch.ones(2, 4))
        torch.ones(3).exp()
    ops = found_in(recording.session)
    assert [op.module.path for op in ops] == ["1", "1", "1"]
    names = [op.signature.name for op in recording.session.records if op.writes]
    assert names[-3:] == [WRITTEN_OUTSIDE, "aten::ones", "aten::exp"]
    assert "aten::empty_like" in names[-4]


def test_a_result_that_is_filled_later_is_a_buffer():
    x, buffers = torch.ones(3), Calls(lambda x: (torch.empty_like(x), x.new_empty(0)))
    assert found(lambda: buffers(x)[0].fill_(1).sum()) == []


def test_scratch_that_nobody_reads_is_none_of_our_business():
    assert found(lambda: doubled(torch.ones(3))) == []


def test_a_tensor_of_before_is_an_input():
    y = doubled(torch.ones(3))
    assert found(lambda: y + 1) == []


# -- putting records into a session ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> rl.Session:
    q = torch.ones(2, 2, 8, 4, requires_grad=True)
    with rl.record(memory=True, times=True) as recording:
        (functional.scaled_dot_product_attention(q, q, q).exp() * 2).sum().backward()
    return recording.session


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_other_records_stay_what_they_were(whole, data):
    places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6))
    op = OpSignature(name=WRITTEN_OUTSIDE)
    place = Scope.of(whole, 0)
    new = with_insertions(whole, [Insertion(before=at, place=place, signature=op, written=0) for at in places])
    kept = [index for index, record in enumerate(new.records) if record.signature is not op]
    assert len(new) == len(whole) + len(places)
    for old, index in enumerate(kept):
        before, after = whole.record(old), new.record(index)
        if before.parent is not None:
            assert after.parent == kept[before.parent]
        assert replace(after, parent=None, times_s=()) == replace(before, parent=None, times_s=())
    # each new one stands right in front of its record, and the storages live beside the same records as before
    assert all(new.record(kept[at] - 1).signature is op for at in places)
    assert whole.lifetimes is not None
    assert new.lifetimes is not None
    for storage in range(len(whole.storage_bytes)):
        alive = alive_beside(whole, storage)
        assert [beside for beside, index in zip(alive_beside(new, storage), range(len(new)), strict=True)
                if index in kept] == alive  # fmt: skip


def alive_beside(session: rl.Session, storage: int) -> list[bool]:
    made, freed = int(session.lifetimes.made[storage]), int(session.lifetimes.freed[storage])
    return [made <= index and (freed < 0 or index < freed) for index in range(len(session))]
