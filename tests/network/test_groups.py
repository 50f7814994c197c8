import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.hardware.network.collectives import CollectiveKind
from rooflight.hardware.network.groups import RankGroup

GROUPS = st.builds(
    RankGroup,
    size=st.integers(0, 1 << 20),
    nodes=st.integers(1, 1 << 10),
    ranks=st.lists(st.integers(0, 1 << 20), unique=True, max_size=64).map(lambda ranks: tuple(sorted(ranks))),
    name=st.text(max_size=8),
    description=st.text(max_size=8),
)


def in_signature(**attributes):
    return op("c10d::allreduce_", {"tensors": [spec((4,))]}, **attributes)


@given(GROUPS)
def test_a_signature_keeps_a_group(group):
    assert RankGroup.of(in_signature(**dict(group.attributes))) == group


def test_a_signature_keeps_only_what_is_known():
    assert RankGroup(size=8).attributes == (("group_size", 8),)
    assert RankGroup(size=2, nodes=2, ranks=(0, 8), name="3", description="mesh_dp").attributes == (
        ("group_size", 2),
        ("group_nodes", 2),
        ("group_ranks", (0, 8)),
        ("group_name", "3"),
        ("group_description", "mesh_dp"),
    )


@pytest.mark.parametrize(
    "attributes",
    [{}, {"group_size": "four"}, {"group_size": -1}, {"group_nodes": -3}, {"group_ranks": "0, 1"}],
    ids=str,
)
def test_what_a_signature_does_not_tell_is_not_known(attributes):
    assert RankGroup.of(in_signature(**attributes)) == RankGroup(size=0)


def test_a_group_without_nodes_cannot_be():
    with pytest.raises(ValueError, match="8 ranks cannot be on 0 nodes"):
        RankGroup(size=8, nodes=0)


def test_two_ranks_of_a_group_take_part_in_a_send():
    group = RankGroup(size=16, nodes=4, ranks=tuple(range(16)), name="1")
    assert group.taking_part(CollectiveKind.SEND) == RankGroup(size=2, nodes=2)
    assert group.taking_part(CollectiveKind.ALL_REDUCE) == RankGroup(size=16, nodes=4)
    assert RankGroup(size=8).taking_part(CollectiveKind.RECEIVE) == RankGroup(size=2)
    assert RankGroup(size=0, nodes=3).taking_part(CollectiveKind.BROADCAST) == RankGroup(size=3, nodes=3)
