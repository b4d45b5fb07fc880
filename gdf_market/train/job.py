"""``Job``: what an owner's file declares, ``job = Job(model=..., data=...)``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gdf_market.errors import UsageError, ensure
from gdf_market.messages import MAX_ROUNDS, MAX_STEPS, MAX_UNITS_PER_ROUND, Recipe
from gdf_market.train.data import MAX_CONTEXT
from gdf_market.train.job_checks import check, check_number, check_whole, group_scales
from gdf_market.train.sizing import BF16_STEPS
from gdf_market.train.source import Dataset, read_source
from gdf_market.train.source_columns import Options, Tokenizer
from gdf_market.units import MAX_INT, PPM

DEFAULT_ROUNDS = 10
# Muon's steps are scaled to the size of AdamW's, so that one rate fits both
DEFAULT_LR = {"adamw": 1e-3, "muon": 1e-3, "sgd": 0.05}
LEAST_DENSITY = 0.01  # sparser updates at few bits blind the verdict: docs/adr/0011
WIDEST_BLOCK_OF_2_BITS = 256
_E9 = 1_000_000_000
_MAX_IMAGE_SIDE = 16_384


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A model to train, the data to train it on, and how.

    ``model(inputs, targets)`` returns the loss; with ``loss`` given, it is ``loss(model(*inputs), target)``, the
    target being the last field of the data.  A Hugging Face model (it has a ``config``, and its ``forward`` takes
    ``labels``) gets the fields by their names, and its own loss counts.

    ``data``, and ``validation`` in the same form (without it the last tenth is for validation):

    * a text, or the path of a .txt file: inputs and targets are int64[batch, context], targets one token ahead;
      ``tokenizer`` is "characters", "bytes", or a function from a text to a list of integers
    * a flat array of integers, or a .npy file of one: such tokens, ready
    * arrays or tensors [N, ...], as a tuple or a dict, a TensorDataset, a .npz or .safetensors file: N rows
    * a folder of images with a subfolder for each class (``image_size``, ``grayscale``): float32 from 0 to 1, and int64
    * JSON lines: their ``text`` field as tokens, or their numeric fields as rows
    * a data set of torch or Hugging Face, or any sequence of tuples or dicts: its rows, each read once; token lists
      of different lengths are padded to ``context``, labels with -100 and others with 0

    ``columns`` chooses fields by name.  Rates: ``schedule`` runs over the whole job, ``warmup`` counts its steps, and
    ``rewarm`` those of each unit, whose optimizer starts afresh.  ``param_groups`` are as torch.optim takes them.
    What depends on the number of rounds is left at None: see ``recipe_for``.  ``rounds``, ``units`` and
    ``max_price`` (credits) are what ``gdf-market post`` uses unless it is told otherwise.

    Raises UsageError for a value out of range, and for data that cannot be used.
    """

    model: nn.Module
    data: Any = field(repr=False)
    validation: Any = field(default=None, repr=False)
    loss: Callable[..., torch.Tensor] | None = None
    title: str = ""
    # data
    context: int = 64  # tokens in one sample
    tokenizer: Tokenizer = "characters"
    columns: Sequence[str] | None = None
    image_size: int | tuple[int, int] | None = None  # (height, width)
    grayscale: bool = False
    # one unit
    steps: int = 20  # H: steps of the inner optimizer in one unit
    batch: int = 8  # samples in one step
    optimizer: str = "adamw"  # or "muon", "sgd"
    lr: float | None = None  # see DEFAULT_LR
    betas: tuple[float, float] = (0.9, 0.95)  # the first one is the momentum of sgd
    weight_decay: float = 0.0
    clip: float = 1.0  # limit of the gradient's norm; 0 for none
    rewarm: int | None = None  # steps of learning-rate warm-up in each unit: half of few, 0.4 of many
    precision: str = "fp32"  # or "bf16": autocast over float32 weights
    param_groups: Sequence[dict[str, Any]] | None = field(default=None, repr=False)
    # the whole job
    schedule: str = "constant"  # or "linear", "cosine"
    warmup: int = 0  # steps of the whole job
    final_lr: float = 0.0  # share of the learning rate that the schedule ends with
    outer_lr: float | None = None
    outer_momentum: float | None = None  # Nesterov
    codec_bits: int | None = None  # bits per value of an update: 4, or 8 in bfloat16
    codec_block: int = 64  # values that share a scale
    codec_density: float = 1.0  # share of the values that an update holds
    # terms
    rounds: int | None = None
    units: int | None = None  # per round
    max_price: float | str | None = None  # credits per unit

    def __post_init__(self) -> None:
        check(isinstance(self.model, nn.Module), "model", self.model, "a torch.nn.Module")
        check(self.loss is None or callable(self.loss), "loss", self.loss, "a function of (outputs, targets)")
        check(isinstance(self.title, str) and len(self.title) <= 80, "title", self.title, "at most 80 characters")
        self._check_choices()
        self._check_integers()
        self._check_numbers()
        assert isinstance(self.groups, list)  # read once, so that an unusable group is refused here
        self._check_data()

    def _check_choices(self) -> None:
        choices = {
            "optimizer": (self.optimizer, tuple(DEFAULT_LR)),
            "precision": (self.precision, ("fp32", "bf16")),
            "schedule": (self.schedule, ("constant", "linear", "cosine")),
        }
        for name, (value, known) in choices.items():
            check(value in known, name, value, f"one of {', '.join(known)}")
        known_tokenizer = callable(self.tokenizer) or self.tokenizer in ("characters", "bytes")
        check(known_tokenizer, "tokenizer", self.tokenizer, '"characters", "bytes" or a function of a text')
        named = self.columns is None or (
            isinstance(self.columns, list | tuple)
            and len(self.columns) > 0
            and all(isinstance(name, str) for name in self.columns)
        )
        check(named, "columns", self.columns, "a list of names of fields")

    def _check_integers(self) -> None:
        limits: dict[str, tuple[object, int, int]] = {
            "context": (self.context, 1, MAX_CONTEXT),
            "steps": (self.steps, 1, MAX_STEPS),
            "batch": (self.batch, 1, 65_536),
            "rewarm": (0 if self.rewarm is None else self.rewarm, 0, self.steps),
            "warmup": (self.warmup, 0, MAX_STEPS * MAX_ROUNDS),
            "codec_bits": (self.update_bits, 2, 8),
            "codec_block": (self.codec_block, 16, 4_096),
            "rounds": (1 if self.rounds is None else self.rounds, 1, MAX_ROUNDS),
            "units": (1 if self.units is None else self.units, 1, MAX_UNITS_PER_ROUND),
        }
        for name, (value, low, high) in limits.items():
            check_whole(name, value, low, high)
        if self.image_size is not None:
            for side in self.image_size if isinstance(self.image_size, tuple) else (self.image_size,):
                check_whole("image_size", side, 1, _MAX_IMAGE_SIDE)
            two = not isinstance(self.image_size, tuple) or len(self.image_size) == 2
            check(two, "image_size", self.image_size, "one side, or (height, width)")

    def _check_numbers(self) -> None:
        check_number("lr", self.inner_lr, 1e-9, 1_000)
        both = isinstance(self.betas, tuple | list) and len(self.betas) == 2
        check(both, "betas", self.betas, "two numbers from 0, below 1")
        for beta in self.betas:
            check_number("betas", beta, 0, 0.999999)
        check_number("weight_decay", self.weight_decay, 0, 1)
        check_number("clip", self.clip, 0, MAX_INT // PPM)
        check_number("final_lr", self.final_lr, 0, 1)
        check_number("outer_lr", 1 if self.outer_lr is None else self.outer_lr, 1e-6, 1_000)
        check_number("outer_momentum", 0 if self.outer_momentum is None else self.outer_momentum, 0, 0.999999)
        check_number("codec_density", self.codec_density, LEAST_DENSITY, 1)
        if self.update_bits == 2:  # wider ones would round small values, and small cheats, to nothing: docs/adr/0011
            fits = self.codec_block <= WIDEST_BLOCK_OF_2_BITS
            check(fits, "codec_block", self.codec_block, f"at most {WIDEST_BLOCK_OF_2_BITS} with codec_bits=2")
        if self.precision == "bf16":  # where honest reruns and cheats were told apart: docs/adr/0004
            check(self.update_bits == 8, "codec_bits", self.codec_bits, '8 with precision="bf16"')
            check(self.codec_density == 1, "codec_density", self.codec_density, '1 with precision="bf16"')
            check(self.steps <= BF16_STEPS, "steps", self.steps, f'at most {BF16_STEPS} with precision="bf16"')

    @property
    def update_bits(self) -> int:
        """The bits per value of an update."""
        if self.codec_bits is not None:
            return self.codec_bits
        return 8 if self.precision == "bf16" else 4

    def _check_data(self) -> None:
        data = self.dataset
        if data.kind == "tokens":
            smallest = min(data.train, data.count - data.train)
            ensure(
                smallest > self.context,
                UsageError(
                    f"data has {data.count} tokens, {smallest} in its smaller part, which holds no window of "
                    f"context={self.context}; give more data"
                ),
            )
        unknown = [name for name in data.names or ("0",) if name not in self._accepted]
        ensure(
            not (self._accepted and unknown),
            UsageError(
                "data has no names, or other ones than the model's forward; give a Hugging Face model rows as dicts "
                "with input_ids and labels (it moves labels by one itself)"
            ),
        )
        ensure(
            self.loss is None or len(self.field_types) > 1,
            UsageError("data has one field, and loss=... needs a target, too; give (inputs, targets)"),
        )

    @property
    def inner_lr(self) -> float:
        """The learning rate of the inner optimizer."""
        return DEFAULT_LR[self.optimizer] if self.lr is None else self.lr

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The content of ``data`` and ``validation``, read once."""
        size = self.image_size
        options = Options(
            tokenizer=self.tokenizer,
            columns=tuple(self.columns or ()),
            image_size=(size, size) if isinstance(size, int) else size,
            grayscale=self.grayscale,
            context=self.context,
            accepts=self._accepted,
        )
        return read_source(self.data, self.validation, options)

    @functools.cached_property
    def _accepted(self) -> tuple[str, ...]:
        """The names that a Hugging Face model's forward takes; empty for other models."""
        if self.loss is not None or not hasattr(self.model, "config"):
            return ()
        parameters = tuple(inspect.signature(self.model.forward).parameters)
        return parameters if "labels" in parameters else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the model gets the fields; empty where it gets them in order."""
        return self.dataset.names if self._accepted else ()

    @property
    def field_types(self) -> list[tuple[str, tuple[int, ...]]]:
        """(dtype, shape without the batch) of each field that the model and its loss get."""
        if self.dataset.kind == "tokens":
            return [("int64", (self.context,))] * 2
        return [(each.dtype, each.shape) for each in self.dataset.fields]

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return one batch of the data, as the model gets it."""
        return tuple(torch.from_numpy(array) for array in self.dataset.example(self.batch, self.context))

    @functools.cached_property
    def groups(self) -> list[dict[str, Any]]:
        """``param_groups`` as capture takes them: ``params``, and scales relative to ``lr`` and ``weight_decay``."""
        return group_scales(self.param_groups or (), self.inner_lr, self.weight_decay)

    @property
    def tokens_per_unit(self) -> int:
        """The tokens that one unit trains on; 0 where the data has none."""
        if self.dataset.kind == "tokens":
            return self.steps * self.batch * self.context
        lengths = [
            f.shape for name, f in zip(self.dataset.names, self.dataset.fields, strict=True) if name == "input_ids"
        ]
        return self.steps * self.batch * lengths[0][0] if lengths and len(lengths[0]) == 1 else 0

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe for the job's own number of rounds."""
        return self.recipe_for(self.rounds or DEFAULT_ROUNDS)

    def recipe_for(self, rounds: int) -> Recipe:
        """Return the settings as integers, as they are signed, for a job of ``rounds`` rounds.

        Measured: the outer step is best with rate 1 without momentum under 30 rounds, with momentum 0.5 up to 100, and
        with rate 0.9 and momentum 0.7 above; a unit's re-warm-up takes half of 20 steps, and 0.4 of more.
        """
        outer_lr, outer_momentum = _outer(rounds)
        steps = rounds * self.steps
        return Recipe(
            inner=self.optimizer,
            steps=self.steps,
            batch=self.batch,
            lr_e9=round(self.inner_lr * _E9),
            beta1_ppm=round(self.betas[0] * PPM),
            beta2_ppm=round(self.betas[1] * PPM),
            weight_decay_ppm=round(self.weight_decay * PPM),
            clip_ppm=round(self.clip * PPM),
            rewarm_steps=_rewarm(self.steps) if self.rewarm is None else self.rewarm,
            outer_lr_ppm=round((outer_lr if self.outer_lr is None else self.outer_lr) * PPM),
            outer_momentum_ppm=round((outer_momentum if self.outer_momentum is None else self.outer_momentum) * PPM),
            codec_bits=self.update_bits,
            codec_block=self.codec_block,
            codec_density_ppm=round(self.codec_density * PPM),
            precision=self.precision,
            schedule=self.schedule,
            schedule_steps=0 if self.schedule == "constant" else steps,
            warmup_steps=min(self.warmup, steps),
            final_lr_ppm=0 if self.schedule == "constant" else round(self.final_lr * PPM),
        )


def _outer(rounds: int) -> tuple[float, float]:
    if rounds < 30:
        return 1.0, 0.0
    return (1.0, 0.5) if rounds <= 100 else (0.9, 0.7)


def _rewarm(steps: int) -> int:
    return -(-steps // 2) if steps <= 20 else -(-2 * steps // 5)
