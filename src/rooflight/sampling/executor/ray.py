"""Ray: joining a cluster that runs, and its nodes."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_REACHED_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node that is alive: its id, a name that no other node has, and what it can give to tasks."""

    id: str
    name: str
    cpus: float
    gpus: float


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


def _check_reachable(address: str) -> None:
    """Raise ValueError at once where nothing listens at ``host:port``: Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon or not port.isdigit():
        return  # "auto", or Ray Client's ray://host:port, which has a limit of its own
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"no Ray cluster at {address}: {error}") from None


def alive(described: list[Mapping[str, Any]]) -> tuple[RayNode, ...]:
    """The nodes alive, of what ``ray.nodes()`` gives, by name."""
    living = [node for node in described if node["Alive"]]
    hosts = Counter(node["NodeManagerHostname"] for node in living)
    return tuple(
        sorted(
            (
                RayNode(
                    id=node["NodeID"],
                    name=_name(node, unique=hosts[node["NodeManagerHostname"]] == 1),
                    cpus=node["Resources"].get("CPU", 0.0),
                    gpus=node["Resources"].get("GPU", 0.0),
                )
                for node in living
            ),
            key=lambda node: node.name,
        )
    )


def _name(node: Mapping[str, Any], *, unique: bool) -> str:
    host = str(node["NodeManagerHostname"])
    return host if unique else f"{host}-{node['NodeID'][:6]}"  # several nodes of Ray on one machine
