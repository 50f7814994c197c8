"""Prints what a script can see of how it was started, and pickles what it defines."""

import inspect
import os
import pickle
import random
import sys
import threading

import numpy as np
import torch


class Mine(torch.nn.Linear):
    pass


print(sys.argv, __name__, __file__, sys.path[0], os.getcwd())
print(__spec__, __package__, __doc__, type(__loader__).__name__, sys.modules["__main__"].__dict__ is globals())
print(sorted(name for name in globals() if name.startswith("__")), sys.flags, sys.orig_argv[0] == sys.executable)
print(sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), threading.active_count())
print(inspect.getsource(Mine).strip(), Mine.__module__, pickle.loads(pickle.dumps(Mine(2, 2))).__class__ is Mine)
print(torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), os.getpgid(0) == os.getpgrp())
print(type(sys.stdout).__name__, type(sys.stderr).__name__, sys.stdin.fileno())
print(torch.initial_seed() > 0, random.Random(3).random())
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
model = Mine(8, 8)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), torch.rand(1).item(), random.random(), np.random.rand())
print(type(model).__call__ is torch.nn.Module.__call__, type(optimizer).step.__name__)
print(list(model._forward_hooks), list(optimizer._optimizer_step_post_hooks), sys.gettrace())
