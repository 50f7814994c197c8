"""A user's function, named by a YAML file of estimate-train-time's beside it."""

from __future__ import annotations

import json

import pytest

FUNCTION = '''
import torch

CALLS = []


def my_custom_op(shapes, precision, device_num):
    """GELU of a part of the width."""
    CALLS.append((tuple(shapes), precision, device_num))
    mp, b, l, dim = shapes
    if dim % mp:
        raise ValueError("dim is not divisible by mp!")
    x = torch.randn(b, l, dim // mp, device=device_num, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()


def forward_only(shapes, precision, device_num):
    torch.nn.functional.gelu(torch.randn(*shapes, device=device_num))


def leaves(shapes, precision, device_num):
    raise SystemExit(3)


def without_memory(shapes, precision, device_num):
    raise MemoryError
'''
CONFIG = {
    "module_name": "my_functions",
    "kernel_name": "my_custom_op",
    "function_name": "my_custom_op",
    "columns_name": ["mp", "b", "l", "dim", "F_dur(us)", "B_dur(us)"],
    "targets": [["aten::gelu"], ["built-in method run_backward of torch", ["GeluBackward0"]]],
    "first_n_column": 4,
    "starts": [2, 1, 4, 3],
    "steps": [2, 2, 4, 1],
    "ends": [2, 2, 4, 4],
    "operators": ["mul", "mul", "add", "add"],
    "warmup_shapes": [1, 1, 4, 4],
    "wait": 1,
    "warmup": 2,
    "active": 6,
    "shapes": [1, 2, 4, 8],
    "run": "get_all",
}


@pytest.fixture
def words(tmp_path):
    """Words that sample by a config that differs from ours in a few keys."""

    def written(*more, common=("--cpu", "--threads", "1"), **changed):
        (tmp_path / "my_functions.py").write_text(FUNCTION)
        (tmp_path / "leaves.py").write_text("raise SystemExit(4)")
        (tmp_path / "sweep.yml").write_text(json.dumps({**CONFIG, **changed}))
        out = ("--precision", "fp32", "--out", tmp_path / "out")
        return ("sample", "--config", tmp_path / "sweep.yml", *common, *out, *more)

    return written


@pytest.fixture
def sample(ok, words):
    return lambda *more, **changed: ok(*words(*more, **changed))


@pytest.fixture
def unsampled(refused, words):
    return lambda *more, **changed: refused(*words(*more, **changed))


def calls(tmp_path):
    from rooflight.records.package import load_module

    return load_module(tmp_path / "my_functions.py").CALLS


def rows(tmp_path):
    (path,) = (tmp_path / "out" / "sampling_data").glob("*.jsonl")
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    return header, lines


def test_a_function_that_no_registry_knows_is_sampled(sample, tmp_path):
    out = sample()
    assert out.startswith("my_custom_op fp32: 2 ok, 2 refused (4 new) -> ") or "2 refused, 2 ok (4 new)" in out
    header, lines = rows(tmp_path)
    assert header["operator"] == header["kernel"] == "my_custom_op"
    assert header["timing"]["clock"] == "profiler events"
    assert json.loads(header["timing"]["targets"]) == CONFIG["targets"]
    refused = [line for line in lines if line["status"] == "refused"]
    assert [line["shape"]["dim"] for line in refused] == [3, 3]
    assert refused[0]["note"] == "dim is not divisible by mp!"
    for line in lines:
        if line["status"] == "ok":
            assert {direction: len(times) for direction, times in line["samples_s"].items()} == {"fwd": 6, "bwd": 6}
            assert all(0 < time < 1 for times in line["samples_s"].values() for time in times)
    (table,) = (tmp_path / "out" / "sampling_data").glob("*_my_custom_op_fp32_1_1.csv")
    assert table.read_text().splitlines()[0] == "mp,b,l,dim,F_dur(us),B_dur(us)"
    assert len(table.read_text().splitlines()) == 3


def test_warm_ups_run_the_warm_up_shape(sample, tmp_path):
    sample(run="get_one")
    warm, timed = ((1, 1, 4, 4), "fp32", "cpu"), ((1, 2, 4, 8), "fp32", "cpu")
    # once before anything is timed, which checks the targets: 1 + 2 calls and 6 of the warm-up shape; then the row
    assert calls(tmp_path) == [warm] * (1 + 2 + 6) + [warm] * (1 + 2) + [timed] * 6


def test_one_time_needs_one_target(sample, tmp_path):
    changed = {
        "function_name": "forward_only",
        "columns_name": ["l", "dim", "dur(us)"],
        "targets": [["gelu"]],
        "first_n_column": 2,
        **{key: [4, 4] for key in ("starts", "steps", "ends", "warmup_shapes", "shapes")},
        "operators": ["add", "add"],
    }
    out = sample(**changed)
    assert "1 ok (1 new)" in out
    assert set(rows(tmp_path)[1][0]["samples_s"]) == {"step"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"targets": [["aten::gelu"], ["no_such_event"]]},
            "no event of the profile is named no_such_event: there",
        ),
        ({"targets": [["aten::gelu"]]}, "targets has 1 list of events for the times F_dur(us), B_dur(us)"),
        ({"targets": "aten::gelu"}, "targets must be a list of lists of names"),
        ({"function_name": "gone"}, "my_functions.py has no function gone"),
        ({"function_name": "CALLS"}, "my_functions.py has no function CALLS"),
        ({"module_name": "gone.py"}, "module_name gone.py: there is no "),
        ({"module_name": "gone"}, 'unknown operator "my_custom_op"'),
        ({"module_name": ".."}, 'unknown operator "my_custom_op"'),
        ({"module_name": ["my_functions"]}, "module_name must be a name"),
        ({"module_name": "leaves"}, "leaves.py raised SystemExit: 4"),
        ({"columns_name": ["mp", "b", "l", "mp", "F_dur(us)", "B_dur(us)"]}, "columns_name has a name twice"),
        *(
            ({"kernel_name": name}, f"kernel_name {name!r} must be letters")
            for name in ("../../evil", "/abs", "..", "", "nul\0", "a\nb", "x" * 101, ["x"])
        ),
        ({"columns_name": ["mp", "b", "l", "dim"]}, "columns_name must end in F_dur(us), B_dur(us) or dur(us)"),
    ],
)
def test_what_cannot_be_sampled_is_one_line_and_no_file(unsampled, changed, message, tmp_path):
    assert message in unsampled(**changed)
    assert not [*tmp_path.rglob("sampling_data/*")]


def test_a_function_that_raises_is_a_status_and_one_that_ends_the_process_says_why(sample):
    assert "1 out_of_memory (1 new)" in sample(function_name="without_memory", run="get_one")
    out = sample(function_name="leaves", run="get_one", kernel_name="leaves")
    assert "1 failed (1 new)" in out
    assert "a failed shape: it called sys.exit(3)" in out


def test_the_events_that_count_cannot_change_within_a_file_that_may_be_named_by_its_path(sample, unsampled):
    sample(run="get_one", module_name="my_functions.py")
    err = unsampled(run="get_one", targets=[["gelu"], ["GeluBackward0"]])
    assert 'holds times of events [["aten::gelu"], ' in err


def test_a_function_is_run_once_or_traced(sample, tmp_path):
    out = sample(run="run_function", targets=None)
    assert out == "my_custom_op fp32: ran mp=1, b=2, l=4, dim=8 once on cpu; nothing was written\n"
    assert calls(tmp_path) == [((1, 2, 4, 8), "fp32", "cpu")]
    out = sample(run="get_profiler", targets=None)
    (trace,) = (tmp_path / "out" / "sampling_traces").iterdir()
    assert trace.name.endswith("_my_custom_op_fp32_1_2_4_8.pt.trace.json")
    assert f"-> {trace} (" in out
    assert any(event.get("name") == "aten::gelu" for event in json.loads(trace.read_bytes())["traceEvents"])


def test_a_shape_transform_turns_an_encoder_s_columns_into_what_the_function_takes(sample, tmp_path):
    (tmp_path / "encoder_config_to_layer_input.py").write_text(
        "def my_custom_op(input):\n    mp, b, h, l, dim = input\n    return mp, b, l, dim // h\n"
    )
    changed = {
        "columns_name": ["mp", "b", "h", "l", "dim", "F_dur(us)", "B_dur(us)"],
        "first_n_column": 5,
        **{key: [1, 1, 2, 4, 16] for key in ("starts", "steps", "ends", "warmup_shapes", "shapes")},
        "operators": ["add"] * 5,
    }
    sample(**changed)
    assert set(calls(tmp_path)) == {((1, 1, 4, 8), "fp32", "cpu")}
    assert rows(tmp_path)[1][0]["shape"] == {"mp": 1, "b": 1, "h": 2, "l": 4, "dim": 16}


def test_ray_s_nodes_do_not_have_the_file(unsampled):
    assert "a cluster of Ray samples operators only" in unsampled("--executor", "ray", common=())


@pytest.mark.parametrize(
    ("features", "powers"),
    [
        ("[b * l, dim // mp]", [[0, 1, 1, 0], [-1, 0, 0, 1]]),
        ("np.array([2 * b * l**2, dim**0.5])", [[0, 1, 2, 0], [0, 0, 0, 0.5]]),
        ("[b + l, dim]", None),  # no product
        ("[b - l, dim]", None),
        ("b * l", None),  # no list of features
    ],
)
def test_declared_features_go_with_the_samples(sample, tmp_path, features, powers):
    (tmp_path / "layer_input_to_predictor_input.py").write_text(
        f"import numpy as np\n\ndef my_custom_op(input):\n    mp, b, l, dim = input\n    return {features}\n"
    )
    sweep = {"starts": [1, 1, 4, 4], "ends": [2, 2, 8, 8], "steps": [2, 2, 4, 4], "active": 6}
    sample(**sweep)
    timing = rows(tmp_path)[0]["timing"]
    assert (json.loads(timing["features"]) if "features" in timing else None) == powers


def test_features_that_raise_are_named(unsampled, tmp_path):
    (tmp_path / "layer_input_to_predictor_input.py").write_text("def my_custom_op(input):\n    raise KeyError('b')\n")
    assert "layer_input_to_predictor_input.py: my_custom_op: KeyError: 'b'" in unsampled()
