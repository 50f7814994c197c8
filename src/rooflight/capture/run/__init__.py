"""A script run as it is, watched from outside: ``rooflight run``.

``launch`` runs it as ``python`` would, ``hooks`` waits for its import of torch and sets the hooks, ``finder`` tells from
their calls where its steps begin and end and records one, ``steps`` are their times, ``ending`` writes the session.
"""
