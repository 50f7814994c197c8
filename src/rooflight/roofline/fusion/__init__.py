"""Finds which ops one kernel could do together, what each of them needs, and the least that moves between kernels."""
