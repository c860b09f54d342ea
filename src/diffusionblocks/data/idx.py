"""IDX files, as MNIST and Fashion-MNIST have them: read with every byte accounted for."""

import gzip
import math
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch

from diffusionblocks.data.images import ImageSet, check_labels, split_rows
from diffusionblocks.errors import InputError


def load_idx(folder: Path, split: str, classes: tuple[str, ...], fraction: float, seed: int) -> ImageSet:
    """One split of 28x28 grey images in the four IDX files of MNIST's layout.

    Args:
        folder: holds {train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz].
        split: "test" reads t10k; "train" and "validation" are parts of train.
        classes: the class names.
        fraction: of each class, that goes to validation.
        seed: chooses them.

    Raises:
        InputError: a file that is missing or damaged, other sizes, counts that differ, a label without a class.
    """
    prefix = "t10k" if split == "test" else "train"
    images_file, labels_file = (_find_idx(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1).astype(np.int64)
    if len(images) != len(labels):
        raise InputError(str(labels_file), f"{len(labels)} labels", f"{len(images)}, one per image", "fetch both again")
    if images.shape[1:] != (28, 28):
        raise InputError(str(images_file), images.shape[1:], "28x28 pixels", "use the original files")
    check_labels(torch.from_numpy(labels), len(classes), str(labels_file))
    rows = split_rows(labels, split, fraction, seed)
    return ImageSet(torch.from_numpy(images[rows][:, None]), torch.from_numpy(labels[rows]), classes)


def _find_idx(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError("data_dir", str(folder), f"a folder with {name} or {name}.gz", "put the file there")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """An IDX file of bytes (yann.lecun.com/exdb/mnist), gzip if it ends in .gz.

    Args:
        path: the file.
        ndim: number of dimensions, 3 for images and 1 for labels.

    Returns:
        uint8 with `ndim` dimensions.

    Raises:
        InputError: names the file: it cannot be read, is no IDX file of bytes with `ndim` dimensions, is empty, or
            holds fewer or more bytes than its header promises.
    """
    advice = "fetch the file again"
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as stream:
            header, broken = _read(stream, 4 + 4 * ndim)
            magic = bytes([0, 0, 8, ndim])
            if len(header) < 4 + 4 * ndim or header[:4] != magic:
                expected = f"an IDX header of {4 + 4 * ndim} bytes that starts {magic.hex(' ')} (bytes, {ndim}-D)"
                raise InputError(str(path), header[:4].hex(" "), expected, broken or advice)
            shape = tuple(int(n) for n in np.frombuffer(header, ">u4", offset=4))
            # One byte more than promised finds a longer file, and makes gzip compare its checksum.
            body, broken = _read(stream, math.prod(shape) + 1)
    except OSError as error:
        raise InputError(str(path), str(error), "a readable file", "check its permissions") from error
    if len(body) != math.prod(shape) or not body or broken:
        found = f"{'more than ' * (len(body) > math.prod(shape))}{min(len(body), math.prod(shape))} bytes"
        expected = f"{math.prod(shape)} bytes of data (more than 0), as its header promises"
        raise InputError(str(path), found, expected, f"{advice} ({broken})" if broken else advice)
    return np.frombuffer(body, np.uint8).reshape(shape)


def _read(stream: gzip.GzipFile | BufferedReader, count: int) -> tuple[bytearray, str]:
    """Up to `count` bytes, and the reason if a damaged gzip stream ended them early."""
    data = bytearray()
    try:
        # read1, since read loses what came before the damage.
        while len(data) < count and (piece := stream.read1(min(count - len(data), 1 << 20))):
            data += piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return data, f"gzip: {error}"
    return data, ""
