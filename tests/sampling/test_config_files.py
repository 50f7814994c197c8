"""Files of every operator's sweeps, written and read again."""

from __future__ import annotations

import pytest

from rooflight.costs.operators import registry
from rooflight.sampling import estimate_train_time
from rooflight.sampling import estimate_train_time as config_files
from rooflight.sampling.sweeps import full_grid, small_shapes


@pytest.mark.parametrize("operator", registry.every(), ids=lambda operator: operator.name)
def test_what_is_written_is_the_same_sweep_when_it_is_read(operator, tmp_path):
    collect, test, profiler = map(estimate_train_time.load, config_files.write([operator], tmp_path))
    for config in (collect, test, profiler):
        assert config.operator is operator
        assert config.kernel == operator.name
        assert not config.is_function
        assert tuple(parameter for _, parameter in config.columns) == operator.parameters
    assert collect.run == "get_all"
    assert collect.grid == full_grid(operator)
    small = small_shapes(operator)
    assert test.run == "get_one"
    assert test.shapes == small.values
    assert profiler.run == "get_profiler"
    assert profiler.shapes == small.values[:1]


def test_the_help_s_example_is_what_is_written(ok, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ok("sample", "--write-config", "gemm", "flash_atten")
    assert out == "6 files in collect, test, profilers: rooflight sample --config collect/gemm.yml\n"
    assert (tmp_path / "collect" / "flash_atten.yml").is_file()
    out = ok("sample", "--config", "test/gemm.yml", "--precision", "fp32", "--cpu", "--threads", "1")
    assert "gemm fp32: 4 ok (4 new)" in out


def test_every_operator_has_files(run, tmp_path):
    assert run("sample", "--write-config", "--out", tmp_path)[0] == 0
    for folder in config_files.FOLDERS:
        assert {path.stem for path in (tmp_path / folder).iterdir()} == set(registry.names())
    assert run("sample", "--write-config", "--out", tmp_path)[0] == 0  # the same again changes nothing


def test_a_file_that_was_changed_is_kept(refused, tmp_path):
    changed = tmp_path / "test" / "gemm.yml"
    changed.parent.mkdir()
    changed.write_text("{}")
    assert f"{changed} is there and differs" in refused("sample", "--write-config", "gemm", "--out", tmp_path)
    assert changed.read_text() == "{}"
    assert not (tmp_path / "collect").exists()
