"""Windows of tokens: every token once, padding, the counts for bits per character, and batches."""

import hashlib
import re

import numpy as np
import pytest
import torch
from text_files import json_lines, words, write

from diffusionblocks.data import text as text_module
from diffusionblocks.data.batches import BlockBatches, TextBatches
from diffusionblocks.data.documents import SPLITS, open_documents
from diffusionblocks.data.symbols import ByteTokenizer
from diffusionblocks.data.text import TokenSet, load_text
from diffusionblocks.data.tokenizers import digest, load_tokenizer
from diffusionblocks.errors import InputError
from diffusionblocks.families.masked_lm import MASK, PAD


def refused(pattern: str, *arguments, **keywords) -> str:
    """The one line of the refusal, in which the regular expression is found."""
    with pytest.raises(InputError) as caught:
        load_text(*arguments, **keywords)
    line = str(caught.value)
    assert re.search(pattern, line), line
    assert "\n" not in line
    return line


def unpacked(token_set: TokenSet) -> np.ndarray:
    tokens, valid = token_set.rows(torch.arange(len(token_set)))
    return tokens[valid].numpy()


@pytest.mark.parametrize(("count", "seq_len", "windows"), [(10, 5, 2), (11, 5, 3), (9, 5, 2), (3, 5, 1), (2, 2, 1)])
def test_every_token_is_in_exactly_one_window(count, seq_len, windows):
    tokens = np.arange(1, count + 1, dtype=np.uint16)
    token_set = TokenSet(tokens, seq_len, ByteTokenizer(), count, count)
    assert len(token_set) == windows
    assert unpacked(token_set).tolist() == list(range(1, count + 1))
    rows, valid = token_set.rows(torch.arange(windows))
    assert (rows.dtype, valid.dtype) == (torch.int64, torch.bool)
    assert rows.shape == valid.shape == (windows, seq_len)
    assert bool((rows[~valid] == 0).all())
    assert valid.flatten().tolist() == [True] * count + [False] * (windows * seq_len - count)


def test_rows_come_in_the_order_asked_for():
    token_set = TokenSet(np.arange(11, dtype=np.uint16), 4, ByteTokenizer(), 11, 11)
    tokens, valid = token_set.rows(torch.tensor([2, 0, 2]))
    assert tokens.tolist() == [[8, 9, 10, 0], [0, 1, 2, 3], [8, 9, 10, 0]]
    assert valid.tolist() == [[True] * 3 + [False], [True] * 4, [True] * 3 + [False]]
    for row in (-1, 3):
        with pytest.raises(InputError, match=r"rows in 0\.\.2"):
            token_set.rows(torch.tensor([0, row]))


def test_tokens_that_cannot_be_are_refused():
    with pytest.raises(InputError, match=r"ids\[2\]=256"):
        TokenSet(np.array([0, 1, 256]), 2, ByteTokenizer(), 3, 3)
    with pytest.raises(InputError, match="at least one token"):
        TokenSet(np.array([], dtype=np.uint16), 2, ByteTokenizer(), 3, 3)
    with pytest.raises(InputError, match="seq_len=1"):
        TokenSet(np.array([0, 1]), 1, ByteTokenizer(), 3, 3)


@pytest.mark.parametrize(("tokenizer", "vocab_size"), [("characters", None), ("bytes", None), ("bpe", 300)])
def test_the_windows_of_a_split_are_its_documents(tokenizer, vocab_size):
    documents = list(open_documents("pydoc")["validation"])
    token_set = load_text("pydoc", "validation", 64, tokenizer, vocab_size=vocab_size)
    own = token_set.tokenizer
    between = "<|endoftext|>" if tokenizer == "bpe" else "\n"
    assert own.decode(unpacked(token_set)) == between.join(documents)
    assert token_set.num_characters == sum(map(len, documents))
    assert token_set.num_bytes == sum(len(text.encode()) for text in documents)
    assert token_set.num_tokens == sum(len(own.encode(text)) for text in documents) + len(documents) - 1
    assert token_set.tokens.dtype == np.uint16
    if tokenizer == "characters":  # a window may end inside a character of several bytes
        assert "".join(map(token_set.text_of, range(len(token_set)))) == between.join(documents)


def test_small_batches_of_documents_change_nothing(monkeypatch):
    whole = load_text("pydoc", "test", 64, "bytes")
    monkeypatch.setattr(text_module, "BATCH", 3000)
    assert np.array_equal(load_text("pydoc", "test", 64, "bytes").tokens, whole.tokens)


def test_characters_and_bytes_are_counted_apart(tmp_path):
    data = write(tmp_path / "a.txt", "é𝄞" * 100)
    token_set = load_text(data, "test", 4, "bytes")
    assert (token_set.num_characters, token_set.num_bytes, token_set.num_tokens) == (10, 30, 30)


def test_a_file_like_text8(tmp_path):
    text = words(100_000)
    data = write(tmp_path / "text8.gz", text, packed=True)
    parts = {split: load_text(data, split, 256, "text8") for split in SPLITS}
    assert [part.num_tokens for part in parts.values()] == [90_000, 5_000, 5_000]
    assert "".join(part.text_of(row) for part in parts.values() for row in range(len(part))) == text
    assert load_text(data, "train", 256, "characters").tokenizer.vocab_size == 27


def test_what_text8_lacks_is_refused_with_its_place(tmp_path):
    text = words(1000)
    data = write(tmp_path / "a.txt", text[:970] + "X" + text[971:])
    assert load_text(data, "train", 16, "text8").num_tokens == 900
    line = refused(r"a\.txt from character 950 on: text\[20\]='X'", data, "test", 16, "text8")
    assert "tokenizer=characters" in line
    for k in range(30):
        write(tmp_path / "many" / f"{k:02}.txt", "plain" if k != 7 else "not plain!")
    lines = []
    for split in SPLITS:
        try:
            load_text(str(tmp_path / "many"), split, 16, "text8")
        except InputError as error:
            lines.append(str(error))
    assert len(lines) == 1
    assert "07.txt: text[9]='!'" in lines[0]


def test_a_tokenizer_serves_the_other_splits(tmp_path):
    train = load_text("pydoc", "train", 64, "bpe", vocab_size=300)
    train.tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    again = load_text("pydoc", "train", 64, loaded, vocab_size=300)
    assert again.digest == train.digest
    assert digest(again.tokenizer) == digest(train.tokenizer)
    assert load_text("pydoc", "test", 64, loaded).digest == load_text("pydoc", "test", 64, "bpe", vocab_size=300).digest
    refused("^vocab_size=299: expected at least 300", "pydoc", "test", 64, loaded, vocab_size=299)


def test_the_digest_is_that_of_the_tokens(tmp_path):
    data = write(tmp_path / "a.txt", words(1000))
    token_set = load_text(data, "train", 16, "bytes")
    numbers = np.array([ord(symbol) for symbol in words(1000)[:900]], dtype="<i8")
    expected = hashlib.sha256(numbers.tobytes())
    assert token_set.digest == expected.hexdigest()
    assert load_text(data, "train", 32, "bytes").digest == token_set.digest
    assert load_text(data, "validation", 16, "bytes").digest != token_set.digest


def test_rows_of_a_table(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    texts = [f"row {k}" for k in range(50)]
    data = write(tmp_path / "a.jsonl", json_lines(texts, "body"))
    found = []
    for split in SPLITS:
        token_set = load_text(data, split, 16, "characters", text_field="body")
        found += token_set.tokenizer.decode(unpacked(token_set)).split("\n")
    assert sorted(found) == sorted(texts)


def test_arguments_that_cannot_be_are_refused():
    refused("^seq_len=1: expected at least 2", "pydoc", "train", 1, "bytes")
    refused("^split='dev'", "pydoc", "dev", 16, "bytes")
    refused("^vocab_size=255: expected at least 256", "pydoc", "train", 16, "bytes", vocab_size=255)


def test_batches_for_the_trainer():
    token_set = TokenSet(np.arange(11, dtype=np.uint16), 4, ByteTokenizer(), 11, 11)
    batches = TextBatches(token_set)
    assert len(batches) == 3
    x, y = batches.batch([(0, 2), (1, 0)], seed=0, block=0)
    tokens, valid = token_set.rows(torch.tensor([2, 0]))
    assert torch.equal(x, torch.where(valid, MASK, PAD))
    assert torch.equal(y, tokens)
    first = BlockBatches(batches, 3, seed=0, block=1)[0]
    assert sorted(first[1][first[0] == MASK].tolist()) == list(range(11))
