"""Process groups of ranks that are not there: torch's own fake group, its results those of the rank that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.utils
import torch.multiprocessing
import torch.nn.parallel.distributed as data_parallel
from torch.distributed import distributed_c10d as c10d

from rooflight.virtual.api import everywhere, replace_functions
from rooflight.virtual.mode import VirtualMode


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
    _replace({c10d.init_process_group: _begin_group(ranks, rank), c10d.new_group: _new_group()})
    replace_functions(
        {
            "torch.distributed.is_nccl_available": lambda _: True,
            "torch.distributed.is_backend_available": lambda _: True,
            "torch.distributed.utils._verify_param_shape_across_processes": lambda _: None,
            "torch.distributed.all_gather_object": lambda given: _fill(given["object_list"], given["obj"]),
            "torch.distributed.gather_object": lambda given: _fill(given["object_gather_list"], given["obj"]),
            "torch.distributed.broadcast_object_list": lambda _: None,
            "torch.distributed.scatter_object_list": lambda given: _first(
                given["scatter_object_output_list"], given["scatter_object_input_list"]
            ),
            "torch.distributed.barrier": lambda _: None,
            "torch.distributed.monitored_barrier": lambda _: None,
        }
    )
    _several_devices()
    _reduce_by_hook(mode)
    _spawn(mode, rank)


def _replace(new: dict[Any, Any]) -> None:
    everywhere({id(old): (old, made) for old, made in new.items()})


def _begin_group(ranks: int, rank: int) -> Callable[..., None]:
    begin = c10d.init_process_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank_: int = -1,
        store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None, **rest: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        del backend, init_method, timeout, store, group_name, pg_options, device_id
        given = rest.pop("rank", rank_)
        whole = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", ranks))
        mine = given if given >= 0 else int(os.environ.get("RANK", rank))
        begin("fake", store=FakeStore(), rank=mine, world_size=whole)

    return init_process_group


def _new_group() -> Callable[..., Any]:
    new = c10d.new_group

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **rest: Any
    ) -> Any:
        del timeout, backend, pg_options
        rest.pop("device_id", None)
        return new(ranks, backend="fake", **rest)

    return new_group


def _fill(found: list[Any] | None, value: Any) -> None:
    if found is not None:
        found[:] = [value] * len(found)


def _first(found: list[Any], given: Sequence[Any] | None) -> None:
    if given:
        found[0] = given[0]


def _several_devices() -> None:
    """What DataParallel asks of C++: parts go to their devices, and come together on the first."""
    native: Any = torch._C

    def scatter(
        tensor: torch.Tensor, devices: Sequence[int], sizes: Any = None, dim: int = 0, streams: Any = None
    ) -> tuple[torch.Tensor, ...]:
        del streams
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
        return tuple(part.to(torch.device("cuda", each)) for part, each in zip(parts, devices, strict=False))

    def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
        return torch.cat([each.to(torch.device("cuda", destination or 0)) for each in tensors], dim)

    def broadcast(tensors: Sequence[torch.Tensor], devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
        del size
        return [[each.to(torch.device("cuda", device)) for each in tensors] for device in devices]

    native._scatter, native._gather, native._broadcast_coalesced = scatter, gather, broadcast


def _reduce_by_hook(mode: VirtualMode) -> None:
    """DDP's reducer wants a tensor of the group's future, and the fake group has none: a hook calls the all-reduce."""
    kind: Any = data_parallel.DistributedDataParallel
    begin, set_hook = kind.__init__, kind.register_comm_hook

    def reduced(group: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        dist.all_reduce(buffer, group=group)
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future

    reduced.__annotations__.clear()  # torch compares them with its own types

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        set_hook(self, self.process_group, reduced)
        nothing = lambda *_, **__: None  # noqa: E731
        names = ("set_runtime_stats_and_log", "set_error_and_log", "_set_static_graph", "set_uneven_input_join")
        self.logger = SimpleNamespace(**dict.fromkeys(names, nothing))

    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        del self, state
        mode.answers.note(f"the hook {getattr(hook, '__name__', hook)} of DDP", "a plain all-reduce")

    kind.__init__, kind.register_comm_hook = init, register_comm_hook


def _spawn(mode: VirtualMode, rank: int) -> None:
    def spawn(fn: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, **_: Any) -> None:
        del join
        mode.answers.note(f"{nprocs} processes of mp.spawn", f"rank {rank % nprocs} alone runs")
        fn(rank % nprocs, *args)

    _replace({vars(torch.multiprocessing)["spawn"]: spawn})
