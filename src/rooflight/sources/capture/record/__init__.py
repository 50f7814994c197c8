"""Records the ops of a running program: torch modes and hooks note each call on a tape, which becomes a session.

``DispatchSource`` is a torch dispatch mode: every op below autograd passes through it. A *reader*, made once from the
op's schema, forms a key of shapes, dtypes, strides, settings and aliasing; the key finds the number of an interned
signature, and the tape appends two or three ints.
- Modules of forward ops: torch's global module hooks. Of backward ops: the sequence number of the autograd node that
  runs, since the counter is noted at each module's begin and end. Functions: a function mode, on request.
- Storages are followed by the address of their storage object; a result that aliases no input was just allocated.
- SDPA, RMS norm, dropout and recurrent networks are one op each, as on a GPU: they are routed through ``composites``
  by registrations on the autograd keys, and the ops inside them become children of one record. Totals sum only
  records without a parent.
- Compiled functions run eagerly in the thread that records; other threads run and compile as ever.
- What is written outside the dispatcher, and modules of known classes whose kernels bypass it, are found afterwards.
- On meta tensors, results are worked out once per kind of call, and ``.item()`` answers True or 1.
"""
