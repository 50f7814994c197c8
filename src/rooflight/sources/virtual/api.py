"""What ``torch.cuda`` answers for a device that is not there: a table of torch's functions and what they return.

Each keeps torch's own signature: a call with other parameters fails as torch's would. A name that a release of torch
lacks is left out. Every module of torch that holds one of these functions is given the new one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch

from rooflight.sources.capture.run.elsewhere import Seen
from rooflight.sources.virtual.memory import Memory
from rooflight.sources.virtual.mode import VirtualMode

Given = Mapping[str, Any]
Answer = Callable[[Given], Any]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _yes(*_: Any) -> bool:
    return True


class Stream:
    """A stream in which nothing waits."""

    device = torch.device("cuda", 0)
    cuda_stream = stream_id = priority = device_index = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        del device
        self.priority = priority

    synchronize = wait_stream = wait_event = __exit__ = _nothing
    query = _yes

    def is_capturing(self) -> bool:
        """No graph is captured."""
        return False

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has passed."""
        return event or Event()

    def __enter__(self) -> Stream:
        return self


class Event:
    """An event that has passed, at the host's time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        """Take the host's time."""
        del stream
        self._at = time.perf_counter()

    wait = synchronize = _nothing
    query = _yes

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the host between two events."""
        return max(1e-3, (end_event._at - self._at) * 1e3)


class CUDAGraph:
    """A graph that records nothing: what is captured ran, and is not run again."""

    __init__ = _nothing
    capture_begin = capture_end = replay = reset = debug_dump = enable_debug_mode = _nothing
    register_generator_state = _nothing

    def pool(self) -> tuple[int, int]:
        """The first pool."""
        return 0, 0


class _Current:
    """The device that is current, as ``torch.cuda.device`` sets it."""

    def __init__(self, mode: VirtualMode) -> None:
        self.mode = mode

    def index(self, device: Any = None) -> int:
        """The index of a device as torch takes it: a number, a name, a device, or None."""
        if device is None or isinstance(device, int):
            return self.mode.device.index if device is None or device < 0 else self.mode.check(device)
        index = torch.device(device).index
        return self.mode.device.index if index is None else self.mode.check(index)

    def set(self, device: Any) -> int:
        """Make it current, and return which was before."""
        before, index = self.mode.device.index, self.index(device)
        self.mode.device = torch.device("cuda", index)
        return before


def install(mode: VirtualMode, seen: Seen, gpus: int) -> None:
    """Let ``torch.cuda`` answer for the device, for the rest of the process."""
    current = _Current(mode)
    _fill_bindings()
    replace_functions(answers(current, seen, gpus, mode.memory))
    mode.memory.follow_resizes()
    _replace_classes(current)
    torch.__config__.show = lambda: f"PyTorch built with:\n  - CUDA Runtime {torch.version.cuda}\n"
    torch.version.cuda = "13.0"
    torch.cuda._initialized = True


def answers(current: _Current, seen: Seen, gpus: int, held: Memory) -> dict[str, Answer]:
    """The table: by the full name of a function of torch's, what it returns for the arguments that it is given."""
    memory = seen.memory
    state, stream = torch.zeros(16, dtype=torch.uint8), Stream()
    properties = SimpleNamespace(
        name=seen.name, major=seen.capability[0], minor=seen.capability[1], total_memory=memory,
        multi_processor_count=seen.units, L2_cache_size=seen.l2, is_integrated=0, is_multi_gpu_board=0, warp_size=32,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, gcnArchName="", uuid="0",
        pci_bus_id=0, pci_device_id=0, pci_domain_id=0, clock_rate=1980000, memory_clock_rate=2619000,
        memory_bus_width=5120,
    )  # fmt: skip
    runtime = SimpleNamespace(**dict.fromkeys(
        ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaDeviceSetLimit"),
        lambda *_: 0))  # fmt: skip
    constants: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "_is_compiled": True, "device_count": gpus,
        "_device_count_nvml": gpus, "get_device_name": seen.name, "get_device_capability": seen.capability,
        "get_device_properties": properties, "get_arch_list": [f"sm_{seen.capability[0]}{seen.capability[1]}"],
        "is_bf16_supported": seen.capability >= (8, 0), "is_tf32_supported": seen.capability >= (8, 0),
        "initial_seed": 0, "current_stream": stream, "default_stream": stream, "get_stream_from_external": stream,
        "graph_pool_handle": (0, 0), "is_current_stream_capturing": False, "can_device_access_peer": True,
        "cudart": runtime, "utilization": 100, "temperature": 40, "power_draw": 0, "clock_rate": 1980,
        "memory_usage": 50, "get_sync_debug_mode": 0, "memory_summary": "",
        "memory_snapshot": [], "get_allocator_backend": "native", "list_gpu_processes": "",
        "caching_allocator_alloc": 0, "nccl.version": (2, 27, 3), "nccl.is_available": True,
        "nvtx.range_push": 0, "nvtx.range_pop": 0, "nvtx.mark": None, "nvtx.range_start": 0, "nvtx.range_end": None,
    }  # fmt: skip
    nothing = (
        "init _lazy_init synchronize ipc_collect manual_seed manual_seed_all seed seed_all set_rng_state "
        "set_rng_state_all set_stream reset_accumulated_memory_stats set_per_process_memory_fraction _sleep "
        "caching_allocator_delete check_error set_sync_debug_mode profiler.start profiler.stop "
        "reset_peak_host_memory_stats"
    )
    found: dict[str, Answer] = {f"torch.cuda.{name}": _always(value) for name, value in constants.items()}
    found |= {f"torch.cuda.{name}": _always(None) for name in nothing.split()}
    found |= {
        "torch.cuda.current_device": lambda _: current.mode.device.index,
        "torch.cuda.set_device": lambda given: current.set(given["device"]) * 0 or None,
        "torch.cuda._exchange_device": lambda given: current.set(given["device"]),
        "torch.cuda._maybe_exchange_device": lambda given: current.set(given["device"]),
        "torch.cuda._utils._get_device_index": lambda given: _index(current, given),
        "torch.cuda.get_rng_state": lambda _: state.clone(),
        "torch.cuda.get_rng_state_all": lambda _: [state.clone() for _ in range(gpus)],
        "torch.cuda.stream": lambda given: contextlib.nullcontext(given["stream"]),
        "torch.cuda.make_graphed_callables": lambda given: given["callables"],
        "torch.backends.cuda.is_built": _always(True),
        "torch.backends.cudnn.version": _always(91000),
        "torch.backends.cudnn.is_available": _always(True),
        "torch.backends.cudnn.is_acceptable": _always(True),
    }
    found |= {f"torch.accelerator.{name}": found[f"torch.cuda.{name.removesuffix('_index')}"] for name in _SHARED}
    for name, answer in held.answers(memory).items():
        owners = [owner for owner in ("torch.cuda", "torch.accelerator") if hasattr(_owner_of(f"{owner}.")[0], name)]
        found |= {f"{owner}.{name}": answer for owner in owners}
    return found


_SHARED: Final = ("device_count", "is_available", "current_device_index", "set_device_index", "current_stream",
                  "set_stream", "synchronize", "reset_accumulated_memory_stats")  # fmt: skip
"""What ``torch.accelerator`` has too."""


def _always(value: Any) -> Answer:
    return lambda _: value


def _index(current: _Current, given: Given) -> int:
    device = given["device"]
    if given.get("allow_cpu") and device is not None and not isinstance(device, int):
        kind: torch.device = torch.device(device)
        if kind.type == "cpu":
            return -1
    return current.index(device)


def replace_functions(table: Mapping[str, Answer]) -> None:
    """Put what the table answers in the place of torch's functions, in each module that holds them."""
    new: dict[int, tuple[Any, Any]] = {}
    for path, answer in table.items():
        owner, name = _owner_of(path)
        original = getattr(owner, name, None)
        if original is None:
            continue
        made = answering(original, answer)
        new[id(original)] = original, made
        setattr(owner, name, made)
    everywhere(new)


def everywhere(new: Mapping[int, tuple[Any, Any]]) -> None:
    """Replace objects, by their id, in all modules of torch."""
    for path, module in list(sys.modules.items()):
        if not path.startswith("torch") or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            found = new.get(id(value))
            if found is not None and found[0] is value:
                setattr(module, name, found[1])


def answering(original: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    """A function with the signature of ``original`` that returns what ``answer`` makes of its arguments."""
    try:
        signature = inspect.signature(original)
    except ValueError:  # with CUDA the two that exchange devices are written in C
        signature = inspect.signature(lambda device: device)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        return answer(given.arguments if given.arguments.keys() >= signature.parameters.keys() else _filled(given))

    return call


def _filled(given: inspect.BoundArguments) -> Given:
    given.apply_defaults()
    return given.arguments


def _owner_of(path: str) -> tuple[Any, str]:
    owner, name = path.rsplit(".", 1)
    found: Any = torch
    for part in owner.split(".")[1:]:
        found = getattr(found, part, None)
    return found, name


def _replace_classes(current: _Current) -> None:
    cuda: Any = torch.cuda

    class device:  # noqa: N801 - torch's name
        def __init__(self, device: Any) -> None:
            self.idx, self.prev_idx = current.index(device), -1

        def __enter__(self) -> None:
            self.prev_idx = current.set(self.idx)

        def __exit__(self, *_: object) -> None:
            current.set(self.prev_idx)

    class device_of(device):  # noqa: N801
        def __init__(self, obj: torch.Tensor) -> None:
            super().__init__(obj.device if obj.is_cuda else None)

    @contextlib.contextmanager
    def ignored(*_: Any, **__: Any) -> Iterator[None]:
        yield

    native: Any = torch.Generator

    class Generator(native):  # type: ignore[misc]
        """A generator of the device: its numbers do not exist, so one of the CPU's serves."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made = native.__new__(cls, device="cpu")
            made.where = torch.device(device)
            return made

        @property
        def device(self) -> torch.device:
            found: torch.device = self.where
            return found

    new = {
        "device": device, "device_of": device_of, "Stream": Stream, "ExternalStream": Stream, "Event": Event,
        "CUDAGraph": CUDAGraph, "StreamContext": contextlib.nullcontext, "graph": ignored,
    }  # fmt: skip
    replaced = {id(getattr(cuda, name)): (getattr(cuda, name), made) for name, made in new.items()}
    replaced |= {
        id(old): (old, made) for old, made in ((native, Generator), (torch.Stream, Stream), (torch.Event, Event))
    }
    everywhere(replaced)
    set_type = torch.set_default_tensor_type

    def set_default(kind: Any) -> None:
        named: Any = getattr(cuda, kind.removeprefix("torch.cuda."), None) if isinstance(kind, str) else kind
        if getattr(named, "is_cuda", False):
            torch.set_default_dtype(named.dtype)
            torch.set_default_device("cuda")
        else:
            torch.set_default_device(None)
            set_type(kind)

    everywhere({id(set_type): (set_type, set_default)})
    cuda.nvtx.range = ignored
    for name, dtype in _TYPES.items():
        setattr(cuda, f"{name}Tensor", _type_of(name, dtype))


_TYPES: Final = {
    "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64,
    "Long": torch.int64, "Int": torch.int32, "Byte": torch.uint8, "Bool": torch.bool, "Short": torch.int16,
    "Char": torch.int8,
}  # fmt: skip


def _type_of(name: str, dtype: torch.dtype) -> type:
    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is dtype

    def make(_: type, *data: Any) -> torch.Tensor:
        if len(data) == 1 and isinstance(data[0], torch.Tensor):
            return data[0].to("cuda", dtype)
        if len(data) == 1 and not isinstance(data[0], int | torch.Size):
            return torch.tensor(data[0], dtype=dtype, device="cuda")
        return torch.empty(*data, dtype=dtype, device="cuda")

    return Kind(f"{name}Tensor", (), {"__new__": make, "__module__": "torch.cuda", "dtype": dtype, "is_cuda": True})


def _fill_bindings() -> None:
    """Names of ``torch._C`` that only a build with CUDA has: importers of torch's own modules look for them."""
    stub = Path(torch.__file__).parent / "_C" / "__init__.pyi"
    for kind, name in re.findall(
        r"^(def|class) (_cuda\w*|_CUDA\w*|_Cuda\w*|_nccl\w*|_cudnn\w*)", stub.read_text(), re.M
    ):
        if not hasattr(torch._C, name):
            as_class = kind == "class" or name.endswith("AllocatorState")
            setattr(torch._C, name, type(name, (), {}) if as_class else lambda *_, **__: 0)
