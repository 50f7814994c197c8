"""Torch unpickles and runs what lies in Inductor's folder: nothing is loaded from one that others can write to."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rooflight as rl
from rooflight.hardware.machine.environment import not_to_be_trusted
from rooflight.studies.compiling.hot.plan import inner_backend
from rooflight.studies.scoring.run import _Pair


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


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_another_user_left_is_not_loaded(cache, tmp_path):
    """In a folder that was open to all once: torch would run it as the user."""
    torch._dynamo.reset()
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    (cache / "fxgraph").mkdir()
    left = cache / "fxgraph" / "left"
    left.write_bytes(pickle.dumps(Bomb(tmp_path / "it ran")))
    assert not_to_be_trusted() == ""
    left.chmod(0o666)
    assert f"others can write to {left}, from which torch runs code" in not_to_be_trusted()
    left.chmod(0o644)
    if os.getuid() == 0:
        os.chown(left, 12345, -1)
        assert f"others can write to {left}" in not_to_be_trusted()
    else:
        (cache / "fxgraph").chmod(0o777)
    with pytest.raises(RuntimeError, match="others can write"):
        inner_backend("inductor", None, limit_s=60.0, same_random=True)(graph, [torch.ones(2)])
    with pytest.raises(ValueError, match="others can write"):
        rl.explain(torch.nn.ReLU(), torch.ones(2))
    assert not (tmp_path / "it ran").exists()


def test_links_in_the_folder_and_folders_above_it_that_all_can_change_are_refused(cache, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (cache / "fxgraph").symlink_to(elsewhere)
    assert f"{cache / 'fxgraph'} is a link to elsewhere, from which" in not_to_be_trusted()
    (cache / "fxgraph").unlink()
    own = tmp_path / "own"
    own.symlink_to(cache)  # a home on another disk
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    assert not_to_be_trusted() == ""
    cache.chmod(0o777)
    assert f"others can write to {own}" in not_to_be_trusted()
    cache.chmod(0o755)
    tmp_path.chmod(0o777)
    assert f"others can write to {tmp_path}, from" in not_to_be_trusted()
    tmp_path.chmod(0o1777)  # as /tmp is: nobody else's entries can be moved
    assert not_to_be_trusted() == ""
    if os.getuid() == 0:
        os.chown(own, 12345, -1, follow_symlinks=False)
        assert f"others can write to {own}" in not_to_be_trusted()
