"""A folder of images: one subfolder a class, its name the label.

A program gets float32[channels, height, width] from 0 to 1 and the number of the class, int64; classes and files are
in the order of their names.  The file holds the bytes of the pixels.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdf_market.errors import UsageError, ensure
from gdf_market.train.source_columns import PIXEL, Column, Options, Rows

_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_REPORT_FILES = 10_000


def read_images(folder: Path, options: Options) -> Rows:
    """Return the columns ``images`` and ``labels``.

    Raises UsageError without Pillow, for a folder without class subfolders, a file that is no image, and images of
    different sizes without ``image_size``.
    """
    files, classes = _list(folder)
    first = _pixels(files[0][0], options)
    images = np.empty((len(files), *first.shape), np.uint8)
    for number, (path, _) in enumerate(files):
        pixels = _pixels(path, options)
        ensure(
            pixels.shape == first.shape,
            UsageError(
                f"{path} has {_size(pixels)} pixels, {files[0][0].name} has {_size(first)}; give image_size=(height, "
                "width) to bring all to one size"
            ),
        )
        images[number] = pixels
        if (number + 1) % _REPORT_FILES == 0:
            sys.stderr.write(f"reading images: {number + 1:,} of {len(files):,}\n")
    labels = np.array([label for _, label in files], np.int64)
    return Rows({"images": Column(images, PIXEL), "labels": Column(labels)}, classes)


def _list(folder: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """Return (file, label) of every image, and the names of the classes."""
    try:
        subfolders = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.name)
        found = {
            path.name: sorted(
                (file for file in path.rglob("*") if file.suffix.lower() in _ENDINGS and file.is_file()),
                key=lambda file: file.relative_to(path).as_posix(),
            )
            for path in subfolders
        }
    except OSError as error:
        raise UsageError(f"the folder {folder.absolute()} cannot be read: {error.strerror}") from None
    classes = tuple(name for name, files in found.items() if files)
    ensure(
        bool(classes),
        UsageError(f"{folder.absolute()} holds no subfolder with images; make one subfolder for each class"),
    )
    return [(file, label) for label, name in enumerate(classes) for file in found[name]], classes


def _pixels(path: Path, options: Options) -> npt.NDArray[np.uint8]:
    """Return uint8[channels, height, width]."""
    image_module = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of harmless oddities in files; a bomb is an error below
            with image_module.open(path) as opened:
                image = opened.convert("L" if options.grayscale else "RGB")
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise UsageError(f"{path} cannot be read as an image: {error}; correct or remove it") from None
    if options.image_size is not None:
        height, width = options.image_size
        image = image.resize((width, height), image_module.Resampling.BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if options.grayscale else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "reading a folder of images needs Pillow; install it: pip install gdf-market[images]"
        ) from None
    return Image


def _size(pixels: npt.NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[2]}"
