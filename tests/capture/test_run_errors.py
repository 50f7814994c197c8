"""The error that ends a script: shown as the script's own, and told in one sentence."""

from __future__ import annotations

import errno
import socket
import traceback
from itertools import pairwise
from pathlib import Path

import pytest

import rooflight
from rooflight.sources.capture.run.errors import of_script, reason_of

OWN = str(Path(rooflight.__file__).parent / "sources" / "virtual" / "mode.py")


def run(text, file="/home/me/train.py", **names):
    """What a function ``run`` that a file defines raises."""
    namespace = dict(names)
    exec(compile(text, file, "exec"), namespace)
    return namespace["run"]


def raised(by):
    try:
        by()
    except BaseException as error:
        return error
    raise AssertionError


def lines_of(error):
    kept = of_script(error, START.__code__)
    return [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(kept)]


def START(script):  # noqa: N802 - as a launcher's
    script()


def script(library, error):
    """A script's function, called by the launcher, that calls ours, which calls a library, which raises."""
    inner = run("def run():\n    raise error", library, error=error)
    ours = run("def run():\n    inner()", OWN, inner=inner)
    own = run("\n\ndef run():\n    ours()", ours=ours)
    return raised(lambda: START(own))


def test_ours_and_what_it_called_are_left_out():
    assert lines_of(script("/usr/lib/site-packages/torch/x.py", RuntimeError("of torch")))[-1] == "train.py:4"


def test_the_scripts_own_code_below_ours_is_kept():
    assert lines_of(script("/home/me/model.py", RuntimeError("of a model")))[-2:] == ["train.py:4", "model.py:2"]


def test_a_fault_of_ours_is_shown_where_it_is():
    assert lines_of(script(OWN, KeyError("ours")))[-2:] == ["mode.py:2", "mode.py:2"]
    assert lines_of(script(OWN, TypeError("train.py:4: cannot be")))[-1] == "train.py:4"


def test_what_led_to_it_loses_them_too():
    error = script("/home/me/model.py", ValueError("second"))
    error.__cause__ = script("/usr/lib/site-packages/torch/x.py", ValueError("first"))
    lines_of(error)
    files = [each.filename for each in traceback.extract_tb(error.__cause__.__traceback__)]
    assert OWN not in files
    assert files[-1] == "/home/me/train.py"


def chained(*errors):
    for before, after in pairwise(errors):
        after.__context__ = before
    return errors[-1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("too\n  short."), "train.py:2 raised ValueError: too short"),
        (ValueError("too short!"), "train.py:2 raised ValueError: too short"),
        (SystemExit("no data"), "train.py:2 exits: no data"),
        (RuntimeError("train.py:2 asks for cuda:3"), "train.py:2 asks for cuda:3"),
        (chained(socket.gaierror(-2, "unknown"), OSError("no hub")), "train.py:2 needs a network, which is not here"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "train.py:2 needs a network, which is not here"),
        (MemoryError(), "train.py:2 needs more memory than this machine has"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "train.py:2 needs more memory"),
    ],
)
def test_in_one_sentence(error, said):
    found = reason_of(raised(run("def run():\n    raise error", error=error)))
    assert found.startswith(said)
    assert not found.endswith((".", "!"))


def test_in_one_sentence_without_a_line():
    assert reason_of(SyntaxError("bad")).startswith("it raised SyntaxError: bad")
