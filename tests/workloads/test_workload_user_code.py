import sys
import textwrap

import pytest

from rooflight.workloads.errors import RunFailed, TargetError
from rooflight.workloads.steps import unguarded
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
    assert str(refused(script("def make_step(x, w, *more, scale=1, batch=1): ..."))) == (
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
        ("print_, 3", "returned int as the model: return a zero-argument callable, or (callable, model)"),
        ("print_, None, 2", "returned tuple with function: {wanted}"),
        ("{'step': print_}", "returned dict with function: {wanted}"),
        ("(torch.ones(2), torch.nn.Linear(2, 2))", "returned tuple with Linear: {wanted}"),
        ("torch.optim.SGD([torch.ones(1)])", "returned SGD: {wanted}"),
        ("Data(torch.ones(1), object())", "returned Data with object: {wanted}"),
        ("torch.nn.Linear", "returned the class Linear: return an object of it, or a function"),
        ("torch.nn.Linear(2, 2)", "returned a model, which takes arguments: {inputs}"),
        ("lambda batch, *rest, size=1: 1", "returned a callable, which takes arguments: {inputs}"),
        ("later", ": the step is an async function, and calling it runs nothing: {end}"),
        ("later()", "is a function that returns a coroutine, and calling it runs nothing: {end}"),
        ("(each for each in 'abc')", "is a function that returns a generator, and calling it runs nothing: {end}"),
    ],
)
def test_what_it_returns_must_be_a_step_or_a_result(script, code, complaint):
    before = """
import torch
from dataclasses import dataclass
@dataclass
class Data:
    x: torch.Tensor
    y: object
def print_(): ...
async def later(): ...
"""
    wanted = "return a zero-argument callable, or (callable, model); tensors, if it is itself the step"
    inputs = (
        "define get_inputs() beside it, which returns them, or name a function without arguments that makes the step"
    )
    told = complaint.format(wanted=wanted, inputs=inputs, end="name a function that runs it to its end")
    message = str(refused(script(f"{before}def make_step(): return {code}")))
    assert message == f"train.py:make_step {told}".replace("make_step :", "make_step:")


RUNS_NOTHING = "and calling it runs nothing: name a function that runs it to its end"
COUNTED = """
import torch
from dataclasses import dataclass
@dataclass
class Loss:
    value: torch.Tensor
    parts: dict
calls = []
def make_step():
    calls.append(1)
    return {result}
"""


@pytest.mark.parametrize(
    "result",
    ["torch.ones(3)", "(torch.ones(3), {'a': [torch.ones(2), 1.0]})", "3, None", "0.5", "'done'",
     "Loss(torch.ones(1), {'a': None})", "torch.ones(3).sort()", "torch.ones(3).numpy()"],
)  # fmt: skip
def test_a_function_that_returns_a_result_is_itself_the_step_and_was_called_once(script, result):
    step = open_target(script(COUNTED.format(result=result)))
    calls = unguarded(step.run).function.__globals__["calls"]
    assert len(calls) == 1
    assert step.has_run
    assert step.notes == ("train.py:make_step returned no callable, so it is itself the step.",)
    step.run()
    assert len(calls) == 2


def test_a_function_that_returns_nothing_may_have_forgotten_to_return_its_step(script):
    (note,) = open_target(script("def make_step():\n    def step(): ...")).notes
    assert note == (
        "train.py:make_step returned nothing, so it is taken as the step. If it is to make a step, let it return that."
    )


def test_a_function_that_returns_a_step_has_not_run_it(script):
    step = open_target(script("runs = []\ndef make_step(): return lambda: runs.append(1) or len(runs)"))
    assert not step.has_run
    assert step.notes == ()
    assert step.run() == 1


def test_a_module_that_takes_nothing_is_the_step_and_its_model(script):
    code = """
        import torch
        class Net(torch.nn.Module):
            def forward(self): return torch.ones(2)
        net = Net()
        def make_step(): return net
    """
    target = script(code)
    for name in ("make_step", "net"):
        step = open_target(target.replace("make_step", name))
        assert type(step.model).__name__ == "Net"
        assert step.run().tolist() == [1, 1]


@pytest.mark.parametrize("made", ["model", "(lambda x: model(x))", "((lambda x: model(x)), model)"])
def test_what_a_function_returns_may_take_the_inputs_of_the_file(script, made):
    target = script(f"""
        import torch
        model = torch.nn.Linear(2, 3)
        def make_step(): return {made}
        def get_inputs(): return [torch.ones(4, 2)]
    """)
    step = open_target(target)
    result, _gradients = step.run()
    assert result.shape == (4, 3)
    assert (step.model is None) == (made == "(lambda x: model(x))")


def test_decorators_of_a_step_stay_on_it(script):
    target = script("""
        import torch
        def make_step():
            weight = torch.ones(2, requires_grad=True)
            @torch.no_grad()
            def step(): return weight * 2
            return step
    """)
    run = open_target(target).run
    assert not run().requires_grad
    assert not unguarded(run)().requires_grad


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "def make_step(x, *, scale): ...",
            "needs scale by keyword, and get_inputs() gives positional arguments: give it a default, or name a function"
            " that passes it on",
        ),
        (
            "def make_step(*, scale): ...",
            "takes arguments (scale): name a function without arguments that makes the step",
        ),
        ("class make_step: ...", "is a class: make an object of it in the file, and name that, or a function"),
        ("async def make_step(): ...", f"is an async function, {RUNS_NOTHING}"),
        ("async def make_step(): yield 1", f"is an async generator, {RUNS_NOTHING}"),
        ("def make_step(): yield 1", f"is a generator function, {RUNS_NOTHING}"),
    ],
)
def test_what_cannot_be_a_step(script, code, told):
    assert str(refused(script(code))) == f"train.py:make_step {told}"


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


def test_functions_that_are_not_at_the_top_level(script):
    target = script("class Net:\n    def make_step(self): ...\n")
    assert str(refused(target)) == (
        "train.py: make_step is not at the top level of the file: define there a function that calls it, and name that"
    )
    assert str(refused(target.replace("make_step", "Net.make_step"))) == (
        "train.py:Net.make_step: name a function at the top level of the file: define one there that calls "
        "Net.make_step"
    )
