"""Architectures that people train with PyTorch, small and with random weights: what ``train_capture.py`` runs over.

Those of torch.nn follow PyTorch's own examples and the papers' shapes; those of transformers are its classes with tiny
configurations.  Nothing is downloaded.
"""

# ruff: noqa: N806, N812  (shape letters and F are the field's habit)
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Samples = tuple[torch.Tensor, ...]
Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model, how samples of a batch are made, and how loss comes about."""

    model: nn.Module
    batch: Callable[[int], Samples]
    loss: Loss | None = None
    names: tuple[str, ...] | None = None


MAKERS: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        MAKERS[name] = make
        return make

    return register


def images(size: int, channels: int = 3, classes: int = 10) -> Callable[[int], Samples]:
    return lambda rows: (torch.rand(rows, channels, size, size), torch.randint(0, classes, (rows,)))


def tokens(length: int = 16, vocab: int = 50) -> Callable[[int], Samples]:
    return lambda rows: (torch.randint(0, vocab, (rows, length)), torch.randint(0, vocab, (rows, length)))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---- PyTorch's examples: vision


@case("MNIST CNN")
def mnist_cnn() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(1)),
    )
    return Case(model, images(28, 1), F.nll_loss)


class RowRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(28, 64, batch_first=True)
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.25)
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(x.reshape(-1, 28, 28))
        return F.log_softmax(self.second(F.relu(self.first(self.drop(self.norm(out[:, -1]))))), 1)


@case("MNIST LSTM over rows")
def mnist_rnn() -> Case:
    return Case(RowRNN(), images(28, 1), F.nll_loss)


class ForwardNet(nn.Module):
    """A linear layer with normalised inputs, as in the forward-forward and siamese examples."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        both = torch.cat((self.trunk(left), self.trunk(right)), 1)
        return torch.sigmoid(self.head(both))


@case("siamese network")
def siamese() -> Case:
    def batch(rows: int) -> Samples:
        return torch.rand(rows, 1, 28, 28), torch.rand(rows, 1, 28, 28), torch.randint(0, 2, (rows,)).float()

    return Case(ForwardNet(), batch, lambda out, target: F.binary_cross_entropy(out.squeeze(1), target))


class VAE(nn.Module):
    """Its noise is a sample of the data: a program draws none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.log_var = nn.Linear(784, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 784)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 784)
        hidden = F.relu(self.fc1(x))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        z = mean + noise * torch.exp(0.5 * log_var)
        out = torch.sigmoid(self.fc4(F.relu(self.fc3(z))))
        error = F.binary_cross_entropy(out, x, reduction="sum")
        return (error - 0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())) / x.shape[0]


@case("VAE")
def vae() -> Case:
    return Case(VAE(), lambda rows: (torch.rand(rows, 1, 28, 28), torch.randn(rows, 8)))


class DrawingVAE(VAE):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, torch.randn_like(self.mean(F.relu(self.fc1(x.view(-1, 784))))))


@case("VAE that draws its noise")
def drawing_vae() -> Case:
    return Case(DrawingVAE(), lambda rows: (torch.rand(rows, 1, 28, 28),))


@case("super-resolution (sub-pixel CNN)")
def super_resolution() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(1, 64, 5, 1, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU()),
        *(nn.Conv2d(64, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3)),
    )
    return Case(model, lambda rows: (torch.rand(rows, 1, 8, 8), torch.rand(rows, 1, 24, 24)), F.mse_loss)


@case("DCGAN discriminator")
def discriminator() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)),
        *(nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True)),
        *(nn.Conv2d(32, 1, 8, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0)),
    )
    return Case(
        model, lambda rows: (torch.rand(rows, 3, 32, 32), torch.randint(0, 2, (rows,)).float()), F.binary_cross_entropy
    )


@case("DCGAN generator")
def generator() -> Case:
    model = nn.Sequential(
        *(nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True)),
        *(nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh()),
    )
    return Case(model, lambda rows: (torch.randn(rows, 16, 1, 1), torch.rand(rows, 3, 16, 16)), F.mse_loss)


class StyleNet(nn.Module):
    """Fast neural style: reflection padding, instance norm, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5), nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
            *(nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3, 2), nn.InstanceNorm2d(8, affine=True), nn.ReLU()),
            *(nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(8, 3, 3)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@case("fast neural style")
def style() -> Case:
    return Case(StyleNet(), lambda rows: (torch.rand(rows, 3, 16, 16), torch.rand(rows, 3, 16, 16)), F.mse_loss)


# ---- vision


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


@case("ResNet-18 (narrow)")
def resnet() -> Case:
    stages: list[nn.Module] = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    before = 8
    for width, stride in ((8, 1), (16, 2), (32, 2), (64, 2)):
        stages += [BasicBlock(before, width, stride), BasicBlock(width, width, 1)]
        before = width
    stages += [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(64, 10)]
    return Case(nn.Sequential(*stages), images(32), F.cross_entropy)


@case("VGG with batch norm")
def vgg() -> Case:
    layers: list[nn.Module] = []
    before = 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(2)]
        before = width
    layers += [nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(True), nn.Dropout()]
    return Case(nn.Sequential(*layers, nn.Linear(64, 10)), images(32), F.cross_entropy)


class InvertedResidual(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        hidden = width * expansion
        self.conv = nn.Sequential(
            *(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden)),
            *(nn.ReLU6(inplace=True), nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x)


@case("MobileNetV2")
def mobilenet() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)),
        *(InvertedResidual(16, 4), InvertedResidual(16, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(0.2), nn.Linear(16, 10)),
    )
    return Case(model, images(32), F.cross_entropy)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.conv(x)))
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + y * scale


@case("EfficientNet block (squeeze and excite)")
def efficientnet() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), SqueezeExcite(16), SqueezeExcite(16), nn.AdaptiveAvgPool2d(1))
    return Case(nn.Sequential(model, nn.Flatten(), nn.Linear(16, 10)), images(32), F.cross_entropy)


class DenseLayer(nn.Module):
    def __init__(self, before: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(before), nn.Conv2d(before, 8, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.conv(F.relu(self.norm(x)))), 1)


@case("DenseNet block")
def densenet() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), DenseLayer(8), DenseLayer(16), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1))
    return Case(nn.Sequential(model, nn.Flatten(), nn.Linear(24, 10)), images(16), F.cross_entropy)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-2 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


@case("ConvNeXt")
def convnext() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), ConvNeXtBlock(16), ConvNeXtBlock(16), nn.AdaptiveAvgPool2d(1))
    return Case(nn.Sequential(model, nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 10)), images(32), F.cross_entropy)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = self.double(3, 8), self.double(8, 16), self.double(16, 32)
        self.up2, self.join2 = nn.ConvTranspose2d(32, 16, 2, 2), self.double(32, 16)
        self.up1, self.join1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), self.double(24, 8)
        self.out = nn.Conv2d(8, 4, 1)

    @staticmethod
    def double(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
            *(nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        middle = self.middle(F.max_pool2d(second, 2))
        second = self.join2(torch.cat((self.up2(middle), second), 1))
        return self.out(self.join1(torch.cat((self.up1(second), first), 1)))


@case("U-Net")
def unet() -> Case:
    return Case(
        UNet(), lambda rows: (torch.rand(rows, 3, 16, 16), torch.randint(0, 4, (rows, 16, 16))), F.cross_entropy
    )


class ViT(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls, self.positions = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(torch.randn(1, 17, width) * 0.02),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


@case("ViT (torch.nn)")
def vit() -> Case:
    return Case(ViT(), images(32), F.cross_entropy)


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.blocks = nn.Sequential(MixerBlock(16, 32), MixerBlock(16, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


@case("MLP-Mixer")
def mixer() -> Case:
    return Case(Mixer(), images(32), F.cross_entropy)


@case("convolutional autoencoder")
def autoencoder() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(4, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Sigmoid()),
    )

    def batch(rows: int) -> Samples:
        x = torch.rand(rows, 1, 28, 28)
        return x, x

    return Case(model, batch, F.mse_loss)


@case("3-D CNN (video)")
def video() -> Case:
    model = nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Dropout3d(0.1), nn.AvgPool3d(2)),
        *(nn.Conv3d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 2 * 6 * 6, 5)),
    )
    return Case(model, lambda rows: (torch.rand(rows, 1, 8, 16, 16), torch.randint(0, 5, (rows,))), F.cross_entropy)


# ---- PyTorch's examples: words


class WordRNN(nn.Module):
    """examples/word_language_model: embedding, recurrent layers with dropout, tied decoder."""

    def __init__(self, kind: str, tied: bool = True) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(50, 32)
        options: dict[str, Any] = {"nonlinearity": "relu"} if kind == "RNN" else {}
        self.rnn = getattr(nn, kind)(32, 32, 2, dropout=0.2, **options)
        self.decoder = nn.Linear(32, 50)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(self.drop(self.encoder(x.t())))
        return self.decoder(self.drop(out)).transpose(0, 1)


for _kind in ("LSTM", "GRU", "RNN"):
    case(f"word language model: {_kind}")(lambda kind=_kind: Case(WordRNN(kind), tokens(), token_loss))  # type: ignore[misc]


class WordTransformer(nn.Module):
    """examples/word_language_model: sinusoidal positions, causal encoder, sequence first."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        positions = torch.arange(32).unsqueeze(1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        table = torch.zeros(32, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(positions * rates), torch.cos(positions * rates)
        self.register_buffer("table", table)
        self.embed, self.drop, self.width = nn.Embedding(50, width), nn.Dropout(0.1), width
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 64, 0.1), 2)
        self.decoder = nn.Linear(width, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.t()
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
        y = self.embed(x) * math.sqrt(self.width) + self.table[: x.shape[0]]
        return self.decoder(self.encoder(self.drop(y), mask)).transpose(0, 1)


@case("word language model: Transformer")
def word_transformer() -> Case:
    return Case(WordTransformer(), tokens(), token_loss)


class Translator(nn.Module):
    """examples/language_translation: nn.Transformer with padding masks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, width), nn.Embedding(50, width)
        self.transformer = nn.Transformer(width, 4, 2, 2, 64, 0.1, batch_first=True)
        self.out = nn.Linear(width, 50)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        given, wanted = target[:, :-1], target[:, 1:]
        causal = nn.Transformer.generate_square_subsequent_mask(given.shape[1], dtype=torch.bool)
        hidden = self.transformer(
            self.source(source),
            self.target(given),
            tgt_mask=causal,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=given == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=False,
        )
        return F.cross_entropy(self.out(hidden).flatten(0, 1), wanted.flatten(), ignore_index=0)


@case("translation: nn.Transformer")
def translator() -> Case:
    def batch(rows: int) -> Samples:
        source, target = torch.randint(1, 50, (rows, 10)), torch.randint(1, 50, (rows, 12))
        for row in range(rows):
            source[row, 10 - row % 3 :] = 0
            target[row, 12 - row % 4 :] = 0
        return source, target

    return Case(Translator(), batch)


class TimeSequence(nn.Module):
    """examples/time_sequence_prediction: LSTM cells in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 16), nn.LSTMCell(16, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h1, c1, h2, c2 = (torch.zeros(x.shape[0], 16, dtype=x.dtype) for _ in range(4))
        outputs = []
        for step in x.split(1, dim=1):
            h1, c1 = self.lstm1(step, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, 1)


@case("time sequence: LSTM cells")
def time_sequence() -> Case:
    return Case(TimeSequence(), lambda rows: (torch.randn(rows, 10), torch.randn(rows, 10)), F.mse_loss)


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(16, 8, size) for size in (3, 4, 5))
        self.drop, self.head = nn.Dropout(), nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).transpose(1, 2)
        return self.head(self.drop(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)))


@case("text CNN")
def text_cnn() -> Case:
    return Case(
        TextCNN(), lambda rows: (torch.randint(0, 50, (rows, 16)), torch.randint(0, 2, (rows,))), F.cross_entropy
    )


class BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(32, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.embed(x))[0])


@case("bidirectional LSTM tagger")
def tagger() -> Case:
    def batch(rows: int) -> Samples:
        return torch.randint(0, 50, (rows, 16)), torch.randint(0, 7, (rows, 16))

    return Case(BiLSTM(), batch, token_loss)


# ---- signals and time series


class GatedBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = dilation
        self.filter, self.gate = (nn.Conv1d(width, width, 2, dilation=dilation) for _ in range(2))
        self.skip, self.residual = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = F.pad(x, (self.pad, 0))
        y = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        return x + self.residual(y), self.skip(y)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 16, 1)
        self.blocks = nn.ModuleList(GatedBlock(16, 2**i) for i in range(4))
        self.out = nn.Conv1d(16, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skips = self.first(x), 0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        return self.out(F.relu(skips))


@case("WaveNet (dilated 1-D)")
def wavenet() -> Case:
    return Case(WaveNet(), lambda rows: (torch.randn(rows, 1, 64), torch.randint(0, 32, (rows, 64))), F.cross_entropy)


class TemporalBlock(nn.Module):
    """TCN (Bai et al. 2018): weight norm, chomp, dropout."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.pad, self.drop = 2 * dilation, nn.Dropout(0.2)
        self.conv1 = norm(nn.Conv1d(before, after, 3, padding=self.pad, dilation=dilation))
        self.conv2 = norm(nn.Conv1d(after, after, 3, padding=self.pad, dilation=dilation))
        self.down = nn.Conv1d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(F.relu(self.conv1(x)[:, :, : -self.pad]))
        y = self.drop(F.relu(self.conv2(y)[:, :, : -self.pad]))
        return F.relu(y + self.down(x))


@case("TCN (weight norm)")
def tcn() -> Case:
    model = nn.Sequential(TemporalBlock(1, 8, 1), TemporalBlock(8, 8, 2), nn.Flatten(), nn.Linear(256, 1))
    return Case(model, lambda rows: (torch.randn(rows, 1, 32), torch.randn(rows, 1)), F.mse_loss)


# ---- tables, graphs, control


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine, self.drop = nn.Linear(4, 128), nn.Dropout(0.6)
        self.action, self.value = nn.Linear(128, 2), nn.Linear(128, 1)

    def forward(self, state: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.drop(self.affine(state)))
        log_prob = torch.distributions.Categorical(F.softmax(self.action(x), -1), validate_args=False).log_prob(action)
        value = self.value(x).squeeze(1)
        advantage = (reward - value).detach()
        return (-log_prob * advantage).mean() + F.smooth_l1_loss(value, reward)


@case("actor-critic")
def actor_critic() -> Case:
    return Case(ActorCritic(), lambda rows: (torch.randn(rows, 4), torch.randint(0, 2, (rows,)), torch.randn(rows)))


@case("MLP on a table")
def mlp() -> Case:
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.SELU(), nn.Dropout(0.1), nn.Linear(64, 1))
    return Case(model, lambda rows: (torch.randn(rows, 20), torch.randn(rows, 1)), F.huber_loss)


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.factors = nn.Embedding(80, 1), nn.Embedding(80, 8)
        self.register_buffer("offsets", torch.arange(4) * 20)
        self.deep = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.offsets
        v = self.factors(x)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return self.first(x).sum((1, 2)) + pairs + self.deep(v.flatten(1)).squeeze(1)


@case("DeepFM")
def deepfm() -> Case:
    return Case(
        DeepFM(),
        lambda rows: (torch.randint(0, 20, (rows, 4)), torch.randint(0, 2, (rows,)).float()),
        F.binary_cross_entropy_with_logits,
    )


class GCN(nn.Module):
    """A graph is a sample: features and a dense adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(8, 16), nn.Linear(16, 3), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        adjacency = adjacency + torch.eye(adjacency.shape[-1])
        degree = adjacency.sum(-1).rsqrt()
        adjacency = degree.unsqueeze(-1) * adjacency * degree.unsqueeze(-2)
        hidden = self.drop(F.relu(adjacency @ self.first(x)))
        return F.cross_entropy((adjacency @ self.second(hidden)).flatten(0, 1), labels.flatten())


def graphs(rows: int) -> Samples:
    upper = torch.randint(0, 2, (rows, 12, 12)).float().triu(1)
    return torch.randn(rows, 12, 8), upper + upper.transpose(1, 2), torch.randint(0, 3, (rows, 12))


@case("GCN (dense)")
def gcn() -> Case:
    return Case(GCN(), graphs)


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 16, bias=False), nn.Linear(16, 3)
        self.left, self.right, self.drop = nn.Linear(16, 1), nn.Linear(16, 1), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = self.project(x)
        scores = F.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        near = (adjacency + torch.eye(adjacency.shape[-1])) > 0
        attention = self.drop(torch.softmax(torch.where(near, scores, -9e15), -1))
        return F.cross_entropy(self.out(F.elu(attention @ h)).flatten(0, 1), labels.flatten())


@case("GAT (dense)")
def gat() -> Case:
    return Case(GAT(), graphs)


class EdgeList(nn.Module):
    """Messages along a list of edges: gather, scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source, sink = (edges[:, i].unsqueeze(-1).expand(-1, -1, 8) for i in range(2))
        messages = F.relu(self.message(torch.gather(x, 1, source)))
        x = x + torch.zeros_like(x).scatter_add(1, sink, messages)
        return F.mse_loss(self.out(x.mean(1)), target)


@case("message passing (scatter_add)")
def edge_list() -> Case:
    return Case(
        EdgeList(),
        lambda rows: (torch.randn(rows, 12, 8), torch.randint(0, 12, (rows, 2, 30)), torch.randn(rows, 1)),
    )


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).max(2)[0])


@case("PointNet")
def pointnet() -> Case:
    return Case(PointNet(), lambda rows: (torch.randn(rows, 3, 64), torch.randint(0, 4, (rows,))), F.cross_entropy)


class Contrastive(nn.Module):
    """CLIP's loss: every row against every other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 8), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        logits = self.scale.exp() * F.normalize(self.left(a), dim=-1) @ F.normalize(self.right(b), dim=-1).T
        labels = torch.arange(a.shape[0])
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


@case("contrastive (CLIP loss)")
def contrastive() -> Case:
    return Case(Contrastive(), lambda rows: (torch.randn(rows, 16), torch.randn(rows, 12)))


@case("triplet embedding")
def triplet() -> Case:
    class Triplet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.PReLU(), nn.Linear(32, 8))

        def forward(self, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return F.triplet_margin_loss(self.net(a), self.net(p), self.net(n))

    return Case(Triplet(), lambda rows: tuple(torch.randn(rows, 16) for _ in range(3)))


# ---- language models in torch.nn


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, RMSNorm(width), RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.o, self.w1 = nn.Linear(width, width, bias=False), nn.Linear(width, 64, bias=False)
        self.w2, self.w3 = nn.Linear(64, width, bias=False), nn.Linear(width, 64, bias=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        T, d = x.shape[-2:]
        angles = torch.arange(T).unsqueeze(1) * 10_000.0 ** (-torch.arange(0, d, 2) / d)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        y = self.norm1(x)
        d = C // self.heads
        q = self.rotate(self.q(y).view(B, T, self.heads, d).transpose(1, 2))
        k, v = self.kv(y).view(B, T, 2, self.heads // 2, d).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class LlamaLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(50, 32), RMSNorm(32), nn.Linear(32, 50, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(32, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@case("Llama-like (SwiGLU, rotary, grouped queries)")
def llama_like() -> Case:
    return Case(LlamaLike(), tokens(), token_loss)


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.p = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, 2)
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.drop(self.proj(y.transpose(1, 2).contiguous().view(B, T, C)))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """nanoGPT: tied weights, dropout in attention and residuals."""

    def __init__(self, block: type[nn.Module] = GPTBlock) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(50, 32), nn.Embedding(16, 32), nn.Dropout(0.1)
        self.h, self.ln = nn.ModuleList(block(32, 4) for _ in range(2)), nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 50, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


@case("nanoGPT (tied weights)")
def gpt() -> Case:
    return Case(GPT(), tokens())


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base, self.drop = base.requires_grad_(False), nn.Dropout(0.05)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.drop(x) @ self.a.T @ self.b.T


@case("LoRA on a frozen base")
def lora() -> Case:
    model = nn.Sequential(LoRA(nn.Linear(16, 32)), nn.ReLU(), LoRA(nn.Linear(32, 4)))
    return Case(model, lambda rows: (torch.randn(rows, 16), torch.randint(0, 4, (rows,))), F.cross_entropy)


class DenseMoE(nn.Module):
    """Mixture of experts in which every expert sees every token, the best two count."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(16, 4), nn.Linear(16, 5)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) * 0.1), nn.Parameter(torch.randn(4, 32, 16) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        best, places = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, places, best.softmax(-1))
        hidden = torch.einsum("bd,edh->beh", x, self.up).relu()
        return self.out(torch.einsum("beh,ehd,be->bd", hidden, self.down, weights))


@case("mixture of experts (dense)")
def moe() -> Case:
    return Case(DenseMoE(), lambda rows: (torch.randn(rows, 16), torch.randint(0, 5, (rows,))), F.cross_entropy)


class SelectiveScan(nn.Module):
    """A state space layer with a Python loop over time, as Mamba's reference."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.embed, self.states = nn.Embedding(50, width), states
        self.conv, self.inner = nn.Conv1d(width, width, 3, groups=width, padding=2), nn.Linear(width, 1 + 2 * states)
        self.log_a, self.d = nn.Parameter(torch.zeros(width, states)), nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = F.silu(self.conv(self.embed(x).transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        delta, b, c = self.inner(u).split((1, self.states, self.states), -1)
        decay = torch.exp(F.softplus(delta).unsqueeze(-1) * -self.log_a.exp())
        state = u.new_zeros(u.shape[0], u.shape[2], self.states)
        outputs = []
        for t in range(u.shape[1]):
            state = decay[:, t] * state + u[:, t].unsqueeze(-1) * b[:, t].unsqueeze(1)
            outputs.append((state * c[:, t].unsqueeze(1)).sum(-1) + self.d * u[:, t])
        return self.out(torch.stack(outputs, 1))


@case("state space model (loop)")
def mamba_like() -> Case:
    return Case(SelectiveScan(), tokens(), token_loss)


class Diffusion(nn.Module):
    """DDPM's training step: the noise and the time are samples of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 8))
        self.enter, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.middle, self.leave = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        alpha = self.alphas[t].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        rates = torch.exp(-math.log(10_000) * torch.arange(8) / 8)
        angles = t.float().unsqueeze(1) * rates
        embedded = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        hidden = self.enter(noisy) + embedded[:, :, None, None]
        return F.mse_loss(self.leave(F.silu(self.norm(self.middle(F.silu(hidden))))), noise)


@case("diffusion step (DDPM)")
def diffusion() -> Case:
    def batch(rows: int) -> Samples:
        return torch.rand(rows, 1, 8, 8), torch.randn(rows, 1, 8, 8), torch.randint(0, 100, (rows,))

    return Case(Diffusion(), batch)


# ---- transformers


def hugging_face(
    name: str, kind: str, make_config: Callable[[Any], Any], batch: Callable[[int], Samples], names: tuple[str, ...]
) -> None:
    """Register a class of transformers with a tiny configuration, for both kinds of attention."""
    for attention in ("eager", "sdpa"):

        def make(attention: str = attention) -> Case:
            import transformers

            config = make_config(transformers)
            config._attn_implementation = attention
            config.use_cache = False
            torch.manual_seed(0)
            return Case(getattr(transformers, kind)(config).float(), batch, None, names)

        MAKERS[f"transformers {name}, {attention}"] = make


SMALL: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = SMALL | {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 32}
ENCODER = SMALL | {"intermediate_size": 48, "max_position_embeddings": 32, "num_labels": 3}


def text(rows: int) -> Samples:
    ids = torch.randint(3, 60, (rows, 16))
    return ids, torch.ones_like(ids), ids


def padded_text(rows: int) -> Samples:
    """Rows of several lengths: padding is masked, and its labels are -100."""
    ids, mask, labels = torch.randint(3, 60, (rows, 16)), torch.ones(rows, 16, dtype=torch.int64), None
    for row in range(rows):
        mask[row, 16 - 3 * (row % 4) :] = 0
    labels = ids.masked_fill(mask == 0, -100)
    return ids, mask, labels


def classified(rows: int) -> Samples:
    return torch.randint(3, 60, (rows, 16)), torch.ones(rows, 16, dtype=torch.int64), torch.randint(0, 3, (rows,))


def pairs(rows: int) -> Samples:
    return (*classified(rows)[:2], torch.randint(3, 60, (rows, 8)))


def pictures(rows: int) -> Samples:
    return torch.rand(rows, 3, 16, 16), torch.randint(0, 3, (rows,))


TEXT = ("input_ids", "attention_mask", "labels")
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
NEOX = SMALL | {"intermediate_size": 48, "max_position_embeddings": 32}
ALBERT = ENCODER | {"embedding_size": 16}
DISTIL = {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "num_labels": 3}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
OPT = SMALL | {"ffn_dim": 48, "max_position_embeddings": 32, "word_embed_proj_dim": 32}
VIT = {k: v for k, v in ENCODER.items() if k not in ("vocab_size", "max_position_embeddings")}
IMAGE = {"image_size": 16, "patch_size": 8}
MIXTRAL = DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = DECODER | {"head_dim": 8}

for _name, _class, _config, _batch in (
    ("Llama", "LlamaForCausalLM", lambda t: t.LlamaConfig(**DECODER), text),
    ("Llama, padded rows", "LlamaForCausalLM", lambda t: t.LlamaConfig(**DECODER), padded_text),
    ("Mistral", "MistralForCausalLM", lambda t: t.MistralConfig(**DECODER, sliding_window=8), text),
    ("Qwen2", "Qwen2ForCausalLM", lambda t: t.Qwen2Config(**DECODER), text),
    ("Qwen3", "Qwen3ForCausalLM", lambda t: t.Qwen3Config(**GEMMA), text),
    ("Gemma", "GemmaForCausalLM", lambda t: t.GemmaConfig(**GEMMA), text),
    ("Phi", "PhiForCausalLM", lambda t: t.PhiConfig(**DECODER), text),
    ("Mixtral", "MixtralForCausalLM", lambda t: t.MixtralConfig(**MIXTRAL), text),
    ("GPT-2", "GPT2LMHeadModel", lambda t: t.GPT2Config(**GPT2), text),
    ("GPT-NeoX", "GPTNeoXForCausalLM", lambda t: t.GPTNeoXConfig(**NEOX), text),
    ("OPT", "OPTForCausalLM", lambda t: t.OPTConfig(**OPT), text),
    ("BERT classifier", "BertForSequenceClassification", lambda t: t.BertConfig(**ENCODER), classified),
    ("BERT masked words", "BertForMaskedLM", lambda t: t.BertConfig(**ENCODER), padded_text),
    ("DistilBERT", "DistilBertForSequenceClassification", lambda t: t.DistilBertConfig(**DISTIL), classified),
    ("RoBERTa", "RobertaForSequenceClassification", lambda t: t.RobertaConfig(**ENCODER), classified),
    ("ELECTRA", "ElectraForSequenceClassification", lambda t: t.ElectraConfig(**ALBERT), classified),
    ("ALBERT", "AlbertForSequenceClassification", lambda t: t.AlbertConfig(**ALBERT), classified),
    ("T5", "T5ForConditionalGeneration", lambda t: t.T5Config(**T5, decoder_start_token_id=0), pairs),
):
    hugging_face(_name, _class, _config, _batch, TEXT)
hugging_face(
    "ViT", "ViTForImageClassification", lambda t: t.ViTConfig(**VIT, **IMAGE), pictures, ("pixel_values", "labels")
)


def all_cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield every architecture by name."""
    yield from MAKERS.items()
