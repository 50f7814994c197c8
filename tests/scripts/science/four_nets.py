"""Four nets with four optimizers are trained in turn on each batch; two workers are forked anew in each epoch."""

import torch
import torch.nn.functional as F
import torch.utils.data as Data

torch.manual_seed(1)
LR, BATCH_SIZE, EPOCH = 0.01, 32, 12
x = torch.unsqueeze(torch.linspace(-1, 1, 256), dim=1)
y = x.pow(2) + 0.1 * torch.normal(torch.zeros(*x.size()))
loader = Data.DataLoader(Data.TensorDataset(x, y), batch_size=BATCH_SIZE, shuffle=True, num_workers=2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.predict = torch.nn.Linear(1, 20), torch.nn.Linear(20, 1)

    def forward(self, x):
        return self.predict(F.relu(self.hidden(x)))


if __name__ == "__main__":
    nets = [Net() for _ in range(4)]
    optimizers = [
        torch.optim.SGD(nets[0].parameters(), lr=LR),
        torch.optim.SGD(nets[1].parameters(), lr=LR, momentum=0.8),
        torch.optim.RMSprop(nets[2].parameters(), lr=LR, alpha=0.9),
        torch.optim.Adam(nets[3].parameters(), lr=LR, betas=(0.9, 0.99)),
    ]
    loss_func = torch.nn.MSELoss()
    losses_his = [[], [], [], []]
    for epoch in range(EPOCH):
        print("Epoch: ", epoch)
        for b_x, b_y in loader:
            for net, opt, l_his in zip(nets, optimizers, losses_his, strict=True):
                loss = loss_func(net(b_x), b_y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                l_his.append(loss.data.numpy())
    print([float(history[-1]) for history in losses_his])
