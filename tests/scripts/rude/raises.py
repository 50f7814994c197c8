"""Fails in the middle of its seventh step, by an error with a cause and a note."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def check(step):
    try:
        {}[step]
    except KeyError as error:
        problem = ValueError(f"bad batch {step}")
        problem.add_note("a note of the script's own")
        raise problem from error


for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 6:
        check(step)
    optimizer.step()
    print(step, repr(loss.item()))
