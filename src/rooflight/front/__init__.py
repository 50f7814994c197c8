"""Finds devices and opens targets for all verbs. Prints nothing.

``device`` finds devices, ``sessions`` analyses what was recorded, ``targets`` turns what a user names into an analysis.
"""
