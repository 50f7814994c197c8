"""Torch unpickles and runs what lies in Inductor's folder: nothing is loaded from one that others can write to."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from rooflight.compiling.hot.plan import inner_backend
from rooflight.machine.environment import not_to_be_trusted
from rooflight.scoring.run import _Pair


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o755)
    return tmp_path / "cache"


def test_a_folder_of_ones_own_is_used(cache):
    assert not_to_be_trusted() == ""
    cache.chmod(0o775)  # as the umask of a user with a group of their own leaves it
    assert not_to_be_trusted() == ""


def test_a_folder_that_all_can_write_to_is_not_nor_that_of_another_user(cache):
    cache.chmod(0o1777)
    assert f"others can write to {cache}, from which torch runs code: set TORCHINDUCTOR" in not_to_be_trusted()
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(RuntimeError, match="others can write"):
        inner_backend("inductor", None, limit_s=60.0, same_random=True)(graph, [torch.ones(2)])
    assert not list(cache.iterdir())
    assert _Pair._compiled(SimpleNamespace()) == (None, None, not_to_be_trusted())  # type: ignore[arg-type]
    cache.chmod(0o755)
    if os.getuid() == 0:  # only root gives files away
        os.chown(cache, 12345, -1)
        assert "others can write" in not_to_be_trusted()
