"""The worker: compiles graphs that the program sends through a pipe, so that Inductor's caches on disk have them.

It answers a line of JSON for each job. It ends when the pipe closes, however the program ended, and with it the
compilers that it started.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from contextlib import ExitStack
from typing import IO, Any


def main() -> None:
    """Work until nothing comes any more."""
    os.nice(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # torch, compilers and what they load print
        os.dup2(silence, descriptor)
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, jobs), daemon=True).start()
    while True:
        message = jobs.get()
        answers.write(json.dumps(_answer(message)).encode() + b"\n")
        answers.flush()


def _read(pipe: IO[bytes], jobs: queue.Queue[bytes]) -> None:
    while len(head := pipe.read(8)) == 8:
        size = int.from_bytes(head, "little")
        if len(message := pipe.read(size)) != size:
            break
        jobs.put(message)
    _end()


def _end() -> None:
    """End this process and what it started; compilers remove their files."""
    os.killpg(0, signal.SIGTERM)


def _answer(message: bytes) -> dict[str, Any]:
    from time import perf_counter

    begin = perf_counter()
    try:
        _compile(message)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"failed": f"{type(error).__name__}: {lines[0]}".strip(": ")[:300]}
    return {"seconds": perf_counter() - begin}


def _compile(message: bytes) -> None:
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx

    from rooflight.compiling.graph_message import unpacked
    from rooflight.compiling.torch_settings import applied, backward_too

    rest = message
    while rest:
        size = int.from_bytes(rest[:8], "little")
        graph, rest = rest[8 : 8 + size], rest[8 + size :]
        torch._dynamo.reset()
        captured, given, mode = unpacked(graph)
        with ExitStack() as stack:
            applied(captured.settings, stack)
            stack.enter_context(backward_too())
            stack.enter_context(tracing(TracingContext(mode)))
            compile_fx(captured.graph, given, config_patches=captured.patches)


if __name__ == "__main__":
    main()
