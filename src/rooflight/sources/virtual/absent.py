"""What is not there: compilers, other processes' GPUs, and libraries that are built for CUDA."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.sources.capture.run.callers import calling_line, imported_by_user
from rooflight.sources.capture.run.elsewhere import NOT_HERE, Wanted
from rooflight.sources.capture.run.hooks import when_imported
from rooflight.sources.virtual.api import Given, answering, replace_functions
from rooflight.sources.virtual.mode import VirtualMode

_BUILT_FOR_CUDA: Final = (
    "apex", "amp_C", "bitsandbytes", "causal_conv1d", "cupy", "deep_ep", "deep_gemm", "flashinfer", "mamba_ssm",
    "transformer_engine", "transformer_engine_torch", "xformers",
)  # fmt: skip


def install(mode: VirtualMode, child: Any) -> None:
    """Let a script go on without them, for the rest of the process."""
    _compile(child)
    _nvidia_smi(child)
    when_imported("torch.utils.cpp_extension", _refuse_extensions)
    _refuse_other_processes(child)
    sys.meta_path.append(_Missing(mode))


def _compile(child: Any) -> None:
    """Compiled programs run as they are written, and are counted: what compiling gains is predicted."""

    def compiled(given: Given) -> Any:
        model = given.get("model", given.get("self"))
        if model is None:
            return lambda each: compiled({"model": each})
        child.compiled += 1
        is_module = isinstance(model, torch.nn.Module) and "self" not in given
        made: Any = OptimizedModule  # runs what it is given
        return made(model, lambda function: function) if is_module else model

    node: Any = torch.autograd.function.BackwardCFunction
    run = node.apply

    def apply(self: Any, *args: Any) -> Any:
        """Compiled code does without gradients of the last inputs, for which eager code wants None."""
        found = run(self, *args)
        missing = len(self.needs_input_grad) - len(found) if isinstance(found, tuple) else 0
        return (*found, *[None] * missing) if missing > 0 else found

    node.apply = apply
    refused = dict.fromkeys(("torch.export.export", "torch.jit.save", "torch.jit.freeze"), _refuse_export)
    replace_functions({**refused, "torch.compile": compiled, "torch.nn.Module.compile": compiled})


def _refuse_export(_: Given) -> Any:
    raise NotImplementedError("a virtual GPU cannot export or save programs: their tensors would have no values")


def _nvidia_smi(child: Any) -> None:
    """A program of that name, which lists the devices."""
    wanted: Wanted = child.wanted
    folder = Path(mkdtemp())
    child.at_end.append(partial(shutil.rmtree, folder, ignore_errors=True))
    program = folder / "nvidia-smi"
    each = f"{wanted.seen.name}, {wanted.seen.memory >> 20} MiB"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{number}, {each}'\n" for number in range(wanted.gpus)))
    program.chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"


class _Missing(MetaPathFinder):
    """Asked last: notes which of the libraries that are built for CUDA a script imports. The import then fails."""

    def __init__(self, mode: VirtualMode) -> None:
        self._mode = mode

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> None:
        """None: no finder has it."""
        if name in _BUILT_FOR_CUDA and imported_by_user():
            self._mode.answers.note(f"{name}, which is compiled for CUDA", NOT_HERE)


def _refuse_extensions() -> None:
    module: Any = sys.modules["torch.utils.cpp_extension"]

    def unless_for_cuda(build: Callable[..., Any], given: Given) -> Any:
        if _is_for_cuda(given):
            raise RuntimeError(f"{calling_line()} compiles a CUDA extension, which only a GPU can run: leave it out")
        return build(**given)

    for name in ("load", "load_inline"):
        build = getattr(module, name)
        setattr(module, name, answering(build, partial(unless_for_cuda, build)))


def _is_for_cuda(given: Given) -> bool:
    sources = given.get("sources", ())
    files = [sources] if isinstance(sources, str) else sources
    return bool(given.get("cuda_sources") or given.get("with_cuda") or any(str(f).endswith(".cu") for f in files))


def _refuse_other_processes(child: Any) -> None:
    """CUDA IPC: what lies on the device has no memory that another process could open."""
    putting, put = ["a queue"], Queue.put  # its own thread, which has no line, sends

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        putting[0] = calling_line() or putting[0]
        put(self, *args, **kwargs)

    Queue.put = watched  # type: ignore[method-assign]

    def refuse(_: torch.Tensor) -> Any:
        text = (
            f"{calling_line() or putting[0]} sends a tensor of the device to another process, for which it takes a "
            "GPU: send a copy on the host"
        )
        if threading.current_thread() is not threading.main_thread():  # of a queue, which would go on without it
            child.error = text
            child.leave(1)
        raise RuntimeError(text)

    ForkingPickler.register(FakeTensor, refuse)
    reductions: Any = torch.multiprocessing.reductions
    reduce = reductions.reduce_tensor
    reductions.reduce_tensor = wraps(reduce)(lambda each: (refuse if isinstance(each, FakeTensor) else reduce)(each))
