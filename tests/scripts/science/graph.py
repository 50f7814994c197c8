"""A graph network on a sparse matrix: the evaluation of each epoch is a second forward with gradients on."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--fastmode", action="store_true", default=False)
parser.add_argument("--epochs", type=int, default=200)
args = parser.parse_args()
np.random.seed(42)
torch.manual_seed(42)

edges = np.random.randint(0, 200, (2, 800))
adj = torch.sparse_coo_tensor(torch.from_numpy(edges), torch.full((800,), 0.25), (200, 200)).coalesce()
features, labels = torch.rand(200, 24), torch.from_numpy(np.random.randint(0, 4, 200))


class GraphConvolution(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out).uniform_(-0.3, 0.3))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x, adj):
        return torch.spmm(adj, torch.mm(x, self.weight)) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConvolution(24, 16), GraphConvolution(16, 4)

    def forward(self, x, adj):
        x = F.dropout(F.relu(self.gc1(x, adj)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


model = GCN()
optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[:100], labels[:100])
    loss_train.backward()
    optimizer.step()
    if not args.fastmode:
        model.eval()
        output = model(features, adj)
    loss_val = F.nll_loss(output[100:150], labels[100:150])
    print(f"Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.9f} loss_val: {loss_val.item():.9f}")


def test():
    model.eval()
    output = model(features, adj)
    print(f"Test set results: loss= {F.nll_loss(output[150:], labels[150:]).item():.9f}")


for epoch in range(args.epochs):
    train(epoch)
test()
