"""Tensors that appear without an allocation: a kernel's result is listed with its module, data is an input."""

from __future__ import annotations

import functools
import gc
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from outside_kernels import read
from torch import nn
from torch.utils import dlpack
from torch.utils.data import DataLoader, TensorDataset

import rooflight as rl
from rooflight.records.record import Direction, OpRecord
from rooflight.records.signature import WRITTEN_OUTSIDE

DEVICE = "H100-SXM5-80GB"


class Exported:
    """An array of a library that gives its memory away by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


WRAPS: dict[str, Callable[[np.ndarray], torch.Tensor]] = {
    "from_numpy": torch.from_numpy,
    "as_tensor": torch.as_tensor,
    "frombuffer": lambda array: torch.frombuffer(array, dtype=torch.float32).reshape(array.shape),
    "from_dlpack": lambda array: torch.from_dlpack(Exported(array)),
    "capsule": lambda array: dlpack.from_dlpack(array.__dlpack__()),
}
"""DLPack's are ``from_blob`` in C++, as an extension calls it."""

over_each_way = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


class Kernel(nn.Module):
    """Doubles outside of torch, and gives what ``give`` makes of it."""

    def __init__(self, wrap: Callable[[np.ndarray], torch.Tensor], give: Callable[[Any], Any] = lambda y: y) -> None:
        super().__init__()
        self.wrap, self.give = wrap, give

    def forward(self, x):
        return self.give(self.wrap(2 * read(x)))


def recorded(program: Callable[[], Any], model: nn.Module | None = None, **options: Any) -> rl.Session:
    with rl.record(model, **options) as recording:
        program()
    return recording.session


def found_in(session: rl.Session) -> list[OpRecord]:
    return [op for op in session.records if op.signature.name == WRITTEN_OUTSIDE]


def found(program: Callable[[], Any], model: nn.Module | None = None, **options: Any) -> list[OpRecord]:
    return found_in(recorded(program, model, **options))


def places(ops: list[OpRecord]) -> list[tuple[str, str]]:
    return [(op.module.path, op.direction.label) for op in ops]


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> Iterator[None]:
    """The recorder looks through all objects that the garbage collector knows: leave those of other tests out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# -- what is found ----------------------------------------------------------------------------------------------------


@over_each_way
@pytest.mark.parametrize("memory", [False, True])
def test_a_layer_whose_result_appears_is_listed_with_its_size(wrap, memory):
    model = nn.Sequential(nn.Linear(4, 8), Kernel(wrap), nn.ReLU())
    session = recorded(lambda: model(torch.ones(3, 4)), model, memory=memory)
    (op,) = found_in(session)
    assert (op.module.path, op.module.class_name, op.direction) == ("1", "Kernel", Direction.FORWARD)
    assert op.signature.output_bytes == 3 * 8 * 4
    analysis = rl.analyze(session, DEVICE)
    (missing,) = analysis.coverage.uncosted
    assert (missing.reason, missing.calls, missing.modules) == ("written outside the dispatcher", 1, ("1",))
    assert missing.bytes == 96
    assert analysis.coverage.calls < 1
    assert analysis.coverage.bytes < 1


@over_each_way
def test_the_record_stands_before_the_reader_and_writes_what_it_reads(wrap):
    model = nn.Sequential(Kernel(wrap), nn.ReLU())
    x = torch.ones(3)
    records = [op for op in recorded(lambda: model(x), model).records if op.writes]
    assert [op.signature.name for op in records] == [WRITTEN_OUTSIDE, "aten::relu"]
    assert records[0].writes == records[1].reads


@over_each_way
def test_the_last_result_that_nothing_reads_is_found(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Kernel(wrap))
    results: list[torch.Tensor] = []
    (op,) = found(lambda: results.append(model(torch.ones(2, 4))), model)
    assert op.module.path == "1"
    model = Kernel(wrap)
    x = torch.ones(2, 4)
    assert places(found(lambda: results.append(model(x)), model)) == [("Kernel", "forward")]
    assert places(found(lambda: model(x))) == [("Kernel", "forward")]


@over_each_way
@pytest.mark.parametrize("grad", [False, True])
def test_a_result_that_the_same_module_reads_is_found(wrap, grad):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return wrap(2 * read(x)) * self.weight  # with grad, the product keeps it for its backward

    model = nn.Sequential(Layer(), Layer())
    with torch.set_grad_enabled(grad):
        assert [op.module.path for op in found(lambda: model(torch.ones(2, 4)), model)] == ["0", "1"]


@over_each_way
def test_each_call_counts_wherever_memory_is_used_again(wrap):
    model = nn.Sequential(*[Kernel(wrap) for _ in range(5)])
    ops = found(lambda: [model(torch.ones(3, 4)).sum() for _ in range(4)], model)
    assert [op.module.path for op in ops] == [*"01234"] * 4


@dataclass
class Result:
    value: torch.Tensor
    extra: object = None


@pytest.mark.parametrize(
    "give",
    [
        lambda y: (y, y),
        lambda y: [None, (1, y)],
        lambda y: {"a": {"b": y}},
        Result,
        lambda y: SimpleNamespace(logits=y),
        lambda y: UserDict(logits=y),
        lambda y: y.view(-1),
        lambda y: y[:1].unsqueeze(0),
        lambda y: (y, y.t()),
    ],
    ids=["tuple", "list", "dict", "dataclass", "namespace", "UserDict", "view", "slice", "twice"],
)
@over_each_way
def test_whatever_it_is_returned_in(give, wrap):
    outputs = []
    model = Kernel(wrap, give)
    assert len(found(lambda: outputs.append(model(torch.ones(3, 4))), model)) == 1


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wrap):
        ctx.wrap = wrap
        return wrap(2 * read(x))

    @staticmethod
    def backward(ctx, grad):
        return ctx.wrap(2 * read(grad)), None


class Differentiable(nn.Module):
    def __init__(self, wrap: Callable[[np.ndarray], torch.Tensor]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return Twice.apply(x, self.wrap)


@over_each_way
def test_forward_and_backward_of_an_autograd_function(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Differentiable(wrap), nn.Linear(4, 4))
    ops = found(lambda: model(torch.ones(2, 4)).sum().backward(), model)
    # numpy's tensors are seen where they are made, others where an op reads them first
    assert places(ops) in ([("1", "forward"), ("1", "backward")], [("1", "forward"), ("0", "backward")])
    assert places(ops)[1][0] == "1" or wrap not in (torch.from_numpy, torch.as_tensor)


@over_each_way
def test_a_gradient_that_becomes_that_of_a_leaf(wrap):
    x = torch.ones(2, 4, requires_grad=True)
    model = nn.Sequential(Differentiable(wrap), nn.Linear(4, 4))

    def step() -> None:
        model(x).sum().backward()
        with torch.no_grad():
            x.sub_(x.grad)

    assert places(found(step, model))[0] == ("0", "forward")
    if wrap in (torch.from_numpy, torch.as_tensor):
        x.grad = None
        assert places(found(lambda: model(x).sum().backward(), model)) == [("0", "forward"), ("0", "backward")]


def test_an_autograd_function_outside_modules_is_found_where_its_result_is_seen_to_be_made():
    x = torch.ones(3, requires_grad=True)
    ops = found(lambda: (Twice.apply(x, torch.from_numpy) * 3).sum().backward())
    assert places(ops) == [("", "forward"), ("", "backward")]


def test_a_checkpointed_kernel_runs_twice():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 4), Differentiable(torch.from_numpy), nn.Tanh())  # which keeps its result
    ops = found(lambda: checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward(), model)
    assert places(ops) == [("1", "forward"), ("1", "backward"), ("1", "backward")]


@over_each_way
def test_inside_inference_mode_and_through_a_compiled_model(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Kernel(wrap), nn.Linear(4, 4))
    with torch.inference_mode():
        assert len(found(lambda: model(torch.ones(2, 4)), model)) == 1
    compiled = torch.compile(model, backend="eager")
    assert places(found(lambda: compiled(torch.ones(2, 4)), compiled)) == [("1", "forward")]


def test_with_times_and_while_the_recording_is_open():
    model = nn.Sequential(nn.Linear(4, 4), Kernel(torch.from_numpy), nn.ReLU())
    with rl.record(model, times=True, functions=True) as recording:
        for count in (1, 2):
            model(torch.ones(2, 4))
            assert len(found_in(recording.so_far())) == count
    session = recording.session
    assert len(found_in(session)) == 2
    assert session.measurement is not None
    nowhere = [index for index, op in enumerate(session.records) if np.isnan(session.measurement.op_s[index])]
    assert [session.record(index).signature.name for index in nowhere] == [WRITTEN_OUTSIDE] * 2


def test_memory_counts_from_when_it_is_made():
    model = nn.Sequential(Kernel(torch.from_numpy), nn.ReLU())
    session = recorded(lambda: model(torch.ones(2, 4)), model, memory=True)
    (place,) = [index for index, op in enumerate(session.records) if op.signature.name == WRITTEN_OUTSIDE]
    (storage,) = session.record(place).writes
    assert session.lifetimes is not None
    assert session.lifetimes.made[storage] == place


# -- what is data ------------------------------------------------------------------------------------------------------

TABLE = np.ones((2, 4), dtype=np.float32)


class Using(nn.Module):
    """Adds what ``take`` gives, given the module and its input."""

    def __init__(self, take: Callable[[Any, torch.Tensor], Any], **attributes: Any) -> None:
        super().__init__()
        self.take = take
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x, *rest, **more):
        return x + self.take(self, x, *rest, **more)


@functools.cache
def cached_table(rows: int) -> torch.Tensor:
    return torch.from_numpy(np.ones((rows, 4), dtype=np.float32))


def lazily(module: Using, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(module, "table"):
        module.table = torch.from_numpy(np.ones((2, 4), dtype=np.float32))
    return module.table


def lazily_a_buffer(module: Using, x: torch.Tensor) -> torch.Tensor:
    if "table" not in module._buffers:
        module.register_buffer("table", torch.from_numpy(np.ones((2, 4), dtype=np.float32)))
    return module.table


def in_a_dict(module: Using, x: torch.Tensor) -> torch.Tensor:
    return module.cache.setdefault(x.shape, torch.from_numpy(np.ones((2, 4), dtype=np.float32)))


@over_each_way
@pytest.mark.parametrize("kind", ["parameter", "buffer", "attribute", "list", "dict", "object", "closure", "cache"])
@pytest.mark.parametrize("memory", [False, True])
def test_what_a_model_holds_is_an_input(wrap, kind, memory):
    table = wrap(TABLE.copy())
    holds: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "parameter": (lambda module, x: module.table, {"table": nn.Parameter(table)}),
        "buffer": (lambda module, x: module.table, {"table": nn.Buffer(table)}),
        "attribute": (lambda module, x: module.table, {"table": table}),
        "list": (lambda module, x: module.tables[0][0], {"tables": [(table,)]}),
        "dict": (lambda module, x: module.tables["a"], {"tables": {"a": table}}),
        "object": (lambda module, x: module.holder.table, {"holder": SimpleNamespace(table=table)}),
        "closure": (lambda module, x: table, {}),
        "cache": (lambda module, x: cached_table(2), {}),
    }
    take, attributes = holds[kind]
    model = nn.Sequential(Using(take, **attributes), nn.ReLU())
    assert found(lambda: [model(torch.ones(2, 4)) for _ in range(2)], model, memory=memory) == []


@pytest.mark.parametrize("take", [lazily, lazily_a_buffer, in_a_dict], ids=lambda take: take.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_a_constant_that_is_made_once_and_kept_is_an_input(take, grad):
    model = nn.Sequential(Using(take, cache={}), nn.Linear(4, 4))
    with torch.set_grad_enabled(grad):
        assert found(lambda: [model(torch.ones(2, 4)).sum() for _ in range(3)], model) == []


@pytest.mark.parametrize("wrap", [torch.from_numpy, torch.as_tensor, torch.tensor, WRAPS["capsule"]])
def test_an_array_from_before_is_an_input_however_often_it_is_wrapped(wrap):
    local = TABLE.copy()
    buffer = bytearray(local.tobytes())
    for model in (
        Using(lambda module, x: wrap(TABLE)),
        Using(lambda module, x: wrap(TABLE[1:])),
        Using(lambda module, x: wrap(local)),
        Using(lambda module, x: wrap(module.table), table=local),
        Using(lambda module, x: torch.frombuffer(module.table, dtype=torch.float32).view(2, 4), table=buffer),
        Using(lambda module, x: wrap(module.tables["a"]), tables={"a": local}),
    ):
        assert found(lambda model=model: [model(torch.ones(2, 4)) for _ in range(2)]) == []
    given = Using(lambda module, x, array, table: wrap(array) + wrap(table))
    assert found(lambda: given(torch.ones(2, 4), local, table=TABLE)) == []


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


class Holder:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@over_each_way
def test_what_a_model_is_given_is_an_input(wrap):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, batch=None):
            return self.inner(x if batch is None else batch() if callable(batch) else batch.x).sum()

    def data() -> torch.Tensor:
        return wrap(np.ones((2, 4), dtype=np.float32))

    def program() -> None:
        for _ in range(3):
            model(data())
            model(x=data())
            model(torch.ones(1), Batch(data(), data()))
            model(torch.ones(1), batch=SimpleNamespace(x=data()))
            model(torch.ones(1), Holder(data()))
            model(torch.ones(1), functools.partial(lambda x: x, data())).backward()
            (model.inner(data()) - data()).sum().backward()

    model = Model()
    assert found(program, model) == []


@over_each_way
def test_what_a_model_takes_out_of_what_it_is_given_is_an_input(wrap):
    class Popping(nn.Module):
        def forward(self, x, batch):
            return (batch.pop("y") * 2 + x).sum()

    model = Popping()
    assert found(lambda: model(torch.ones(4), {"y": wrap(np.ones(4, dtype=np.float32))})) == []


@over_each_way
def test_data_made_between_the_calls_is_an_input(wrap):
    model = nn.Linear(4, 4)

    def step() -> None:
        x, y = (wrap(np.random.rand(2, 4).astype(np.float32)) for _ in range(2))
        nn.functional.mse_loss(model(x), y).backward()

    assert found(lambda: [step() for _ in range(3)], model) == []


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return np.full(4, index, dtype=np.float32), {"y": index, "z": torch.full((2,), index)}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_are_inputs(workers):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def epoch() -> None:
        for x, more in DataLoader(Rows(), batch_size=2, num_workers=workers):
            (model(x).sum() + more["y"].sum() + more["z"].sum()).backward()

    assert found(epoch, model) == []
    rows = TensorDataset(torch.from_numpy(np.ones((6, 4), dtype=np.float32)))
    loader = DataLoader(rows, batch_size=2, num_workers=workers)
    assert found(lambda: [model(next(iter(loader))[0]) for _ in range(2)], model) == []


def test_a_module_that_makes_data_from_no_tensor_makes_an_input():
    class ToTensor(nn.Module):
        def forward(self, picture):
            return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)

    transform = nn.Sequential(ToTensor(), nn.ReLU())
    assert found(lambda: transform([[1, 2], [3, 4]]), transform) == []


@pytest.mark.parametrize(
    "again",
    [
        lambda x: torch.from_numpy(x.detach().numpy()),
        lambda x: torch.from_numpy(x.detach().numpy()[1:]),
        lambda x: torch.as_tensor(np.asarray(x.detach())),
        lambda x: torch.from_dlpack(x.detach()),
        lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x.detach())),
        lambda x: torch.frombuffer(x.detach().numpy(), dtype=torch.float32),
    ],
)
@pytest.mark.parametrize("returned", [False, True])
def test_memory_of_a_recorded_tensor_that_went_there_and_back_is_that_tensors(again, returned):
    class Layer(nn.Module):
        def forward(self, x):
            hidden = x * 2
            return again(hidden) if returned else again(hidden).exp()

    model = nn.Sequential(nn.Linear(4, 4), Layer(), nn.Softmax(-1), Layer())
    session = recorded(lambda: model(torch.ones(3, 4)), model)
    assert found_in(session) == []
    if not returned:
        records = list(session.records)
        muls = [op.writes for op in records if op.signature.name == "aten::mul"]
        assert [op.reads for op in records if op.signature.name == "aten::exp"] == muls


@pytest.mark.parametrize("export", [lambda x: x.numpy(), np.asarray, lambda x: x.__array__(), torch.Tensor.tolist])
def test_a_tensor_that_is_looked_at_from_outside_stays_itself(export):
    class Layer(nn.Module):
        def forward(self, x):
            hidden = x * 2
            export(hidden.detach())
            return hidden.exp()

    model = nn.Sequential(nn.Linear(4, 4), Layer())
    with torch.no_grad():
        session = recorded(lambda: model(torch.ones(3, 4)), model)
    (exp,) = [op for op in session.records if op.signature.name == "aten::exp"]
    assert [op.writes for op in session.records if op.signature.name == "aten::mul"] == [exp.reads]
    assert found_in(session) == []


def test_what_a_recorded_op_fills_is_a_buffer():
    class Scratch(nn.Module):
        def forward(self, x):
            out = torch.from_numpy(np.empty((2, 4), dtype=np.float32))
            return out.copy_(x) * 2

    assert found(lambda: Scratch()(torch.ones(2, 4))) == []


@torch.library.custom_op("outside_births::double", mutates_args=())
def custom_double(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(2 * x.numpy())


def test_results_of_ops_that_are_recorded_are_those_ops():
    class Layer(nn.Module):
        def forward(self, x):
            return custom_double(x)

    model = nn.Sequential(Layer(), nn.ReLU(), Layer())
    with torch.no_grad():
        session = recorded(lambda: model(torch.ones(2, 4)), model)
    assert found_in(session) == []
    records = [op for op in session.records if op.reads]
    assert records[1].reads == records[0].writes


def test_weights_that_are_loaded_for_the_call_only_are_no_result():
    """Offloading to disk: hooks put weights read from a file in, and take them out again."""
    linear = nn.Linear(4, 4, bias=False)
    weights = np.ones((4, 4), dtype=np.float32)
    model = nn.Sequential(nn.ReLU(), linear)

    def load(module: nn.Module, args: Any) -> None:
        module.weight = nn.Parameter(torch.from_numpy(weights.copy()))

    def unload(module: nn.Module, args: Any, output: Any) -> None:
        module.weight = nn.Parameter(torch.empty(4, 4, device="meta"))

    linear.register_forward_pre_hook(load)
    linear.register_forward_hook(unload)
    with torch.no_grad():
        assert found(lambda: [model(torch.ones(2, 4)) for _ in range(3)], model) == []


def test_a_gradient_kept_in_the_memory_of_somebody_else_is_no_result():
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        parameter.grad = torch.from_numpy(np.zeros(tuple(parameter.shape), dtype=np.float32))
    assert found(lambda: model(torch.ones(2, 4)).sum().backward(), model) == []


def test_a_gradient_that_is_given_to_backward_is_an_input():
    model = nn.Sequential(nn.Linear(4, 4), Differentiable(torch.from_numpy))
    gradient = torch.from_numpy(np.ones((2, 4), dtype=np.float32))
    ops = found(lambda: model(torch.ones(2, 4)).backward(gradient), model)
    assert places(ops) == [("1", "forward"), ("1", "backward")]


def test_nothing_happens_on_meta():
    class Layer(nn.Module):
        def forward(self, x):
            return torch.empty_like(x).fill_(1)

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Layer())
        assert found(lambda: model(torch.ones(2, 4)), model) == []


def test_generators_and_strange_outputs_do_no_harm():
    class Strange(nn.Module):
        def forward(self, x):
            def items() -> Iterator[torch.Tensor]:
                yield x + 1
                yield torch.from_numpy(2 * read(x))

            loop: list[Any] = [x]
            loop.append(loop)
            return {"items": items(), "loop": loop, "kind": Strange, "self": self}

    model = Strange()
    assert found(lambda: [item.sum() for item in model(torch.ones(2))["items"]]) == []


def test_vmap_and_sparse_results_pass():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert found(lambda: torch.vmap(model)(torch.ones(3, 2, 4)), model) == []

    class Sparse(nn.Module):
        def forward(self, x):
            return x.to_sparse()

    assert found(lambda: Sparse()(torch.ones(2, 2)).coalesce().to_dense()) == []


def test_the_recording_keeps_nothing_alive():
    model = nn.Sequential(Kernel(torch.from_numpy), nn.ReLU())
    sizes = []
    with rl.record(model):
        for _ in range(3):
            model(torch.ones(31, 7))
            gc.collect()
            sizes.append(sum(type(item) is torch.Tensor and item.shape == (31, 7) for item in gc.get_objects()))
    assert sizes == [0, 0, 0]
