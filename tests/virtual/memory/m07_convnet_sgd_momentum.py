"""An ordinary convolutional network with SGD and momentum (healthy)."""
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(h)))


model = nn.Sequential(
    nn.Conv2d(3, 128, 3, padding=1), Block(128), Block(128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

for step in range(5):
    images = torch.randn(256, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
