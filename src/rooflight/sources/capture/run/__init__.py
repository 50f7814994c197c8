"""A script run as it is, watched from outside: ``rooflight run``.

- ``launch`` runs it as ``python`` does, ``watch`` is there from before it to its end, ``children`` follows processes.
- ``hooks`` waits until it imports torch, and sets hooks there, by which ``listening`` hears what it does: ``events``.
  Of these alone ``finder`` tells where steps begin and end. ``waits`` has what is known to lie between.
- ``recording`` records a step; ``steps`` has the times of all; ``outcome`` makes a session of both.
"""
