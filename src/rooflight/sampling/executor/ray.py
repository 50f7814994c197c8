"""Ray: joining a cluster that runs, its nodes, and tasks there, whose answers are yielded as they arrive."""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_REACHED_S: Final = 5.0
_PERIOD_S: Final = 1.0
_END_S: Final = 10.0
_HEAD_S: Final = 20.0
"""How long a cluster's head may be away: after 60 s Ray itself ends the process, without a word of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node that is alive: its id, a name that no other node has, and what it can give to tasks."""

    id: str
    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A call of a function on the cluster: what it takes of a node, which one that is (None: any), and how often it is
    run again where its node dies. ``about`` is for who asked.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    cpus: float = 1
    gpus: float = 0
    node: str | None = None
    retries: int = 0
    about: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a task returned; or, in one line, what it raised (``error``) or what became of its node (``lost``)."""

    task: Task
    value: Any = None
    error: str = ""
    lost: str = ""


def connect(address: str) -> Any:
    """The module ``ray``, joined to the cluster at ``address`` (``"auto"``: the one this machine belongs to).

    A connection that is open stays. Raises ValueError where ray is not installed or no cluster answers.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError('ray is not installed: pip install "rooflight[ray]"') from None
    if not ray.is_initialized():
        _check_reachable(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster at {address}: ray start --head on one machine first ({error})") from None
    return ray


def answers(
    ray: Any,
    more: Callable[[], Task | None],
    *,
    at_most: int | None = None,
    waiting: Callable[[], object] = lambda: None,
) -> Generator[Answer]:
    """Run the tasks that ``more`` gives until it gives None and all have answered, ``at_most`` so many at a time.

    ``more`` is asked again after each answer; ``waiting`` is called each second. Interrupted or closed, it cancels what
    runs. Raises ValueError where the cluster's head has died.
    """
    under_way: dict[Any, Task] = {}
    head = ray.get_runtime_context().gcs_address
    heard_s = time.monotonic()
    try:
        while True:
            while (at_most is None or len(under_way) < at_most) and (task := more()) is not None:
                under_way[_submitted(ray, task)] = task
            if not under_way:
                return
            waiting()
            done, _ = ray.wait(list(under_way), num_returns=1, timeout=_PERIOD_S)
            if time.monotonic() - heard_s > _PERIOD_S and _listens(head):
                heard_s = time.monotonic()
            if time.monotonic() - heard_s > _HEAD_S:
                raise ValueError(
                    f"the head of the Ray cluster, {head}, has not answered for {_HEAD_S:g} s: what came back is kept; "
                    "start a cluster and run the same command again"
                )
            for each in done:
                yield _answer(ray, each, under_way.pop(each))
    finally:
        for each in under_way:
            ray.cancel(each)
        if under_way:
            ray.wait(list(under_way), num_returns=len(under_way), timeout=_END_S)


def a_share(nodes: Sequence[RayNode]) -> tuple[float, float, int]:
    """CPUs and GPUs of a task that nobody else's disturbs, and how many such tasks run at a time: one GPU where the
    cluster has any, else all the cores of a node. Raises ValueError where no node gives a task anything to run on.
    """
    if gpus := sum(int(node.gpus) for node in nodes):
        return 1, 1, gpus
    cores = [node.cpus for node in nodes if node.cpus]
    if not cores:
        raise ValueError(f"no node of the cluster's {len(nodes)} offers a CPU or a GPU")
    return min(cores), 0, max(1, int(sum(cores) // min(cores)))


def alive(described: list[Mapping[str, Any]]) -> tuple[RayNode, ...]:
    """The nodes alive, of what ``ray.nodes()`` gives, by name."""
    living = [node for node in described if node["Alive"]]
    names = [str(node["NodeManagerHostname"]) for node in living]
    hosts = Counter(names)
    found = [
        RayNode(
            id=node["NodeID"],
            # several nodes of Ray on one machine
            name=host if hosts[host] == 1 else f"{host}-{node['NodeID'][:6]}",
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node, host in zip(living, names, strict=True)
    ]
    return tuple(sorted(found, key=lambda node: node.name))


def _submitted(ray: Any, task: Task) -> Any:
    options: dict[str, Any] = {"num_cpus": task.cpus, "max_retries": task.retries}
    if task.gpus:
        options["num_gpus"] = task.gpus
    if task.node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=task.node, soft=False)
    return ray.remote(**options)(task.function).remote(*task.arguments)


def _answer(ray: Any, reference: Any, task: Task) -> Answer:
    try:
        return Answer(task=task, value=ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        return Answer(task=task, error=" ".join(str(error.cause).split()))
    except ray.exceptions.RayError as error:
        return Answer(task=task, lost=type(error).__name__)


def _listens(head: str) -> bool:
    try:
        _check_reachable(head)
    except ValueError:
        return False
    return True


def _check_reachable(address: str) -> None:
    """Raise ValueError at once where nothing listens at ``host:port``: Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon or not port.isdigit():
        return  # "auto", or Ray Client's ray://host:port, which has a limit of its own
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"no Ray cluster at {address}: {error}") from None
