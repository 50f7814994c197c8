"""Sessions from profiles taken elsewhere: traces of torch's profiler and of Nsight Systems, read without a GPU."""
