"""A Transformer encoder that classifies sequences of tokens, trained on one GPU."""

import torch
import torch.nn as nn
from torch.utils import data

from gdf_market import Job

vocab, length, classes, width = 64, 32, 4, 32


class Sequences(data.Dataset):
    """The class of a sequence is the marker (one of the first tokens) that is hidden in it."""

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(classes, vocab, (length,), generator=generator)
        label = i % classes
        tokens[torch.randint(length, (3,), generator=generator)] = label
        return tokens, label


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens) + self.positions).mean(1))


torch.manual_seed(0)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
job = Job(model=Classifier(), data=Sequences(), loss=criterion, batch=32, lr=2e-3, weight_decay=0.01)
