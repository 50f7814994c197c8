"""Hardware: devices and their peaks, networks, and the machine at hand, its clocks and its measured roofs."""
