"""A small convolutional network with batch norm that learns ten shapes on noisy gray images.

gdf-market post examples/cnn.py --rounds 4
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from gdf_market import Job


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.head = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.flatten(1))


torch.manual_seed(0)
labels = torch.randint(10, (4000,))
shapes = F.interpolate(torch.rand(10, 1, 7, 7), size=(28, 28))  # one blocky picture a class
noisy = (0.5 + 0.2 * (shapes[labels] - 0.5) + 0.25 * torch.randn(4000, 1, 28, 28)).clamp(0, 1)
images = (255 * noisy).round() / 255  # what a camera would give: a byte a pixel

job = Job(
    title="Ten noisy shapes, a CNN with batch norm",
    model=Net(),
    data=(images, labels),
    loss=F.cross_entropy,
    batch=32,
    steps=20,
    lr=2e-3,
    rounds=4,
)
