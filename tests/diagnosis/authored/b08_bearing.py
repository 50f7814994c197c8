"""A network over vibration spectra learns five properties of a bearing at once, one head for each."""
import torch
from torch import nn

TRUTH = {
    "cause": "Each head's loss is propagated by a backward call of its own, through the shared trunk each time; one backward of the sum gives the same gradients.",
    "lines": ["loss.backward(retain_graph=True)", "for loss in losses:", "self.propagate(losses)"],
    "says": ["backward", "retain_graph", "five (times|passes)", "shared (trunk|layers|part)", "repeat", "each loss|per loss|several losses|separate loss", "autograd"],
    "remedy": ["sum", "add .*(loss|them)", "one backward|single backward|once", "total", "autograd\\.backward\\(", "together", "combin", "stack"],
}


class Bearing(nn.Module):
    def __init__(self, tasks=5):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(tasks))

    def forward(self, x):
        h = self.trunk(x)
        return [head(h).squeeze(-1) for head in self.heads]


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = Bearing()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.x = torch.rand(512, 256)
        self.targets = [(self.x[:, 20 * i:20 * i + 40].mean(1) * 4 - 2) for i in range(5)]
        self.weights = (1.0, 0.5, 0.5, 2.0, 1.0)

    def propagate(self, losses):
        for loss in losses:
            loss.backward(retain_graph=True)

    def step(self):
        self.optimizer.zero_grad()
        outputs = self.net(self.x)
        losses = [w * nn.functional.smooth_l1_loss(o, t) for w, o, t in zip(self.weights, outputs, self.targets)]
        self.propagate(losses)
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses])


class JointTrainer(Trainer):
    def propagate(self, losses):
        torch.stack(losses).sum().backward()


def make_step():
    return Trainer().step


def make_step_fixed():
    return JointTrainer().step
