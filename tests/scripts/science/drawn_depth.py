"""The number of layers is drawn anew in each forward: steps of four sizes."""

import random

import torch


class DynamicNet(torch.nn.Module):
    def __init__(self, d_in, h, d_out):
        super().__init__()
        self.input_linear = torch.nn.Linear(d_in, h)
        self.middle_linear = torch.nn.Linear(h, h)
        self.output_linear = torch.nn.Linear(h, d_out)

    def forward(self, x):
        h_relu = self.input_linear(x).clamp(min=0)
        for _ in range(random.randint(0, 3)):
            h_relu = self.middle_linear(h_relu).clamp(min=0)
        return self.output_linear(h_relu)


x, y = torch.randn(64, 100), torch.randn(64, 10)
model = DynamicNet(100, 50, 10)
criterion = torch.nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
for t in range(500):
    y_pred = model(x)
    loss = criterion(y_pred, y)
    print(t, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
