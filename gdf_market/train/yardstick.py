"""A small built-in unit that machines are measured with: one transformer block, which every machine builds alike.

Its weights and its text come from raw words of PCG64, so the files are the same everywhere.  ``REFERENCE`` holds the
last sketch of one machine's run, so that a machine which always agrees with itself and with nobody else is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.codec import digest, encode
from gdf_market.messages import Recipe
from gdf_market.train.checkpoint import pack
from gdf_market.train.files import write
from gdf_market.train.graph import Forward, Graph, GraphInput, Group, Node, Parameter, Sample
from gdf_market.train.program import Program
from gdf_market.train.random import pcg64
from gdf_market.train.source import Dataset, read_source

JOB = digest("gdf/yardstick").hex()
STEPS = 20
BATCH = 8
CONTEXT, WIDTH, HEADS, HIDDEN = 32, 64, 4, 256
ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?'-()0"
LETTERS = 20_000
INNERS = ("adamw", "muon")

# (parameter, shape, whether its matrix goes to Muon)
_PARAMETERS: tuple[tuple[str, tuple[int, ...], bool], ...] = (
    ("table", (len(ALPHABET), WIDTH), False),
    ("norm.weight", (WIDTH,), False),
    ("norm.bias", (WIDTH,), False),
    ("qkv.weight", (3 * WIDTH, WIDTH), True),
    ("qkv.bias", (3 * WIDTH,), False),
    ("out.weight", (WIDTH, WIDTH), True),
    ("up.weight", (HIDDEN, WIDTH), True),
    ("up.bias", (HIDDEN,), False),
    ("down.weight", (WIDTH, HIDDEN), True),
    ("head", (len(ALPHABET), WIDTH), False),
)


def recipe(inner: str, precision: str) -> Recipe:
    """Return the recipe of the unit: 20 steps of eight rows, encoded at eight bits."""
    return Recipe(
        inner=inner,
        steps=STEPS,
        batch=BATCH,
        lr_e9=2_000_000,
        beta1_ppm=900_000,
        beta2_ppm=950_000,
        weight_decay_ppm=0,
        clip_ppm=1_000_000,
        rewarm_steps=5,
        outer_lr_ppm=1_000_000,
        outer_momentum_ppm=0,
        codec_bits=8,
        codec_block=64,
        precision=precision,
    )


def write_files(folder: Path) -> dict[str, Path]:
    """Write program, data, content and checkpoint and return their paths by these names.  Raises StorageError."""
    made, text = program(), dataset()
    start = first_parameters(made.size)
    files = {
        "program": made.to_bytes(),
        "data": encode(text.manifest("0" * 64, CONTEXT)),
        "content": text.to_bytes(),
        "checkpoint": pack(start, np.zeros_like(start)),
    }
    for name, data in files.items():
        write(str(folder / name), data)
    return {name: folder / name for name in files}


def first_parameters(n: int) -> npt.NDArray[np.float32]:
    """Return f32[n], evenly spread over [-0.1, 0.1)."""
    words = pcg64(digest("gdf/yardstick-weights")).random_raw(n) >> np.uint64(40)  # 24 bits: exact in float32
    values: npt.NDArray[np.float32] = (words.astype(np.float32) * np.float32(2.0**-23) - 1) * np.float32(0.1)
    return values


def dataset() -> Dataset:
    """Return a text in which each letter depends on the one before, three times of four."""
    words = pcg64(digest("gdf/yardstick-text")).random_raw(LETTERS).tolist()
    letters, place = [], 0
    for word in words:
        place = (5 * place + 3) % len(ALPHABET) if word >> 62 else (word >> 32) % len(ALPHABET)
        letters.append(ALPHABET[place])
    return read_source("".join(letters))


class _Writer:
    """Collects the nodes of a pass; values are numbers."""

    def __init__(self, inputs: int) -> None:
        self.nodes: list[Node] = []
        self._inputs = inputs

    def __call__(self, op: str, *args: Any) -> dict[str, int]:
        self.nodes.append(Node(op=f"aten.{op}", args=list(args), kwargs={}))
        return value(self._inputs + len(self.nodes) - 1)


def value(index: int) -> dict[str, int]:
    """Return the argument that names an earlier value."""
    return {"value": index}


def program() -> Program:
    """Return the program: embedding, norm, attention, two linear layers with a residual each, and the loss."""
    count = len(_PARAMETERS)
    table, weight, bias, qkv, qkv_bias, out, up, up_bias, down, head = (value(i) for i in range(count))
    add = _Writer(count + 2)
    x = add("embedding.default", table, value(count))
    y = add("layer_norm.default", x, [WIDTH], weight, bias)
    split = add("reshape.default", add("linear.default", y, qkv, qkv_bias), [-1, CONTEXT, 3, HEADS, WIDTH // HEADS])
    split = add("permute.default", split, [2, 0, 3, 1, 4])
    q, k, v = (add("select.int", split, 0, which) for which in range(3))
    mixed = add("scaled_dot_product_attention.default", q, k, v, None, {"float": (0.0).hex()}, True)
    mixed = add("reshape.default", add("permute.default", mixed, [0, 2, 1, 3]), [-1, CONTEXT, WIDTH])
    x = add("add.Tensor", x, add("linear.default", mixed, out))
    x = add("add.Tensor", x, add("linear.default", add("gelu.default", add("linear.default", x, up, up_bias)), down))
    logits = add("reshape.default", add("linear.default", x, head), [-1, len(ALPHABET)])
    loss = add("cross_entropy_loss.default", logits, add("reshape.default", value(count + 1), [-1]))
    inputs = [GraphInput(kind="parameter", index=i) for i in range(count)]
    inputs += [GraphInput(kind="sample", index=i) for i in range(2)]
    sample = Sample(dtype="int64", shape=(CONTEXT,))
    graph = Graph(
        version=2,
        batch=0,
        separable=True,
        samples=(sample, sample),
        parameters=tuple(Parameter(name=name, shape=shape, group=int(muon)) for name, shape, muon in _PARAMETERS),
        groups=(Group(), Group(muon=True)),
        constants=(),
        state={name: name for name, _, _ in _PARAMETERS},
        train=Forward(inputs=tuple(inputs), nodes=tuple(add.nodes), output=loss["value"], updates={}),
        evaluate=None,
    )
    return Program(graph, {})


# The last sketch in float32 on x86-64 (AVX2), one thread, torch 2.13.0.
REFERENCE: dict[str, tuple[int, ...]] = {
    "adamw": (
        *(-940216053, -1067243387, -218807356, 537109570, 405146207, 548843121, -900329870, -382663250),
        *(-635341987, 889369688, -1649503435, -1071664979, 2100356936, -562917606, -1203899582, 446716221),
        *(1091645390, 1449434233, -1662209458, 2373654620, -907555259, -287485134, 168650757, 473365943),
        *(982935899, -540265397, 20426438, -1237291516, -1380738569, 1183218619, -1358286308, 1934522919),
    ),
    "muon": (
        *(-872176802, -611417510, 405289727, 274510923, 45799244, 172624586, 124448778, -477359266),
        *(-457812184, 2696618, -969776728, 407131966, 1079734366, -343107077, -175377965, 784852210),
        *(651519785, 732460003, -1153755094, 744389374, -72314348, -221934166, 190034496, 610727198),
        *(490838695, -684196737, 161894173, -313646286, -359788426, 275466011, -906689089, 778635328),
    ),
}
