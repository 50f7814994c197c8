"""What the front door does that no room does alone; it prints nothing.

``device`` finds devices, ``sessions`` analyses what was recorded, ``targets`` turns what a user names into an analysis.
"""
