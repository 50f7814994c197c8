"""CUDA in C++'s eyes: the device guard and the hooks that autograd asks for, put where a CPU build of torch has none.

Autograd asks for a device guard for tensors on ``cuda``, and for the current stream of the accelerator. The registry of
guards is exported, and torch fills an empty slot with a guard of its own that does nothing. The hooks are an object of
``CUDAHooksInterface``, whose methods all raise: it is given a copy of its table of methods in which those that autograd
calls answer. Their places in the table are read from the headers that torch comes with, as many as the table has.
Where that fails, a C++ compiler makes the table (``cuda.cpp``).
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

_CUDA: Final = 1  # c10::DeviceType
_SLOTS: Final = 22  # c10::COMPILE_TIME_MAX_DEVICE_TYPES
_GUARDS: Final = "_ZN3c104impl26device_guard_impl_registryE"
_TABLE: Final = "_ZTVN2at18CUDAHooksInterfaceE"
_HOOKS: Final = "_ZN2at6detail12getCUDAHooksEv"
_ALLOCATOR: Final = "_ZN3c1015GetCPUAllocatorEv"
_DESTRUCTORS: Final = 2  # entries of a virtual destructor
_BEFORE: Final = 2  # entries of a table before its first method
_KEPT: Final[list[Any]] = []  # what C++ points to


class NoVirtualDeviceError(RuntimeError):
    """This build of torch cannot be given a CUDA device that is not there."""


def install(gpus: int) -> None:
    """Let C++ see ``gpus`` CUDA devices, for the rest of the process. Raises NoVirtualDeviceError where it cannot."""
    failed = []
    for way in WAYS:
        try:
            way(gpus)
            found = torch.accelerator.current_accelerator()
            if found is not None and found.type == "cuda":
                return
            failed.append(f"torch sees {found} as its accelerator")
        except (AttributeError, OSError, ValueError, CalledProcessError) as error:
            failed.append(str(error))
    why = "; ".join(failed)
    raise NoVirtualDeviceError(
        f"torch {torch.__version__} cannot be shown a GPU that is not there ({why}): use torch 2.11 to 2.14 on Linux"
    )


def _by_hand(gpus: int) -> None:
    _install_hooks(gpus)
    _install_guard()


def _compiled(gpus: int) -> None:
    from torch.utils.cpp_extension import include_paths

    libraries = Path(torch.__file__).parent / "lib"
    with TemporaryDirectory() as folder:
        made = Path(folder) / "cuda.so"
        source, headers = Path(__file__).with_name("cuda.cpp"), [f"-I{each}" for each in include_paths()]
        words = [os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC", "-w", *headers, str(source),
                 "-o", str(made), f"-L{libraries}", "-ltorch_cpu", "-lc10"]  # fmt: skip
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        show: Any = ctypes.CDLL(str(made)).show
    show(gpus)


WAYS = [_by_hand, _compiled]


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _install_guard() -> None:
    registry = (ctypes.c_void_p * _SLOTS).in_dll(_library("libc10.so"), _GUARDS)
    if registry[_CUDA] is None:
        nothing = _function(ctypes.c_int8, lambda _: 0)
        table = (ctypes.c_void_p * 64)(*[nothing] * 64)  # torch asks it how many devices it has: none
        empty = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _KEPT.extend((table, empty))
        registry[_CUDA] = ctypes.addressof(empty)
    torch._C._ensureCUDADeviceGuardSet()


def _install_hooks(gpus: int) -> None:
    library = _library("libtorch_cpu.so")
    names = [*_methods("AcceleratorHooksInterface"), *_methods("CUDAHooksInterface")]
    size = _BEFORE + _DESTRUCTORS + len(names)
    there = _bytes_of(library, _TABLE) // ctypes.sizeof(ctypes.c_void_p)
    if there != size:
        raise ValueError(f"its headers name {size} methods, its library has {there}")
    table = (ctypes.c_void_p * size)(*(ctypes.c_void_p * size).in_dll(library, _TABLE))
    yes = _function(ctypes.c_bool, lambda _: True)
    first = _function(ctypes.c_int8, lambda _: 0)
    of_host: Any = getattr(_library("libc10.so"), _ALLOCATOR)
    of_host.restype = ctypes.c_void_p
    allocator = of_host()
    given = dict.fromkeys(("isBuilt", "isAvailable", "hasCUDA", "hasPrimaryContext"), yes)
    given |= dict.fromkeys(("getCurrentDevice", "current_device"), first)
    given |= {
        "deviceCount": _function(ctypes.c_int8, lambda _: gpus),
        "init": _function(None, lambda _: None),
        "exchangeDevice": _function(ctypes.c_int8, lambda *_: 0, ctypes.c_int8),
        "maybeExchangeDevice": _function(ctypes.c_int8, lambda *_: 0, ctypes.c_int8),
        "setCurrentDevice": _function(None, lambda *_: None, ctypes.c_int8),
        "isPinnedPtr": _function(ctypes.c_bool, lambda *_: False, ctypes.c_void_p),
        "getPinnedMemoryAllocator": _function(ctypes.c_void_p, lambda _: allocator),
        "versionCuDNN": _function(ctypes.c_long, lambda _: 91000),
    }
    for name, function in given.items():
        table[_BEFORE + _DESTRUCTORS + names.index(name)] = function
    getter: Any = getattr(library, _HOOKS)
    getter.restype = ctypes.c_void_p
    _KEPT.append(table)
    ctypes.c_void_p.from_address(getter()).value = ctypes.addressof(table) + _BEFORE * ctypes.sizeof(ctypes.c_void_p)


def _bytes_of(library: ctypes.CDLL, name: str) -> int:
    """The size of an exported object, as the dynamic linker has it."""
    address, facts, symbol = ctypes.c_void_p.in_dll(library, name), (ctypes.c_void_p * 4)(), ctypes.c_void_p()
    ctypes.CDLL(None).dladdr1(ctypes.byref(address), facts, ctypes.byref(symbol), 1)  # RTLD_DL_SYMENT
    return ctypes.c_uint64.from_address((symbol.value or 0) + 16).value  # st_size of Elf64_Sym


def _function(result: Any, run: Callable[..., Any], *kinds: Any) -> int | None:
    """The address of a method, whose first argument is its object."""
    made = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *kinds)(run)
    _KEPT.append(made)
    return ctypes.cast(made, ctypes.c_void_p).value


def _methods(name: str) -> list[str]:
    """The virtual methods of a class of torch's, in their order, its destructor left out."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "detail" / f"{name}.h"
    text = re.sub(r"#ifdef USE_ROCM.*?#endif", "", header.read_text(), flags=re.S)
    body = text[text.index(f"struct TORCH_API {name}") :]
    body = body[: body.index("\n};")]
    found = re.findall(r"virtual\s+[\w:&<>\s\*]*?[\s\*&](~?\w+)\s*\(", body)
    return [each for each in found if not each.startswith("~")]
