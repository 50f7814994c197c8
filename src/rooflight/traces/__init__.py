"""Sessions from profiles that torch's profiler took elsewhere: Kineto traces, read without a GPU."""
