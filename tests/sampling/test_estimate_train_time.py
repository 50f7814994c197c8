"""estimate-train-time's YAML as it stands, and one clear line for what it cannot mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rooflight.sampling import estimate_train_time
from rooflight.sampling.sweeps import full_grid

DATA = Path(os.environ.get("ROOFLIGHT_DATA", Path(__file__).parents[3] / "shared" / "data"))
CONFIGS = sorted((DATA / "estimate-train-time" / "sweep_configs").glob("*/*.yml"))

TEXT = """{
  # what to run
  "module_name": "target_functions",
  "kernel_name": "flash_atten",
  "function_name": "flash_atten",
  "columns_name": ['mp', 'b', 'h', 'l', 'dim', 'F_dur(us)', 'B_dur(us)'],
  "targets": [['FlashAttnFunc'], ['autograd::engine::evaluate_function: FlashAttnFuncBackward']],
  "first_n_column": 5,

  # mp, b, h, l, dim
  "starts": [1, 4, 16, 1024, 2048],
  "steps": [2, 2, 8, 512, 512],
  "ends": [16, 8, 80, 5120, 8192],
  "operators": ['mul', 'mul', 'add', 'add', 'add'],
  "warmup_shapes": [1, 4, 16, 1024, 2048],
  "wait": 2,
  "warmup": 3,
  "active": 10,
  "shapes": [1, 4, 16, 1024, 2048],
  "run": "get_all",
}
# a comment at the end"""


def load(tmp_path, text=TEXT, **changes):
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "sweep.yml"
    path.write_text(text)
    return estimate_train_time.load(path)


def test_estimate_train_time_s_file_is_read_as_it_stands(tmp_path):
    config = load(tmp_path)
    assert config.operator.name == config.kernel == "flash_atten"
    assert config.grid.size == 5 * 2 * 9 * 9 * 13  # mp 1..16, b 4, 8, h 16..80, l 1024..5120, dim 2048..8192
    assert config.grid[0] == {"mp": 1, "b": 4, "h": 16, "l": 1024, "dim": 2048}
    assert config.grid[1] == {"mp": 1, "b": 4, "h": 16, "l": 1024, "dim": 2560}
    assert config.grid[config.grid.size - 1] == {"mp": 16, "b": 8, "h": 80, "l": 5120, "dim": 8192}
    assert (config.wait, config.warmup) == (2, 3)
    assert config.active == 10
    assert config.run == "get_all"


def test_columns_beyond_the_first_n_stand_still(tmp_path):
    text = """{function_name: moe,
      columns_name: [mp, b, l, dim, moe_num_experts, intermediate_size, top_k, F_dur(us), B_dur(us)],
      first_n_column: 5, starts: [1, 4, 1024, 2048, 2, 2, 1], steps: [2, 2, 512, 512, 2, 2, 2],
      ends: [2, 4, 1024, 2048, 4, 2, 16], operators: [mul, mul, add, add, add], shapes: [2, 16, 16, 2048, 1024]}"""
    config = load(tmp_path, text)
    assert config.grid.size == 4
    assert config.grid[3]["intermediate_size"] == 2
    assert config.grid[3]["top_k"] == 1
    assert config.shapes[0]["top_k"] == 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_of_the_data_is_read(path):
    config = estimate_train_time.load(path)
    assert config.grid.size > 100
    assert config.shapes
    if "kernel_collect" in str(path) and config.operator.name != "moe":
        assert dict(full_grid(config.operator).axes) == dict(config.grid.axes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"run": "get_all"', '"run": "get_some"', 'run "get_some": use get_all, get_one, get_profiler, run_function'),
        ('"wait": 2', '"weight": 2', "unknown key weight: the keys are module_name"),
        ('"function_name": "flash_atten"', '"function_name": "flash"', 'unknown operator "flash"'),
        ('"starts": [1, 4, 16, 1024, 2048]', '"starts": [1, 4, 16, 1024]', "starts has 4 values for 5 columns"),
        ('"steps": [2, 2,', '"steps": [-2, 2,', "mp: a step of -2 is negative"),
        ('"steps": [2, 2,', '"steps": [1, 2,', "mp: mul 1 never leads from 1 to 16"),
        ("['mul', 'mul',", "['pow', 'mul',", 'mp: unknown sweep operator "pow": use mul or add'),
        ('"first_n_column": 5', '"first_n_column": 9', "first_n_column is 9, but the number of columns to sweep is 5"),
        ('"active": 10', '"active": 3', "active is 3: at least 6"),
        ('"warmup": 3', '"warmup": -3', "warmup must be a whole number, not -3"),
        ('"shapes": [1, 4,', '"shapes": [4,', "shapes has 4 values: give 5, one per column"),
        ("'l', 'dim',", "'l', 'width',", "flash_atten has no parameter width"),
        ("'F_dur(us)', 'B_dur(us)'", "'F_dur(us)'", "columns_name must end in F_dur(us), B_dur(us)"),
        ('"ends": [16,', '"ends": ["16",', "ends must be a list of whole numbers"),
        ('"run": "get_all",\n}', "", "is not YAML"),
    ],
)
def test_what_it_cannot_mean_is_one_clear_line(tmp_path, old, new, message):
    with pytest.raises(ValueError, match="sweep") as error:
        load(tmp_path, change=(old, new))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_hostile_files_are_only_read(tmp_path):
    for text in ("", "[]", "7", "!!python/object/apply:os.system ['true']", "{a: &a [*a]}"):
        with pytest.raises(ValueError, match="sweep"):
            load(tmp_path, text)
    with pytest.raises(ValueError, match="is not YAML: Exceeds the limit"):
        load(tmp_path, f"starts: [{'9' * 5000}]")
    with pytest.raises(ValueError, match=r"cannot read .*nothing\.yml: No such file"):
        estimate_train_time.load(tmp_path / "nothing.yml")
