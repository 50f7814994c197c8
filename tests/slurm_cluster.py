"""A private SLURM cluster on this machine: real daemons, as this user, in a folder of their own, on loopback.

Two nodes are two ``slurmd`` of this machine. Nothing of an installed cluster is read or written: configuration, state,
logs, ports, the munge key and its socket belong to the folder, and all of it ends with the ``with`` block.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd", "setpriv")
COMMANDS = ("sbatch", "squeue", "sinfo", "scancel", "scontrol")
_READY_S = 60.0
_ATTEMPTS = 3
_END_S = 10.0

CONF = """
ClusterName=rooflight
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
MailProg=/bin/true
ReturnToService=2
KillWait=5
MaxArraySize=9
GresTypes=gpu
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A running cluster. ``env`` leads SLURM's commands, and what starts them, to it."""

    folder: Path
    nodes: tuple[str, ...]
    env: dict[str, str]
    daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    def run(self, *words: str) -> str:
        """What one of SLURM's commands prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def wait(self, job: int, seconds: float = 60.0) -> list[str]:
        """The states of a job, or of the tasks of an array, once all have ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            states = self.run("squeue", "-h", "-r", "-t", "all", "-j", str(job), "-o", "%T").split()
            if states and not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(states):
                return states
            time.sleep(0.05)
        raise AssertionError(f"job {job} did not end in {seconds:g} s: {states}")

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Return when no node has a job left: one that was cancelled takes a while to end."""
        deadline = time.monotonic() + seconds
        while _states(self) != ["idle"] * len(self.nodes):
            assert time.monotonic() < deadline, f"nodes are {_states(self)} after {seconds:g} s"
            time.sleep(0.05)


def missing() -> tuple[str, ...]:
    """SLURM's programs that are not installed here."""
    return tuple(name for name in (*DAEMONS, *COMMANDS) if _program(name) is None)


@contextlib.contextmanager
def slurm_cluster(nodes: Sequence[str] = ("one", "two")) -> Iterator[SlurmCluster]:
    """A cluster whose nodes are idle. Skips the test where SLURM is not installed."""
    if gone := missing():
        pytest.skip(f"slurm-wlm is not installed ({', '.join(gone)}): apt-get install slurm-wlm")
    with contextlib.ExitStack() as opened:
        for attempt in range(1, _ATTEMPTS + 1):
            with contextlib.ExitStack() as tried:
                # not pytest's folder: the path of a socket has at most 107 characters
                name = tried.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True))
                env = {**os.environ, "SLURM_CONF": f"{name}/slurm.conf"}
                cluster = SlurmCluster(folder=Path(name), nodes=tuple(nodes), env=env)
                tried.callback(_end, cluster)
                try:
                    _configure(cluster)
                    _start(cluster)
                except RuntimeError:  # somebody took a port between its choice and its use
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                opened.push(tried.pop_all())
                break
        yield cluster


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _configure(cluster: SlurmCluster) -> None:
    folder, nodes = cluster.folder, cluster.nodes
    ports = _free_ports(1 + len(nodes))
    host = socket.gethostname().split(".")[0]
    lines = [CONF.format(folder=folder, host=host, user=getpass.getuser(), port=ports[0])]
    for node, port in zip(nodes, ports[1:], strict=True):
        (folder / f"spool.{node}").mkdir()
        lines.append(
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs={os.cpu_count()} Gres=gpu:1\n"
        )
    (folder / "state").mkdir()
    (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\n")  # to SLURM a device file is a GPU
    (folder / "slurm.conf").write_text("".join(lines))
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(cluster: SlurmCluster) -> None:
    folder = cluster.folder
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
    options = [f"--{option}={folder / file}" for option, file in (files | {"seed-file": "munge.seed"}).items()]
    # --force: it would rather have no folder that others may write to above its own, and /tmp is one
    _daemon(cluster, "munged", "munged", "--foreground", "--force", "--num-threads=2", *options)
    _wait_until(cluster, (folder / "munge.sock").exists)
    _daemon(cluster, "slurmctld", "slurmctld", "-D")
    for node in cluster.nodes:
        _daemon(cluster, f"slurmd.{node}", "slurmd", "-D", "-N", node)
    _wait_until(cluster, lambda: _states(cluster) == ["idle"] * len(cluster.nodes))


def _daemon(cluster: SlurmCluster, name: str, program: str, *words: str) -> None:
    """A child that ends with this process, whatever ends it, and not by the terminal's Ctrl-C."""
    path = _program(program)
    with (cluster.folder / f"{name}.out").open("wb") as out:
        cluster.daemons[name] = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", str(path), *words],
            env=cluster.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def _states(cluster: SlurmCluster) -> list[str]:
    words = ["sinfo", "-h", "-N", "-o", "%T"]
    return subprocess.run(words, env=cluster.env, capture_output=True, text=True, check=False).stdout.split()


def _wait_until(cluster: SlurmCluster, ready) -> None:
    deadline = time.monotonic() + _READY_S
    while not ready():
        for name, process in cluster.daemons.items():
            if process.poll() is not None:
                said = (cluster.folder / f"{name}.out").read_text(errors="replace").strip()
                raise RuntimeError(f"{name} ended with code {process.returncode}: {said[-2000:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"SLURM is not ready after {_READY_S:g} s: nodes {_states(cluster)}")
        time.sleep(0.05)


def _end(cluster: SlurmCluster) -> None:
    """Jobs first, daemons next, and last whatever still carries this cluster's configuration in its environment."""
    if "slurmctld" in cluster.daemons:
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            cluster.run("scancel", "--user", getpass.getuser())
            deadline = time.monotonic() + _END_S
            while cluster.run("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.1)
    for process in reversed(cluster.daemons.values()):
        process.terminate()
    for process in cluster.daemons.values():
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    mark = f"SLURM_CONF={cluster.env['SLURM_CONF']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
