"""Whole recurrent networks: one record a call and one a backward, whatever the host makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import rooflight as rl
from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of
from rooflight.records.record import Direction
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature

BACKWARD = "rooflight::{}_backward"
FORWARD = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 8, 16


def recorded(program: Callable[[], Any], model: nn.Module | None = None) -> Session:
    with rl.record(model, memory=True) as recording:
        program()
    return recording.session


def counted(session: Session) -> list[OpSignature]:
    return [record.signature for record in session.records if record.parent is None]


def net_calls(session: Session) -> list[OpSignature]:
    return [op for op in counted(session) if op.name in FORWARD or op.name.startswith("rooflight::")]


def cost(op: OpSignature) -> OpCost:
    found = cost_of(op)
    assert isinstance(found, OpCost)
    return found


def inputs(device: str, *, requires_grad: bool = True, batch_first: bool = False) -> torch.Tensor:
    shape = (BATCH, STEPS, INPUTS) if batch_first else (STEPS, BATCH, INPUTS)
    return torch.randn(shape, device=device, requires_grad=requires_grad)


CASES: dict[str, Callable[[str], nn.RNNBase]] = {
    "lstm": lambda device: nn.LSTM(INPUTS, HIDDEN, device=device),
    "lstm, 2 layers": lambda device: nn.LSTM(INPUTS, HIDDEN, 2, device=device),
    "lstm, no biases": lambda device: nn.LSTM(INPUTS, HIDDEN, 2, bias=False, device=device),
    "lstm, both ways": lambda device: nn.LSTM(INPUTS, HIDDEN, 2, bidirectional=True, device=device),
    "lstm, projected": lambda device: nn.LSTM(INPUTS, HIDDEN, 2, proj_size=4, bidirectional=True, device=device),
    "lstm, batch first": lambda device: nn.LSTM(INPUTS, HIDDEN, 2, batch_first=True, device=device),
    "lstm, dropout": lambda device: nn.LSTM(INPUTS, HIDDEN, 3, dropout=0.5, device=device),
    "gru": lambda device: nn.GRU(INPUTS, HIDDEN, device=device),
    "gru, both ways": lambda device: nn.GRU(INPUTS, HIDDEN, 2, bidirectional=True, device=device),
    "gru, no biases": lambda device: nn.GRU(INPUTS, HIDDEN, 2, bias=False, batch_first=True, device=device),
    "gru, dropout": lambda device: nn.GRU(INPUTS, HIDDEN, 2, dropout=0.5, bidirectional=True, device=device),
    "tanh": lambda device: nn.RNN(INPUTS, HIDDEN, 2, device=device),
    "relu": lambda device: nn.RNN(INPUTS, HIDDEN, 2, nonlinearity="relu", bidirectional=True, device=device),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_cpu_and_meta_record_the_same_two_ops(case: str) -> None:
    sessions = []
    for device in ("cpu", "meta"):
        net = CASES[case](device)
        x = inputs(device, batch_first=net.batch_first)
        sessions.append(recorded(lambda net=net, x=x: net(x)[0].sin().sum().backward(), net))
    on_cpu, on_meta = map(net_calls, sessions)
    assert len(on_cpu) == 2
    assert on_cpu == on_meta
    # nothing else that computes is left of the steps, neither forward nor backward
    rest = [
        {op.name for op in counted(session) if cost(op).matrix_flops and op not in net_calls(session)}
        for session in sessions
    ]
    assert rest == [set(), set()]
    adds = [[op.name for op in counted(session)].count("aten::add") for session in sessions]
    assert adds == [0, 0]
    assert (sessions[1].counted).all()
    for session in sessions:  # every tensor of the signatures has its storage
        for record in session.records:
            if record.parent is None and record.signature in on_cpu:
                assert len(record.reads) == len(record.signature.inputs)
                assert len(record.writes) == len(record.signature.outputs)


# -- hand arithmetic -------------------------------------------------------------------------------------------------
# T = 5, B = 3: 15 tokens; I = 8, H = 16


def forward_of(net: nn.RNNBase) -> OpCost:
    with torch.no_grad():
        (op,) = net_calls(recorded(lambda: net(inputs("meta", requires_grad=False, batch_first=net.batch_first))))
    return cost(op)


def backward_of(net: nn.RNNBase, x: torch.Tensor, *more: Any) -> OpCost:
    (_, op) = net_calls(recorded(lambda: net(x, *more)[0].sin().sum().backward()))
    return cost(op)


def test_lstm_forward() -> None:
    found = forward_of(CASES["lstm"]("meta"))
    assert found.matrix_flops == 46_080  # 2 * 15 * (64 * 8 + 64 * 16)
    assert found.vector_flops == 6_480  # 15 * (19 * 16 + 2 * 64)
    # x 15 * 8, h and c 3 * 16 each, weights 64 * 8 + 64 * 16, biases 2 * 64: 1880 elements
    assert found.bytes_read == 4 * (120 + 96 + 1536 + 128)
    assert found.bytes_written == 4 * (240 + 96)  # output 15 * 16, h and c


def test_two_layers_of_lstm_with_projections_both_ways() -> None:
    found = forward_of(CASES["lstm, projected"]("meta"))
    # a direction of layer 0: 64 * 8 + 64 * 4 + 4 * 16 = 832; of layer 1, which reads 2 * 4: the same
    assert found.matrix_flops == 2 * 15 * 4 * 832
    assert found.vector_flops == 15 * 4 * (19 * 16 + 2 * 64)
    # output 15 * 2 * 4, h 4 * 3 * 4, c 4 * 3 * 16
    assert found.bytes_written == 4 * (120 + 48 + 192)


def test_gru_forward_without_biases() -> None:
    found = forward_of(CASES["gru, no biases"]("meta"))
    assert found.matrix_flops == 2 * 15 * 48 * (8 + 16 + 16 + 16)
    assert found.vector_flops == 15 * 2 * 14 * 16


def test_plain_rnn_forward() -> None:
    found = forward_of(CASES["tanh"]("meta"))
    assert found.matrix_flops == 2 * 15 * 16 * (8 + 16 + 16 + 16)
    assert found.vector_flops == 15 * 2 * (2 + 2) * 16


def test_dropout_between_layers_counts_only_in_training() -> None:
    net = CASES["lstm, dropout"]("meta")
    training = forward_of(net).vector_flops
    # 15 tokens of 16 units, behind two of three layers, 2 FLOPs each
    assert training - forward_of(net.eval()).vector_flops == 2 * 15 * 16 * 2


def test_backward_computes_the_gradients_that_are_asked_for() -> None:
    net = CASES["lstm, 2 layers"]("meta")
    into_x, into_state, upper = 64 * 8, 64 * 16, 64 * 16 + 64 * 16
    weights = 15 * (into_x + into_state + upper)
    # nobody asks for the gradient of the first state: 12 of 15 tokens go back through the state's matrices
    through_states = 12 * 2 * into_state
    found = backward_of(net, inputs("meta"))
    assert found.matrix_flops == 2 * (weights + through_states + 15 * (into_x + 1024))
    assert found.vector_flops == 15 * 2 * (19 * 16 + 2 * 64)
    without_x = backward_of(net, inputs("meta", requires_grad=False))
    assert without_x.matrix_flops == 2 * (weights + through_states + 15 * 1024)
    state = [torch.zeros(2, 3, 16, device="meta", requires_grad=True) for _ in range(2)]
    with_state = backward_of(net, inputs("meta"), state)
    assert with_state.matrix_flops == 2 * (weights + 15 * 2 * into_state + 15 * (into_x + 1024))
    for weight in net.all_weights[0]:
        weight.requires_grad_(False)
    frozen_below = backward_of(net, inputs("meta", requires_grad=False))
    assert frozen_below.matrix_flops == 2 * (15 * upper + 12 * into_state)  # nothing goes below layer 1
    net.requires_grad_(False)
    only_x = backward_of(net, inputs("meta"))
    assert only_x.matrix_flops == 2 * (through_states + 15 * (into_x + 1024))
    # gradient of the output and the matrices; no state, x or output
    assert only_x.bytes_read == 4 * (240 + into_x + 3 * 1024)
    assert only_x.bytes_written == 4 * 120


def test_backward_of_the_last_state_reads_no_gradient_of_the_output() -> None:
    for device in ("cpu", "meta"):
        net = CASES["lstm, 2 layers"](device)
        x = inputs(device)
        session = recorded(lambda net=net, x=x: net(x)[1][0].sin().sum().backward())
        (_, op) = net_calls(session)
        assert [name for name in op.input_names if name.startswith("grad")] == ["grad_state"]
        # gradient of h 2 * 3 * 16; x 120, h and c 192, output 240, matrices 3584
        assert cost(op).bytes_read == 4 * (96 + 120 + 192 + 240 + 3584)


def test_weights_in_one_buffer_are_read_once() -> None:
    net = CASES["lstm"]("cpu")
    buffer = torch.empty(1536 + 128)
    first = 0
    for weight in net.all_weights[0]:
        weight.data = buffer[first : first + weight.numel()].view(weight.shape)
        first += weight.numel()
    with torch.no_grad():
        (op,) = net_calls(recorded(lambda: net(inputs("cpu", requires_grad=False))))
    assert cost(op).bytes_read == 4 * (120 + 96 + 1536 + 128)


# -- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("packed", [False, True])
def test_recording_changes_no_result_and_no_gradient(case: str, packed: bool) -> None:
    net = CASES[case]("cpu")
    x = inputs("cpu", batch_first=net.batch_first)

    def program() -> list[torch.Tensor]:
        torch.manual_seed(0)
        given: Any = x
        if packed:
            given = pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=net.batch_first)
        out, state = net(given)
        out = out.data if packed else out
        states = [state] if isinstance(state, torch.Tensor) else list(state)
        total = out.sin().sum() + sum(each.cos().sum() for each in states)
        return [out, *states, *torch.autograd.grad(total, [x, *net.parameters()])]

    expected = program()
    found: list[torch.Tensor] = []
    session = recorded(lambda: found.extend(program()))
    assert len(net_calls(session)) == 2
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_packed_batch_counts_the_tokens_that_are_there() -> None:
    costs = []
    for device in ("cpu", "meta"):
        net = CASES["gru"](device)
        packed = nn.utils.rnn.PackedSequence(
            torch.randn(10, INPUTS, device=device, requires_grad=True), torch.tensor([3, 3, 2, 1, 1])
        )
        session = recorded(lambda net=net, packed=packed: net(packed)[0].data.sin().sum().backward())
        costs.append([cost(op) for op in net_calls(session)])
    assert costs[0] == costs[1]
    forward, backward = costs[0]
    assert forward.matrix_flops == 2 * 10 * 48 * (8 + 16)
    # weights of 10 tokens, x of 10, the state of the 7 that are not the first of their sequence
    assert backward.matrix_flops == 2 * 48 * (10 * (8 + 16) + 10 * 8 + 7 * 16)
    # the sizes of the steps are on the host: x 80, h 48, matrices 1152, biases 96
    assert forward.bytes_read == 4 * (80 + 48 + 1152 + 96)


@pytest.mark.parametrize("case", ["lstm", "gru", "tanh"])
def test_autocast_decides_the_precision_of_the_products(case: str) -> None:
    net = CASES[case]("cpu")
    x = inputs("cpu")

    def program() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)[0]
        out.float().sin().sum().backward()

    try:
        program()
    except RuntimeError as error:  # without Rooflight, too
        pytest.skip(f"this CPU cannot: {error}")
    calls = net_calls(recorded(program))
    assert [cost(op).matrix_dtype for op in calls] == ["bfloat16"] * 2
    assert [cost(op).matrix_dtype for op in net_calls(recorded(lambda: net(x)[0]))] == ["float32"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_inference_mode_and_no_grad_give_the_same_record(device: str) -> None:
    net = CASES["gru, both ways"](device)
    x = inputs(device, requires_grad=False)
    calls = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            calls.append(net_calls(recorded(lambda: net(x))))
    assert calls[0] == calls[1]
    assert len(calls[0]) == 1


def test_two_calls_of_one_net_have_a_backward_each() -> None:
    for device in ("cpu", "meta"):
        net = CASES["gru"](device)
        x = inputs(device)
        session = recorded(lambda net=net, x=x: net(net(x)[0][..., :INPUTS])[0].sin().sum().backward())
        names = [op.name for op in net_calls(session)]
        assert names == ["aten::gru"] * 2 + [BACKWARD.format("gru")] * 2
        # the gradients of four weights, which two calls made, are added up: that is no part of either
        adds = [op for op in counted(session) if op.name == "aten::add"]
        assert len(adds) == 4


def test_a_gradient_from_elsewhere_is_not_part_of_the_backward() -> None:
    for device in ("cpu", "meta"):
        net = CASES["gru"](device)
        x = inputs(device)
        session = recorded(lambda net=net, x=x: (net(x)[0].sin().sum() + x.sin().sum()).backward())
        adds = [op for op in counted(session) if op.name == "aten::add" and op.input_shapes[0] == (5, 3, 8)]
        assert len(adds) == 1


def test_gradients_of_gradients() -> None:
    net = CASES["gru"]("meta")
    x = inputs("meta")

    def program(net: nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(net(x)[0].sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), x)
        return second

    found: list[torch.Tensor] = []
    session = recorded(lambda: found.append(program(net, x)))
    assert found[0].shape == x.shape
    assert [op.name for op in net_calls(session)][:2] == ["aten::gru", BACKWARD.format("gru")]
    net, x = CASES["gru"]("cpu"), inputs("cpu")
    expected = program(net, x)
    found.clear()
    recorded(lambda: found.append(program(net, x)))
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_torch_func(device: str) -> None:
    net = CASES["gru"](device)
    x = inputs(device, requires_grad=False)
    parameters = dict(net.named_parameters())
    found: list[Any] = []

    def program() -> Any:
        return torch.func.grad(lambda p: torch.func.functional_call(net, p, (x,))[0].sin().sum())(parameters)

    expected = program()
    session = recorded(lambda: found.append(program()))
    assert {name: grad.shape for name, grad in found[0].items()} == {name: g.shape for name, g in expected.items()}
    if device == "cpu":
        assert all(torch.equal(grad, expected[name]) for name, grad in found[0].items())
    if device == "cpu":  # on the meta device torch.func takes the call apart before anyone can see it
        assert "aten::gru" in [op.name for op in counted(session)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    for device in ("cpu", "meta"):
        net = CASES["gru"](device)
        x = inputs(device)
        session = recorded(
            lambda net=net, x=x: checkpoint(net, x, use_reentrant=reentrant)[0].sin().sum().backward(), net
        )
        assert [op.name for op in net_calls(session)] == ["aten::gru"] * 2 + [BACKWARD.format("gru")]


def test_frozen_net_and_detached_input() -> None:
    net = CASES["gru"]("cpu").requires_grad_(False)
    session = recorded(lambda: net(inputs("cpu", requires_grad=False))[0])
    assert [op.name for op in net_calls(session)] == ["aten::gru"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_shapes_raise_as_without_a_recording(device: str) -> None:
    params = [torch.randn(48, 8, device=device), torch.randn(48, 16, device=device)]
    state = torch.zeros(1, 3, 16, device=device)
    for x, given in (
        (torch.randn(5, 3, 9, device=device), params),
        (torch.randn(5, 3, 8, device=device), params[:1]),
        (torch.randn(0, 3, 8, device=device), params),
        (torch.randn(8, device=device), params),
    ):

        def program(x: torch.Tensor = x, given: list[torch.Tensor] = given) -> None:
            torch.gru(x, state, given, False, 1, 0.0, False, False, False)

        with pytest.raises((RuntimeError, IndexError)) as plain:
            program()
        with pytest.raises(type(plain.value)) as watched:
            recorded(program)
        assert str(watched.value) == str(plain.value)


# -- what follows from it --------------------------------------------------------------------------------------------


def test_meta_keeps_for_backward_what_a_kernel_must() -> None:
    net = CASES["lstm, 2 layers"]("meta")
    x = inputs("meta")
    with torch.no_grad():
        inference = rl.analyze(recorded(lambda: net(x), net), "H100-SXM5-80GB")
    session = recorded(lambda: net(x)[0].sin().sum().backward(), net)
    # reserve: 15 tokens * (2 layers * 5 * 16 + 1 layer's output of 16)
    assert 4 * 15 * (160 + 16) in session.storage_bytes.tolist()
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    assert analysis.memory.peak_bytes >= inference.memory.peak_bytes + 4 * 15 * 176


def test_backward_is_in_the_module_and_direction_of_its_forward() -> None:
    for device in ("cpu", "meta"):
        model = nn.ModuleDict({"net": CASES["gru"](device)})
        x = inputs(device)
        session = recorded(lambda model=model, x=x: model["net"](x)[0].sin().sum().backward(), model)
        places = [
            (record.module.path, record.direction)
            for record in session.records
            if record.parent is None and (record.signature.name in FORWARD or "rooflight" in record.signature.name)
        ]
        assert places == [("net", Direction.FORWARD), ("net", Direction.BACKWARD)]


def test_the_setting_of_cudnns_recurrent_networks_governs_it() -> None:
    session = recorded(lambda: CASES["lstm"]("meta")(inputs("meta", requires_grad=False)))
    device = rl.devices.get("H100-SXM5-80GB")
    (lstm,) = (op for op in session.signatures if op.name.startswith("aten::lstm"))
    rules = rl.analyze(session, device).float32
    assert rules.precision_of(lstm) == "tfloat32"
    assert rules.precision_of(replace(lstm, name="rooflight::lstm_backward")) == "tfloat32"


def test_measured_on_a_cpu_each_call_has_a_time() -> None:
    net = nn.GRU(8, 8)
    x = torch.randn(3, 2, 8)

    def step() -> None:
        net.zero_grad()
        net(x)[0].sin().sum().backward()

    session = rl.measure(recorded(step, net), step)
    times = {
        record.signature.name: record.times_s
        for record in session.records
        if record.parent is None and record.signature.name in ("aten::gru", BACKWARD.format("gru"))
    }
    assert len(times) == 2
    assert all(seconds > 0 for samples in times.values() for seconds in samples)
