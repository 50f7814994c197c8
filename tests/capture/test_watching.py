"""Watches: patterns of operations by the recorder's own call key, and how operations are wired."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch_state import torch_state

import rooflight as rl
from rooflight.sources.capture.record import watching
from rooflight.sources.capture.record.watching import Watch
from rooflight.studies.compiling.hot.gain import pattern_of


def watched(function: Any, *args: Any) -> Watch:
    with Watch() as watch:
        function(*args)
    return watch


def test_equal_calls_have_equal_digests_whatever_their_values() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    first, second = watched(net, torch.ones(3, 4)), watched(net, torch.randn(3, 4))
    assert first.digests() == second.digests()
    assert len(first) == len(second) > 3
    larger = watched(net, torch.ones(5, 4))
    assert larger.digests()[0] != first.digests()[0]
    assert larger.digests()[1] == first.digests()[1]  # but for sizes
    assert watched(net.double(), torch.ones(3, 4).double()).digests()[1] != first.digests()[1]


def test_sizes_in_settings_are_sizes_too() -> None:
    """A linear layer over three dimensions makes views of its input and its result."""
    net = nn.Linear(4, 8)
    first, larger = watched(net, torch.ones(2, 3, 4)), watched(net, torch.ones(2, 5, 4))
    assert "aten::view" in first.names
    assert first.digests()[0] != larger.digests()[0]
    assert first.digests()[1] == larger.digests()[1]
    other = watched(lambda value: value.sum(0), torch.ones(3, 3)), watched(lambda value: value.sum(1), torch.ones(3, 3))
    assert other[0].digests()[1] != other[1].digests()[1]  # a dimension is no size


def test_a_tensor_made_of_numbers_is_new_memory_wherever_it_lies() -> None:
    """``torch.tensor`` allocates below the watch, often where a result has just been freed; a KV cache begins so."""

    def function(value: torch.Tensor, kept: int) -> object:
        results = [value.sin() for _ in range(8)]
        results = [results[kept]]  # the others are freed
        return torch.cat([torch.tensor([]), value]), results

    assert len({watched(function, torch.ones(4), kept).digests() for kept in range(8)}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda a, b: (a.sin() + b.sin()).cos(), lambda a, b: (a.sin() + a.sin()).cos()),
        (lambda a, b: a.sin() - b, lambda a, b: b - a.sin()),
        (lambda a, b: a.add_(b), lambda a, b: a.add(b)),
        (lambda a, b: (a.sum(0), b.sum(1)), lambda a, b: (a.sum(1), b.sum(0))),
    ],
)
def test_other_wirings_are_other_patterns(one: Any, other: Any) -> None:
    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(4, 4), torch.ones(4, 4)

    assert watched(one, *pair()).digests()[1] != watched(other, *pair()).digests()[1]
    assert watched(one, *pair()).digests() == watched(one, *pair()).digests()


def test_backward_passes_are_seen() -> None:
    weight = torch.ones(4, requires_grad=True)
    assert not watched(weight.sin).backward
    assert watched(lambda: weight.sin().sum().backward()).backward


def test_errors_pass_and_torch_is_as_before() -> None:
    before = torch_state()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        watched(lambda: torch.ones(2, 3) @ torch.ones(2, 3))
    assert torch_state() == before


def test_compiled_functions_run_compiled() -> None:
    runs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return lambda *args: (runs.append(1), graph.forward(*args))[1]

    function = torch.compile(lambda value: value.sin() + 1, backend=backend)
    function(torch.ones(3))
    watched(function, torch.ones(3))
    assert len(runs) == 2


def test_known_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MOST_KEYS", 50)
    same = watched(torch.sin, torch.ones(3)).digests()
    for size in range(200):
        watched(torch.sin, torch.ones(size))
    assert len(watching._numbers) <= 50
    again = watched(torch.sin, torch.ones(3)).digests()
    assert again == watched(torch.sin, torch.ones(3)).digests()
    assert again[0] != same[0]  # numbers are never used twice


steps = st.lists(
    st.tuples(
        st.sampled_from(["sin", "add", "mul", "t", "sum", "cat", "tensor"]), st.integers(0, 5), st.integers(0, 5)
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def program(plan: list[tuple[str, int, int]]) -> None:
    """Each value is read in the end: a view that nothing reads does no work, and a recording does not count it."""
    values = [torch.ones(3, 3), torch.ones(3, 3)]
    for name, first, second in plan:
        a, b = values[first % len(values)], values[second % len(values)]
        if name in {"add", "mul"}:
            values.append(getattr(torch, name)(a, b))
        elif name == "cat":
            values.append(torch.cat([a, b])[:3])
        elif name == "tensor":
            values.append(a + torch.tensor([1.0, 2.0, 3.0]))
        elif name == "sum":
            values.append(a + a.sum())
        else:
            values.append(getattr(a, name)())
    for value in values:
        value.exp()


@settings(deadline=None, max_examples=40)
@given(steps, steps)
@example([("t", 0, 0), ("sin", 0, 0)], [("t", 1, 0), ("sin", 0, 0)])
def test_two_programs_have_one_digest_just_where_recordings_have_the_same_keys_and_wiring(one, other) -> None:
    watches, patterns = [], []
    for plan in (one, other):
        watches.append(watched(program, plan).digests()[0])
        with rl.record() as recording:
            program(plan)
        patterns.append(pattern_of(recording.session).exact)
    assert (watches[0] == watches[1]) == (patterns[0] == patterns[1])
