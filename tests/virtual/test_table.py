"""Each function that is answered for a device that is not there exists in torch, and takes what torch's own takes."""

from __future__ import annotations

import inspect

import pytest
import torch

from rooflight.sources.capture.run.elsewhere import Seen
from rooflight.sources.virtual import api
from rooflight.sources.virtual.memory import Memory

SEEN = Seen(name="a GPU", capability=(9, 0), memory=80 << 30, units=132, l2=50 << 20)
TABLE = api.answers(api._Current(api.VirtualMode(lambda *_: None, 2)), SEEN, 2, Memory())
CLASSES = {
    api.Stream: torch.cuda.Stream,
    api.Event: torch.cuda.Event,
    api.CUDAGraph: torch.cuda.CUDAGraph,
}


@pytest.mark.parametrize("path", sorted(TABLE))
def test_a_function_exists(path):
    owner, name = api._owner_of(path)
    assert callable(getattr(owner, name, None))


@pytest.mark.parametrize("path", sorted(TABLE))
def test_it_takes_what_torchs_takes(path):
    """All its parameters, or those that must be given: the others have torch's defaults. With another one it fails."""
    owner, name = api._owner_of(path)
    if inspect.isbuiltin(getattr(owner, name)):
        pytest.skip("written in C, in a build with CUDA")
    made = api.answering(getattr(owner, name), dict)
    parameters = inspect.signature(getattr(owner, name)).parameters
    named = {each: value for each, value in parameters.items() if not value.kind.name.startswith("VAR")}
    for chosen in (named, {each: value for each, value in named.items() if value.default is value.empty}):
        first = [0 for value in chosen.values() if value.kind is value.POSITIONAL_ONLY]
        rest = {each: 0 for each, value in chosen.items() if value.kind is not value.POSITIONAL_ONLY}
        given = made(*first, **rest)
        assert {each: given[each] for each in named} == {
            each: 0 if each in chosen else value.default for each, value in named.items()
        }
    if not any(value.kind is value.VAR_KEYWORD for value in parameters.values()):
        with pytest.raises(TypeError):
            made(*first, **rest, no_such_parameter=1)


@pytest.mark.parametrize(("made", "own"), CLASSES.items(), ids=[each.__name__ for each in CLASSES])
def test_a_class_has_what_torchs_has(made, own):
    here = {name for name in dir(own) if not name.startswith("_")}
    assert here - set(dir(made)) <= {
        "from_ipc_handle", "ipc_handle", "native_handle", "raw_cuda_graph", "raw_cuda_graph_exec", "instantiate",
        "get_graph_data", "event_id", "cuda_event", "device", "priority_range",
        "begin_capture_to_if_node", "end_capture_to_conditional_node", "get_currently_capturing_graph",
    }  # fmt: skip
