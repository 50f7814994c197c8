"""Two models are trained by turns, each for eight steps: a teacher, and a student of it."""

import torch
from torch import nn

torch.manual_seed(3)
teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
student = nn.Linear(16, 4)
by_teacher = torch.optim.SGD(teacher.parameters(), lr=0.05)
by_student = torch.optim.Adam(student.parameters(), lr=0.01)
target = torch.randn(16, 4)
for turn in range(6):
    for _ in range(8):
        x = torch.randn(32, 16)
        loss = nn.functional.mse_loss(teacher(x), x @ target)
        by_teacher.zero_grad()
        loss.backward()
        by_teacher.step()
    for _ in range(8):
        x = torch.randn(32, 16)
        with torch.no_grad():
            wanted = teacher(x)
        copied = nn.functional.mse_loss(student(x), wanted)
        by_student.zero_grad()
        copied.backward()
        by_student.step()
    print(turn, repr(loss.item()), repr(copied.item()))
