"""Who is listened to where several threads run: the one that steps."""

from __future__ import annotations

import threading

from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.listening import Listening


class Heard(Listening):
    """Notes what reaches the finder."""

    def __init__(self):
        super().__init__(skip=2)
        self.kinds, fold = [], self.finder.fold
        self.finder.fold = lambda event: (self.kinds.append(type(event).__name__), fold(event))[1]


def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_the_first_thread_that_goes_backward_is_the_one_that_steps_and_others_are_not_heard():
    ear = Heard()
    ear.tell(events.BackwardBegins)
    elsewhere(lambda: ear.tell(events.BackwardBegins))
    elsewhere(lambda: ear.tell(events.Fetches, 1, 0))
    ear.tell(events.Fetches, 1, 0)
    assert ear.kinds == ["BackwardBegins", "Fetches"]


def test_a_thread_that_fetches_ahead_before_any_step_is_not_the_one_that_steps():
    ear = Heard()
    elsewhere(lambda: ear.tell(events.Fetches, 1, 0))
    assert ear.finder.thread is None
    ear.tell(events.BackwardBegins)
    elsewhere(lambda: ear.tell(events.Fetches, 1, 0))
    assert ear.kinds == ["Fetches", "BackwardBegins"]
    assert ear.finder.thread == threading.get_ident()
