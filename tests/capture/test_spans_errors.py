"""Spans where something raises: whatever ended a call, the next one is timed right, and the sum always."""

import pytest
from recorded_model import built
from ticking import BACKWARD, FORWARD, Block, Leaf, Ticking, tick, times, x
from torch import nn

OUTSIDE = ("", FORWARD)


class Breaks(nn.Module):
    """Raises what it is told to, after 3 s, forward or backward."""

    def __init__(self, ticking: Ticking, error: type[BaseException] | None, *, backward: bool = False) -> None:
        super().__init__()
        self.clock, self.error, self.backward = ticking.clock, error, backward

    def forward(self, x):
        x = tick(x, self.clock, 3, 5)
        if self.error and self.backward:
            x.register_hook(self._raise)
        elif self.error:
            self._raise()
        return x

    def _raise(self, *_: object) -> None:
        assert self.error is not None
        raise self.error("stop")


def test_a_module_that_raised_is_over(ticking):
    net = nn.Sequential(Block(ticking, Leaf(ticking.clock, 3), broken := Breaks(ticking, ValueError)))
    with ticking.attached(net) as timer:
        with pytest.raises(ValueError, match="stop"):
            net(x())
        ticking.clock.advance(1000)
        broken.error = None
        net(x()).sum().backward()
        ticking.clock.advance(2000)
        seconds = ticking.seconds(timer)
    assert seconds[OUTSIDE] == 3000
    assert seconds["0", FORWARD] == 11 + 111
    assert seconds["0.b", FORWARD] == 6


def test_a_caller_that_catches_goes_on_in_its_own_name(ticking):
    def forward(self, x):
        try:
            self.broken(x)
        except ValueError:
            ticking.clock.advance(1)
        return x

    with ticking.attached(net := built(forward, "Net", broken=Breaks(ticking, ValueError))) as timer:
        net(x())
        ticking.clock.advance(1000)
        assert ticking.seconds(timer) == {("Net", FORWARD): 1, ("broken", FORWARD): 3, OUTSIDE: 1000}


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_a_hook_of_the_users_that_raises(ticking, kind):
    def forward(self, x):
        with pytest.raises(ValueError, match="stop"):
            self.leaf(x)
        ticking.clock.advance(10)
        return x

    def stop(*_):
        raise ValueError("stop")

    net = built(forward, "Net", leaf=Leaf(ticking.clock, 3))
    net.leaf.register_forward_pre_hook(stop) if kind == "pre" else net.leaf.register_forward_hook(stop)
    with ticking.attached(net) as timer:
        net(x())
        ticking.clock.advance(100)
        seconds = ticking.seconds(timer)
    assert seconds == {("Net", FORWARD): 10, OUTSIDE: 100, **({("leaf", FORWARD): 3} if kind == "post" else {})}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_backward_pass_that_raised_is_over(ticking, error):
    broken = Breaks(ticking, error, backward=True)
    net = nn.Sequential(Leaf(ticking.clock, 1, 2), broken, Leaf(ticking.clock, 10, 20))
    with ticking.attached(net) as timer:
        with pytest.raises(error):
            net(x()).sum().backward()
        broken.error = None
        first = ticking.seconds(timer)
        assert first[("2", BACKWARD)] == 20
        net(x()).sum().backward()
        ticking.clock.advance(1000)
        assert ticking.seconds(timer) == times(1000, {"0": 1, "1": 3, "2": 10}, {"0": 2, "1": 5, "2": 20})


def test_the_same_step_goes_on_after_a_backward_pass_that_raised(ticking):
    broken = Breaks(ticking, ValueError, backward=True)
    net = nn.Sequential(broken, Leaf(ticking.clock, 10, 20))
    with ticking.attached(net) as timer:
        with pytest.raises(ValueError, match="stop"):
            net(x()).sum().backward()
        broken.error = None
        net(x()).sum().backward()
        ticking.clock.advance(1000)
        spans = timer.cut()()
    assert spans.events.count("backward") == 1
    calls = [event for event in spans.events if isinstance(event, tuple)]
    assert len(calls) == 2  # the second pass is seen as one
    assert {place.module: round(s) for place, s in spans.seconds.items()}[""] == 1000


@pytest.mark.parametrize("depth", [0, 1])
def test_an_interrupt_in_the_middle_spoils_at_most_its_own_step(ticking, depth):
    broken = Breaks(ticking, KeyboardInterrupt)
    net = broken if depth == 0 else nn.Sequential(Leaf(ticking.clock, 1), broken)
    path = "Breaks" if depth == 0 else "1"
    with ticking.attached(net) as timer:
        with pytest.raises(KeyboardInterrupt):
            net(x())
        broken.error = None
        ticking.clock.advance(1000)
        ticking.seconds(timer)
        net(x())
        ticking.clock.advance(1000)
        seconds = ticking.seconds(timer)
        assert seconds[path, FORWARD] == 3
        assert seconds[OUTSIDE] == 1000
