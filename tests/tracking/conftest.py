"""A test that leaves torch changed fails, not the test after it."""

from collections.abc import Iterator

import pytest
from torch_state import torch_state
from tracked import one_thread


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = torch_state()
    with one_thread():
        yield
    assert torch_state() == before
