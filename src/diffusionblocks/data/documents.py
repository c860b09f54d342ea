"""The documents of a text source, and their split: the texts that CPython ships, files, a folder, or the hub.

==========  =======================================================================================================
data        documents
==========  =======================================================================================================
pydoc       the English help texts that CPython ships (`pydoc_data.topics`, about 0.5 MB), one a topic, in the order
            of the names, but a text that two topics share once; they differ with the version of Python
FILE        plain text, or gzip of it: one document; or a table of the kinds in `TABLES`: one document a row
DIR         every file below it that is not hidden, in the order of the paths, as a FILE each; DIR/train (and
            DIR/validation, DIR/test) are the splits, if there is one
hub:NAME    a data set on the hub or a local folder, as `datasets.load_dataset` takes it: one document a row; its
            splits train, validation (val, valid) and test are used
==========  =======================================================================================================

A split that the source does not have itself is taken from its train split, or from everything: see `open_documents`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from diffusionblocks.data.hub import SPLIT_OF, load_with_datasets
from diffusionblocks.data.textfiles import Memory, Part, Table, open_file
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator

SplitBy = Literal["auto", "document", "position"]
SPLITS = ("train", "validation", "test")
FEW = 20
"""From so many documents on, "auto" splits by document."""


class Source:
    """Documents of several parts, numbered through; read anew at every pass, a batch of rows or a file at a time."""

    def __init__(self, name: str, parts: list[Part]):
        self.name, self.parts = name, parts
        self.starts = np.cumsum([0, *map(len, parts)])

    def read(self, rows: np.ndarray) -> Iterator[str]:
        """The texts of these rows, int64 (n,), ascending; a row may come twice."""
        bounds = np.searchsorted(rows, self.starts)
        for part, start, low, high in zip(self.parts, self.starts, bounds, bounds[1:], strict=False):
            if low < high:
                yield from part.read(rows[low:high] - start)

    def lengths(self) -> np.ndarray:
        """Characters of every document, int64 (N,).

        Raises:
            InputError: a document that cannot be read; there is none, or none with a character.
        """
        counts = map(len, self.read(np.arange(self.starts[-1])))
        lengths = np.fromiter(counts, np.int64, count=int(self.starts[-1]))
        if not lengths.any():
            found = f"{len(lengths)} documents, all empty" if len(lengths) else "no document"
            raise InputError("data", self.name, "documents with text", f"it has {found}")
        return lengths

    def place(self, row: int) -> str:
        """Where a document is: its file, or its table and row."""
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[part].place(row - int(self.starts[part]))


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of one split, in the order of the source; a loop over them reads them anew.

    Args:
        source: where they are.
        spans: int64, shape (n, 3): of each document its row in the source, and the characters from (inclusive) and to
            (exclusive) which it belongs to this split.
    """

    source: Source
    spans: np.ndarray

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[str]:
        texts = self.source.read(self.spans[:, 0])
        for text, (_, start, stop) in zip(texts, self.spans.tolist(), strict=True):
            yield text[start:stop]

    @property
    def num_characters(self) -> int:
        """Characters (code points) of all of them."""
        return int((self.spans[:, 2] - self.spans[:, 1]).sum())

    def place(self, index: int) -> str:
        """Where a document is, for a message: its file, or its table and row, and where in it the split begins."""
        row, start, _ = self.spans[index].tolist()
        return self.source.place(row) + (f" from character {start} on" if start else "")


def open_documents(
    data: str, text_field: str = "text", encoding: str = "utf-8", split_by: SplitBy = "auto"
) -> dict[str, Documents]:
    """The three splits of a text source; no two share a piece of the source.

    Splits that the source has itself are used as they are. The others are taken from its train split (or from all of
    it) and have 5 % each, so 90/5/5 where it has none. Documents without a character are passed over.

    Args:
        data: "pydoc", a file, a folder or "hub:NAME"; see the table above.
        text_field: column of the texts, for tables and the hub.
        encoding: of text files; a byte order mark is removed, and every line ends in one line feed.
        split_by: "document" chooses 5 % of the documents (at least 1), by a fixed seed; "position" takes the last
            characters: the first 90 % of all are train, the next 5 % validation, the last 5 % test, and a document at
            the border is cut; "auto" is "document" from 20 documents on, or else "position".

    Returns:
        "train", "validation" and "test".

    Raises:
        InputError: no such source; a file that is empty, damaged or not in that encoding (by byte); a missing column;
            a row that holds no text (by row); no text at all; too little to split.
    """
    if split_by not in ("auto", "document", "position"):
        raise InputError("split_by", split_by, "auto, document or position", "choose one of them")
    sources = _open_source(data, text_field, encoding)
    found = {}
    for split, source in sources.items():
        lengths = source.lengths()
        rows = np.flatnonzero(lengths)
        found[split] = Documents(source, np.stack([rows, np.zeros_like(rows), lengths[rows]], axis=1))
    missing = [split for split in ("test", "validation") if split not in found]
    if missing:
        everything = found["train"]
        by_document = split_by == "document" or (split_by == "auto" and len(everything) >= FEW)
        found |= (_split_by_document if by_document else _split_by_position)(everything, missing)
    return {split: found[split] for split in SPLITS}


def _split_by_document(everything: Documents, missing: list[str]) -> dict[str, Documents]:
    """Train, and of each missing split 5 % of the documents, at least 1."""
    count = len(everything)
    share = max(1, int(0.05 * count + 0.5))
    if count <= share * len(missing):
        expected = f"at least {len(missing) + 1} documents to split, it has {count}"
        raise InputError("data", everything.source.name, expected, "add documents, or split_by=position")
    order = torch.randperm(count, generator=keyed_generator("documents of a split")).numpy()
    bounds = [share * (k + 1) for k in range(len(missing))]
    chosen = np.split(order, bounds)
    return {
        split: Documents(everything.source, everything.spans[np.sort(rows)])
        for split, rows in zip([*missing, "train"], chosen, strict=True)
    }


def _split_by_position(everything: Documents, missing: list[str]) -> dict[str, Documents]:
    """Train from the first characters, then 5 % for validation and the last 5 % for test, where they are missing."""
    total = everything.num_characters
    names = [split for split in SPLITS if split == "train" or split in missing]
    borders = [0, *(total * (100 - 5 * k) // 100 for k in range(len(missing), -1, -1))]
    ends = np.cumsum(everything.spans[:, 2] - everything.spans[:, 1])
    found = {}
    for split, start, stop in zip(names, borders, borders[1:], strict=False):
        if start == stop:
            expected = f"enough text to split, it has {total} characters"
            raise InputError("data", everything.source.name, expected, f"the {split} split would be empty; add text")
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        spans = everything.spans[first : last + 1].copy()
        spans[-1, 2] -= ends[last] - stop
        spans[0, 1] = start - (ends[first - 1] if first else 0)
        found[split] = Documents(everything.source, spans)
    return found


def _open_source(data: str, text_field: str, encoding: str) -> dict[str, Source]:
    """The splits that a source has itself; "train" is everything where it has none."""
    if data == "pydoc":
        from pydoc_data.topics import topics

        # The same text in two splits would be no held-out text.
        names = sorted({topics[name]: name for name in sorted(topics, reverse=True)}.values())
        return {"train": Source(data, [Memory(data, names, [topics[name] for name in names])])}
    if data.startswith("hub:"):
        found = load_with_datasets("data", data, "text", data.removeprefix("hub:"))
        names = [name for name in found if name in SPLIT_OF]
        parts: dict[str, list[Part]] = {name: [Table(f"{data} {name}", found[name], text_field)] for name in names}
        return _own_splits(data, parts, list(found))
    path = Path(data).expanduser()
    if path.is_dir():
        return _open_folder(path, text_field, encoding)
    if not path.is_file():
        raise InputError("data", data, "pydoc, a file, a folder, or hub:NAME", "there is no such file or folder")
    return {"train": Source(str(path), [open_file(path, text_field, encoding)])}


def _open_folder(root: Path, text_field: str, encoding: str) -> dict[str, Source]:
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not files:
        raise InputError("data", str(root), "a folder with text files", "no file is in it")
    folders = [name for name in SPLIT_OF if (root / name).is_dir()]
    parts: dict[str, list[Part]] = {}
    for path in files:
        top = path.relative_to(root).parts[0]
        if folders and top not in folders:
            expected = f"files in the folders {', '.join(folders)} alone, since a folder of such a name is a split"
            raise InputError("data", str(root), expected, f"move {path}")
        parts.setdefault(top if folders else "train", []).append(open_file(path, text_field, encoding))
    return _own_splits(str(root), parts, folders or ["train"])


def _own_splits(name: str, parts: Mapping[str, list[Part]], found: list[str]) -> dict[str, Source]:
    """The sources by split, from parts by the name of a split."""
    if "train" not in parts:
        raise InputError("data", name, "a split named train", f"it has {', '.join(found)}")
    sources: dict[str, Source] = {}
    for split, own in parts.items():
        if SPLIT_OF[split] in sources:
            raise InputError("data", name, "one split of validation, val and valid", f"it has {', '.join(found)}")
        sources[SPLIT_OF[split]] = Source(name if len(parts) == 1 else f"{name} {split}", own)
    return sources
