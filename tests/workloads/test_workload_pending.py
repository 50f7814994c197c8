"""Functions that a call does not run are refused, in whatever form they come."""

from __future__ import annotations

import functools

import pytest

from rooflight.sources.workloads.errors import TargetError
from rooflight.sources.workloads.user_code import refuse_async, refuse_generator, refuse_pending


def numbers():
    yield 1


async def later():
    return 1


async def numbers_later():
    yield 1


class Called:
    async def __call__(self):
        return 1

    async def forward(self):
        return 1


class Yields:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    ("function", "refuse", "passes", "kind"),
    [
        (later, refuse_async, refuse_generator, "an async function"),
        (numbers_later, refuse_async, refuse_generator, "an async generator"),
        (Called(), refuse_async, refuse_generator, "an async function"),
        (Called().forward, refuse_async, refuse_generator, "an async function"),
        (functools.partial(later), refuse_async, refuse_generator, "an async function"),
        (numbers, refuse_generator, refuse_async, "a generator function"),
        (Yields(), refuse_generator, refuse_async, "a generator function"),
        (functools.partial(numbers), refuse_generator, refuse_async, "a generator function"),
    ],
)
def test_async_functions_and_generators(function, refuse, passes, kind) -> None:
    with pytest.raises(TargetError, match=f"^t.py:f is {kind}, and calling it runs nothing: name a function that runs"):
        refuse(function, "t.py:f")
    passes(function, "t.py:f")


@pytest.mark.parametrize(
    ("make", "kind"), [(later, "a coroutine"), (numbers, "a generator"), (numbers_later, "a generator")]
)
def test_results_that_have_not_run(make, kind) -> None:
    with pytest.raises(TargetError, match=f"^t.py:f is a function that returns {kind}, and calling it runs nothing"):
        refuse_pending(make(), "t.py:f")


@pytest.mark.parametrize("plain", [print, len, object(), dict, 3, None])
def test_what_runs_passes(plain) -> None:
    refuse_async(plain, "t.py:f")
    refuse_generator(plain, "t.py:f")
    refuse_pending(plain, "t.py:f")
