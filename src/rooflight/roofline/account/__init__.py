"""The account of an iteration: its wall cut into pieces once, from which every word of a report is read."""
