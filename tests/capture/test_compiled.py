"""Compiled models run eagerly while recorded, and compiled again, no slower, afterwards (pytorch issue 140909)."""

from typing import Any

import pytest
import torch
from recorded_model import Net, in_thread, recorded
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import rooflight as rl

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("fresh_dynamo")]


class Counter:
    """A backend that counts the graphs it is given and how often each compiled one runs."""

    def __init__(self) -> None:
        self.compiled = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any):
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


def x() -> torch.Tensor:
    return torch.ones(2, 4)


def names(session: rl.Session) -> list[tuple[str, str]]:
    return [(op.signature.name, op.module.path) for op in session.records]


def eager_names(net: nn.Module) -> list[tuple[str, str]]:
    session = recorded(lambda: net(x()).sum().backward(), net)
    net.zero_grad()
    return names(session)


@pytest.mark.parametrize("warmed", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_compiled_before(warmed: bool, in_place: bool) -> None:
    net, counter = Net(), Counter()
    expected = eager_names(net)
    if in_place:
        net.compile(backend=counter)
        compiled: Any = net
    else:
        compiled = torch.compile(net, backend=counter)
    if warmed:
        compiled(x())
    before = counter.compiled, counter.runs
    assert before == ((1, 1) if warmed else (0, 0))
    session = recorded(lambda: compiled(x()).sum().backward(), net)
    assert (counter.compiled, counter.runs) == before
    assert names(session) == expected
    for _ in range(3):
        compiled(x())
    assert (counter.compiled, counter.runs) == (1, before[1] + 3)  # no recompilation, no fall-back


def test_the_compiled_wrapper_has_no_name_of_its_own() -> None:
    net = Net()
    compiled = torch.compile(net, backend=Counter())
    session = recorded(lambda: net(x()), net)
    for argument in (compiled, net):
        with rl.record(argument) as other:
            compiled(x())
        assert names(other.session) == names(session)
    session = recorded(lambda: compiled(x()))
    assert {path for _, path in names(session)} == {"", "Net", "Net.up", "Net.down"}


def test_a_function_compiled_inside() -> None:
    counter = Counter()
    with rl.record() as recording:
        function = torch.compile(lambda x: x.sin() + x.cos(), backend=counter)
        function(x())
    assert counter.compiled == 0
    assert [name for name, _ in names(recording.session)] == ["aten::ones", "aten::sin", "aten::cos", "aten::add"]
    for _ in range(2):
        function(x())
    assert (counter.compiled, counter.runs) == (1, 2)


def test_a_compiled_optimizer() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend=CompileCounter())
    net(x()).sum().backward()
    session = recorded(step, net)
    assert {op.direction.label for op in session.records} == {"optimizer"}


def test_a_stance_chosen_before_is_kept() -> None:
    counter = Counter()
    function = torch.compile(lambda x: x.sin(), backend=counter)
    torch.compiler.set_stance("fail_on_recompile")
    try:
        with rl.record():
            function(x())
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            function(x())
    finally:
        torch.compiler.set_stance("default")
    function(x())
    assert counter.runs == 1


def test_a_stance_that_the_program_sets_meanwhile_lets_no_compiled_code_run_unrecorded() -> None:
    counter = Counter()
    function = torch.compile(lambda x: x.sin(), backend=counter)
    with rl.record() as recording:
        torch.compiler.set_stance("default")
        function(x())
        with torch.compiler.set_stance("fail_on_recompile"):
            function(x())
        function(x())
        for_later = torch.compiler.set_stance("fail_on_recompile")
    names = [op.signature.name for op in recording.session.records]
    assert names.count("aten::sin") == 3
    assert counter.runs == 0
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        function(x())  # what the program set stays
    for_later.__exit__(None, None, None)
    function(x())
    assert counter.runs == 1
    assert torch._dynamo.decorators._set_stance is torch._dynamo.eval_frame._set_stance


def test_the_stance_comes_back_with_the_last_of_several_recordings() -> None:
    counter = Counter()
    function = torch.compile(lambda x: x.sin(), backend=counter)
    first, second = rl.record(), rl.record()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    function(x())
    assert counter.runs == 0
    second.__exit__(None, None, None)
    function(x())
    assert counter.runs == 1


@pytest.mark.slow
def test_inductor_runs_its_own_kernels_again_afterwards() -> None:
    net = Net()
    compiled = torch.compile(net)
    session = recorded(lambda: compiled(x()), net)
    expected = net(x())
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        assert torch.allclose(compiled(x()), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert [op.signature.name for op in session.records].count("aten::addmm") == 2


def test_other_threads_run_compiled_code_while_this_one_records() -> None:
    counter = Counter()
    known = torch.compile(lambda x: x.sin() + 1, backend=counter)
    known(x())
    fresh = torch.compile(Net().forward, backend=counter)
    with rl.record() as recording:
        in_thread(lambda: (known(x()), known(x())))
        assert (counter.compiled, counter.runs) == (1, 3)
        in_thread(lambda: (fresh(x()), fresh(x())))  # they compile, too
        assert (counter.compiled, counter.runs) == (2, 5)
        known(x())
        assert counter.runs == 5
    assert [name for name, _ in names(recording.session)] == ["aten::ones", "aten::sin", "aten::add"]
    known(x())
    fresh(x())  # once more, since Dynamo checks that the hooks which were there are
    fresh(x())
    assert (counter.compiled, counter.runs) == (3, 8)


def test_a_thread_that_records_leaves_another_s_recording_eager() -> None:
    counter = Counter()
    function = torch.compile(lambda x: x.sin(), backend=counter)

    def other() -> None:
        with rl.record():
            function(x())

    with rl.record():
        in_thread(other)
        function(x())
    assert counter.runs == 0
    in_thread(lambda: function(x()))
    assert counter.runs == 1


def test_a_recording_inside_compiled_code_says_what_to_do() -> None:
    net = Net()

    def records(x: torch.Tensor) -> rl.Session:
        with rl.record(net) as recording:
            net(x)
        return recording.session

    for how, error in ({}, RuntimeError), ({"fullgraph": True}, torch._dynamo.exc.Unsupported):
        torch._dynamo.reset()
        with pytest.raises(error, match="record around the call of the compiled function"):
            torch.compile(records, backend="eager", **how)(x())
    disabled = torch.compiler.disable(records)
    session = torch.compile(lambda x: disabled(x + 1), backend="eager")(x())
    assert names(session) == names(records(x()))


def partly(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + torch.compile(torch.sin, backend=Counter())(x)


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(partly, backend=Counter())(x)


def broken(x: torch.Tensor) -> torch.Tensor:
    """A backend that fails: torch would run the function eagerly."""

    def backend(graph: Any, inputs: Any):
        raise ValueError("no backend")

    return torch.compile(torch.sin, backend=backend)(x)


def kept_out(x: torch.Tensor) -> torch.Tensor:
    return torch.compiler.disable(torch.sin)(x)


def off(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(torch.sin, disable=True)(x)


def without_values(x: torch.Tensor) -> torch.Tensor:
    """Torch keeps the dispatch of fake tensors out of compiled code."""
    with FakeTensorMode():
        return torch.ones(2).sin()


def stepped(x: torch.Tensor) -> torch.Tensor:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    checkpoint(net, x, use_reentrant=False).sum().backward()
    optimizer.step()
    return x


def in_another_thread(x: torch.Tensor) -> torch.Tensor:
    in_thread(lambda: partly(x))
    return x


@pytest.mark.parametrize(
    ("program", "compiled"),
    [
        *[(program, True) for program in (partly, nested, broken)],
        *[(each, False) for each in (kept_out, off, without_values, stepped, in_another_thread)],
    ],
)
def test_a_session_tells_whether_it_met_compiled_functions(program, compiled, tmp_path) -> None:
    with rl.record() as outer, rl.record() as inner:
        program(x())
    inner.session.save(tmp_path / "inner.session")
    for session in (outer.session, inner.session, rl.load(tmp_path / "inner.session")):
        assert session.compiled is compiled
        assert session.environment.get("compiled") == ("yes" if compiled else None)


def test_a_program_that_the_user_keeps_eager_is_not_compiled() -> None:
    torch.compiler.set_stance("force_eager")
    try:
        with rl.record() as recording:
            partly(x())
    finally:
        torch.compiler.set_stance("default")
    assert not recording.session.compiled


def test_a_recording_after_a_compiled_call_is_not_of_a_compiled_program() -> None:
    partly(x())
    with rl.record() as recording:
        x().cos()
    assert not recording.session.compiled


@pytest.mark.slow
def test_a_step_that_inductor_fuses_is_compared_with_its_fused_bound() -> None:
    function = torch.compile(lambda x: ((x.sin() + 1) * x).relu().sum())
    given = torch.ones(1 << 12)

    def step() -> None:
        function(given)

    with rl.record(memory=True) as recording:
        step()
    measured = rl.measure(recording.session, step, max_runs=3, warmup=1)
    analysis = rl.analyze(measured, "H100-SXM5-80GB")
    assert analysis.leading_bound == ("fused bound", analysis.program.fused_bound_s)
    assert analysis.program.fused_bound_s < analysis.totals.op_bound_s
    data = rl.analyze(recording.session, "H100-SXM5-80GB").report().data
    assert (data.totals.efficiency, data.totals.efficiency_of) == (None, "fused bound")


def saved_bytes(model: nn.Module, given: torch.Tensor) -> int:
    """Bytes that compiled code keeps for its backward pass: AOT autograd's partition, without those that stood."""
    stood = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers(), given)}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(model, backend="aot_eager_decomp_partition")(given)
    return sum(storage.nbytes() for address, storage in kept.items() if address not in stood)


@pytest.mark.parametrize(
    ("layers", "bytes_an_element"),
    [
        ([nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()], 4 + 1),  # a result, and a mask of the last
        ([nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)], 4),  # what GELU is computed from
        ([nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)], 4),  # and the seed, or a mask
        ([nn.LayerNorm(64), nn.SiLU(), nn.LayerNorm(64)], 0),  # all can be computed again
    ],
)
def test_compiled_code_keeps_no_less_than_the_least_that_is_told(
    layers: list[nn.Module], bytes_an_element: int
) -> None:
    model, given = nn.Sequential(*layers), torch.ones(256, 64)
    compiled = torch.compile(model, backend="eager")
    with rl.record(model, memory=True) as recording:
        compiled(given).sum().backward()
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    (_, kept), *_ = analysis.fusion.kept
    assert kept == 256 * 64 * bytes_an_element
    assert kept <= saved_bytes(model, given)
    memory = analysis.memory
    assert memory.standing_bytes + kept <= memory.compiled_least_bytes <= memory.peak_bytes
