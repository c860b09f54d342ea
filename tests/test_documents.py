"""Documents of text sources: what is read, how it is split, and plain refusals that name the place."""

import re

import numpy as np
import pytest
from text_files import json_lines, words, write

from diffusionblocks.data.documents import FEW, SPLITS, Documents, open_documents
from diffusionblocks.errors import InputError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """`datasets`, with a cache of its own; skipped where it is not installed."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return datasets


def refused(pattern: str, *arguments, **keywords) -> str:
    """The one line of the refusal, in which the regular expression is found."""
    with pytest.raises(InputError) as caught:
        open_documents(*arguments, **keywords)
    line = str(caught.value)
    assert re.search(pattern, line), line
    assert "\n" not in line
    return line


def whole(parts: dict[str, Documents]) -> str:
    """The text of a source that was split by position, put together again."""
    return "".join(text for split in SPLITS for text in parts[split])


# ---------------------------------------------------------------- text files


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a"])
def test_gzip_is_known_by_its_bytes_and_not_by_the_name(tmp_path, name, packed):
    text = "Où est-elle? 𝄞\n" * 40
    assert whole(open_documents(write(tmp_path / name, text, packed))) == text


def test_byte_order_mark_goes_and_lines_end_in_line_feeds(tmp_path):
    data = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n\xef\xbb\xbf" + b"x" * 40)
    assert whole(open_documents(data)) == "one\ntwo\nthree\n\n\ufeff" + "x" * 40


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "utf-8-sig"])
def test_other_encodings_are_read_when_they_are_named(tmp_path, encoding):
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    text = "déjà vu\n" * 40
    data = write(tmp_path / "a.txt", (mark + text).encode(encoding))
    assert whole(open_documents(data, encoding=encoding)) == text


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", "é\r\n".encode()])
def test_bytes_outside_the_encoding_are_named_by_their_offset(tmp_path, before, packed):
    data = write(tmp_path / "a.txt", before + b"abc\xe9def" * 20, packed)
    line = refused(rf"offset {len(before) + 3} ", data)
    assert "a.txt" in line
    assert "encoding=utf-8" in line
    assert "bytes e9" in line


def test_an_unknown_encoding_is_refused(tmp_path):
    refused("^encoding='utf-9'", write(tmp_path / "a.txt", "text"), encoding="utf-9")
    refused("^encoding='hex'", write(tmp_path / "a.txt", "text"), encoding="hex")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_empty_files_are_refused_by_name(tmp_path, content, packed):
    write(tmp_path / "full.txt", "text " * 100)
    write(tmp_path / "hollow.txt", content, packed)
    refused(r"hollow\.txt.*empty", str(tmp_path / "hollow.txt"))
    refused(r"hollow\.txt.*empty", str(tmp_path))


def test_damaged_gzip_is_refused_by_name(tmp_path):
    path = tmp_path / "a.gz"
    write(path, words(5000), packed=True)
    path.write_bytes(path.read_bytes()[:-20])
    refused(r"a\.gz.*gzip", str(path))


def test_a_source_that_is_not_there_is_refused(tmp_path):
    refused("no such file", str(tmp_path / "nothing.txt"))
    (tmp_path / "empty").mkdir()
    refused("no file", str(tmp_path / "empty"))
    refused("^split_by=", "pydoc", split_by="line")


# ---------------------------------------------------------------- splits


def test_pydoc_is_split_by_document():
    from pydoc_data.topics import topics

    parts = open_documents("pydoc")
    texts = set(topics.values())
    held = max(1, round(0.05 * len(texts)))
    assert [len(parts[split]) for split in SPLITS] == [len(texts) - 2 * held, held, held]
    everything = [text for split in SPLITS for text in parts[split]]
    assert sorted(everything) == sorted(texts)
    for split in SPLITS:
        names = [parts[split].place(k).removeprefix("pydoc ") for k in range(len(parts[split]))]
        assert names == sorted(names)
        assert [topics[name] for name in names] == list(parts[split])
    again = open_documents("pydoc")
    assert all(np.array_equal(again[split].spans, parts[split].spans) for split in SPLITS)


def test_held_out_documents_are_not_the_last_ones(tmp_path):
    for k in range(100):
        write(tmp_path / f"{k:03}.txt", f"document {k}")
    rows = open_documents(str(tmp_path))["test"].spans[:, 0]
    assert len(rows) == 5
    assert rows.min() < 80


@pytest.mark.parametrize("total", [20, 39, 1000, 99_991])
def test_by_position_the_last_tenth_is_held_out(tmp_path, total):
    text = words(total)
    parts = open_documents(write(tmp_path / "text8", text))
    assert whole(parts) == text
    first, second = total * 90 // 100, total * 95 // 100
    assert [parts[split].num_characters for split in SPLITS] == [first, second - first, total - second]
    assert list(parts["test"]) == [text[second:]]


def test_a_file_like_text8_is_split_90_5_5(tmp_path):
    text = words(1_000_000)
    parts = open_documents(write(tmp_path / "text8", text))
    assert [list(parts[split]) for split in SPLITS] == [[text[:900_000]], [text[900_000:950_000]], [text[950_000:]]]


@pytest.mark.parametrize("lengths", [(100, 1, 99), (7, 300, 3, 3, 3, 3, 3, 3), (90, 5, 5), (1,) * 100])
def test_by_position_documents_at_the_borders_are_cut(tmp_path, lengths):
    text, names, start = words(sum(lengths)), [], 0
    for k, length in enumerate(lengths):
        names.append(write(tmp_path / f"{k:03}.txt", text[start : start + length]))
        start += length
    parts = open_documents(str(tmp_path), split_by="position")
    assert whole(parts) == text
    assert parts["train"].num_characters == len(text) * 90 // 100
    assert all(len(list(parts[split])) == len(parts[split]) for split in SPLITS)
    assert all(text for split in SPLITS for text in parts[split])
    row, begin, _ = parts["test"].spans[0].tolist()
    assert parts["test"].place(0) == names[row] + (f" from character {begin} on" if begin else "")


def test_auto_splits_by_document_from_twenty_on(tmp_path):
    for k in range(FEW - 1):
        write(tmp_path / f"{k:02}.txt", f"text number {k}, " * 20)
    few = open_documents(str(tmp_path))
    assert whole(few) == "".join(f"text number {k}, " * 20 for k in range(FEW - 1))
    write(tmp_path / "19.txt", "the last one")
    many = open_documents(str(tmp_path))
    assert [len(many[split]) for split in SPLITS] == [18, 1, 1]
    forced = open_documents(str(tmp_path), split_by="position")
    assert list(forced["test"])[-1] == "the last one"


def test_too_little_to_split_is_refused(tmp_path):
    short = write(tmp_path / "short.txt", words(10))
    refused(r"short\.txt.*10 characters.*validation split would be empty", short)
    assert whole(open_documents(write(tmp_path / "enough.txt", words(11)))) == words(11)
    refused("at least 3 documents", short, split_by="document")


# ---------------------------------------------------------------- folders and tables


def test_folders_of_split_names_are_the_splits(tmp_path):
    write(tmp_path / "train/b/1.txt", "train b")
    write(tmp_path / "train/a.txt", "train a")
    write(tmp_path / "train/.hidden", "hidden")
    write(tmp_path / "val/x.txt", "validation")
    write(tmp_path / "test/x.txt", "test")
    parts = open_documents(str(tmp_path))
    assert {split: list(parts[split]) for split in SPLITS} == {
        "train": ["train a", "train b"],
        "validation": ["validation"],
        "test": ["test"],
    }
    write(tmp_path / "valid/x.txt", "which one?")
    refused("one split of validation, val and valid", str(tmp_path))
    (tmp_path / "valid/x.txt").unlink()
    write(tmp_path / "loose.txt", "of which split?")
    refused(r"move .*loose\.txt", str(tmp_path))


def test_a_split_that_is_missing_is_taken_from_train(tmp_path):
    text = words(1000)
    write(tmp_path / "train/a.txt", text)
    write(tmp_path / "test/a.txt", "the test")
    parts = open_documents(str(tmp_path))
    assert [list(parts[split]) for split in SPLITS] == [[text[:950]], [text[950:]], ["the test"]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a[1].jsonl", "b.parquet"])
def test_rows_of_tables_are_documents(tmp_path, cache, name):
    texts = [f"row {k}\r\né" if k != 3 else "" for k in range(41)]
    path = tmp_path / name
    if name.endswith("parquet"):
        cache.Dataset.from_dict({"body": texts, "number": list(range(41))}).to_parquet(str(path))
    else:
        write(path, json_lines(texts, "body"), packed=name.endswith("gz"))
    parts = open_documents(str(path), text_field="body")
    assert [len(parts[split]) for split in SPLITS] == [36, 2, 2]
    assert sorted(text for split in SPLITS for text in parts[split]) == sorted(texts[:3] + texts[4:])
    assert parts["test"].place(1) == f"{path} row {parts['test'].spans[1, 0]}"


def test_many_rows_are_read_in_order(tmp_path, cache):
    """More than are in memory at once."""
    texts = [f"row {k}" for k in range(2345)]
    parts = open_documents(write(tmp_path / "a.jsonl", json_lines(texts)), split_by="position")
    assert whole(parts) == "".join(texts)
    assert list(parts["train"]) == list(parts["train"])


def test_files_and_tables_may_be_mixed(tmp_path, cache):
    write(tmp_path / "a.txt", "first " * 10)
    write(tmp_path / "b.jsonl", json_lines(["second " * 10, "third " * 10]))
    write(tmp_path / "c.txt", "fourth " * 10)
    parts = open_documents(str(tmp_path))
    assert whole(parts) == "".join(word * 10 for word in ("first ", "second ", "third ", "fourth "))


def test_columns_that_cannot_be_are_refused(tmp_path, cache):
    data = write(tmp_path / "a.jsonl", json_lines(["one", "two"], "body"))
    refused("^text_field='text'.*number, body", data)
    refused("^text_field='number'.*column of text", data, text_field="number")
    gap = write(tmp_path / "gap.jsonl", json_lines(["one", None, "three"]))
    refused(r"gap\.jsonl row 1 text", gap)
    hollow = write(tmp_path / "hollow.jsonl", json_lines(["", ""]))
    refused(r"hollow\.jsonl.*2 documents, all empty", hollow)
    refused(r"empty\.jsonl.*empty", write(tmp_path / "empty.jsonl", ""))
    refused(r"broken\.jsonl", write(tmp_path / "broken.jsonl", '{"text": "a"}\n{"text": \n'))


def test_the_hub_brings_its_own_splits(tmp_path, cache):
    folder = tmp_path / "set"
    for name, count in (("train", 30), ("validation", 3), ("test", 2)):
        write(folder / f"{name}.jsonl", json_lines([f"{name} {k}" for k in range(count)]))
    parts = open_documents(f"hub:{folder}")
    assert [len(parts[split]) for split in SPLITS] == [30, 3, 2]
    assert all(text.startswith(split) for split in SPLITS for text in parts[split])
    (folder / "validation.jsonl").unlink()
    parts = open_documents(f"hub:{folder}")
    assert [len(parts[split]) for split in SPLITS] == [28, 2, 2]
    (folder / "train.jsonl").unlink()
    refused("a split named train; it has test", f"hub:{folder}")


def test_a_hub_that_has_no_such_set_is_refused(tmp_path, cache):
    refused("that `datasets` can load", f"hub:{tmp_path / 'nowhere'}")
