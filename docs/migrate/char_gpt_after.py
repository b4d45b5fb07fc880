"""A character GPT, trained on one GPU."""

from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

from gdf_market import Job

text = "\n".join(topics[name] for name in sorted(topics))
characters = sorted(set(text))
index = {character: i for i, character in enumerate(characters)}
data = torch.tensor([index[character] for character in text])
context, width, heads, layers = 64, 64, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, heads, C // heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(characters), width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(characters))

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, len(characters)), targets.reshape(-1))


torch.manual_seed(1337)
model = CharGPT()
job = Job(model=model, data=data, context=context, batch=8, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0)
