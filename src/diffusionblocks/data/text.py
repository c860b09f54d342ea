"""A split of a text source as windows of token ids, `TokenSet`, in which every token is exactly once."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from diffusionblocks.data.documents import SPLITS, Documents, SplitBy, open_documents
from diffusionblocks.data.symbols import check_ids, token_dtype
from diffusionblocks.data.tokenizers import Tokenizer, check_vocab_size, make_tokenizer
from diffusionblocks.errors import InputError

BATCH = 1 << 20
"""Characters of documents that are tokenized at once (a longer document is on its own)."""


@dataclass(frozen=True, eq=False)
class TokenSet:
    """The tokens of a split, cut into windows; the last may be shorter and is padded.

    Args:
        tokens: ids in 0..vocab_size-1, shape (num_tokens,), more than 0: the documents in order, with the tokenizer's
            separator between two.
        seq_len: length of a window, at least 2.
        tokenizer: the tokenizer of the ids.
        num_characters: characters (code points) of the documents, without what separates them.
        num_bytes: their bytes in UTF-8. Both are the same for any tokenizer, so that the bits of all tokens over them
            can be compared.

    Raises:
        InputError: a seq_len below 2, no token, an id out of range (by its place).
    """

    tokens: np.ndarray
    seq_len: int
    tokenizer: Tokenizer
    num_characters: int
    num_bytes: int

    def __post_init__(self):
        _check_seq_len(self.seq_len)
        if not len(self.tokens):
            raise InputError("tokens", 0, "at least one token", "the tokenizer leaves nothing of the text")
        check_ids(self.tokens, self.tokenizer.vocab_size)

    def __len__(self) -> int:
        """Number of windows."""
        return -(-self.num_tokens // self.seq_len)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all windows, separators included, padding not."""
        return len(self.tokens)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the tokens."""
        total = hashlib.sha256()
        for first in range(0, self.num_tokens, BATCH):
            total.update(self.tokens[first : first + BATCH].astype("<i8").data)
        return total.hexdigest()

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Windows, in the order given.

        Args:
            index: integers in 0..len-1, shape (n,).

        Returns:
            The tokens, int64 (n, seq_len), 0 where padded; and which of them are tokens, bool (n, seq_len).

        Raises:
            InputError: a row out of range.
        """
        index = index.long()
        outside = index[(index < 0) | (index >= len(self))]
        if len(outside):
            raise InputError("index", int(outside[0]), f"rows in 0..{len(self) - 1}", "choose existing rows")
        places = index.numpy()[:, None] * self.seq_len + np.arange(self.seq_len)
        valid = places < self.num_tokens
        tokens = self.tokens[np.minimum(places, self.num_tokens - 1)].astype(np.int64)
        return torch.from_numpy(np.where(valid, tokens, 0)), torch.from_numpy(valid)

    def text_of(self, row: int) -> str:
        """The text of a window, for comparison with generated text; padding is left out.

        Raises:
            InputError: a row out of range.
        """
        tokens, valid = self.rows(torch.tensor([row]))
        return self.tokenizer.decode(tokens[valid].numpy())


def load_text(
    data: str,
    split: Literal["train", "validation", "test"],
    seq_len: int,
    tokenizer: str | Tokenizer,
    *,
    vocab_size: int | None = None,
    text_field: str = "text",
    encoding: str = "utf-8",
    split_by: SplitBy = "auto",
) -> TokenSet:
    """Read, split and tokenize a text source.

    In memory are the tokens (2 bytes each, 4 for more than 65536 ids; twice that at the end of reading), a plain text
    file whole while it is read, and of a table or the hub about a million characters; their Arrow files stay on the
    disk, in the cache of `datasets`.

    Args:
        data: "pydoc", a file, a folder or "hub:NAME"; see `diffusionblocks.data.documents`.
        split: which part of it.
        seq_len: tokens of a window, at least 2.
        tokenizer: a name, see `diffusionblocks.data.tokenizers`; it is made anew for each call, so pass the tokenizer
            of the first split for the others.
        vocab_size: the number of ids of bpe; of other tokenizers, the most that they may have (those of the model).
        text_field: column of the texts, for tables and the hub.
        encoding: of text files.
        split_by: how what the source does not split itself is split, see `open_documents`.

    Raises:
        InputError: of `open_documents` and `make_tokenizer`; a seq_len below 2; a character that the tokenizer does
            not have, with its document.
    """
    if split not in SPLITS:
        raise InputError("split", split, "train, validation or test", "choose one of them")
    _check_seq_len(seq_len)
    splits = open_documents(data, text_field, encoding, split_by)
    if isinstance(tokenizer, str):
        tokenizer = make_tokenizer(tokenizer, splits, vocab_size)
    check_vocab_size(tokenizer, vocab_size)
    documents = splits[split]
    chunks, num_bytes = [], 0
    for first, texts in _batches(documents):
        num_bytes += sum(len(text.encode(errors="surrogatepass")) for text in texts)
        chunks.append(_join(_encode(documents, first, texts, tokenizer), tokenizer, first > 0))
    return TokenSet(np.concatenate(chunks), seq_len, tokenizer, documents.num_characters, num_bytes)


def _check_seq_len(seq_len: int) -> None:
    if seq_len < 2:
        raise InputError("seq_len", seq_len, "at least 2 tokens", "256, say")


def _batches(documents: Documents) -> Iterator[tuple[int, list[str]]]:
    """Documents by about BATCH characters, and the number of the first of them."""
    first, texts, size = 0, [], 0
    for text in documents:
        texts.append(text)
        size += len(text)
        if size >= BATCH:
            yield first, texts
            first, texts, size = first + len(texts), [], 0
    if texts:
        yield first, texts


def _encode(documents: Documents, first: int, texts: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each text; what the tokenizer refuses is refused with the place of the document."""
    try:
        return tokenizer.encode_batch(texts)
    except InputError:
        for k, text in enumerate(texts):
            try:
                tokenizer.encode(text)
            except InputError as error:
                setting = f"{documents.place(first + k)}: {error.setting}"
                raise InputError(setting, error.value, error.expected, error.todo) from None
        raise


def _join(encoded: list[np.ndarray], tokenizer: Tokenizer, follows: bool) -> np.ndarray:
    """The ids with a separator between two documents, and before the first if it `follows` others."""
    dtype = token_dtype(tokenizer.vocab_size)
    between = np.array([] if tokenizer.separator is None else [tokenizer.separator], dtype=dtype)
    pieces = [piece for ids in encoded for piece in (between, ids)]
    # Ids from elsewhere are checked before they are made small.
    joined = np.concatenate(pieces if follows else pieces[1:])
    return check_ids(joined, tokenizer.vocab_size).astype(dtype)
