"""Tokenizers whose tokens are characters, from an alphabet, or the bytes of UTF-8."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from diffusionblocks.checkpoint import write_text
from diffusionblocks.errors import InputError

TEXT8 = " abcdefghijklmnopqrstuvwxyz"
FILE = "tokenizer-symbols.json"
"""Name of the file in a saved tokenizer's folder."""


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """The compact type of ids 0..vocab_size-1: uint16 where they fit, otherwise int32."""
    return np.uint16 if vocab_size <= 2**16 else np.int32


def check_ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """The ids, or a refusal of what lies outside 0..vocab_size-1 (by its place) or is no integer.

    Raises:
        InputError: names the first such id.
    """
    ids = np.asarray(ids)
    if not len(ids):
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise InputError("ids", (str(ids.dtype), ids.shape), "integers, shape (n,)", "pass token ids")
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        place = int(outside[0])
        expected = f"a token id in 0..{vocab_size - 1}, the ids of this tokenizer"
        raise InputError(f"ids[{place}]", int(ids[place]), expected, "use the tokenizer that made the tokens")
    return ids


def alphabet_of(texts: Iterable[str]) -> str:
    """Every character of the texts once, in the order of code points."""
    seen = np.zeros(0x110000, dtype=bool)
    for text in texts:
        seen[_code_points(text)] = True
    return _from_code_points(np.flatnonzero(seen))


@dataclass(frozen=True, eq=False)
class CharacterTokenizer:
    """One id a character: its place in the alphabet.

    Args:
        name: "characters" or "text8".
        alphabet: the characters, each once, in the order of code points.

    The separator of documents is the line feed, or else the space, if the alphabet has it, otherwise None.

    Raises:
        InputError: an alphabet that is empty, not in order, or holds a character twice; another one than a-z and space
            for text8.
    """

    name: Literal["characters", "text8"]
    alphabet: str
    _table: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        points = _code_points(self.alphabet).astype(np.int64)
        if not len(points) or (np.diff(points) <= 0).any():
            raise InputError("alphabet", self.alphabet, "characters in the order of code points, each once")
        if self.name == "text8" and self.alphabet != TEXT8:
            raise InputError("alphabet", self.alphabet, f"{TEXT8!r} for text8", "or take tokenizer=characters")
        # One place more, for every code point above the last.
        table = np.full(points[-1] + 2, -1, dtype=np.int32)
        table[points] = np.arange(len(points))
        object.__setattr__(self, "_table", table)

    @property
    def vocab_size(self) -> int:
        """Number of characters in the alphabet."""
        return len(self.alphabet)

    @property
    def separator(self) -> int | None:
        """Id of the line feed, or else of the space."""
        return next((self.alphabet.index(symbol) for symbol in "\n " if symbol in self.alphabet), None)

    def encode(self, text: str) -> np.ndarray:
        """Ids of the characters, shape (len(text),), of `token_dtype`.

        Raises:
            InputError: names the first character that the alphabet lacks, and its offset.
        """
        ids = self._table[np.minimum(_code_points(text), len(self._table) - 1)]
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            place = int(unknown[0])
            if self.name == "text8":
                expected, todo = "a-z or space, as in text8", "convert the text, or take tokenizer=characters"
            else:
                expected = f"one of the {self.vocab_size} characters that the tokenizer was made from"
                todo = "make the tokenizer from all of the text, or take tokenizer=bytes"
            raise InputError(f"text[{place}]", text[place], expected, todo)
        return ids.astype(token_dtype(self.vocab_size))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of every text, as from `encode`."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, shape (n,).

        Raises:
            InputError: an id out of range.
        """
        return _from_code_points(_code_points(self.alphabet)[check_ids(ids, self.vocab_size)])

    def save(self, folder: Path) -> None:
        """Write `FILE` into the folder."""
        _write(folder, {"name": self.name, "alphabet": self.alphabet})


@dataclass(frozen=True)
class ByteTokenizer:
    """One id a byte of UTF-8; the separator of documents is the line feed."""

    name: Literal["bytes"] = "bytes"
    vocab_size: int = 256
    separator: int | None = 10

    def encode(self, text: str) -> np.ndarray:
        """The bytes as ids, uint16, shape (n,).

        Raises:
            InputError: half of a surrogate pair, which UTF-8 does not have.
        """
        try:
            return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
        except UnicodeEncodeError as error:
            place = error.start
            raise InputError(f"text[{place}]", text[place], "a character of UTF-8", "correct the text") from None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of every text, as from `encode`."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, shape (n,); bytes that are not UTF-8 (a window may cut a character) become U+FFFD.

        Raises:
            InputError: an id out of range.
        """
        return check_ids(ids, self.vocab_size).astype(np.uint8).tobytes().decode(errors="replace")

    def save(self, folder: Path) -> None:
        """Write `FILE` into the folder."""
        _write(folder, {"name": self.name})


def read_symbols(values: Any, source: str) -> CharacterTokenizer | ByteTokenizer:
    """A tokenizer from what `save` wrote as JSON.

    Raises:
        InputError: names the file: other keys, another name, or an alphabet that `CharacterTokenizer` refuses.
    """
    match values:
        case {"name": "bytes", **rest} if not rest:
            return ByteTokenizer()
        case {"name": "characters" | "text8" as name, "alphabet": str(alphabet), **rest} if not rest:
            return CharacterTokenizer(name, alphabet)
    expected = 'the name "characters" or "text8" with an alphabet, or the name "bytes"'
    raise InputError("file", source, expected, "save the tokenizer again")


def _write(folder: Path, values: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILE, json.dumps(values, indent=1) + "\n")


def _code_points(text: str) -> np.ndarray:
    """Code points, uint32, shape (len(text),); halves of surrogate pairs too, so that their offsets can be named."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _from_code_points(points: np.ndarray) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
