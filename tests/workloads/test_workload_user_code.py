import sys
import textwrap

import pytest

from rooflight.workloads.errors import RunFailed, TargetError
from rooflight.workloads.targets import open_target


@pytest.fixture
def script(tmp_path):
    def write(code, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return f"{path}:make_step"

    return write


def refused(target):
    with pytest.raises(TargetError) as caught:
        open_target(target)
    assert "\n" not in str(caught.value)
    return caught.value


def test_callable_and_model(script):
    target = script("""
        from torch import nn, ones
        def make_step():
            model = nn.Linear(2, 3)
            return lambda: model(ones(1, 2)), model
    """)
    step = open_target(target)
    assert step.run().shape == (1, 3)
    assert (step.description, step.dtype, step.device, step.mode) == ("train.py:make_step", "float32", "cpu", None)


def test_callable_alone(script):
    step = open_target(script("def make_step(): return lambda: 42"))
    assert step.run() == 42
    assert step.model is None


def test_function_made_by_assignment(script):
    assert open_target(script("make_step = lambda: (lambda: 7)")).run() == 7


def test_imports_from_its_folder_and_leaves_the_path_as_it_was(script, tmp_path):
    (tmp_path / "rooflight_test_neighbour.py").write_text("answer = 42")
    target = script("""
        import sys
        sys.path.append("/added/by/the/file")
        def make_step():
            from rooflight_test_neighbour import answer
            return lambda: answer
    """)
    before = list(sys.path)
    try:
        assert open_target(target).run() == 42
        assert sys.path == [*before, "/added/by/the/file"]
    finally:
        sys.path[:] = before
        del sys.modules["rooflight_test_neighbour"]


def test_a_file_named_like_a_module_shadows_nothing(script):
    import json

    assert open_target(script("def make_step(): return lambda: 1", name="json.py")).run() == 1
    assert sys.modules["json"] is json


def test_dataclasses_work_in_the_file(script):
    target = script("""
        from __future__ import annotations
        from dataclasses import dataclass
        @dataclass
        class Config:
            width: int = 3
        def make_step(): return lambda: Config().width
    """)
    assert open_target(target).run() == 3


def test_no_such_function_lists_those_that_exist(script):
    target = script("def build(): ...\ndef train(): ...\ndef _hidden(): ...\nraise SystemExit")
    assert str(refused(target)) == "train.py has no function make_step: it defines build, train"


def test_misspelt_function(script):
    assert str(refused(script("def make_steps(): ..."))) == (
        "train.py has no function make_step: did you mean make_steps?"
    )


def test_function_not_named(script):
    target = script("def build(): ...").removesuffix(":make_step")
    for text in (target, f"{target}:"):
        assert str(refused(text)) == (
            "train.py: say which function makes the step, train.py:make_step; it defines build"
        )


def test_name_that_is_no_function(script):
    assert str(refused(script("make_step = 3"))) == "train.py: make_step is no function"


def test_function_that_takes_arguments(script):
    assert str(refused(script("def make_step(x, w, *more, scale, batch=1): ..."))) == (
        "train.py:make_step takes arguments: define get_inputs() beside it, which returns them, or name a function "
        "without arguments that makes the step"
    )


def test_syntax_error(script):
    error = refused(script("x = 1\ndef make_step(:\n"))
    assert str(error) == "train.py:2: syntax error: invalid syntax"
    assert isinstance(error.__cause__, SyntaxError)


def test_file_that_fails_to_import(script):
    before = set(sys.modules)
    name = script("import a_library_that_is_not_there\ndef make_step(): ...")
    assert str(refused(name)) == (
        "train.py needs the package a_library_that_is_not_there, which is not installed (train.py:1 in <module>)"
    )
    assert not [m for m in set(sys.modules) - before if m.startswith("_rooflight_target_")]


def test_file_that_exits(script):
    assert "raised SystemExit: 3 (train.py:2" in str(refused(script("import sys\nsys.exit(3)\ndef make_step(): ...")))


def test_function_that_raises_says_what_and_where(script):
    error = refused(
        script("""
        import torch
        def make_step():
            return torch.ones(2) @ torch.ones(3)
    """)
    )
    assert str(error).startswith("train.py:make_step raised RuntimeError: ")
    assert str(error).endswith("(train.py:4 in make_step)")
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("None", "returned NoneType"),
        ("3, None", "returned int"),
        ("print, 3", "returned int as the model"),
        ("(lambda: 1), None, 2", "returned tuple"),
        ("torch.nn.Linear(2, 2)", "returned a model, which needs its inputs"),
        ("lambda batch, *rest, size=1: 1", "returned a callable that needs batch"),
    ],
)
def test_what_it_returns_must_be_a_step(script, code, complaint):
    message = str(refused(script(f"import torch\ndef make_step(): return {code}")))
    assert message == f"train.py:make_step {complaint}: return a zero-argument callable, or (callable, model)"


def test_step_that_raises_is_a_failed_run(script):
    step = open_target(script("def make_step():\n    def step():\n        1 / 0\n    return step"))
    with pytest.raises(
        RunFailed, match=r"^the step failed: ZeroDivisionError: division by zero \(train.py:3 in step"
    ) as e:
        step.run()
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_interrupting_a_step_is_no_failure(script):
    step = open_target(script("def make_step():\n    def step(): raise KeyboardInterrupt\n    return step"))
    with pytest.raises(KeyboardInterrupt):
        step.run()
