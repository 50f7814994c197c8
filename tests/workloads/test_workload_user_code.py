"""A function of the user's own file as a step: what it may be, and what is refused in one line."""

import sys
import textwrap

import pytest

from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.steps import unguarded
from rooflight.sources.workloads.targets import open_target


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
    assert (step.description, step.dtype, step.device, step.name) == ("train.py:make_step", "float32", "cpu", None)


DATACLASS = """
    from __future__ import annotations
    from dataclasses import dataclass
    @dataclass
    class Config:
        width: int = 42
    def make_step(): return lambda: Config().width
"""


@pytest.mark.parametrize("name", ["train.py", "json.py"])  # which shadows nothing
@pytest.mark.parametrize("code", ["def make_step(): return lambda: 42", "make_step = lambda: (lambda: 42)", DATACLASS])
def test_callable_alone(script, code, name):
    import json

    step = open_target(script(code, name))
    assert step.run() == 42
    assert step.model is None
    assert sys.modules["json"] is json


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


RUNS_NOTHING = "and calling it runs nothing: name a function that runs it to its end"
INPUTS = "define get_inputs() beside it, which returns them, or name a function without arguments that makes the step"
KEYWORD = (
    "needs scale by keyword, and get_inputs() gives positional arguments: give it a default, or name a function that "
    "passes it on"
)
TOP_LEVEL = "define there a function that calls it, and name that"
REFUSED = {  # code, and what is said of it; "~" is the function's name
    "def build(): ...\ndef train(): ...\ndef _hidden(): ...\nraise SystemExit": (
        "train.py has no function make_step: it defines build, train"
    ),
    "def make_steps(): ...": "train.py has no function make_step: did you mean make_steps?",
    "make_step = 3": "train.py: make_step is no function",
    "class Net:\n    def make_step(self): ...": f"train.py: make_step is not at the top level of the file: {TOP_LEVEL}",
    "x = 1\ndef make_step(:": "train.py:2: syntax error: invalid syntax",
    "import no_such_library\ndef make_step(): ...": (
        "train.py needs the package no_such_library, which is not installed (train.py:1 in <module>)"
    ),
    "import sys\nsys.exit(3)\ndef make_step(): ...": (
        "importing train.py raised SystemExit: 3 (train.py:2 in <module>)"
    ),
    "def make_step(): return 1 / 0": "~ raised ZeroDivisionError: division by zero (train.py:1 in make_step)",
    "def make_step(x, w, *more, scale=1, batch=1): ...": f"~ takes arguments: {INPUTS}",
    "def make_step(x, *, scale): ...": f"~ {KEYWORD}",
    "def make_step(*, scale): ...": (
        "~ takes arguments (scale): name a function without arguments that makes the step"
    ),
    "class make_step: ...": "~ is a class: make an object of it in the file, and name that, or a function",
    "async def make_step(): ...": f"~ is an async function, {RUNS_NOTHING}",
    "async def make_step(): yield 1": f"~ is an async generator, {RUNS_NOTHING}",
    "def make_step(): yield 1": f"~ is a generator function, {RUNS_NOTHING}",
}


def test_errors_of_the_file_are_chained(script):
    for code, cause in {"x = (": SyntaxError, "def make_step(): 1 / 0": ZeroDivisionError}.items():
        assert isinstance(refused(script(code)).__cause__, cause)


@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_a_step(script, code):
    before = set(sys.modules)
    assert str(refused(script(code))) == REFUSED[code].replace("~", "train.py:make_step")
    if "no_such_library" in code:
        assert not [name for name in set(sys.modules) - before if name.startswith("_rooflight_target_")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "train.py: say which function makes the step, train.py:make_step; it defines build"),
        (":", "train.py: say which function makes the step, train.py:make_step; it defines build"),
        (
            ":Net.make_step",
            "train.py:Net.make_step: name a function at the top level of the file: define one there that calls "
            "Net.make_step",
        ),
    ],
)
def test_names_that_no_function_has(script, name, message):
    target = script("def build(): ...\nclass Net:\n    def make_step(self): ...\n")
    assert str(refused(target.removesuffix(":make_step") + name)) == message


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
        ("later", ": the step is an async function, {nothing}"),
        ("later()", "is a function that returns a coroutine, {nothing}"),
        ("(each for each in 'abc')", "is a function that returns a generator, {nothing}"),
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
    told = complaint.format(wanted=wanted, inputs=INPUTS, nothing=RUNS_NOTHING)
    message = str(refused(script(f"{before}def make_step(): return {code}")))
    assert message == f"train.py:make_step {told}".replace("make_step :", "make_step:")


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


def test_step_that_raises_is_a_failed_run_and_interrupting_it_is_none(script):
    step = open_target(script("def make_step():\n    def step():\n        1 / 0\n    return step"))
    said = r"^the step failed: ZeroDivisionError: division by zero \(train.py:3 in step"
    with pytest.raises(RunFailed, match=said) as caught:
        step.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    step = open_target(script("def make_step():\n    def step(): raise KeyboardInterrupt\n    return step", "other.py"))
    with pytest.raises(KeyboardInterrupt):
        step.run()
