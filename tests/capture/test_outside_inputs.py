"""Data in memory that torch did not allocate is an input, however a program gets it."""

import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from outside_kernels import read
from outside_memory import Differentiable, Kernel, found, found_in, over_each_way, places
from recorded_function import Calls
from recorded_model import built, recorded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rooflight as rl

pytestmark = pytest.mark.usefixtures("small_heap")


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


@over_each_way
def test_an_array_that_is_wrapped_in_a_call_is_listed_since_nobody_knows_when_it_was_made(wrap):
    model = Using(lambda module, x: wrap(TABLE))
    assert len(found(lambda: [model(torch.ones(2, 4)) for _ in range(2)])) == 2
    model = Using(lambda module, x: wrap(module.table), table=TABLE)  # it was there before
    assert found(lambda: [model(torch.ones(2, 4)) for _ in range(2)]) == []


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
            (model.inner(data()) - data()).sum().backward()

    model = built(forward, "Model", inner=nn.Linear(4, 4))
    assert found(program, model) == []


@over_each_way
def test_what_a_model_takes_out_of_what_it_is_given_is_an_input(wrap):
    model = Calls(lambda x, batch: (batch.pop("y") * 2 + x).sum())
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
    to_tensor = Calls(lambda picture: torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255))
    transform = nn.Sequential(to_tensor, nn.ReLU())
    assert found(lambda: transform([[1, 2], [3, 4]]), transform) == []


@pytest.mark.parametrize(
    "again",
    [
        lambda x: torch.from_numpy(x.detach().numpy()),
        lambda x: torch.from_numpy(x.detach().numpy()[1:]),
        lambda x: torch.as_tensor(np.asarray(x.detach())),
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


def test_an_export_keeps_its_name_among_functions():
    x = torch.ones(3)
    assert [op.function for op in recorded(lambda: torch.Tensor.numpy(x), functions=True).records] == ["numpy"]


def test_what_a_recorded_op_fills_is_a_buffer():
    scratch = Calls(lambda x: torch.from_numpy(np.empty((2, 4), dtype=np.float32)).copy_(x) * 2)
    assert found(lambda: scratch(torch.ones(2, 4))) == []


@torch.library.custom_op("outside_births::double", mutates_args=())
def custom_double(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(2 * x.numpy())


def test_results_of_ops_that_are_recorded_are_those_ops():
    model = nn.Sequential(Calls(custom_double), nn.ReLU(), Calls(custom_double))
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


def test_a_gradient_that_an_autograd_function_passes_on_is_what_it_was():
    class Passing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(np.ones((2, 4), dtype=np.float32))

        @staticmethod
        def backward(ctx, grad):
            return grad

    model = nn.Sequential(nn.Linear(4, 4), Calls(Passing.apply))
    gradient = torch.from_numpy(np.ones((2, 4), dtype=np.float32))
    assert places(found(lambda: model(torch.ones(2, 4)).backward(gradient), model)) == [("1", "forward")]


def test_nothing_happens_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Calls(lambda x: torch.empty_like(x).fill_(1)))
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
    sparse = Calls(lambda x: x.to_sparse())
    assert found(lambda: sparse(torch.ones(2, 2)).coalesce().to_dense()) == []


def test_the_recording_keeps_nothing_alive():
    model = nn.Sequential(Kernel(torch.from_numpy), nn.ReLU())
    sizes = []
    with rl.record(model):
        for _ in range(3):
            model(torch.ones(31, 7))
            gc.collect()
            sizes.append(sum(type(item) is torch.Tensor and item.shape == (31, 7) for item in gc.get_objects()))
    assert sizes == [0, 0, 0]
