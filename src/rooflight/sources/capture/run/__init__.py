"""A script run as it is, watched from outside: ``rooflight run``.

- ``launch`` runs it as ``python`` does, ``watch`` is there from before it to its end, ``children`` follows processes.
- ``hooks`` waits until it imports torch, and sets hooks there. From their calls ``finder`` tells where steps begin and
  end, by ``callers``; ``quick`` does the same for a step that is known, at a third of the time. ``waits`` has what is
  known to lie between.
- ``recording`` records a step; ``steps`` has the times of all; ``outcome`` makes a session of both.
"""
