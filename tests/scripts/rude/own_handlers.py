"""Sets handlers of signals, an atexit function and an excepthook, and ends by an exception."""

import atexit
import os
import signal
import sys
import threading

import torch

print([str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)])
print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
atexit.register(print, "first registered, last printed")
atexit.register(print, "last registered, first printed")
sys.excepthook = lambda kind, value, traceback: print("hook", kind.__name__, value)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, frame: print("got", signal.Signals(number).name))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (3, 6, 9):
        os.kill(os.getpid(), {3: signal.SIGTERM, 6: signal.SIGUSR1, 9: signal.SIGINT}[step])
print(repr(loss.item()), torch.rand(1).item())
raise RuntimeError("the end")
