"""Text as token ids: what a tokenizer is, and those that can be had by name.

==================  ==============================================  =====================================
tokenizer           ids                                             between documents
==================  ==============================================  =====================================
characters          one for each character of the source            a line feed
text8               27: space and a-z                               a space
bytes               256: the bytes of UTF-8                         a line feed
bpe                 byte-level BPE trained on the training split    <|endoftext|>
a folder            a tokenizer that was saved                      as it was
any other name      a Hugging Face tokenizer, by file, folder or    its end-of-text token, if it has one
                    hub name
==================  ==============================================  =====================================

A saved tokenizer is a folder with JSON files alone.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from diffusionblocks.config import read_json
from diffusionblocks.data import subwords, symbols
from diffusionblocks.errors import InputError


class Texts(Protocol):
    """Texts that can be counted and read more than once: a list, or the `Documents` of a split."""

    def __len__(self) -> int:
        """Number of texts."""
        ...

    def __iter__(self) -> Iterator[str]:
        """The texts, from the first."""
        ...


class Tokenizer(Protocol):
    """Text to ids 0..vocab_size-1 and back."""

    @property
    def name(self) -> str:
        """The name by which `make_tokenizer` makes it."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids; a model's mask id comes after them."""
        ...

    @property
    def separator(self) -> int | None:
        """The id between documents; None: nothing is between them."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Ids, integers of shape (n,)."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of every text, as from `encode`."""
        ...

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, shape (n,)."""
        ...

    def save(self, folder: Path) -> None:
        """Write it to a folder, which is made if needed, for `load_tokenizer`."""
        ...


def make_tokenizer(name: str, splits: Mapping[str, Texts], vocab_size: int | None = None) -> Tokenizer:
    """A tokenizer by name, see the table above.

    Args:
        name: from the table.
        splits: the documents of each split, "train" among them. The alphabet of characters is that of all of them, so
            that no split has an unknown one; bpe is trained on "train" alone.
        vocab_size: the number of ids of bpe, which needs it; of the others, the most that they may have.

    Raises:
        InputError: an unknown name; no vocab_size for bpe, or one below 257; a tokenizer with more ids than that.
    """
    match name:
        case "characters":
            alphabet = symbols.alphabet_of(text for documents in splits.values() for text in documents)
            # A single text keeps the alphabet that it has.
            if any(len(documents) > 1 for documents in splits.values()):
                alphabet = "".join(sorted({*alphabet, "\n"}))
            made: Tokenizer = symbols.CharacterTokenizer("characters", alphabet)
        case "text8":
            made = symbols.CharacterTokenizer("text8", symbols.TEXT8)
        case "bytes":
            made = symbols.ByteTokenizer()
        case "bpe":
            if vocab_size is None:
                raise InputError("vocab_size", None, "a number of ids for bpe", "set vocab_size=2048, say")
            made = subwords.train_bpe(splits["train"], vocab_size)
        case _ if _is_saved(Path(name)):
            made = load_tokenizer(name)
        case _:
            made = subwords.load_pretrained(name)
    check_vocab_size(made, vocab_size)
    return made


def check_vocab_size(tokenizer: Tokenizer, vocab_size: int | None) -> None:
    """Refuse a tokenizer with more ids than `vocab_size` (None: any number).

    Raises:
        InputError: it has more.
    """
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        expected = f"at least {tokenizer.vocab_size}, the ids of tokenizer={tokenizer.name}"
        raise InputError("vocab_size", vocab_size, expected, "raise it, or leave it out")


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """A tokenizer from the folder that its `save` wrote; nothing in it is run.

    Raises:
        InputError: no such folder; a file that is missing or wrong, by name.
    """
    folder = Path(folder)
    if (path := folder / symbols.FILE).is_file():
        return symbols.read_symbols(read_json(path), str(path))
    if (folder / subwords.ABOUT).is_file():
        return subwords.read_subwords(folder)
    expected = f"a folder with {symbols.FILE}, or with {subwords.FILE} and {subwords.ABOUT}"
    raise InputError("tokenizer", str(folder), expected, "save a tokenizer there")


def _is_saved(folder: Path) -> bool:
    return any((folder / file).is_file() for file in (symbols.FILE, subwords.ABOUT))


def digest(tokenizer: Tokenizer) -> str:
    """SHA-256, in hex, that two tokenizers share exactly if they treat any text alike (of subwords: are written alike).

    The name under which a tokenizer was fetched does not count.
    """
    match tokenizer:
        case symbols.CharacterTokenizer():
            found: object = {"alphabet": tokenizer.alphabet}
        case symbols.ByteTokenizer():
            found = {"bytes": tokenizer.vocab_size}
        case subwords.SubwordTokenizer():
            found = {"subwords": json.loads(tokenizer.backend.to_str()), "separator": tokenizer.separator}
        case _:
            raise InputError("tokenizer", tokenizer.name, "one of those that make_tokenizer makes")
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
