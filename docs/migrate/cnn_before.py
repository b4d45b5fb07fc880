"""A small convolutional network with batch norm on gray images of 28 x 28 pixels, trained on one GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils import data

device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
labels = torch.randint(10, (2000,))
shapes = F.interpolate(torch.rand(10, 1, 7, 7), size=(28, 28))  # one blocky picture a class
images = (shapes[labels] + 0.3 * torch.randn(2000, 1, 28, 28)).clamp(0, 1)
dataset = data.TensorDataset(images, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.head(x.flatten(1))


model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(10):
    for images, labels in data.DataLoader(dataset, batch_size=32, shuffle=True):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
