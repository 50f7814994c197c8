"""A test that leaves torch changed fails, not the test after it."""

from collections.abc import Iterator

import pytest
import torch
from ticking import Ticking
from torch._dynamo.utils import counters
from torch_state import torch_state


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = torch_state()
    yield
    assert torch_state() == before


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Or sums come out differently from run to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
