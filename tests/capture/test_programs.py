"""Recording changes nothing about random programs, and takes down all of them."""

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opinfo import bits
from programs import train
from recorded_model import Names
from torch_state import torch_state

import rooflight as rl
from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of

pytestmark = pytest.mark.usefixtures("one_thread")


def check(seed: int, length: int) -> None:
    recordings: list[Any] = []
    names: list[Names] = []
    inferring: list[bool] = []

    def record(model: torch.nn.Module) -> Any:
        recordings.append(rl.record(model))
        return recordings[0]

    def list_names(model: Any) -> Any:
        inferring.append(torch.inference_mode in model.regions)
        names.append(Names())
        return names[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch_state()
        plain = train(seed, length, lambda model: nullcontext())
        recorded = train(seed, length, record)
        assert torch_state() == before
        train(seed, length, list_names)
    for one, other in zip(plain, recorded, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
            assert bits(one) == bits(other)
    session: rl.Session = recordings[0].session
    assert_whole(session)
    if not inferring[0]:  # there a plain mode sees composites whole, and a recording their parts
        is_parent = set(session.columns.parent.tolist())
        found = [op.signature.name for index, op in enumerate(session.records) if index not in is_parent]
        assert found == [name for name in names[0].names if not name.startswith("profiler::")]


def assert_whole(session: rl.Session) -> None:
    """Columns fit, storages are read only after somebody made them, and everything has a cost."""
    columns = session.columns
    assert len(columns.read_ids) == columns.read_offsets[-1]
    assert len(columns.written_ids) == columns.written_offsets[-1]
    assert int(columns.read_ids.max(initial=-1)) < len(session.storage_bytes)
    assert (session.storage_bytes >= 0).all()
    for op in session.records:
        if (
            op.reads
            and op.parent is None
            and op.signature.name.startswith("aten::")
            and "attention" not in op.signature.name
        ):
            assert len(op.reads) == len(op.signature.inputs), op
            sizes = session.storage_bytes[list(op.reads)]
            assert all(size > 0 for size, tensor in zip(sizes, op.signature.inputs, strict=True) if tensor.nbytes), op
    assert not [op.name for op in session.signatures if isinstance(cost_of(op), Uncosted)]


programs = given(seed=st.integers(0, 2**31), length=st.integers(1, 14))
quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=80, deadline=None, suppress_health_check=quiet)
@programs
def test_random_programs(seed: int, length: int) -> None:
    check(seed, length)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=quiet)
@programs
def test_ten_thousand_random_programs(seed: int, length: int) -> None:
    check(seed, length)
