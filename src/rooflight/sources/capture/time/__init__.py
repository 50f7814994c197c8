"""Times a running program: ops by Kineto, modules by marks, buckets of a step by stamps.

Ops are timed in passes of their own, never while recording. Whole steps run with nothing attached; then a few run
under Kineto, without shapes or stacks, and its outermost events are aligned with the records, in order. On CUDA an
op's time is the time of the kernels that it launched; a collective's is that of NCCL's kernel or of gloo's own span.
If fewer than nine in ten working records have an event, no op times are kept, and a note says so.

Marks cut time where a module begins or ends, backward reaches a module's first node, an optimizer steps or a phase
changes: each stretch belongs to the mark before it, so the parts sum to the whole. A mark on a CPU reads the clock;
on CUDA it records an event, read when the device has passed it.
"""
