"""Facts about the machine that a measurement ran on, without names of users, hosts or folders."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from stat import S_ISVTX, S_IWOTH

from rooflight.hardware.machine.hardware import cuda_name, data_caches, memory_bytes, usable_cores
from rooflight.records.dtypes import FLOAT16_SUMS, FLOAT32_DEFAULTS, float32_fact


def describe(kind: str | None = None) -> dict[str, str]:
    """Facts about CPU, memory, system, torch and GPU, by name. No host name, user name or path.

    ``kind``, "cpu" or "cuda", is the device that the program ran on; None: CUDA if this process has used it. A GPU that
    was not used is not initialized for this. Works without torch; unknown facts have no entry.
    """
    if kind is None:
        torch = sys.modules.get("torch")
        kind = "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
    threads = threads_here()
    facts = {"device_kind": kind, "fingerprint": fingerprint(kind), **_machine_facts(len(usable_cores()), threads)}
    facts |= _torch_facts()
    if kind == "cuda":
        facts |= _gpu_facts()
    return facts


@functools.cache
def _machine_facts(cores: int, threads: int) -> dict[str, str]:
    facts = {
        "cpu": cpu_model(),
        "cores_usable": str(cores),
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }
    if memory := memory_bytes():
        facts["memory"] = f"{memory / (1 << 30):.1f} GiB"
    for cache in data_caches():
        capacity, count = cache.capacity_bytes(threads), min(cache.instance_count, threads)
        facts[f"{cache.name}_cache"] = f"{_size(capacity)} ({count} x {_size(cache.instance_bytes)})"
    return facts


def fingerprint(kind: str) -> str:
    """A short hash of the facts that set the speed of ``kind`` ("cpu" or "cuda"): equal on equal machines and in all
    runs, whatever cores and threads they use.

    The CPU's is made of model, cores and cache sizes; the GPU's of name, driver and CUDA version.
    """
    if kind == "cpu":
        return _cpu_fingerprint()
    if kind != "cuda":
        raise ValueError(f'unknown kind of device "{kind}": use cpu or cuda')
    name = cuda_name()
    if name is None:
        raise ValueError("torch sees no CUDA device: use cpu")
    import torch

    return _hash(kind, name, driver_version() or "", str(torch.version.cuda or torch.version.hip))


@functools.cache
def _cpu_fingerprint() -> str:
    cores = os.cpu_count() or 1
    found = data_caches(tuple(range(cores)))
    caches = ",".join(f"{cache.name}:{cache.instance_bytes}x{cache.instance_count}" for cache in found)
    return _hash("cpu", cpu_model(), str(cores), caches)


def _hash(*facts: str) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


@functools.cache
def cpu_model() -> str:
    """The CPU's name, with family and model where the name alone is vague ("AMD EPYC" in virtual machines)."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if not colon:
                break  # one block per core; the first is enough
            fields[name.strip()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        return f"{name} (family {fields['cpu family']}, model {fields['model']})"
    return name


def threads_here() -> int:
    """Threads an op runs on in this process: torch's; without torch OMP_NUM_THREADS, otherwise one per usable core."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return torch_threads() or (int(wanted) if wanted.isdecimal() and int(wanted) else len(usable_cores()))


def torch_threads() -> int | None:
    """Threads torch uses inside one op; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    return int(torch.get_num_threads())


@functools.cache
def driver_version() -> str | None:
    """The NVIDIA driver's version; None without one."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        pass
    return next(iter(nvidia_smi("driver_version").split()), None)


def nvidia_smi(query: str, *words: str) -> str:
    """What nvidia-smi answers to a query of GPUs, as CSV without a head; empty where it cannot."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _torch_facts() -> dict[str, str]:
    try:
        import torch
    except ImportError:
        return {}
    facts = {
        "torch": str(torch.__version__),
        "torch_threads": str(torch.get_num_threads()),
        "cpu_capability": str(torch.backends.cpu.get_cpu_capability()),
        "float32_matmul_precision": _matmul_precision(),
        **{float32_fact(library): _float32_setting(library) for library in FLOAT32_DEFAULTS},
        FLOAT16_SUMS: str(torch.backends.cuda.matmul.allow_fp16_accumulation),
    }
    if threads := os.environ.get("OMP_NUM_THREADS"):
        facts["OMP_NUM_THREADS"] = threads
    return facts


def _gpu_facts() -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts = {
        "gpu": str(properties.name),
        "gpu_count": str(torch.cuda.device_count()),
        "gpu_memory": f"{properties.total_memory / (1 << 30):.1f} GiB",
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda or torch.version.hip),
    }
    if driver := driver_version():
        facts["driver"] = driver
    return facts


def _float32_setting(library: str) -> str:
    import torch

    found = str(functools.reduce(getattr, library.split("."), torch.backends).fp32_precision)
    return "ieee" if found == "none" else found


def _matmul_precision() -> str:
    import torch

    # torch refuses to read the old switch once a program has used the new ones
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return "set through fp32_precision"


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


def not_to_be_trusted() -> str:
    """Why nothing may be loaded from Inductor's folder, empty where it may: torch unpickles and runs what lies there,
    so that others who can write to it, or made it (``/tmp/torchinductor_<name>`` before its user did), run code here.
    The same of what lies in it, of links in it, and of folders above it whose entries all can exchange.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir()).absolute()
    found = [
        f"others can write to {each}" for each in folder.parents if each.stat().st_mode & (S_IWOTH | S_ISVTX) == S_IWOTH
    ]
    why = next(filter(None, (*found, *(_not_own(each, folder) for each in (folder, *folder.rglob("*"))))), "")
    return why and f"{why}, from which torch runs code: set TORCHINDUCTOR_CACHE_DIR to a folder of yours"


def _not_own(path: Path, folder: Path) -> str:
    """Why what a file of a folder holds, or the folder, may be of others; empty where it is the user's alone."""
    if path != folder and path.is_symlink():
        return f"{path} is a link to elsewhere"
    try:
        itself, found = path.lstat(), path.stat()
    except FileNotFoundError:  # another process has just moved it
        return ""
    own = {itself.st_uid, found.st_uid} <= {os.getuid(), 0} and not found.st_mode & S_IWOTH
    return "" if own else f"others can write to {path}"
