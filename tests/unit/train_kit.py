"""A tiny language model as a hand-written program, and a job around it: no torch.export, so tests stay fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gdf_market.codec import encode
from gdf_market.messages import Recipe
from gdf_market.node.trainer import UnitRequest
from gdf_market.train.checkpoint import pack
from gdf_market.train.graph import Forward, Graph, GraphInput, Group, Node, Parameter, Sample
from gdf_market.train.program import Program
from gdf_market.train.source import Dataset, read_source

JOB = "ab" * 32
CONTEXT = 8
TEXT = "the quick brown fox jumps over the lazy dog. " * 60


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "inner": "adamw",
        "steps": 6,
        "batch": 4,
        "lr_e9": 10_000_000,
        "beta1_ppm": 900_000,
        "beta2_ppm": 950_000,
        "weight_decay_ppm": 0,
        "clip_ppm": 1_000_000,
        "rewarm_steps": 3,
        "outer_lr_ppm": 1_000_000,
        "outer_momentum_ppm": 0,
        "codec_bits": 4,
        "codec_block": 64,
    }
    return Recipe(**(values | changes))


def dataset() -> Dataset:
    return read_source(TEXT)


def graph(vocab: int, width: int = 8, **changes: Any) -> Graph:
    """Embedding, linear layer, cross entropy: values 0..3 are the inputs, the nodes follow."""
    values: dict[str, Any] = {
        "version": 2,
        "batch": 0,
        "separable": True,
        "samples": (Sample(dtype="int64", shape=(CONTEXT,)), Sample(dtype="int64", shape=(CONTEXT,))),
        "parameters": (
            Parameter(name="table", shape=(vocab, width), group=0),
            Parameter(name="head", shape=(vocab, width), group=0),
        ),
        "groups": (Group(),),
        "constants": ("scale",),
        "state": {"head": "head", "scale": "scale", "table": "table", "tied": "table"},
        "evaluate": None,
    }
    forward: dict[str, Any] = {
        "inputs": (
            GraphInput(kind="parameter", index=0),
            GraphInput(kind="parameter", index=1),
            GraphInput(kind="sample", index=0),
            GraphInput(kind="sample", index=1),
            GraphInput(kind="constant", index=0),
        ),
        "nodes": (
            Node(op="aten.embedding.default", args=[{"value": 0}, {"value": 2}], kwargs={}),
            Node(op="aten.mul.Tensor", args=[{"value": 5}, {"value": 4}], kwargs={}),
            Node(op="aten.linear.default", args=[{"value": 6}, {"value": 1}], kwargs={}),
            Node(op="aten.reshape.default", args=[{"value": 7}, [-1, vocab]], kwargs={}),
            Node(op="aten.reshape.default", args=[{"value": 3}, [-1]], kwargs={}),
            Node(op="aten.cross_entropy_loss.default", args=[{"value": 8}, {"value": 9}], kwargs={}),
        ),
        "output": 10,
        "updates": {},
    }
    forward |= {name: changes.pop(name) for name in list(changes) if name in forward}
    return Graph(**({"train": Forward(**forward)} | values | changes))


def program(**changes: Any) -> Program:
    return Program(graph(dataset().vocab, **changes), {"scale": torch.tensor(2.0)})


def first_parameters(n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (np.random.Generator(np.random.PCG64(1)).standard_normal(n) * 0.1).astype(np.float32)


def write_job(folder: Path, given: Program | None = None) -> UnitRequest:
    """Write the files of a job and return the request of its unit (round 0, shard 1 of 4)."""
    made = program() if given is None else given
    parameters = first_parameters(made.size)
    files = {
        "program": made.to_bytes(),
        "data": encode(dataset().manifest("0" * 64, CONTEXT)),
        "content": dataset().to_bytes(),
        "checkpoint": pack(parameters, np.zeros_like(parameters)),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return UnitRequest(
        **{name: folder / name for name in files}, recipe=recipe(), job=JOB, round=0, done=0, shard=1, shards=4
    )
