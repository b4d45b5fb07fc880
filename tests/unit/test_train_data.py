"""Owners' data as tokens, and the windows of a unit."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_kit import CONTEXT, JOB, TEXT, dataset

from gdf_market.codec import decode, encode
from gdf_market.errors import MalformedError, OversizedError, UsageError
from gdf_market.train.data import (
    MAX_EVALUATION_SAMPLES,
    Batch,
    Content,
    DataManifest,
    evaluation_batches,
    load_content,
    shard_range,
    unit_batches,
)
from gdf_market.train.source import read_source

MANIFEST = dataset().manifest("0" * 64, CONTEXT)


def batches(**changes: Any) -> list[Batch]:
    values: dict[str, Any] = {"job": JOB, "round_index": 3, "shard": 2, "shards": 5, "steps": 4, "batch": 6}
    return list(unit_batches(MANIFEST, dataset().content, **(values | changes)))


def test_text_becomes_the_ranks_of_its_characters() -> None:
    found = read_source("banana–\U0001f34c")
    assert found.tokens.tolist() == [1, 0, 2, 0, 2, 0, 3, 4]
    assert found.tokens.dtype == np.uint16
    assert found.vocab == 5
    assert found.to_bytes()[:4] == b"\x01\x00\x00\x00"


def test_the_last_tenth_is_for_validation() -> None:
    assert read_source("ab" * 50).train == 90
    assert read_source("ab" * 50 + "c" * 9).train == 99


def test_a_path_is_read(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("abc" * 10, encoding="utf-8")
    for source in (file, str(file)):
        assert read_source(source).tokens.tolist() == [0, 1, 2] * 10


@pytest.mark.parametrize("data", [[3, 0, 2], np.array([3, 0, 2]), torch.tensor([3, 0, 2])])
def test_integers_are_taken_as_tokens(data: Any) -> None:
    assert (read_source(data).tokens.tolist(), read_source(data).vocab) == ([3, 0, 2], 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "empty text"),
        (np.array([], np.int64), "empty array"),
        ([-1, 2], "token -1"),
        ([1.5], "is a list"),
        (None, "is a NoneType"),
        ([[1], [2]], "is a list"),
        ([65_536], "vocabulary of 65537"),
        (Path("/nowhere/x.txt"), "does not exist"),
        ("/nowhere/x.txt", "does not exist"),
    ],
)
def test_unusable_data(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_source(data)


def test_empty_and_binary_files(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        read_source(file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="cannot be read as UTF-8"):
        read_source(file)


def test_windows_are_the_same_everywhere() -> None:
    """Fixed bytes: an auditor on another machine has to draw the same windows."""
    drawn = b"".join(part.astype("<i8").tobytes() for batch in batches() for part in batch)
    assert hashlib.sha256(drawn).hexdigest() == "49c6b3d4b28759b355e58cfe218c0debbdadcba823bf0eec1054f69502e569f5"


def test_targets_are_the_next_tokens_and_windows_lie_in_the_shard() -> None:
    first, end = shard_range(MANIFEST, 2, 5)
    numbered = np.arange(MANIFEST.count, dtype=np.uint16)  # each token is its own position
    drawn = list(
        unit_batches(MANIFEST, Content((numbered,)), job=JOB, round_index=0, shard=2, shards=5, steps=50, batch=8)
    )
    for inputs, targets in drawn:
        assert inputs.shape == targets.shape == (8, CONTEXT)
        assert inputs.dtype == np.int64
        assert (targets == inputs + 1).all()
        assert first <= inputs.min()
        assert targets.max() < end
    assert len({int(inputs[0, 0]) for inputs, _ in drawn}) > 30


@pytest.mark.parametrize("change", [{"job": "cd" * 32}, {"round_index": 4}, {"shard": 1}])
def test_job_round_and_shard_change_the_windows(change: dict[str, Any]) -> None:
    assert batches()[0][0].tolist() != batches(**change)[0][0].tolist()
    assert batches()[0][0].tolist() == batches()[0][0].tolist()


def test_shards_cover_the_training_part_once() -> None:
    ends = [shard_range(MANIFEST, shard, 7) for shard in range(7)]
    assert ends[0][0] == 0
    assert ends[-1][1] == MANIFEST.train
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ends))


@pytest.mark.parametrize(("shard", "shards"), [(5, 5), (-1, 5), (0, MANIFEST.train // CONTEXT)])
def test_shards_that_do_not_exist_or_hold_no_window(shard: int, shards: int) -> None:
    with pytest.raises(MalformedError):
        batches(shard=shard, shards=shards)


def test_token_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    good = dataset().to_bytes()
    file.write_bytes(good)
    assert load_content(file, MANIFEST).columns[0].tolist() == dataset().tokens.tolist()
    file.write_bytes(good[:-2])
    with pytest.raises(MalformedError, match="content file"):
        load_content(file, MANIFEST)
    file.write_bytes(good + b"\0\0")
    with pytest.raises(OversizedError, match="content file"):
        load_content(file, MANIFEST)
    file.write_bytes(good[:-2] + MANIFEST.vocab.to_bytes(2, "little"))
    with pytest.raises(MalformedError, match=rf"token {MANIFEST.vocab} is outside 0 to .* \(row \d+\)"):
        load_content(file, MANIFEST)


def test_the_manifest_is_a_record() -> None:
    data = encode(MANIFEST)
    assert decode(data, DataManifest) == MANIFEST
    with pytest.raises(MalformedError):
        decode(data.replace(b'"tokens"', b'"object"'), DataManifest)


def test_evaluation_windows_lie_in_the_validation_part() -> None:
    numbered = np.arange(MANIFEST.count, dtype=np.uint16)
    content = Content((numbered,))
    found = evaluation_batches(MANIFEST, content, 8)
    windows = np.concatenate([inputs for inputs, _ in found])
    assert all(inputs.shape == (8, CONTEXT) for inputs, _ in found)
    assert windows.min() >= MANIFEST.train
    assert max(targets.max() for _, targets in found) < MANIFEST.count
    assert 8 <= len(windows) <= MAX_EVALUATION_SAMPLES
    with pytest.raises(MalformedError, match="validation part"):
        evaluation_batches(read_source(TEXT[:80]).manifest("0" * 64, CONTEXT), content, 8)
