"""KernelBench's form of a program: what is loaded, and what is refused in one line."""

import json
import re
import sys
import textwrap

import pytest
import torch
from tracked import calibrate_by_hand

import rooflight as rl
from rooflight.front.options import RunOptions
from rooflight.front.targets import analyze_target
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.problem import is_problem
from rooflight.sources.workloads.problem_step import load_problem
from rooflight.sources.workloads.targets import ProblemFile, UserFunction, find_target, open_target

GOOD = textwrap.dedent("""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, width, bias):
            super().__init__()
            self.layer = nn.Linear(width, 3, bias=bias)
        def forward(self, x, scale):
            return self.layer(x) * scale

    def get_inputs():
        return [torch.rand(5, 4), 2.5]

    def get_init_inputs():
        return [4, False]
""")


@pytest.fixture
def problem(tmp_path):
    def write(code):
        path = tmp_path / "problem.py"
        path.write_text(textwrap.dedent(code))
        return path

    return write


def refused(path, device="meta"):
    with pytest.raises(TargetError) as caught:
        load_problem(path, device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edited(problem, old, new):
    assert old in GOOD
    return problem(GOOD.replace(old, new))


def test_a_problem_is_built_and_run_without_memory(problem):
    step = load_problem(problem(GOOD))
    assert (step.description, step.dtype, step.device) == ("problem.py: forward pass, float32", "float32", "meta")
    out = step.run()
    assert (out.shape, out.device.type, out.requires_grad) == ((5, 3), "meta", False)
    with rl.record(step.model) as recording:
        step.run()
    totals = rl.analyze(recording.session, "H100-SXM5-80GB").totals
    assert totals.matrix_flops == 2 * 5 * 4 * 3
    assert totals.vector_flops == 5 * 3  # the scale


def test_weights_and_inputs_are_the_same_on_every_call_and_the_random_state_is_left_alone(problem):
    path = problem(GOOD)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second = load_problem(path, "cpu").run(), load_problem(path, "cpu").run()
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert load_problem(path).model.training  # as built


def test_a_constructor_that_reads_values_is_run_on_the_cpu_and_moved(problem):
    path = edited(
        problem,
        "bias=bias)",
        "bias=bias)\n"
        "        self.rates = [x.item() for x in torch.linspace(0, 0.1, 4)]\n"
        "        self.plain = torch.ones(3)\n"
        "        self.register_buffer('kept', torch.ones(3))",
    )
    path.write_text(path.read_text().replace("* scale", "* scale + self.plain + self.kept"))
    step = load_problem(path)
    assert step.run().device.type == "meta"
    tensors = (*step.model.parameters(), *step.model.buffers(), step.model.plain)
    assert {each.device.type for each in tensors} == {"meta"}
    assert step.model.rates[3] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.rand(5, 4), 2.5", "torch.rand(int(torch.tensor([5]).sum()), 4), 2.5"),  # made on the CPU and moved
        ("* scale", "* scale + torch.zeros(5, 3)"),  # made by forward, beside its inputs
        ("self, x, scale):", "self, inputs, scale):\n        x, inputs = inputs['x'], None"),
    ],
)
def test_tensors_are_on_the_device_wherever_they_are_made(problem, old, new):
    path = edited(problem, old, new)
    if "inputs['x']" in new:
        path.write_text(path.read_text().replace("torch.rand(5, 4)", "{'x': torch.rand(5, 4)}"))
    assert load_problem(path).run().device.type == "meta"


@pytest.mark.parametrize("missing", ["Model", "get_inputs", "get_init_inputs"])
def test_a_file_without_one_of_the_names_is_asked_for_it(problem, missing):
    path = problem(GOOD.replace(missing, "Other"))
    assert is_problem(path)
    hint = "; is class Other the model? Name it Model" if missing == "Model" else ""
    assert refused(path) == (
        f"problem.py defines no {missing}: a problem file has Model, get_inputs and get_init_inputs{hint}"
    )


def test_a_file_with_one_of_the_names_or_none_is_no_problem_and_unknown_devices_are_refused(problem):
    for code in ("class Model: ...", "raise SystemExit(3)"):  # which is not run
        assert not is_problem(problem(code))
    assert refused(problem(GOOD), "quantum") == 'unknown device "quantum": use meta, cpu or cuda'


@pytest.mark.parametrize(("name", "args"), [("ModelNew", ()), ("Net", ("--step", "train"))])
def test_the_command_asks_for_a_model_of_another_name(problem, run, name, args):
    code, out, err = run("analyze", str(edited(problem, "class Model", f"class {name}")), "--device", "B200-SXM", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        f"problem.py defines no Model: a problem file has Model, get_inputs and get_init_inputs; is class {name}" in err
    )


def test_names_may_be_imported_or_assigned(problem, tmp_path):
    (tmp_path / "rooflight_test_architecture.py").write_text(GOOD)
    path = problem("""
        from rooflight_test_architecture import Model as Net, get_inputs
        Model = Net
        get_init_inputs = lambda: [4, True]
    """)
    try:
        assert is_problem(path)
        assert load_problem(path).run().shape == (5, 3)
    finally:
        del sys.modules["rooflight_test_architecture"]


MISSING = "problem.py: Model needs the package rooflight_missing, which is not installed"
INPUTS = "torch.rand(5, 4), 2.5"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "import torch\n",
            "import torch\n1 / 0\n",
            "importing problem.py raised ZeroDivisionError: division by zero",
        ),
        ("import torch\n", "import rooflight_missing\n", "problem.py needs the package rooflight_missing"),
        ("def get_inputs():", "def get_inputs(:", "problem.py:12: syntax error"),
        (
            "super().__init__()",
            "raise KeyError('width')",
            "problem.py: Model raised KeyError: 'width' (problem.py:7",
        ),
        ("super().__init__()", "import rooflight_missing", MISSING),
        ("return [4, False]", "return 4", "problem.py: get_init_inputs returned int: return a list"),
        ("return [4, False]", "return [4]", "problem.py: Model raised TypeError: "),
        (f"return [{INPUTS}]", "return torch.rand(5, 4)", "problem.py: get_inputs returned Tensor: return a"),
        (INPUTS, "torch.rand(5, 4), 'two'", "problem.py: get_inputs gives str as input 1: give tensors"),
        (INPUTS, "torch.rand(5, 4).numpy, 2", "problem.py: get_inputs gives builtin_function_or_method"),
        ("nn.Module", "object", "problem.py: Model is no torch.nn.Module, calling it gave Model"),
        ("get_inputs():", "_other():\n    pass\n\nget_inputs = 3\n\ndef _another():", "get_inputs cannot be call"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(problem, old, new, message):
    assert message in refused(edited(problem, old, new))


ON_CUDA = 'allocates on cuda explicitly, this run is on meta: leave out device="cuda" and .cuda() (problem.py:'


@pytest.mark.skipif(torch.cuda.is_available(), reason="allocating on CUDA works here")
@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (INPUTS, "torch.rand(5, 4, device='cuda'), 2.5", "get_inputs"),
        (INPUTS, "torch.rand(5, 4).cuda(), 2.5", "get_inputs"),
        ("super().__init__()", "super().__init__()\n        self.cache = torch.ones(3, device='cuda')", "Model"),
    ],
)
def test_a_file_that_allocates_on_cuda_is_told_to_leave_that_to_us(problem, old, new, where):
    assert refused(edited(problem, old, new)).startswith(f"problem.py: {where} {ON_CUDA}")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("self.layer(x.t()) * scale", "the step failed: RuntimeError: .*"),
        pytest.param(
            "self.layer(x) * torch.ones(3, device='cuda')",
            re.escape(f"problem.py {ON_CUDA.removesuffix('(problem.py:')}"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="allocating on CUDA works here"),
        ),
    ],
)
def test_a_forward_pass_that_fails_is_told_with_its_line(problem, new, message):
    path = edited(problem, "self.layer(x) * scale", new)
    with pytest.raises(RunFailed, match=rf"^{message}\(problem.py:10 in forward\)"):
        load_problem(path).run()
    if "t()" in new:  # on the CPU as well
        with pytest.raises(RunFailed, match=rf"^{message}\(problem.py:10 in forward\)"):
            analyze_target(str(path), RunOptions(), device="B200-SXM")


def test_a_path_without_a_function_is_a_problem_where_it_has_the_three_names(problem):
    path = problem(GOOD)
    assert find_target(str(path)) == ProblemFile(path=path)
    assert find_target(f"{path}:get_inputs") == UserFunction(path=path, name="get_inputs")
    assert find_target(str(problem("def make_step(): ..."))) == UserFunction(path=path, name="")


def test_options_that_have_no_effect_on_a_problem_are_refused(problem):
    path = str(problem(GOOD))
    assert open_target(path, step="forward", device="cpu").device == "cpu"
    for option, value in {"batch": 2, "seq": 3, "dtype": "bfloat16"}.items():
        with pytest.raises(TargetError, match=f"--{option}: no effect on .*problem.py: set it inside the file"):
            open_target(path, **{option: value})
    with pytest.raises(TargetError, match="--small: no effect"):
        open_target(path, small=True)
    with pytest.raises(TargetError, match=r"--step decode: problem.py has no such step: use forward or train"):
        open_target(path, step="decode")
    with pytest.raises(TargetError, match="--optimizer: only a step with --step train has one"):
        open_target(path, optimizer="sgd")


def test_a_training_step_goes_back_to_weights_and_floating_inputs(problem):
    step = load_problem(problem(GOOD), step="train")
    assert (step.description, step.name) == ("problem.py: training step, float32", "train")
    with rl.record(step.model) as recording:
        step.run()
    # forward [5, 4] @ [4, 3], gradients of weight [3, 5] @ [5, 4] and input [5, 3] @ [3, 4]: each 2 * 5 * 4 * 3
    assert rl.analyze(recording.session, "H100-SXM5-80GB").totals.matrix_flops == 3 * 2 * 5 * 4 * 3
    assert not any("ones" in op.name or "fill" in op.name for op in recording.session.signatures)  # nobody's loss


def test_a_training_step_leaves_no_gradients_and_updates_weights_where_an_optimizer_is_named(problem):
    plain, updating = (load_problem(problem(GOOD), "cpu", step="train", optimizer=name) for name in (None, "sgd"))
    before = plain.model.layer.weight.clone()
    for step in (plain, updating):
        step.run()
        step.run()
        assert step.model.layer.weight.grad is None
    assert torch.equal(plain.model.layer.weight, before)
    assert not torch.equal(updating.model.layer.weight, before)
    assert updating.description.startswith("problem.py: training step, float32, ")


def test_a_program_without_floating_inputs_or_weights_has_no_training_step(problem):
    path = problem("""
        import torch
        class Model(torch.nn.Module):
            def forward(self, x):
                return x + x
        get_inputs = lambda: [torch.arange(4)]
        get_init_inputs = lambda: []
    """)
    with pytest.raises(TargetError, match=r"--optimizer sgd: the model of problem\.py has no weights"):
        load_problem(path, "cpu", step="train", optimizer="sgd")
    with pytest.raises(TargetError, match=r"no output of problem\.py depends on floating inputs or weights"):
        load_problem(path, "cpu", step="train").run()


def test_a_problem_is_measured_saved_and_analysed_again(problem, run, tmp_path, monkeypatch):
    calibrate_by_hand(tmp_path / "cache", monkeypatch)
    saved = tmp_path / "problem.session"
    code, _, err = run("analyze", problem(GOOD), "--device", "cpu", "--save", saved)
    assert code == 0, err
    assert rl.load(saved).measurement.of_the_session
    code, out, err = run("analyze", saved, "--device", "B200-SXM", "--json", "-")
    assert code == 0, err
    document = json.loads(out)
    assert (document["target"], document["totals"]["matrix_flops"]) == ("problem.py: forward pass, float32", 120)


def test_a_problem_is_analysed_for_a_device_that_is_not_here(problem):
    analysis, notes = analyze_target(str(problem(GOOD)), RunOptions(), device="B200-SXM")
    assert (analysis.totals.matrix_flops, analysis.target) == (2 * 5 * 4 * 3, "problem.py: forward pass, float32")
    assert notes == []
    with pytest.raises(ValueError, match="--dtype: no effect"):
        analyze_target(str(problem(GOOD)), RunOptions(dtype="bfloat16"), device="B200-SXM")


def test_a_problem_that_depends_on_its_data_is_recorded_on_the_cpu(problem):
    path = edited(problem, "self.layer(x) * scale", "self.layer(x)[x[:, 0].nonzero()[:, 0]] * scale")
    analysis, notes = analyze_target(str(path), RunOptions(), device="B200-SXM")
    assert analysis.totals.matrix_flops == 2 * 5 * 4 * 3
    assert notes == ["Recorded on this machine's CPU: what Model does depends on what its tensors hold."]
