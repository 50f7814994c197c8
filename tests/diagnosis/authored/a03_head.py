"""Adapts a small classifier of tiles to a new site: its head is fitted with L-BFGS, one call of the optimizer a site."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "L-BFGS calls the closure many times per step, and the closure runs the frozen backbone on the same pictures each time; features should be computed once before it.",
    "lines": ["features = self.backbone(images)", "loss = F.cross_entropy(self.logits(images), labels)",
              "self.opt.step(closure)", "return self.head(features)"],
    "says": ["closure", "backbone", "feature", "same (operands|input|work|result)", "repeat", "conv", "recomput", "again", "constant"],
    "remedy": ["once", "before the closure|outside (of )?the closure|out of the closure", "cache", "precomput", "hoist", "reuse|re-use", "keep the (features|result|output)"],
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1), nn.ReLU())

    def forward(self, images):
        return self.net(images).mean((2, 3))


class SiteAdapter:
    def __init__(self):
        torch.manual_seed(3)
        self.backbone = Backbone().eval().requires_grad_(False)
        self.head = nn.Linear(48, 6)
        self.start = {k: v.clone() for k, v in self.head.state_dict().items()}

    def logits(self, images):
        features = self.backbone(images)
        return self.head(features)

    def fit(self, images, labels):
        self.head.load_state_dict(self.start)
        self.opt = torch.optim.LBFGS(self.head.parameters(), lr=0.5, max_iter=10, history_size=8)

        def closure():
            self.opt.zero_grad()
            loss = F.cross_entropy(self.logits(images), labels)
            loss = loss + 1e-3 * self.head.weight.square().sum()
            loss.backward()
            return loss

        self.opt.step(closure)
        return self.head.weight.detach().clone()


class SiteAdapterFixed(SiteAdapter):
    def fit(self, images, labels):
        seen = self.backbone(images)
        self.backbone, kept = nn.Identity(), self.backbone
        weight = super().fit(seen, labels)
        self.backbone = kept
        return weight


def build(adapter):
    g = torch.Generator().manual_seed(5)

    def step():
        images = torch.rand(32, 3, 48, 48, generator=g)
        labels = torch.randint(0, 6, (32,), generator=g)
        return adapter.fit(images, labels)
    return step


def make_step():
    return build(SiteAdapter())


def make_step_fixed():
    return build(SiteAdapterFixed())
