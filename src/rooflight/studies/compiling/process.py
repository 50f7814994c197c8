"""A function of this package run in a process of its own: a request goes in as JSON, its result comes back as JSON.

The process is ``python -m rooflight.studies.compiling.process FUNCTION REPLY``, with the request on standard input.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar, get_type_hints

import msgspec

from rooflight.records.files import write_whole
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.studies.compiling.refusals import reason_of

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One of its fields. ``wrong`` is the user's mistake, ``failed`` a program that broke."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    wrong: str = ""
    failed: str = ""


def answered(
    function: Callable[[_Given], _Result], request: _Given, cache: Path, *, threads: int, limit_s: float | None = None
) -> _Result:
    """What a function at the top level of a module returns for a request, run in a process of so many threads with
    ``cache`` as Inductor's folder. Types of request and result are those of the function's annotations.

    What the program prints is dropped. Raises TargetError for the user's mistake, RunFailed for a program that breaks,
    dies or takes longer than ``limit_s``.
    """
    with tempfile.TemporaryDirectory(prefix="rooflight-compile-") as folder:
        reply = Path(folder) / "reply.json"
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TMPDIR": folder,  # a compiler that is killed leaves its files there
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-m", __name__, f"{function.__module__}:{function.__name__}", str(reply)]
        with Path(folder, "stderr").open("w+b") as errors:
            code = _ended(command, msgspec.json.encode(request), errors, environment, limit_s)
            if not reply.exists():
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise RunFailed(f"its process ended with code {code}: {lines[-1]}")
        answer = msgspec.json.decode(reply.read_bytes(), type=_Answer)
    if answer.wrong:
        raise TargetError(answer.wrong)
    if answer.failed:
        raise RunFailed(answer.failed)
    result: _Result = msgspec.json.decode(answer.result, type=get_type_hints(function)["return"])
    return result


def _ended(
    command: list[str], given: bytes, errors: IO[bytes], environment: dict[str, str], limit_s: float | None
) -> int:
    """Raises RunFailed where it takes longer, after ending it and all that it started: the compilers too."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"took longer than {limit_s:g} s (--limit)") from error
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode


def _answer(function: Callable[[Any], Any], request: Any) -> _Answer:
    try:
        return _Answer(result=msgspec.Raw(msgspec.json.encode(function(request))))
    except TargetError as error:
        return _Answer(wrong=str(error))
    except Exception as error:
        return _Answer(failed=reason_of(error))


def _main(name: str, reply: str) -> None:
    os.environ.setdefault("TORCH_LOGS_OUT", os.devnull)  # read when torch is imported
    import torch

    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=get_type_hints(function)["request"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    write_whole(Path(reply), msgspec.json.encode(_answer(function, request)))
    gc.freeze()  # or Python looks through all of torch's objects, for half a second, as it ends


if __name__ == "__main__":
    _main(*sys.argv[1:])
