"""Observes functions and modules that are called again and again, and compiles them where that pays.

A plan takes the place of a function, or of a module's ``forward``, and gives it back. Each kind of call (shapes,
mode, grad) is decided apart: its pattern is watched by the keys of the recorder's readers; the gain is asked for,
from what an earlier run found or from ``prediction``; it is compiled, with each graph compared with itself run
eagerly; and it is timed against eager. Once all kinds of call of a loop are decided, calls go straight to their code.
"""
