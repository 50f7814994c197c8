"""Records the ops of a live program: torch modes and hooks note each call on a tape, which becomes a session."""
