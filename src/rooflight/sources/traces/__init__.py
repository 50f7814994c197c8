"""Makes sessions of profiles taken elsewhere, by torch.profiler or Nsight Systems, without a GPU."""
