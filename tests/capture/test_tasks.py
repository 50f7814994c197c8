"""Recordings in asyncio tasks of one thread: each has the ops of its own context, in whatever order they take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from recorded_model import x
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import rooflight as rl
from rooflight.sources.capture.record.tasks import TaskSource


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*[layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1))])


async def training(name: str, **how: Any) -> rl.Session:
    """Modules, phases, a composite, an optimizer, memory shared with numpy; others take their turn between any two."""
    net, params = Net(), [torch.ones(1, 2, 3, 4, requires_grad=True)] * 3
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with rl.record(net, **how) as recording:
        value = x()
        for layer in net:
            with rl.phase(name):
                await asyncio.sleep(0)
                value = layer(value)
        value.sum().backward()
        await asyncio.sleep(0)
        optimizer.step()
        scaled_dot_product_attention(*params).sum().backward()
        x().numpy()
        await asyncio.sleep(0)
    return recording.session


def seen(session: rl.Session) -> list[tuple[Any, ...]]:
    return [
        (op.signature, op.module, op.direction, bool(op.phase), op.function, op.reads, op.writes, op.parent)
        for op in session.records
    ]


@pytest.mark.parametrize("how", [{}, {"functions": True}, {"memory": True}, {"times": True}])
def test_tasks_record_each_their_own(how: dict[str, Any]) -> None:
    async def main() -> tuple[rl.Session, list[rl.Session], list[rl.Session]]:
        alone = await training("alone", **how)
        together = await asyncio.gather(*[training(f"task {number}", **how) for number in range(3)])
        with rl.record() as around:
            inside = await asyncio.gather(*[training(f"task {number}", **how) for number in range(3)])
        assert len(around.session) > sum(map(len, inside))  # a recording has the tasks that it started
        return alone, together, inside

    alone, *several = asyncio.run(main())
    for sessions in several:
        for number, session in enumerate(sessions):
            assert seen(session) == seen(alone)
            assert session.phases == ("", f"task {number}")
            assert session.notes == alone.notes == ()


def test_a_task_that_records_nothing_is_not_recorded_and_works_as_ever() -> None:
    async def others() -> torch.Tensor:
        for _ in range(4):
            with rl.phase("other"):
                out = scaled_dot_product_attention(*[x()] * 3)
                await asyncio.sleep(0)
        return out

    async def main() -> tuple[rl.Session, torch.Tensor]:
        other = asyncio.create_task(others())
        return await training("mine"), await other

    session, out = asyncio.run(main())
    assert seen(session) == seen(asyncio.run(training("alone")))
    assert torch.equal(out, scaled_dot_product_attention(*[x()] * 3))


def test_a_recording_around_the_loop_has_all_of_its_tasks() -> None:
    async def main() -> None:
        await asyncio.gather(one(), one())

    async def one() -> None:
        torch.ones(3)
        await asyncio.sleep(0)
        torch.ones(3)

    with rl.record() as recording:
        asyncio.run(main())
    assert len(recording.session) == 4


def test_an_async_generator_that_is_closed_elsewhere_says_so() -> None:
    recordings: list[rl.record] = []

    async def steps() -> AsyncIterator[torch.Tensor]:
        with rl.record() as recording:
            recordings.append(recording)
            while True:
                yield torch.ones(3)

    async def first(found: AsyncIterator[torch.Tensor]) -> None:
        await anext(found)

    async def main() -> None:
        found = steps()
        await asyncio.create_task(first(found))
        torch.zeros(3)  # not of the task in which it began
        await found.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    (session,) = [recording.session for recording in recordings]
    assert [op.signature.name for op in session.records] == ["aten::ones"]
    assert "another asyncio task" in session.notes[0]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_a_task_that_raises_leaves_the_others_recording(error: type[BaseException]) -> None:
    async def breaks() -> None:
        with rl.record():
            torch.ones(3)
            await asyncio.sleep(0)
            if error is not KeyboardInterrupt:
                raise error

    async def main() -> rl.Session:
        found, _ = await asyncio.gather(training("mine"), breaks(), return_exceptions=True)
        assert isinstance(found, rl.Session)
        return found

    assert seen(asyncio.run(main())) == seen(asyncio.run(training("alone")))


def test_threads_of_autograd_ask_the_task_that_waits_for_them() -> None:
    answers: dict[str, bool] = {}

    def ask(name: str, source: TaskSource) -> None:
        thread = threading.Thread(target=lambda: answers.update({name: source.here}))
        thread.start()
        thread.join()

    async def main() -> None:
        recording = rl.record()

        async def other(ask: Callable[..., None]) -> None:
            ask()

        asking = asyncio.create_task(other(lambda: ask("other", source)))
        with recording:
            source = recording._source
            assert isinstance(source, TaskSource)
            await asking
            ask("own", source)

    asyncio.run(main())
    assert answers == {"own": True, "other": False}


def test_phases_that_overlap_end_each_their_own() -> None:
    first, second = rl.phase("first"), rl.phase("second")
    with rl.phase("around"):
        first.__enter__()
        second.__enter__()
        first.__exit__()
        second.__exit__()
        with rl.record() as recording:
            torch.ones(3)
    assert [op.phase for op in recording.session.records] == ["around"]
