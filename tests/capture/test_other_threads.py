"""What threads run that begin inside a recording: counted, as ops without a cost, so that coverage is of all work."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import torch
from recorded_model import raiser, recorded
from torch import nn
from torch_state import torch_state

import rooflight as rl
from rooflight.records.session import Uncounted

NONE = Uncounted(0, 0)


def adds(count: int) -> None:
    """So many ops; each reads two tensors of 4 x 4 bytes and makes a third: 48 bytes."""
    one, other = torch.ones(4), torch.ones(4)  # two more ops of 16 bytes each
    for _ in range(count):
        torch.add(one, other)


def in_new_thread(work: Callable[..., Any], *args: Any) -> None:
    thread = Thread(target=work, args=args)
    thread.start()
    thread.join()


class Worker(Thread):
    """A class of threads with a method of its own, as most programs have them."""

    def run(self) -> None:
        adds(8)


def of_a_class() -> None:
    worker = Worker()
    worker.start()
    worker.join()
    assert "run" not in worker.__dict__


def of_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(adds, [2, 2]))  # 4 + 4 calls
        pool.submit(int).result()


def of_threads_of_threads() -> None:
    in_new_thread(in_new_thread, adds, 8)


@pytest.mark.parametrize("start", [lambda: in_new_thread(adds, 8), of_a_class, of_threads_of_threads])
def test_ops_of_threads_begun_inside_lower_the_coverage(start: Callable[[], None]) -> None:
    session = recorded(lambda: (adds(3), start()))
    assert session.other_threads == (10, 8 * 48 + 2 * 16)
    coverage = rl.analyze(session, "A100-SXM4-80GB").coverage
    assert coverage.calls == pytest.approx(5 / 15)  # 3 adds and their 2 tensors here, 8 and 2 there
    assert coverage.bytes == pytest.approx((3 * 48 + 2 * 16) / (11 * 48 + 4 * 16))
    (row,) = coverage.uncosted
    assert (row.name, row.calls, row.bytes) == ("(other threads)", 10, 416)
    assert "record in them too" in row.reason


def test_bytes_are_those_that_a_recording_would_count() -> None:
    net, rows = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.GELU()), torch.ones(3, 8)

    def step() -> None:
        net.zero_grad()
        net(rows + rows).sum().backward()
        torch.ones(2).expand(3, 2).clone()

    here, there = recorded(step), recorded(lambda: in_new_thread(step))
    numbers = here.columns.signature[here.counted].tolist()
    ops = [here.signatures[number] for number in numbers]
    assert there.other_threads.calls == len(ops)
    assert there.other_threads.bytes == sum(op.input_bytes + op.output_bytes for op in ops)


def test_jobs_are_counted_even_if_their_pool_is_older() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(adds, 1).result()
        session = recorded(lambda: pool.submit(adds, 8).result())
        assert session.other_threads.calls == 10
        assert pool.submit(lambda: torch_state()["dispatch modes"]).result() == 0
    assert recorded(of_a_pool).other_threads.calls == 8


def test_a_session_of_other_threads_alone_says_so(tmp_path) -> None:
    session = recorded(lambda: in_new_thread(adds, 8))
    loaded = rl.load(session.save(tmp_path / "session"))
    assert loaded.other_threads == session.other_threads
    analysis = rl.analyze(loaded, "A100-SXM4-80GB")
    assert analysis.coverage.calls == analysis.coverage.bytes == 0
    assert "(other threads): began inside the recording" in str(analysis)
    assert [each.id for each in analysis.report().tables] == ["not_costed"]


def test_threads_that_record_themselves_are_not_counted_meanwhile() -> None:
    sessions = []

    def work() -> None:
        adds(1)
        sessions.append(recorded(lambda: adds(4)))
        sessions.append(recorded(lambda: in_new_thread(adds, 5)))

    session = recorded(lambda: in_new_thread(work))
    assert [len(each) for each in sessions] == [6, 0]
    assert [each.other_threads.calls for each in sessions] == [0, 7]
    assert session.other_threads.calls == 3 + 7  # nobody records the thread of the thread


def test_nested_recordings_each_count_their_threads() -> None:
    with rl.record() as outer:
        in_new_thread(adds, 1)
        inner = recorded(lambda: in_new_thread(adds, 2))
    assert (inner.other_threads.calls, outer.session.other_threads.calls) == (4, 7)


def test_what_computes_nothing_costs_nothing() -> None:
    assert recorded(lambda: in_new_thread(sum, [1, 2])).other_threads == NONE
    assert recorded(lambda: (torch.ones(3, requires_grad=True) * 2).sum().backward()).other_threads == NONE


def test_older_threads_and_other_recordings_threads_are_not_seen() -> None:
    go, elsewhere = Event(), []
    older = Thread(target=lambda: (go.wait(), elsewhere.append(recorded(lambda: in_new_thread(adds, 1))), adds(9)))
    older.start()
    session = recorded(lambda: (go.set(), older.join()))
    assert session.other_threads == NONE
    assert elsewhere[0].other_threads.calls == 3


def test_what_a_thread_raises_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("threading.excepthook", errors.append)
    session = recorded(lambda: in_new_thread(lambda: (adds(1), raiser(KeyError)())))
    assert session.other_threads.calls == 3
    assert [each.exc_type for each in errors] == [KeyError]
    with ThreadPoolExecutor(1) as pool, rl.record(), pytest.raises(KeyError):
        pool.submit(raiser(KeyError)).result()


def test_a_thread_may_outlive_the_recording() -> None:
    begun, go, left = Event(), Event(), []

    def work() -> None:
        adds(1)
        begun.set()
        go.wait()
        adds(9)
        left.append(torch.compile(lambda value: value * 2, backend="aot_eager")(torch.ones(3)).tolist())

    thread = Thread(target=work)
    with rl.record() as recording:
        thread.start()
        begun.wait()
        assert recording.so_far().other_threads.calls == 3
    tape = weakref.ref(recording._source)
    session = recording.session
    del recording
    gc.collect()
    assert tape() is None  # it does not wait for the thread
    go.set()
    thread.join()
    assert session.other_threads.calls == 3
    assert left == [[2.0, 2.0, 2.0]]


def test_a_thread_that_cannot_start_is_as_before() -> None:
    thread = Thread(target=adds, args=(1,))
    with rl.record():
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
    assert "run" not in thread.__dict__


def test_compiled_code_counts_where_it_is_dispatched_and_not_while_it_is_compiled(fresh_dynamo: None) -> None:
    compiled = torch.compile(lambda value: torch.add(value, 1).sin(), backend="eager")
    value = torch.ones(3)
    for _ in range(2):  # the first compiles
        assert recorded(lambda: in_new_thread(compiled, value)).other_threads.calls == 2


def test_asyncio_hands_jobs_to_threads() -> None:
    async def main() -> rl.Session:
        with rl.record() as recording:
            adds(1)
            await asyncio.to_thread(adds, 8)
        return recording.session

    session = asyncio.run(main())
    assert (len(session), session.other_threads.calls) == (3, 10)


def test_a_loader_s_threads_are_not_the_program_s() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=2, num_workers=1)
    assert recorded(lambda: list(loader)).other_threads == NONE
