"""What holds for every program: of random ones, with in-place ops, products, barriers and ops nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
import torch
from builders import op, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Call, session_of

import rooflight as rl
from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of
from rooflight.devices import get
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import KEPT, STOOD, Lifetimes, Session
from rooflight.roofline.analysis import analyze
from rooflight.roofline.fusion import apart, regions
from rooflight.roofline.fusion.regions import Fusion, fuse

X = spec((8, 8))
ALIAS = spec((8, 8), storage=0)
OPS = {
    "exp": op("aten::exp", {"self": X}, [X]),
    "add": op("aten::add", {"self": X, "other": X}, [X]),
    "norm": op("aten::native_layer_norm", {"input": X}, [X, spec((8, 1)), spec((8, 1))], normalized_shape=(8,)),
    "foreach": op("aten::_foreach_mul", {"self": [X, X], "other": [X, X]}, [X, X]),
    "fill": op("aten::ones", [], [X]),
    "in place": op("aten::add_", {"self": ALIAS, "other": X}, [ALIAS]),
    "overwrite": op("aten::copy_", {"self": ALIAS, "src": X}, [ALIAS]),
    "softmax": op("aten::_softmax", {"self": X}, [X], dim=1),
    "product": op("aten::mm", {"self": X, "mat2": X}, [X]),
    "scatter": op("aten::index_add", {"self": X, "index": spec((8,), "int64"), "source": X}, [X], dim=0),
    "barrier": op("aten::linalg_cholesky", {"self": X}, [X]),
    "unknown": op("nobody::knows", {"x": X}, [X]),
    "view": op("aten::view", {"self": X}, [spec((64,))]),
}
IN_PLACE = ("in place", "overwrite")
STANDING = 3
H100 = get("H100-SXM5-80GB")


@dataclass(frozen=True)
class Program:
    """Calls and, for each, the earlier calls whose results it reads."""

    calls: tuple[Call, ...]

    def session(self) -> Session:
        return session_of(self.calls)

    def fusion(self) -> Fusion:
        session = self.session()
        return fuse(session, [cost_of(signature) for signature in session.signatures])

    def sources(self) -> list[set[int]]:
        makers: dict[int, int] = {}
        found = []
        for index, call in enumerate(self.calls):
            unread = call.reads[:1] if call.op is OPS["overwrite"] else ()
            found.append({makers[storage] for storage in call.reads if storage in makers and storage not in unread})
            makers.update(dict.fromkeys(call.writes, index))
        return found

    def reachable(self) -> list[set[int]]:
        """For each call, those that depend on it."""
        after: list[set[int]] = [set() for _ in self.calls]
        for index, sources in reversed(list(enumerate(self.sources()))):
            for source in sources:
                after[source] |= {index} | after[index]
        return after

    def reordered(self, random: Random) -> tuple[Program, list[int]]:
        """The calls in another order that respects what depends on what, and which call stands where."""
        waiting = dict(enumerate(self.sources()))
        order: list[int] = []
        while waiting:
            index = random.choice([index for index, sources in waiting.items() if sources <= set(order)])
            order.append(index)
            del waiting[index]
        return Program(tuple(self.calls[index] for index in order)), order


@st.composite
def programs(draw: st.DrawFn, in_place: bool = True) -> Program:
    names = [name for name in OPS if in_place or name not in IN_PLACE]
    calls: list[Call] = []
    storages = list(range(STANDING))
    for name in draw(st.lists(st.sampled_from(names), max_size=14)):
        signature = OPS[name]
        if name == "view":
            calls.append(Call(op=signature))
            continue
        reads = tuple(draw(st.sampled_from(storages)) for _ in signature.inputs)
        if name in IN_PLACE:
            calls.append(Call(op=signature, reads=reads, writes=reads[:1]))
            continue
        writes = tuple(range(len(storages), len(storages) + len(signature.outputs)))
        storages += writes
        calls.append(Call(op=signature, reads=reads, writes=writes))
    return Program(tuple(calls))


@settings(deadline=None)
@given(programs())
def test_regions_partition_the_working_records_and_move_no_more_than_the_ops(program: Program):
    fusion = program.fusion()
    records = [record for region in fusion.regions for record in region.records]
    assert sorted(records) == [index for index, call in enumerate(program.calls) if call.op is not OPS["view"]]
    assert [region.records[0] for region in fusion.regions] == sorted(min(r.records) for r in fusion.regions)
    for region in fusion.regions:
        costs = [cost_of(program.calls[record].op) for record in region.records]
        assert region.bytes_read <= sum(cost.bytes_read for cost in costs if isinstance(cost, OpCost))
        assert region.bytes_written <= sum(cost.bytes_written for cost in costs if isinstance(cost, OpCost))
    assert fusion.bytes_in <= sum(region.bytes_read for region in fusion.regions)
    assert fusion.bytes_out <= sum(region.bytes_written for region in fusion.regions)


@settings(deadline=None)
@given(programs())
def test_no_path_leaves_a_region_and_comes_back(program: Program):
    reachable = program.reachable()
    for region in program.fusion().regions:
        inside = set(region.records)
        for outside in set(range(len(program.calls))) - inside:
            assert not (any(outside in reachable[record] for record in inside) and reachable[outside] & inside)


@settings(deadline=None)
@given(programs(in_place=False), st.randoms(use_true_random=False))
def test_the_order_of_independent_ops_does_not_change_the_regions(program: Program, random: Random):
    other, order = program.reordered(random)
    expected = {frozenset(region.records) for region in program.fusion().regions}
    assert {frozenset(order[record] for record in region.records) for region in other.fusion().regions} == expected


@settings(deadline=None)
@given(programs(), st.integers(0, 14))
def test_compiled_code_needs_no_more_memory_at_the_least_than_the_ops_do(program: Program, turn: int):
    session = program.session()
    direction = np.where(np.arange(len(session)) < turn, Direction.FORWARD, Direction.BACKWARD).astype(np.int8)
    environment = {**session.environment, "compiled": "yes"}
    columns, sizes = replace(session.columns, direction=direction), np.full(len(session.storage_bytes), X.nbytes)
    session = replace(session, columns=columns, environment=environment, storage_bytes=sizes)
    memory = analyze(session, H100).memory
    assert memory.standing_bytes <= memory.compiled_least_bytes <= memory.peak_bytes


@settings(deadline=None)
@given(programs())
def test_program_bound_below_fused_bound_below_op_bound(program: Program):
    analysis = analyze(program.session(), H100)
    bounds, totals = analysis.program, analysis.totals
    assert bounds.program_bound_s <= bounds.fused_bound_s <= totals.op_bound_s * (1 + 1e-12)
    assert bounds.compulsory_bytes <= bounds.fused_bytes <= totals.bytes_moved
    assert bounds.regions == len(program.fusion().regions)
    causes = analysis.account.by("cause")
    assert sum(causes.values()) == pytest.approx(totals.op_bound_s)
    assert causes.get("light", 0.0) == pytest.approx(bounds.fused_bound_s)


@settings(deadline=None, max_examples=30)
@given(programs(), programs(), st.integers(0, 1 << 30))
def test_steps_that_share_no_memory_fuse_as_they_do_in_one_graph(one: Program, other: Program, seed: int) -> None:
    calls: list[Call] = []
    random, shift = np.random.default_rng(seed), 0
    for program in random.choice(np.array([one, other], dtype=object), size=6):
        moved = [
            replace(call, reads=tuple(s + shift for s in call.reads), writes=tuple(s + shift for s in call.writes))
            for call in program.calls
        ]
        calls += moved
        shift = 1 + max((s for call in calls for s in (*call.reads, *call.writes)), default=-1)
    session = session_of(calls, storage_bytes=[256] * shift)
    if seed % 2:
        followed = Lifetimes(
            kind=random.choice([StorageKind.GRADIENT, StorageKind.TEMPORARY], shift).astype(np.int8),
            made=random.choice([STOOD, 0], shift).astype(np.int32),
            freed=random.choice([KEPT, len(session), 0], shift).astype(np.int32),
            local=random.choice([False, True], shift),
            owner=np.zeros(shift, np.int32),
        )
        session = replace(session, lifetimes=followed)
    costs = [cost_of(signature) for signature in session.signatures]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apart, "_LEAST", 1)
        stretched = fuse(session, costs)
    whole = fuse(session, costs)
    assert list(stretched.regions) == list(whole.regions)
    assert replace(stretched, regions=()) == replace(whole, regions=())
    for mine, other_ones in zip(stretched.columns(), whole.columns(), strict=True):
        assert mine.tolist() == other_ones.tolist()


def test_a_loop_that_updates_its_weights_is_fused_in_time_that_grows_with_its_steps(monkeypatch):
    followed = 0

    def follow(flow, value, wanted, depth, original=regions._Flow._into):
        nonlocal followed
        followed += 1
        return original(flow, value, wanted, depth)

    monkeypatch.setattr(regions._Flow, "_into", follow)

    def fused(steps: int) -> tuple[int, int]:
        nonlocal followed
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        optimizer, followed = torch.optim.AdamW(model.parameters()), 0
        with rl.record(model) as recording:
            for _ in range(steps):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        session = recording.session
        found = regions.fuse(session, [cost_of(op) for op in session.signatures])
        return followed, sum(region.bytes_read + region.bytes_written for region in found.regions)

    (few, few_bytes), (many, many_bytes) = fused(20), fused(40)
    assert many < 2.2 * few  # 3.7 times before
    assert 1.9 < many_bytes / few_bytes < 2.1
