"""A user's own images: a folder of class folders, or any image data set through `datasets`, at any size.

Layout of a folder, each level below CLASS being of that class::

    DIR/CLASS/IMAGE                      or  DIR/IMAGE, all of one class "image"
    DIR/{train,validation,test}/CLASS/IMAGE, or DIR/{train,validation,test}/IMAGE

Classes are the folders with an image in them, by name, numbered in the order of the names. What is no image by its
suffix (`SUFFIXES`) or is hidden (a name that starts with a dot) is passed over. validation/ may be val/ or valid/.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionblocks.data.hub import SPLIT_OF, columns, open_hub, read_labels
from diffusionblocks.data.images import check_size, read_image, read_opened
from diffusionblocks.data.lazy import Items, LazyImages
from diffusionblocks.errors import InputError

SUFFIXES = frozenset(
    {
        *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".tga"),
    }
)
FRACTION = 0.1


def open_folder(data_dir: str, split: str, image_size: int, num_channels: int, seed: int = 0) -> LazyImages:
    """One split of a user's images; they are read when asked for, `.load()` reads them all.

    Each image is brought to its size by the rule of `read_image`: turned by its EXIF orientation, cropped to the
    centred square of the shorter side, made 8 bits, grey or RGB, resized by Pillow's bicubic filter.

    A split with a folder of its own (or that the data set on the hub has) is that. One without is taken from train/,
    or from all images where there is no train/: of each class round(0.1 n) images, chosen by `seed`, so 80/10/10
    where neither validation nor test is given. Splits of the hub by other names are not read.

    Args:
        data_dir: the folder; or "hub:NAME", NAME being a data set on the hub or a local folder, as
            `datasets.load_dataset` takes it, with one column of images and one of ClassLabel (or no other column at
            all: then the class is "image").
        split: "train", "validation" or "test".
        image_size: height = width of the result, pixels.
        num_channels: 1 (grey) or 3 (RGB).
        seed: chooses the images of the splits that are not given.

    Raises:
        InputError: no such folder; no image in it or in a split's folder; images beside class folders, or folders of
            images beside train/; a class that train/ lacks; too few images for the split; a hub that cannot be reached.
    """
    check_size(image_size, num_channels)
    hub = data_dir.startswith("hub:")
    parts, classes = _hub_parts(data_dir) if hub else _folder_parts(Path(data_dir).expanduser())
    missing = [name for name in ("test", "validation") if name not in parts]
    part = parts.get(split, parts["train"])
    rows = np.arange(len(part.labels)) if split in parts and split != "train" else _take(part, split, missing, seed)
    return LazyImages(part.labels[rows], classes, image_size, num_channels, part.items(rows))


def _take(part: "_FolderPart | _HubPart", split: str, missing: list[str], seed: int) -> np.ndarray:
    """Rows of train that the split gets, ascending, where the splits `missing` are taken from it."""
    rng = np.random.default_rng(seed)
    labels = part.labels.numpy()
    owner = np.full(len(labels), "train", dtype=object)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = int(FRACTION * len(rows) + 0.5)
        for k, name in enumerate(missing):
            owner[rows[k * count : (k + 1) * count]] = name
    rows = np.flatnonzero(owner == split)
    if not len(rows):
        todo = f"add images (10% of a class of 5 or more is taken), or give {split} a folder of its own"
        raise InputError("images", len(labels), f"enough for a {split} split", todo)
    return rows


@dataclass(frozen=True)
class _Files:
    """Image files below one folder."""

    root: Path
    names: list[str]

    def read(self, row: int, size: int, channels: int) -> Tensor:
        return read_image(self.root / self.names[row], size, channels)

    def identity(self, row: int) -> str:
        found = (self.root / self.names[row]).stat()
        return f"{self.names[row]} {found.st_size} {found.st_mtime_ns}"


@dataclass(frozen=True)
class _FolderPart:
    root: Path
    names: list[str]
    labels: Tensor

    def items(self, rows: np.ndarray) -> Items:
        return _Files(self.root, [self.names[row] for row in rows])


def _folder_parts(root: Path) -> tuple[dict[str, _FolderPart], tuple[str, ...]]:
    """The splits that the folder gives ("train" alone where it gives none), and the class names."""
    if not root.is_dir():
        raise InputError("data_dir", str(root), "a folder with CLASS/IMAGE files", "there is no such folder")
    folders = {name: root / name for name in SPLIT_OF if (root / name).is_dir()}
    if "train" not in folders:
        if folders:
            expected = f"train/ beside {', '.join(f'{name}/' for name in folders)}"
            raise InputError("data_dir", str(root), expected, "a folder of that name is a split, not a class")
        groups = {"train": _walk(root)}
    else:
        groups = {}
        for name, folder in folders.items():
            if SPLIT_OF[name] in groups:
                expected = "one folder of validation/, val/ and valid/"
                raise InputError("data_dir", str(root), expected, f"it has {', '.join(folders)}")
            groups[SPLIT_OF[name]] = _walk(folder)
        for place in sorted(root.iterdir()):
            if place.name not in folders and not place.name.startswith(".") and _holds_image(place):
                raise InputError("data_dir", str(root), "images in train/, validation/ and test/ alone", str(place))
    classes = tuple(sorted(groups["train"]))
    parts = {}
    for split, group in groups.items():
        if unknown := sorted(group.keys() - set(classes)):
            raise InputError("data_dir", str(root), f"in {split} the classes of train", f"it lacks {unknown[0]!r}")
        pairs = [(name, label) for label, key in enumerate(classes) for name in group.get(key, ())]
        labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
        place = next((folder for name, folder in folders.items() if SPLIT_OF[name] == split), root)
        parts[split] = _FolderPart(place, [name for name, _ in pairs], labels)
    return parts, classes


def _walk(root: Path) -> dict[str, list[str]]:
    """Names of image files, relative to `root`, by class and in order; the classes are its subfolders, or "image"."""
    loose, groups = [], {}
    for place in root.iterdir():
        if place.name.startswith("."):
            continue
        if place.is_dir():
            if names := sorted(path.relative_to(root).as_posix() for path in _images_below(place)):
                groups[place.name] = names
        elif place.suffix.lower() in SUFFIXES:
            loose.append(place.name)
    if loose and groups:
        expected = "images in class folders alone, or no class folders"
        raise InputError("data_dir", str(root), expected, f"of which class is {min(loose)}?")
    if not loose and not groups:
        kinds = "one of the suffixes " + " ".join(sorted(SUFFIXES))
        raise InputError("data_dir", str(root), "a folder with CLASS/IMAGE files", f"no file in it has {kinds}")
    return groups or {"image": sorted(loose)}


def _images_below(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


def _holds_image(place: Path) -> bool:
    return bool(_images_below(place)) if place.is_dir() else place.suffix.lower() in SUFFIXES


class _HubRows:
    """Rows of an image column; `datasets` promises nothing about threads, so they take turns to open an image."""

    def __init__(self, data_dir: str, part: Any, column: str, rows: np.ndarray):
        self.data_dir, self.part, self.column, self.rows = data_dir, part, column, rows
        self.lock = threading.Lock()

    def read(self, row: int, size: int, channels: int) -> Tensor:
        def load() -> Any:
            with self.lock:
                return self.part[int(self.rows[row])][self.column]

        return read_opened(load, f"{self.data_dir} row {self.rows[row]}", size, channels)

    def identity(self, row: int) -> str:
        return f"{self.part._fingerprint} {self.rows[row]}"


@dataclass(frozen=True)
class _HubPart:
    data_dir: str
    part: Any
    column: str
    labels: Tensor

    def items(self, rows: np.ndarray) -> Items:
        return _HubRows(self.data_dir, self.part, self.column, rows)


def _hub_parts(data_dir: str) -> tuple[dict[str, _HubPart], tuple[str, ...]]:
    """The splits of a data set on the hub, and the class names."""
    found = open_hub(data_dir)
    if "train" not in found:
        raise InputError("data_dir", data_dir, "a split named train", f"it has {', '.join(found)}")
    parts, classes = {}, ()
    for name in SPLIT_OF:
        if name not in found:
            continue
        part = found[name]
        if len(part.features) == 1 and len(found["train"].features) == 1:
            images, classes = _only_image(data_dir, part.features), ("image",)
            labels = torch.zeros(len(part), dtype=torch.int64)
        else:
            images, column = columns(data_dir, part.features)
            labels, names = read_labels(data_dir, part, column), tuple(part.features[column].names)
            if classes and names != classes:
                raise InputError("data_dir", data_dir, f"in {name} the classes of train", f"they are {names}"[:300])
            classes = names
        if SPLIT_OF[name] in parts:
            raise InputError("data_dir", data_dir, "one split of validation, val and valid", f"it has {list(found)}")
        parts[SPLIT_OF[name]] = _HubPart(data_dir, part.select_columns([images]), images, labels)
    return parts, classes


def _only_image(data_dir: str, features: Any) -> str:
    from datasets import Image

    name, feature = next(iter(features.items()))
    if not isinstance(feature, Image):
        raise InputError("data_dir", data_dir, "a column of images", f"its columns: {name}")
    return name
