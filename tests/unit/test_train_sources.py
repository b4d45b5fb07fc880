"""What owners give as data: every form becomes what the model would have got from it, or one sentence says why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from gdf_market.errors import UsageError
from gdf_market.train import source, source_items
from gdf_market.train.data import Content, DataManifest, check_manifest, load_content, sample_types, unit_batches
from gdf_market.train.source import Dataset, Options, read_source

ROWS = 40
INPUTS = np.arange(ROWS * 3, dtype=np.int64).reshape(ROWS, 3) - 5
TARGETS = np.arange(ROWS, dtype=np.int64)


def samples(data: Dataset, folder: Path) -> tuple[np.ndarray[Any, Any], ...]:
    """Return all rows as a program gets them from the file, in the order of the last field."""
    path = folder / "content"
    data.write(path)
    manifest = data.manifest("0" * 64, 8)
    content = load_content(path, manifest)
    assert path.stat().st_size == data.size_bytes
    columns = [field.restore(column[:]) for field, column in zip(manifest.fields, content.columns, strict=True)]
    order = np.argsort(columns[-1].reshape(data.count, -1)[:, 0], kind="stable")
    return tuple(column[order] for column in columns)


class MapStyle(TorchDataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(INPUTS)[index], int(TARGETS[index])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(ROWS):
            yield {"x": INPUTS[row].tolist(), "y": int(TARGETS[row])}


def write_npz(folder: Path) -> Path:
    np.savez(folder / "rows.npz", x=INPUTS, y=TARGETS)
    return folder / "rows.npz"


def write_safetensors(folder: Path) -> Path:
    safetensors.torch.save_file(
        {"x": torch.from_numpy(INPUTS), "y": torch.from_numpy(TARGETS)}, folder / "r.safetensors"
    )
    return folder / "r.safetensors"


def write_npy_pair(folder: Path) -> tuple[str, Path]:
    np.save(folder / "x.npy", INPUTS)
    np.save(folder / "y.npy", TARGETS)
    return str(folder / "x.npy"), folder / "y.npy"


def write_json_lines(folder: Path) -> str:
    lines = [json.dumps({"x": x.tolist(), "y": int(y)}) for x, y in zip(INPUTS, TARGETS, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize(
    "give",
    [
        lambda folder: (INPUTS, TARGETS),
        lambda folder: (torch.from_numpy(INPUTS), TARGETS.tolist()),
        lambda folder: {"x": INPUTS, "y": TARGETS},
        lambda folder: TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)),
        lambda folder: MapStyle(),
        lambda folder: Stream(),
        lambda folder: [(x, y) for x, y in zip(INPUTS, TARGETS, strict=True)],
        lambda folder: tuple({"x": x, "y": y} for x, y in zip(INPUTS, TARGETS, strict=True)),
        write_npz,
        write_safetensors,
        write_npy_pair,
        write_json_lines,
    ],
)
def test_rows_reach_the_model_as_they_were(give: Any, tmp_path: Path) -> None:
    data = read_source(give(tmp_path))
    x, y = samples(data, tmp_path)
    assert (data.kind, data.count, data.train) == ("rows", ROWS, 36)
    assert x.dtype == y.dtype == np.int64
    assert (x == INPUTS).all()
    assert (y == TARGETS).all()
    assert [field.stored for field in data.fields] == ["int16", "uint8"]
    assert [(field.low, field.high) for field in data.fields] == [(-5, 114), (0, 39)]


def test_rows_are_shuffled_once_and_always_alike(tmp_path: Path) -> None:
    first = read_source((INPUTS, TARGETS)).content.columns[1]
    assert first.tolist() == read_source(MapStyle()).content.columns[1].tolist()
    assert first.tolist() != sorted(first.tolist())
    halves = first[:18].mean(), first[18:36].mean()
    assert max(halves) - min(halves) < ROWS / 4  # sorted ones would be 18 apart


@pytest.mark.parametrize(
    ("array", "dtype", "stored"),
    [
        (np.array([[0], [255]] * 10), "int64", "uint8"),
        (np.array([[0], [256]] * 10), "int64", "int16"),
        (np.array([[0], [65_535]] * 10), "int64", "uint16"),
        (np.array([[-1], [65_535]] * 10), "int64", "int32"),
        (np.array([[0], [2**40]] * 10), "int64", ""),
        (np.array([[0], [-3]] * 10, np.int32), "int32", "int16"),
        (np.array([[0], [7]] * 10, np.int8), "int64", "uint8"),
        (np.array([[0], [7]] * 10, np.uint8), "uint8", ""),
        (np.array([[True], [False]] * 10), "bool", ""),
        (np.array([[0.25], [-3]] * 10), "float32", ""),
        (np.array([[0.25], [-3]] * 10, np.float16), "float16", ""),
        (torch.full((20, 2), 0.25, dtype=torch.bfloat16), "float32", ""),
        ((np.arange(20) / 255).astype(np.float32)[:, None], "float32", "uint8"),
        (np.float32([[1.0], [1.5]] * 10), "float32", ""),
        (np.float32([[0.1], [0.5]] * 10), "float32", ""),
    ],
)
def test_types_are_the_owners_and_files_take_the_smallest(array: Any, dtype: str, stored: str, tmp_path: Path) -> None:
    data = read_source((array, np.arange(20)))
    field = data.fields[0]
    assert (field.dtype, field.stored, field.divisor) == (dtype, stored, 255 if dtype == "float32" and stored else 0)
    found = samples(data, tmp_path)[0]
    expected = array.float().numpy() if isinstance(array, torch.Tensor) else array
    assert found.dtype.name == dtype
    assert (found == expected.astype(dtype)).all()
    assert sample_types(data.manifest("0" * 64, 1))[0] == (dtype, field.shape)


def test_every_byte_is_one_correctly_rounded_quotient() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).div(255)[:, None]  # as torchvision's ToTensor
    data = read_source((pixels, np.arange(256)))
    restored = data.fields[0].restore(np.arange(256, dtype=np.uint8))
    assert data.fields[0].divisor == 255
    assert restored.dtype == np.float32
    assert (restored == pixels[:, 0].numpy()).all()


def test_validation_data_are_kept_apart(tmp_path: Path) -> None:
    data = read_source((INPUTS, TARGETS), (INPUTS[:7] + 1_000, TARGETS[:7] + 500))
    assert (data.count, data.train) == (47, 40)
    assert data.content.columns[1][40:].tolist() == (TARGETS[:7] + 500).tolist()
    assert set(data.content.columns[1][:40].tolist()) == set(TARGETS.tolist())
    assert data.fields[1].high == 506
    text = read_source("abab" * 9, "xyz" * 5)
    assert (text.vocab, text.count, text.train) == (5, 51, 36)
    assert text.tokens[36:39].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ("some text", "data is rows and validation is text"),
        ((INPUTS,), "has the fields 0, data has the fields 0, 1"),
        ((INPUTS[:, :2], TARGETS), r"int64\[3\] in data and int64\[2\] in validation"),
        ((INPUTS.astype(np.float32), TARGETS), "'0' is int64"),
        ((INPUTS[:0], TARGETS[:0]), "no rows"),
    ],
)
def test_validation_data_of_another_form(validation: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_source((INPUTS, TARGETS), validation)


def test_text_by_bytes_and_by_a_tokenizer(tmp_path: Path) -> None:
    by_bytes = read_source("grün", options=Options(tokenizer="bytes"))
    assert (bytes(by_bytes.tokens.tolist()), by_bytes.vocab) == ("grün".encode(), 256)
    words = {"the": 0, "cat": 7}
    plain = read_source("the cat the", options=Options(tokenizer=lambda text: [words[word] for word in text.split()]))
    assert (plain.tokens.tolist(), plain.vocab) == ([0, 7, 0], 8)
    faces = read_source("ab", options=Options(tokenizer=lambda text: {"input_ids": [3, 1]}))
    assert faces.tokens.tolist() == [3, 1]
    with pytest.raises(UsageError, match="flat list of integers"):
        read_source("ab", options=Options(tokenizer=lambda text: [[1.5]]))
    assert read_source(b"\x00\xff").vocab == 256


def test_json_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "ab", "id": 1}\n{"text": "c"}\n', encoding="utf-8")
    assert read_source(path).tokens.tolist() == [1, 2, 0, 3]  # a newline between documents
    path.write_text('{"body": "ab", "score": 1}\n' * 12, encoding="utf-8")
    assert read_source(path, options=Options(columns=("body",))).vocab == 3
    assert read_source(path, options=Options(columns=("score",))).fields[0].dtype == "int64"
    with pytest.raises(UsageError, match="'body' holds values of type str"):
        read_source(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "holds no line"),
        ('{"x": 1}\n{"x": \n', "cannot be read as JSON lines"),
        ("[1]\n", ":1: not a JSON object"),
        ('{"text": "a"}\n{"text": 3}\n', "object 2 has no text"),
        ('{"x": 1}\n{"y": 1}\n', "row 1 has the fields y; the first has x"),
        ('{"x": [1, 2]}\n{"x": [1]}\n', "give|make"),
        ('{"x": 1}\n{"x": 0.5}\n', "float64 and int64 in different rows"),
        ('{"x": [[1], [1, 2]]}\n', "rows of different lengths"),
        ('{"x": null}\n', "values of type NoneType"),
        ('{"x": NaN}\n' * 12, "'x' holds nan in row 0"),
    ],
)
def test_json_lines_that_cannot_be_used(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_source(path)


def tokenised(rows: int, longest: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "text": "left out",
            "input_ids": list(range(1, 2 + row % longest)),
            "attention_mask": [1] * (1 + row % longest),
            "labels": list(range(1, 2 + row % longest)),
        }
        for row in range(rows)
    ]


def test_tokenised_rows_are_padded_to_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_items, "_BLOCK_ROWS", 4)  # blocks with one length, with others, and a short last one
    options = Options(context=8, accepts=("input_ids", "attention_mask", "labels"))
    data = read_source(tokenised(18), options=options)
    assert data.names == ("input_ids", "attention_mask", "labels")
    assert [field.shape for field in data.fields] == [(8,)] * 3
    ids, mask, labels = (field.restore(c) for field, c in zip(data.fields, data.content.columns, strict=True))
    assert (mask.sum(1) == (ids > 0).sum(1)).all()
    assert (labels[mask == 1] == ids[mask == 1]).all()
    assert (labels[mask == 0] == -100).all()
    assert sorted(mask.sum(1).tolist()) == sorted(1 + row % 6 for row in range(18))
    with pytest.raises(UsageError, match="raise context"):
        read_source(tokenised(18), options=Options(context=5, columns=("input_ids",)))
    equal = read_source(
        [{"input_ids": [1, 2, 3], "label": 1}] * 12, options=Options(context=8, accepts=options.accepts)
    )
    assert [field.shape for field in equal.fields] == [(3,), ()]
    assert equal.names == ("input_ids", "labels")


def write_images(folder: Path, mode: str = "RGB") -> None:
    for number, name in enumerate(("cat", "dog")):
        (folder / name / "deep").mkdir(parents=True)
        for place in range(6):
            level = 20 * place + number
            image = Image.new(mode, (5, 4), level if mode == "L" else (level, 100, 200))
            image.save(folder / name / ("deep" if place == 5 else "") / f"{place}.png")
    (folder / "empty").mkdir()
    (folder / "cat" / "notes.txt").write_text("no image", encoding="utf-8")


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path / "set")
    data = read_source(tmp_path / "set")
    assert data.names == ("images", "labels")
    images, labels = samples(data, tmp_path)
    assert (images.dtype, images.shape[1:]) == (np.float32, (3, 4, 5))
    assert labels.tolist() == [0] * 6 + [1] * 6
    assert np.unique(images[:, 1]).tolist() == [np.float32(100) / np.float32(255)]
    reds = [sorted(np.rint(255 * images[labels == label, 0, 0, 0]).astype(int).tolist()) for label in (0, 1)]
    assert reds == [[0, 20, 40, 60, 80, 100], [1, 21, 41, 61, 81, 101]]
    gray = read_source(str(tmp_path / "set"), options=Options(grayscale=True, image_size=(8, 6)))
    assert gray.fields[0].shape == (1, 8, 6)


def test_folders_that_hold_no_usable_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="one subfolder for each class"):
        read_source(tmp_path)
    write_images(tmp_path / "set")
    Image.new("RGB", (9, 9)).save(tmp_path / "set" / "dog" / "9.png")
    with pytest.raises(UsageError, match=r"9\.png has 9 x 9 pixels.*image_size"):
        read_source(tmp_path / "set")
    assert read_source(tmp_path / "set", options=Options(image_size=(4, 4))).count == 13
    (tmp_path / "set" / "dog" / "a.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"a\.png cannot be read as an image"):
        read_source(tmp_path / "set", options=Options(image_size=(4, 4)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"pip install gdf-market\[images\]"):
        read_source(tmp_path / "set")


class Broken(TorchDataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return [1, 2][index]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.array([[1.0], [np.nan]] * 10), np.arange(20)), r"'0' holds nan in row 1"),
        ((np.array([[1.0], [1e39]] * 10), np.arange(20)), "no finite float32"),
        ((INPUTS, TARGETS[:7]), "different numbers of rows"),
        ((INPUTS.astype(object), TARGETS), "values of type object"),
        ((INPUTS.astype(complex), TARGETS), "complex128"),
        ((np.array(["a"] * 40), TARGETS), "values of type"),
        (({}, {}), "no fields"),
        ({}, "no fields"),
        ((INPUTS[:0], TARGETS[:0]), "no rows"),
        ((np.zeros((40, 0)), TARGETS), "none 0"),
        ((np.zeros((4, *[1] * 8)), TARGETS[:4]), "at most 7"),
        ((INPUTS[:5], TARGETS[:5]), "too few"),
        ((np.array([2**53 + 1] * 20), TARGETS[:20]), r"up to 2\*\*53"),
        ((3, 4), "single value 3"),
        (np.array(3), "single value"),
        (("x.npy", TARGETS), "does not exist"),
        (("x.txt", TARGETS), r"path of a \.npy file"),
        ({str(number): TARGETS for number in range(17)}, "17 fields"),
        ((torch.eye(20).to_sparse(), TARGETS[:20]), "sparse"),
        (Broken(), "IndexError"),
        ([(1, [1, 2]), (1, [1])], "make them one"),
        ([(1, 2), (1,)], "row 1 has the fields 0"),
        (iter(()), "no rows"),
        ([INPUTS, TARGETS], "is a list"),
        (7, "is a int"),
        ("missing.npy", "does not exist"),
    ],
)
def test_rows_that_cannot_be_used(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_source(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors", "x.png"])
def test_files_that_are_something_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe no such file")
    with pytest.raises(UsageError, match="cannot be read"):
        read_source(path)


def test_files_of_python_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", a=np.array([{"a": 1}], object), b=np.arange(20))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(UsageError, match="Python objects"):
            read_source(tmp_path / name)
    assert read_source(tmp_path / "x.npz", options=Options(columns=("b",))).count == 20
    with pytest.raises(UsageError, match="no field c"):
        read_source({"b": TARGETS}, options=Options(columns=("c",)))


def test_large_files_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(50_000, dtype=np.float64).reshape(5_000, 10))
    data = read_source(tmp_path / "x.npy")
    assert isinstance(data.columns[0][0].base, np.memmap) or isinstance(data.columns[0][0], np.memmap)
    monkeypatch.setattr(source, "_CHUNK_BYTES", 4_096)  # many pieces
    data.write(tmp_path / "pieces")
    assert (tmp_path / "pieces").read_bytes() == data.to_bytes()
    assert len(list(data._pieces(0))) > 50
    monkeypatch.setattr(source, "MAX_CONTENT_BYTES", 199_999)
    with pytest.raises(UsageError, match="200,000 bytes"):
        read_source(tmp_path / "x.npy")
    with pytest.raises(UsageError, match="cannot be written"):
        data.write(tmp_path / "no" / "folder")


def test_progress_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_items, "_REPORT_ROWS", 16)
    read_source(MapStyle())
    assert capsys.readouterr().err == "reading data: 16 of 40 rows\nreading data: 32 of 40 rows\n"


def test_the_example_holds_the_largest_integers() -> None:
    targets = np.concatenate([np.zeros(30, np.int64), [9], np.zeros(9, np.int64)])
    x, y = read_source((INPUTS, targets)).example(4, 0)
    assert (x.shape, y.shape) == ((4, 3), (4,))
    assert (x.max(), y.max()) == (INPUTS.max(), 9)
    tokens, following = read_source("abc" * 30).example(2, 5)
    assert tokens.shape == following.shape == (2, 5)
    assert tokens.max() == 2


def test_units_draw_rows_of_their_shard(tmp_path: Path) -> None:
    data = read_source((INPUTS, TARGETS))
    manifest = data.manifest("0" * 64, 64)
    assert manifest.context == 0
    numbered = (data.content.columns[0], np.arange(ROWS, dtype=np.uint8))
    drawn = unit_batches(
        manifest, Content(numbered), job="ab" * 32, round_index=0, shard=2, shards=4, steps=20, batch=5
    )
    places = np.concatenate([y for _, y in drawn])
    assert set(places.tolist()) == set(range(18, 27))


@pytest.mark.parametrize(
    "change",
    [
        {"stored": "int32"},
        {"stored": "uint8"},
        {"divisor": 255},
        {"dtype": "int64", "divisor": 9},
        {"dtype": "int32", "stored": "int32"},
        {"dtype": "uint8", "stored": "uint8"},
    ],
)
def test_fields_that_no_writer_makes(change: dict[str, Any]) -> None:
    from gdf_market.errors import MalformedError
    from gdf_market.train.data import Field

    given = {"dtype": "float32", "shape": (2,)} | change
    manifest = DataManifest(kind="rows", content="0" * 64, count=4, train=3, fields=(Field(**given),))
    with pytest.raises(MalformedError, match="stored as"):
        check_manifest(manifest, 1)


def test_files_whose_values_are_outside_their_field(tmp_path: Path) -> None:
    from gdf_market.errors import MalformedError

    data = read_source((np.arange(20, dtype=np.float32) + 0.5, np.arange(20), np.arange(20) > 3))
    manifest, path = data.manifest("0" * 64, 1), tmp_path / "content"
    good = data.to_bytes()
    path.write_bytes(good)
    assert load_content(path, manifest).columns[1].dtype == np.uint8
    for place, byte, message in (
        (80, 20, "field 1: 20 is outside 0 to 19 \\(row "),
        (100, 2, "no booleans"),
        (3, 255, "finite"),
    ):
        bad = bytearray(good)
        bad[place] = byte
        if message == "finite":
            bad[2] = 128  # the top bits of an infinite float32
        path.write_bytes(bytes(bad))
        with pytest.raises(MalformedError, match=message):
            load_content(path, manifest)
