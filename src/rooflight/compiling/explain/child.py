"""The process that explains a target: ``python -m rooflight.compiling.explain.child REPLY``, with an
ExplainRequest as JSON on standard input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from rooflight.compiling.explain.explain import explained
from rooflight.compiling.explain.program import open_program
from rooflight.compiling.explain.result import ExplainDocument
from rooflight.compiling.options import Options
from rooflight.compiling.process import replied
from rooflight.records.files import write_whole
from rooflight.workloads.errors import RunFailed, TargetError, told_in_one_line


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A target to explain, over so many calls; ``code``: with the sources of kernels."""

    target: str
    options: Options
    calls: int
    inputs: str | None
    compile_mode: str
    backend: str
    dynamic: bool | None
    code: bool
    dispatcher: bool
    threads: int
    place: str


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What the process answers: one of its fields. ``wrong`` is the user's mistake, ``failed`` a program that broke."""

    document: ExplainDocument | None = None
    wrong: str = ""
    failed: str = ""


def explanation(request: ExplainRequest, cache: Path, *, limit_s: float | None = None) -> ExplainDocument:
    """The explanation, made in a process of its own, so that nothing was compiled before.

    Raises TargetError for the user's mistake, RunFailed for a program that breaks, dies or takes longer than
    ``limit_s``.
    """
    module = "rooflight.compiling.explain.child"
    reply = replied(module, request, cache, threads=request.threads, limit_s=limit_s)
    answer = msgspec.json.decode(reply, type=Explained)
    if answer.wrong:
        raise TargetError(answer.wrong)
    if answer.failed:
        raise RunFailed(answer.failed)
    assert answer.document is not None
    return answer.document


def answer(request: ExplainRequest) -> Explained:
    """What the request asks for; the program's errors are an answer too."""
    try:
        program, notes = open_program(
            request.target, request.options, calls=request.calls, place=request.place, inputs=request.inputs
        )
        document = explained(
            program,
            backend=request.backend,
            mode=request.compile_mode,
            dynamic=request.dynamic,
            code=request.code,
            dispatcher=request.dispatcher,
            notes=notes,
        )
    except TargetError as error:
        return Explained(wrong=str(error))
    except RunFailed as error:
        return Explained(failed=str(error))
    except Exception as error:
        return Explained(failed=told_in_one_line(error))
    return Explained(document=document)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_LOGS_OUT", os.devnull)  # read when torch is imported
    import torch

    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=ExplainRequest)
    torch.set_num_threads(asked.threads)
    write_whole(Path(sys.argv[1]), msgspec.json.encode(answer(asked)))
