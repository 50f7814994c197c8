"""Six calls of model and loss a step, one for each letter, written without newlines."""

import sys

import torch
from torch import nn

torch.manual_seed(777)
idx2char = ["h", "i", "e", "l", "o"]
x_data = [[0, 1, 0, 2, 3, 3]]
one_hot = torch.eye(5)
inputs = one_hot[torch.tensor(x_data)].view(6, 1, 1, 5)
labels = torch.tensor([1, 0, 2, 3, 3, 4])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(input_size=5, hidden_size=5, batch_first=True)

    def forward(self, hidden, x):
        out, hidden = self.rnn(x.view(1, 1, 5), hidden)
        return hidden, out.view(-1, 5)


model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(100):
    optimizer.zero_grad()
    loss = 0
    hidden = torch.zeros(1, 1, 5)
    sys.stdout.write("predicted string: ")
    for x, label in zip(inputs, labels, strict=True):
        hidden, output = model(hidden, x)
        _, idx = output.max(1)
        sys.stdout.write(idx2char[idx.item()])
        loss += criterion(output, label.view(1))
    print(f", epoch: {epoch + 1}, loss: {loss.item():.9f}")
    loss.backward()
    optimizer.step()
print("Learning finished!")
