"""When storages of real programs are freed, and what they were for."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from recorded_model import in_thread, raiser, recorded
from recorded_model import model as attention_model
from recorded_model import x as attention_input
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.record import StorageKind
from rooflight.records.session import KEPT, STOOD, Session
from rooflight.roofline.memory.use import memory_use

F32 = 4


followed = partial(recorded, memory=True)


def kinds(session: Session) -> dict[str, int]:
    """Bytes by kind, each storage once."""
    lifetimes = session.lifetimes
    found: Counter[str] = Counter()
    for kind, size in zip(lifetimes.kind.tolist(), session.storage_bytes.tolist(), strict=True):
        found[StorageKind(kind).label] += size
    return dict(found)


def life(session: Session, name: str) -> tuple[StorageKind, int, int]:
    """Kind, made and freed of what the only op of this name made."""
    (made,) = [i for i, op in enumerate(session.records) if op.signature.name == f"aten::{name}"]
    (number,) = set(session.record(made).writes)
    lifetimes = session.lifetimes
    return StorageKind(int(lifetimes.kind[number])), int(lifetimes.made[number]), int(lifetimes.freed[number])


def mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


def test_without_asking_no_lifetimes_are_noted() -> None:
    session = recorded(lambda: torch.ones(3).neg())
    assert session.lifetimes is None


def test_a_storage_is_freed_when_its_last_view_goes() -> None:
    def program() -> None:
        a = torch.ones(100)  # record 0
        view = a.exp().view(10, 10)  # 1 and 2
        del a
        view.neg()  # 3, freed at once
        view.abs()  # 4
        del view
        torch.zeros(7)  # 5

    session = followed(program)
    assert life(session, "ones") == (StorageKind.TEMPORARY, 0, 3)
    assert life(session, "exp") == (StorageKind.TEMPORARY, 1, 5)
    assert life(session, "neg") == (StorageKind.TEMPORARY, 3, 4)
    # exp and neg together, or exp and abs
    assert memory_use(session).peak_bytes == 2 * 100 * F32


def test_what_the_caller_keeps_is_kept() -> None:
    held = []
    session = followed(lambda: held.append(torch.ones(5).neg()))
    assert life(session, "neg")[2] == KEPT
    assert life(session, "ones")[2] == 2


def local(session: Session) -> list[str]:
    """Ops of which some result was freed before the call of the outermost module returned."""
    lifetimes = session.lifetimes
    return [op.signature.name[6:] for op in session.records if lifetimes.local[list(op.writes)].any()]


class Wasteful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.kept = torch.ones(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.exp()
        y = x.sin()
        self.kept = x.neg()
        return y.abs()


@pytest.mark.parametrize("named", [True, False])
def test_what_a_call_of_the_outermost_module_keeps_to_itself_is_local(named: bool) -> None:
    model, x = Wasteful(), torch.ones(5)
    with torch.no_grad():
        session = followed(lambda: [model(x).cos() for _ in range(2)], model if named else None)
    # neg is in an attribute until the next call replaces it, abs is returned; cos was no module's
    assert local(session) == ["exp", "sin"] * 2


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (torch.no_grad()(lambda: mlp()(torch.ones(5, 8))), ["addmm", "gelu"]),  # what an inner module returns
        # its graph goes with exp; sin is there for abs in the backward pass
        (lambda: Wasteful()(torch.ones(5, requires_grad=True)).sum().backward(), ["exp"]),
        (lambda: torch.ones(5).exp().sin(), []),  # without modules
    ],
    ids=["inner module", "backward", "no module"],
)
def test_what_is_local_to_the_outermost_module(program: Callable[[], Any], expected: list[str]) -> None:
    assert local(followed(program)) == expected


def test_a_call_that_raises_ends_too() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.exp()
            raise KeyError

    def program() -> None:
        with pytest.raises(KeyError):
            Raises()(torch.ones(5))
        torch.ones(5).sin()

    assert local(followed(program)) == ["exp"]


def test_an_address_that_is_used_again_is_another_storage() -> None:
    def program() -> None:
        for _ in range(50):
            torch.ones(1000).neg()

    session = followed(program)
    assert len(session.storage_bytes) == 100
    assert memory_use(session).peak_bytes == 2 * 1000 * F32


def test_a_graph_keeps_what_backward_needs() -> None:
    weight = torch.ones(50, requires_grad=True)

    def program() -> None:
        loss = (weight * 2).exp().sum()  # mul is not saved, exp is
        loss.backward()

    session = followed(program)
    records = [op.signature.name for op in session.records]
    backward = records.index("aten::sum") + 1
    assert life(session, "exp")[0] is StorageKind.ACTIVATION
    assert life(session, "exp")[2] > backward
    assert memory_use(session).by_kind[StorageKind.ACTIVATION] >= 50 * F32


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("foreach", [True, False])
def test_each_byte_of_a_training_step_has_its_kind(named: bool, foreach: bool) -> None:
    model, x = mlp(), torch.ones(4, 8)
    parameters = sum(p.numel() for p in model.parameters()) * F32
    steps = len(list(model.parameters())) * F32  # AdamW counts the steps of each parameter
    step = step_of(model, x, foreach=foreach)
    for stood in (False, True):  # the first step makes the state, the second finds it
        session = followed(step, model if named else None)
        found = kinds(session)
        assert found["parameter"] == parameters
        assert found["gradient"] == parameters
        assert found["optimizer state"] == 2 * parameters + steps
        assert found["data"] == 4 * 8 * F32
        standing = parameters + 4 * 8 * F32 + stood * (2 * parameters + steps)
        assert memory_use(session).standing_bytes == standing


def test_gradients_that_stand_before_and_are_replaced_are_gradients() -> None:
    model, x = mlp(), torch.ones(4, 8)
    model(x).sum().backward()
    parameters = sum(p.numel() for p in model.parameters()) * F32

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    session = followed(step, model)
    assert kinds(session)["gradient"] == 2 * parameters
    use = memory_use(session)
    assert use.standing_bytes == 2 * parameters + x.nbytes
    assert use.bytes_alive[0, StorageKind.GRADIENT] == 0  # zero_grad let go of them before the first op


def test_an_optimizer_inside_backward_finds_its_gradients() -> None:
    model, x = mlp(), torch.ones(4, 8)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
    session = followed(lambda: model(x).sum().backward(), model)
    for handle in handles:
        handle.remove()
    parameters = sum(p.numel() for p in model.parameters()) * F32
    assert kinds(session)["gradient"] == parameters
    # one layer's gradients at a time: 8 * 8 + 8
    assert memory_use(session).bytes_alive[:, StorageKind.GRADIENT].max() <= (8 * 8 + 8) * F32


def test_gradients_that_autograd_adds_in_place_are_counted_in_place() -> None:
    """A recorded backward cannot add in place, since Python has touched the gradients; the plain one does."""
    x = torch.ones(1000, requires_grad=True)

    def program() -> None:
        y = x * 1.0
        (y.exp().sum() + y.sin().sum()).backward()

    session = followed(program)
    (total,) = [
        i
        for i, op in enumerate(session.records)
        if op.signature.name == "aten::add" and op.signature.inputs[0].numel > 1
    ]
    use = memory_use(session)
    timeline = use.bytes_alive.sum(axis=1)
    # x, and the two gradients of y, of which one becomes their sum
    assert timeline[total] - use.bytes_alive[total, StorageKind.ACTIVATION] == 3 * 1000 * F32


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_has_fewer_activations_and_makes_them_again(reentrant: bool) -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4))
    x = torch.ones(512, 64, requires_grad=True)

    def run(recompute: bool) -> None:
        y = x * 1.0
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=reentrant) if recompute else block(y)
        y.sum().backward()
        blocks.zero_grad()
        x.grad = None

    plain, saved = (memory_use(followed(lambda r=r: run(r), blocks)) for r in (False, True))
    activations = 512 * 64 * F32
    # the input, then two results of each of four blocks (a GELU saves its input, a Linear its own)
    assert plain.bytes_alive[:, StorageKind.ACTIVATION].max() >= 9 * activations
    # one of each block, and two of the block that runs again
    assert 5 * activations <= saved.bytes_alive[:, StorageKind.ACTIVATION].max() < 9 * activations
    assert saved.peak_bytes < plain.peak_bytes


def test_without_backward_the_graph_that_is_held_is_activations() -> None:
    model, x, held = mlp(), torch.ones(4, 8), []
    assert kinds(followed(lambda: held.append(model(x)), model))["activation"] == 3 * 4 * 8 * F32
    with torch.no_grad():
        found = kinds(followed(lambda: held.append(model(x)), model))
    assert "activation" not in found
    assert found["temporary"] == 3 * 4 * 8 * F32


@pytest.mark.parametrize("known", [True, False])
def test_buffers_and_caches_have_kinds_of_their_own(known: bool) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(10))
            self.register_buffer("seen", torch.zeros(20))
            self.register_buffer("k_cache", torch.zeros(40))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            self.k_cache[:10] = x
            return x * self.table

    model, x = Counting(), torch.ones(10)
    session = recorded(lambda: model(x), model if known else None, memory=True)
    by_kind = memory_use(session).by_kind
    assert by_kind[StorageKind.BUFFER] == 10 * F32 + 20 * F32
    assert by_kind[StorageKind.CACHE] == 40 * F32
    assert by_kind[StorageKind.DATA] == 10 * F32


def test_parameters_and_buffers_that_nothing_touches_stand_too() -> None:
    model = nn.ModuleDict({"used": nn.Linear(8, 8), "not": nn.BatchNorm1d(16)})
    session = followed(lambda: model["used"](torch.ones(2, 8)), model)
    held = [*model.parameters(), *model.buffers()]
    assert memory_use(session).standing_bytes == sum(tensor.nbytes for tensor in held)


def test_what_is_made_out_of_data_was_not_there_before() -> None:
    def program() -> None:
        torch.ones(4)
        torch.tensor([1.0] * 1000).sum()

    session = followed(program)
    use = memory_use(session)
    assert use.standing_bytes == 0
    assert use.peak_bytes >= 1000 * F32


def test_a_storage_that_is_resized_is_another_one() -> None:
    buffer = torch.ones(1000)
    held = []

    def program() -> None:
        buffer.neg()  # 0
        buffer.untyped_storage().resize_(0)
        torch.ones(3)  # 1
        buffer.untyped_storage().resize_(500 * F32)
        buffer[:500].fill_(1.0)  # slice and fill_
        held.append(torch.empty(0))
        torch.exp(torch.ones(250), out=held[0])

    use = memory_use(followed(program))
    totals = use.bytes_alive.sum(axis=1).tolist()
    assert totals[:2] == [2 * 1000 * F32, 3 * F32]
    assert totals[2:4] == [500 * F32] * 2
    assert totals[-1] == (500 + 250 + 250) * F32


def step_of(model: nn.Module, x: torch.Tensor, *, foreach: bool = True) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("place", ["meta", "fake"])
def test_memory_without_memory(place: str) -> None:
    real = mlp(16)
    expected = memory_use(followed(step_of(real, torch.ones(4, 16)), real))
    if place == "meta":
        model = mlp(16).to("meta")
        found = memory_use(followed(step_of(model, torch.ones(4, 16, device="meta")), model))
    else:
        with FakeTensorMode():
            model = mlp(16)
            found = memory_use(followed(step_of(model, torch.ones(4, 16)), model))
    assert found.peak_bytes == expected.peak_bytes
    assert found.by_kind == expected.by_kind


def test_composites_and_recorded_models_agree_with_the_sum_of_their_parts() -> None:
    model = attention_model()
    session = followed(lambda: model(attention_input()).sum().backward(), model)
    use = memory_use(session)
    assert use.by_kind[StorageKind.PARAMETER] == sum(p.nbytes for p in model.parameters())
    assert use.peak_bytes <= session.storage_bytes.sum()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_no_hook_and_keeps_what_ran(error: type[BaseException]) -> None:
    net = attention_model(raiser(error))
    recording = rl.record(net, memory=True)
    with pytest.raises(error), recording:
        net(attention_input())
    assert recording.session.lifetimes is not None
    assert memory_use(recording.session).standing_bytes >= sum(p.nbytes for p in net.parameters())


def test_following_memory_keeps_nothing_alive() -> None:
    model = mlp()
    parameter, module = weakref.ref(model[0].weight), weakref.ref(model)
    recording = rl.record(model, memory=True)
    with recording:
        x = torch.ones(4, 8)
        result = weakref.ref(model(x))
        assert result() is None
    del model
    gc.collect()
    assert module() is None
    assert parameter() is None


def test_two_recordings_at_once_each_follow_their_own() -> None:
    with rl.record(memory=True) as outer:
        torch.ones(10).neg()
        session = recorded(lambda: torch.ones(100).neg(), memory=True)
    assert memory_use(session).peak_bytes == 200 * F32
    assert memory_use(outer.session).peak_bytes == 200 * F32
    assert len(outer.session.storage_bytes) == 4


def test_another_thread_s_optimizer_is_not_ours() -> None:
    def elsewhere() -> None:
        other = torch.ones(64, requires_grad=True)
        other.sum().backward()
        torch.optim.SGD([other], lr=0.1).step()

    with rl.record(memory=True) as recording:
        torch.ones(4)
        in_thread(elsewhere)
    assert kinds(recording.session) == {"temporary": 16}


def test_a_saved_session_keeps_its_lifetimes(tmp_path: Any) -> None:
    model = mlp()
    session = followed(lambda: model(torch.ones(4, 8)).sum().backward(), model)
    loaded = rl.load(session.save(tmp_path / "run.session"))
    assert memory_use(loaded).by_kind == memory_use(session).by_kind
    assert memory_use(loaded).rows == memory_use(session).rows
    assert (loaded.lifetimes.made == STOOD).sum() == 4  # the parameters


def test_an_empty_storage_that_is_resized_is_made_by_it() -> None:
    gathered = torch.ones(500)
    gathered.untyped_storage().resize_(0)

    def program() -> None:
        torch.ones(3)
        gathered.untyped_storage().resize_(500 * F32)
        gathered.fill_(1.0)
        gathered.untyped_storage().resize_(0)
        torch.ones(4)

    use = memory_use(followed(program))
    assert use.standing_bytes == 0
    assert use.bytes_alive.sum(axis=1).tolist() == [3 * F32, 500 * F32, 4 * F32]


def test_gradients_that_a_norm_without_weight_adds_are_a_part_of_its_backward():
    layer = torch.nn.Linear(8, 8)
    with rl.record(memory=True) as recording:
        torch.nn.functional.rms_norm(layer(torch.randn(4, 8)), (8,)).sum().backward()
    records = {each.signature.name: each for each in recording.session.records}
    assert set(records["aten::mm"].reads) & set(records["aten::_fused_rms_norm_backward"].writes)


def test_gradients_of_equal_inputs_of_attention_are_added_after_its_backward():
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    with rl.record(memory=True) as recording:
        torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
    added = [each for each in recording.session.records if each.signature.name == "aten::add" and each.parent is None]
    assert len(added) == 2


def test_a_gradient_that_is_added_to_a_composites_is_added_after_its_backward():
    attention = torch.nn.functional.scaled_dot_product_attention
    x, keys, values = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    with rl.record(memory=True) as recording:
        queries = x * 2
        (queries + attention(queries, keys, values)).sum().backward()
    records = list(recording.session.records)
    names = [each.signature.name for each in records if each.parent is None]
    backward = [number for number, name in enumerate(names) if name.endswith("attention_backward")]
    assert names[backward[0] + 1] == "aten::add"
    place = [number for number, each in enumerate(records) if each.parent is None][backward[0]]
    assert set(records[place].writes) & set(records[place + 1].reads)
    assert {each.parent for each in records[:place] if each.direction == 1} == {None, place}


def test_a_gradient_that_was_added_to_a_composites_lives_until_it_is():
    attention = torch.nn.functional.scaled_dot_product_attention
    x, keys, values = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    with rl.record(memory=True) as recording:
        queries = x * 2
        ((queries + attention(queries, keys, values)) * torch.randn(1, 2, 4, 8)).sum().backward()
    session = recording.session
    records = list(session.records)
    (place,) = [
        number
        for number, each in enumerate(records)
        if each.signature.name.endswith("attention_backward") and each.parent is None
    ]
    at = next(n for n in range(place, len(records)) if records[n].signature.name == "aten::add")
    added = records[at]
    for storage in added.reads:
        assert session.lifetimes.made[storage] < at <= session.lifetimes.freed[storage]
    (total,) = added.writes
    assert session.lifetimes.made[total] == at
    assert session.lifetimes.freed[total] > at + 1
