"""Where documents lie: in a text file, in a table that `datasets` reads, or in memory."""

import glob
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from diffusionblocks.data.hub import load_with_datasets
from diffusionblocks.errors import InputError

TABLES = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}
"""Suffixes of tables (each also with .gz after it), and the builder of `datasets` that reads them."""

GZIP = b"\x1f\x8b"
ROWS = 1000
"""Rows of a table that are in memory at once."""


class Part(Protocol):
    """Some documents of a source, numbered from 0."""

    def __len__(self) -> int:
        """Number of documents."""
        ...

    def read(self, rows: np.ndarray) -> Iterator[str]:
        """The texts of these rows, int64 (n,), ascending; a row may come twice."""
        ...

    def place(self, row: int) -> str:
        """Where a document is, for a message."""
        ...


@dataclass(frozen=True)
class Memory:
    """Texts in memory, with a name each."""

    source: str
    names: list[str]
    texts: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, rows: np.ndarray) -> Iterator[str]:
        return (self.texts[row] for row in rows)

    def place(self, row: int) -> str:
        return f"{self.source} {self.names[row]}"


@dataclass(frozen=True)
class TextFile:
    """A text file, or gzip of one: one document."""

    path: Path
    encoding: str

    def __len__(self) -> int:
        return 1

    def read(self, rows: np.ndarray) -> Iterator[str]:
        text = read_text(self.path, self.encoding)
        return (text for _ in rows)

    def place(self, row: int) -> str:
        return str(self.path)


class Table:
    """The rows of a text column, from the memory-mapped Arrow files of `datasets`.

    Args:
        name: of the table, for messages.
        rows: a `datasets.Dataset`.
        column: name of the column.

    Raises:
        InputError: no such column, or one that does not hold text.
    """

    def __init__(self, name: str, rows: Any, column: str):
        if column not in rows.column_names:
            raise InputError("text_field", column, f"a column of {name}", f"it has {', '.join(rows.column_names)}")
        if str(rows.features[column]) not in ("Value('string')", "Value('large_string')"):
            raise InputError("text_field", column, "a column of text", f"in {name} it is {rows.features[column]}")
        self.name, self.column, self.rows = name, column, rows.select_columns([column])

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Iterator[str]:
        for first in range(0, len(rows), ROWS):
            wanted = rows[first : first + ROWS]
            for row, text in zip(wanted, self.rows[wanted][self.column], strict=True):
                if text is None:
                    raise InputError(f"{self.place(row)} {self.column}", None, "text", "remove such rows")
                yield text

    def place(self, row: int) -> str:
        return f"{self.name} row {row}"


def open_file(path: Path, text_field: str, encoding: str) -> Part:
    """A table where its suffix says so (see `TABLES`), otherwise a text file (read later).

    Raises:
        InputError: a table that is empty or that `datasets` cannot read; it has no such column.
    """
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    builder = TABLES.get(suffix.lower())
    if builder is None:
        return TextFile(path, encoding)
    if _is_empty(path):
        raise InputError("data", str(path), "a file with documents", "it is empty")
    options: dict[str, Any] = {"encoding": encoding} if builder == "json" else {}
    # Escaped, since `datasets` takes the name for a pattern.
    found = load_with_datasets(
        "data", str(path), "text", builder, data_files=glob.escape(str(path)), split="train", **options
    )
    return Table(str(path), found, text_field)


def read_text(path: Path, encoding: str) -> str:
    """A text file whole: without byte order mark, CRLF and CR as LF; gzip is known by its first bytes.

    Takes the memory of the file's bytes and of the text, 1 to 4 bytes a character, at once.

    Raises:
        InputError: names the file: it cannot be read; it is empty; damaged gzip; bytes that are not valid in the
            encoding, with the offset of the first (after decompression).
    """
    data = _read_bytes(path)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        found = data[error.start : error.end].hex(" ")
        expected = f"text in encoding={encoding}, which bytes {found} at offset {error.start} are not"
        raise InputError("file", str(path), expected, f"{error.reason}; set encoding, or convert the file") from None
    except LookupError:
        raise InputError("encoding", encoding, "a text encoding that Python knows", "utf-8 or latin-1, say") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        raise InputError("file", str(path), "a file with text", "it is empty; remove it")
    return text


def _is_empty(path: Path) -> bool:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    with gzip.open(path) if packed else path.open("rb") as file:
        return not file.read(1)


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP) else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("file", str(path), "whole gzip data", f"{error}; fetch the file again") from None
    except OSError as error:
        raise InputError("file", str(path), "a readable file", error.strerror or str(error)) from None
