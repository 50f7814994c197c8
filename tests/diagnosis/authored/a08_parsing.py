"""Trains a parser of people's clothes: features at a quarter of the size, classes for every pixel."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "64 channels of features are enlarged 16-fold in area before the pointwise classifier; classifying first and enlarging 7 channels of logits gives the same (a 1x1 convolution and bilinear interpolation commute).",
    "lines": ["big = F.interpolate(features, scale_factor=4, mode=\"bilinear\", align_corners=False)", "return self.classify(big)"],
    "says": ["interpolat", "upsampl", "1x1|pointwise", "classif", "resolution|full size|larger|pixels", "conv", "order"],
    "remedy": ["(before|then|after).*(interpolat|upsampl|enlarg)", "(interpolat|upsampl|enlarg)\\w*.*(after|last|logits)", "commut", "swap|reorder|other order|exchange", "low(er)? resolution", "small(er)? (map|size|resolution)"],
}


class Parser(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU())
        self.classify = nn.Conv2d(64, classes, 1)

    def enlarge(self, features):
        big = F.interpolate(features, scale_factor=4, mode="bilinear", align_corners=False)
        return self.classify(big)

    def forward(self, images):
        return self.enlarge(self.body(images))


class ParserFixed(Parser):
    def enlarge(self, features):
        logits = self.classify(features)
        return F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False)


class Trainer:
    def __init__(self, parser):
        torch.manual_seed(45)
        self.parser = parser()
        self.opt = torch.optim.SGD(self.parser.parameters(), lr=0.05, momentum=0.9)
        self.g = torch.Generator().manual_seed(46)

    def batch(self):
        images = torch.rand(2, 3, 144, 144, generator=self.g)
        clothes = torch.randint(0, 7, (2, 144, 144), generator=self.g)
        clothes[:, :8] = 255
        return images, clothes

    def step(self):
        images, clothes = self.batch()
        loss = F.cross_entropy(self.parser(images), clothes, ignore_index=255)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def make_step():
    return Trainer(Parser).step


def make_step_fixed():
    return Trainer(ParserFixed).step
