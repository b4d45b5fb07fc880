"""Low-rank adapters on a frozen Transformer: only the adapters travel between machines.

gdf-market post examples/lora.py --rounds 4
"""

from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

from gdf_market import Job

text = "\n".join(topics[name] for name in sorted(topics))
vocab_size = len(set(text))
context, width, heads, layers, rank = 64, 96, 4, 2, 8


class LoRA(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices (Hu et al. 2021)."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, heads, C // heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def add_adapters(model):
    """Freeze the model and put an adapter on each linear layer; return it."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, LoRA(child))
    return model


torch.manual_seed(1337)
base = GPT()  # yours would come from a file: base.load_state_dict(torch.load("base.pt"))

job = Job(
    title="Low-rank adapters on a frozen character GPT",
    model=add_adapters(base),
    data=text,
    context=context,
    batch=8,
    lr=1e-2,
    rounds=4,
)
