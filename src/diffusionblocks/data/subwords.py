"""Tokenizers of subwords, through the `tokenizers` library: byte-level BPE trained here, or any that is given."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from diffusionblocks.checkpoint import write_text
from diffusionblocks.config import read_json
from diffusionblocks.data.symbols import check_ids, token_dtype
from diffusionblocks.errors import InputError

END_OF_TEXT = "<|endoftext|>"
FILE, ABOUT = "tokenizer.json", "tokenizer-about.json"
"""Names of the files in a saved tokenizer's folder: as `tokenizers` writes it, and our name and separator."""

CHUNK = 1 << 16
"""Characters of a long text that byte-level BPE takes at once."""


@dataclass(frozen=True, eq=False)
class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library; what it adds to a text of its own (as a first token) is left out.

    Args:
        name: "bpe", or the name or path of the tokenizer as it was given.
        backend: the tokenizer itself.
        separator: id between documents; None: they follow each other with nothing between.
    """

    name: str
    backend: Backend
    separator: int | None

    def __post_init__(self):
        self.backend.no_truncation()
        self.backend.no_padding()
        # The text of a special token in a document is text, and does not end the document.
        self.backend.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        """The largest id, and 1 more."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> np.ndarray:
        """Ids, of `token_dtype`, shape (n,). Texts of any length for name "bpe"; others take about 200 bytes a token.

        Raises:
            InputError: half of a surrogate pair.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of every text, as from `encode`; in as many threads as TOKENIZERS_PARALLELISM allows."""
        pieces = [list(_chunks(text)) if self.name == "bpe" else [text] for text in texts]
        flat = [piece for own in pieces for piece in own]
        dtype = token_dtype(self.vocab_size)
        try:
            encodings = iter(self.backend.encode_batch_fast(flat, add_special_tokens=False))
        except (UnicodeEncodeError, TypeError):
            raise InputError("text", "half of a surrogate pair", "characters of UTF-8", "correct the text") from None
        ids = [[np.array(next(encodings).ids, dtype=dtype) for _ in own] for own in pieces]
        return [np.concatenate([np.zeros(0, dtype), *own]) for own in ids]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, shape (n,); special tokens are written out.

        Raises:
            InputError: an id out of range.
        """
        return self.backend.decode(check_ids(ids, self.vocab_size).tolist(), skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Write `FILE` and `ABOUT` into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, self.backend.to_str(pretty=True))
        about = {"name": self.name, "separator": self.separator}
        write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")


def train_bpe(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Byte-level BPE (as of GPT-2) with `END_OF_TEXT` as separator; the same texts give the same tokenizer.

    Args:
        texts: what it is trained on, read once; the count of every word is held in memory.
        vocab_size: number of ids, at least 257 (256 bytes and the separator). It has fewer where the texts have fewer
            pairs to merge.

    Raises:
        InputError: a vocab_size below 257.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + 1
    if vocab_size < least:
        raise InputError("vocab_size", vocab_size, f"at least {least} for bpe: the bytes and {END_OF_TEXT}", "raise it")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator((chunk for text in texts for chunk in _chunks(text)), trainer)
    return SubwordTokenizer("bpe", backend, backend.token_to_id(END_OF_TEXT))


def read_subwords(folder: Path) -> SubwordTokenizer:
    """A tokenizer from the files that `save` wrote.

    Raises:
        InputError: names the file that is missing, broken, or has a separator that is not one of its ids.
    """
    path, about_path = folder / FILE, folder / ABOUT
    match read_json(about_path):
        case {"name": str(name), "separator": (int() | None) as separator, **rest} if not rest:
            tokenizer = SubwordTokenizer(name, read_backend(path), separator)
        case _:
            expected = "a name, and a separator that is a number or null"
            raise InputError("file", str(about_path), expected, "save the tokenizer again")
    if separator is not None and (isinstance(separator, bool) or not 0 <= separator < tokenizer.vocab_size):
        expected = f"one of the {tokenizer.vocab_size} ids of {FILE}"
        raise InputError(f"{about_path} separator", separator, expected, "save the tokenizer again")
    return tokenizer


def read_backend(path: Path) -> Backend:
    """A tokenizer.json.

    Raises:
        InputError: it is missing, or `tokenizers` cannot read it.
    """
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InputError("file", str(path), "a tokenizer.json", f"{error}"[:300]) from None


def load_pretrained(name: str) -> SubwordTokenizer:
    """A tokenizer of Hugging Face: its separator is its end-of-text (or else separator) token, if it has one.

    Args:
        name: a tokenizer.json, a folder with one, or a name on the hub (or in its local cache). No code is taken from
            there.

    Raises:
        InputError: it cannot be loaded, with the reason, or `tokenizers` does not have its kind ("slow" ones).
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name).expanduser()
    try:
        if path.is_file():
            loaded: Any = PreTrainedTokenizerFast(tokenizer_file=str(path))
        else:
            loaded = AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name, trust_remote_code=False)
    except Exception as error:
        # The hub, HTTP, file system and parsers each raise their own; none of them is a fault of the library.
        expected = "characters, text8, bytes, bpe, or a tokenizer of Hugging Face (file, folder or hub name)"
        raise InputError("tokenizer", name, expected, f"{type(error).__name__}: {error}"[:300]) from error
    if not loaded.is_fast:
        raise InputError("tokenizer", name, "a fast tokenizer, with a tokenizer.json", "convert it, or take bpe")
    separator = loaded.eos_token_id if loaded.eos_token_id is not None else loaded.sep_token_id
    # A copy, since the settings of this one are changed.
    return SubwordTokenizer(name, Backend.from_str(loaded.backend_tokenizer.to_str()), separator)


def _chunks(text: str) -> Iterator[str]:
    """The text in pieces of CHUNK characters and a little more, cut where byte-level BPE cuts in any case.

    Its words begin at a space that stands between two characters which are no white space, whatever is before.
    """
    start = 0
    while start < len(text):
        stop = text.find(" ", start + CHUNK)
        while 0 <= stop < len(text) - 1 and (text[stop - 1].isspace() or text[stop + 1].isspace()):
            stop = text.find(" ", stop + 1)
        if not 0 <= stop < len(text) - 1:
            stop = len(text)
        yield text[start:stop]
        start = stop
