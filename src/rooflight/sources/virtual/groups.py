"""Process groups of ranks that are not there: torch's own fake group, its results those of the rank that runs."""

from __future__ import annotations

import multiprocessing.context
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import parent_process
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.utils
import torch.multiprocessing
import torch.nn.parallel.distributed as data_parallel
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d as c10d
from torch.utils._pytree import tree_map_only

from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.capture.run.callers import calling_line
from rooflight.sources.capture.run.hooks import when_imported
from rooflight.sources.virtual.api import Given, replace_functions
from rooflight.sources.virtual.mode import HANDLERS, VirtualMode


def environment(gpus: int, nodes: int, rank: int) -> dict[str, str]:
    """What torchrun sets for this rank of ``nodes`` times ``gpus``."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank % gpus), "GROUP_RANK": str(rank // gpus),
        "WORLD_SIZE": str(gpus * nodes), "LOCAL_WORLD_SIZE": str(gpus), "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "rooflight",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    }  # fmt: skip


def install(mode: VirtualMode, ranks: int, rank: int) -> None:
    """Let ``torch.distributed`` have them, for the rest of the process."""
    new_group, reduce = c10d.new_group, c10d.all_reduce
    replace_functions(
        {
            "torch.distributed.init_process_group": partial(_begin, c10d.init_process_group, ranks, rank),
            "torch.distributed.new_group": lambda given: new_group(**{**given, **_DROPPED}),
            "torch.distributed.all_reduce": partial(_all_reduce, mode, reduce),
            "torch.multiprocessing.spawn": partial(_spawn, mode, rank),
            "torch.distributed.is_nccl_available": lambda _: True,
            "torch.distributed.is_backend_available": lambda _: True,
            "torch.distributed.utils._verify_param_shape_across_processes": lambda _: None,
            "torch.distributed.all_gather_object": lambda given: _fill(given["object_list"], given["obj"]),
            "torch.distributed.gather_object": lambda given: _fill(given["object_gather_list"], given["obj"]),
            "torch.distributed.broadcast_object_list": lambda _: None,
            "torch.distributed.scatter_object_list": lambda given: _first(
                given["scatter_object_output_list"], given["scatter_object_input_list"]
            ),
            "torch.distributed.send_object_list": lambda _: None,
            "torch.distributed.recv_object_list": lambda given: given["src"] or 0,
            "torch.distributed.barrier": lambda _: None,
            "torch.distributed.monitored_barrier": lambda _: None,
        }
    )
    _several_devices(mode)
    _know_what_is_exchanged(mode)
    _reduce_by_hook()
    context: Any = multiprocessing.context  # what they start is forked, or it would see no device
    context.SpawnProcess._Popen = context.ForkServerProcess._Popen = context.ForkProcess._Popen
    when_imported("torch.distributed.pipelining.schedules", partial(_prepare_pipelines, mode))


def _begin(begin: Callable[..., None], ranks: int, rank: int, given: Given) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = given["world_size"] if given["world_size"] > 0 else int(os.environ.get("WORLD_SIZE", ranks))
    mine = given["rank"] if given["rank"] >= 0 else int(os.environ.get("RANK", rank))
    if parent_process() is not None and mine != rank:
        os._exit(0)
    begin("fake", store=FakeStore(), rank=mine, world_size=whole)
    backend = given["backend"] or "nccl"
    replace_functions({"torch.distributed.get_backend": lambda _: str(backend).rpartition(":")[2]})


def _fill(found: list[Any] | None, value: Any) -> None:
    if found is not None:
        found[:] = [value] * len(found)


def _first(found: list[Any], given: Sequence[Any] | None) -> None:
    if given:
        found[0] = given[0]


def _several_devices(mode: VirtualMode) -> None:
    """DataParallel: the first device's replica runs, which has the most work, and answers for the others."""
    kind: Any = torch.nn.DataParallel

    def part(value: Any, devices: int) -> Any:
        return tree_map_only(torch.Tensor, lambda each: each.chunk(devices)[0].to(mode.device), value)

    def together(each: torch.Tensor, devices: int, dim: int) -> torch.Tensor:
        return torch.cat([each, *[each.detach()] * (devices - 1)], dim)

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        count = len(self.device_ids)
        if count == 1:
            return self.module(*part(inputs, 1), **part(kwargs, 1))
        mode.answers.note(f"{count} GPUs of DataParallel", "the first runs; what they exchange is not counted")
        out = self.module(*part(inputs, count), **part(kwargs, count))
        return tree_map_only(torch.Tensor, lambda each: together(each.reshape(each.shape or 1), count, self.dim), out)

    def at_once(given: Given) -> Any:
        inputs = given["inputs"]
        parallel = kind(given["module"], given["device_ids"], given["output_device"], given["dim"])
        return parallel(*(inputs if isinstance(inputs, tuple) else (inputs,)), **given["module_kwargs"] or {})

    kind.forward = forward
    replace_functions({"torch.nn.parallel.data_parallel": at_once})


def _know_what_is_exchanged(mode: VirtualMode) -> None:
    """What a rank gets from others is unknown, but for sums of what all know alike. A call gives the future of its
    tensor, which the fake group does not have.
    """

    def forget(_mode: VirtualMode, call: OpCall) -> Any:
        tree_map_only(FakeTensor, mode.values.forget, call.args[0])
        return NotImplemented

    for name in _RECEIVES.split():
        HANDLERS[getattr(torch.ops.c10d, name).default] = forget


def _all_reduce(mode: VirtualMode, reduce: Callable[..., Any], given: Given) -> Any:
    tensor, work = given["tensor"], reduce(**given)
    is_sum = isinstance(tensor, FakeTensor) and given["op"] == dist.ReduceOp.SUM
    known = mode.values.of(tensor) if is_sum else None
    if known is not None:
        known.mul_(dist.get_world_size(given["group"]))
        mode.answers.note("a sum over ranks", "that of this rank, times their number")
    return work and _Work(tensor)


_DROPPED: Final = {"backend": "fake", "timeout": None, "pg_options": None, "device_id": None}
_RECEIVES: Final = (
    "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ reduce_scatter_ "
    "_reduce_scatter_base_ reduce_scatter_tensor_coalesced_ alltoall_ alltoall_base_ recv_ recv_any_source_ reduce_ "
    "gather_ scatter_"
)
"""Ops that write what other ranks have into their first argument, which their schemas do not say."""


class _Work:
    """A collective that has ended."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._future: Any = torch.futures.Future()
        self._future.set_result([tensor])

    def wait(self, timeout: Any = None) -> bool:
        """It has ended."""
        return timeout is None or True

    is_completed = is_success = synchronize = wait

    def get_future(self) -> Any:
        """The future of a list of its tensor."""
        return self._future


def _prepare_pipelines(mode: VirtualMode) -> None:
    """A stage of a pipeline is told by its neighbours what they send: it takes what the script said of its inputs."""
    module: Any = sys.modules["torch.distributed.pipelining.stage"]
    schedules: Any = sys.modules["torch.distributed.pipelining.schedules"]

    def receive(self: Any, source: int) -> Any:
        if source > self.stage_index:
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(self._stage_meta.outputs))
        if not self._user_meta.inputs:
            raise RuntimeError(
                f"{calling_line()} runs stage {self.stage_index}, whose inputs another rank would describe: give "
                "PipelineStage its input_args, or record rank 0"
            )
        return module._StageForwardMeta(forward_metas=self._user_meta.inputs)

    def agree(_: Any, stages: Sequence[Any], has_backward: bool, _done: bool) -> None:
        mode.answers.note("the other stages of a pipeline", "not waited for")
        for stage in stages:
            dynamic = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
            stage._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC

    module.PipelineStage._recv_meta, schedules._PipelineSchedule._warmup_p2p = receive, agree


def _reduce_by_hook() -> None:
    """DDP's reducer wants a tensor of the group's future, and the fake group has none: a hook calls the all-reduce."""
    kind: Any = data_parallel.DistributedDataParallel
    begin, set_hook = kind.__init__, kind.register_comm_hook

    def mean(group: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def reduced(chosen: list[Any], bucket: Any) -> Any:
        hook, state = chosen
        return hook(state, bucket)

    reduced.__annotations__.clear()  # torch compares them with its own types

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._chosen = [mean, self.process_group]
        set_hook(self, self._chosen, reduced)
        nothing = lambda *_, **__: None  # noqa: E731
        names = ("set_runtime_stats_and_log", "set_error_and_log", "_set_static_graph", "set_uneven_input_join")
        self.logger = SimpleNamespace(**dict.fromkeys(names, nothing))

    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        self._chosen[:] = hook, state

    kind.__init__, kind.register_comm_hook = init, register_comm_hook


def _spawn(mode: VirtualMode, rank: int, given: Given) -> None:
    """Of the ranks that ``mp.spawn`` starts, one runs here; of other processes only the recorded one goes on."""
    ranks = given["nprocs"]
    mode.answers.note(f"{ranks} processes of mp.spawn", f"rank {rank % ranks} alone runs")
    given["fn"](rank % ranks, *given["args"])
