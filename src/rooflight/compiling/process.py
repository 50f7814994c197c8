"""A module of this package run in a process of its own: a request goes in as JSON, a reply comes back as JSON."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from rooflight.workloads.errors import RunFailed


def replied(module: str, request: msgspec.Struct, cache: Path, *, threads: int, limit_s: float | None = None) -> bytes:
    """What ``module`` writes to the file that its command line names, with ``cache`` as Inductor's folder.

    What the program prints is dropped. Raises RunFailed for a process that dies or takes longer than ``limit_s``.
    """
    with tempfile.TemporaryDirectory(prefix="rooflight-compile-") as folder:
        reply = Path(folder) / "reply.json"
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-m", module, str(reply)]
        with Path(folder, "stderr").open("w+b") as errors:
            code = _ended(command, msgspec.json.encode(request), errors, environment, limit_s)
            if not reply.exists():
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise RunFailed(f"its process ended with code {code}: {lines[-1]}")
        return reply.read_bytes()


def _ended(
    command: list[str], given: bytes, errors: IO[bytes], environment: dict[str, str], limit_s: float | None
) -> int:
    """The exit code of a process. Raises RunFailed where it takes longer, after ending it and all that it started: the
    compilers too.
    """
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
