"""Tokenizers: text to ids and back, what they refuse, and what a saved one holds."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from diffusionblocks.data import subwords
from diffusionblocks.data.documents import open_documents
from diffusionblocks.data.subwords import END_OF_TEXT, SubwordTokenizer, train_bpe
from diffusionblocks.data.symbols import ByteTokenizer, CharacterTokenizer, alphabet_of
from diffusionblocks.data.tokenizers import digest, load_tokenizer, make_tokenizer
from diffusionblocks.errors import InputError

TEXT = ["the cat sat on the mat\nthe end", "the other cat's theatre", "über 𝄞!"]
NAMES = ("characters", "text8", "bytes", "bpe")
FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def made(name: str, vocab_size: int | None = 270):
    return make_tokenizer(name, {"train": TEXT[:2], "test": TEXT[2:]}, vocab_size)


BPE = made("bpe")


def refused(pattern: str, function, *arguments) -> str:
    """The one line of the refusal, in which the regular expression is found."""
    with pytest.raises(InputError) as caught:
        function(*arguments)
    line = str(caught.value)
    assert re.search(pattern, line), line
    assert "\n" not in line
    return line


@FAST
@given(st.text(), st.text())
def test_characters_give_the_text_back(text, other):
    tokenizer = CharacterTokenizer("characters", "".join(sorted({*text, *other, "a"})))
    ids = tokenizer.encode(text)
    assert ids.tolist() == [tokenizer.alphabet.index(symbol) for symbol in text]
    assert tokenizer.decode(ids) == text
    assert tokenizer.alphabet == alphabet_of([text, other, "a"])


@FAST
@given(st.text(alphabet=" abcdefghijklmnopqrstuvwxyz"))
def test_text8_gives_the_text_back(text):
    tokenizer = made("text8")
    assert tokenizer.encode(text).tolist() == [0 if symbol == " " else ord(symbol) - 96 for symbol in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@FAST
@given(st.text())
def test_bytes_give_the_text_back(text):
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text).tolist() == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


@FAST
@given(st.text() | st.lists(st.sampled_from(["the", " cat", " ", "\n", END_OF_TEXT, "é", "\u00a0"])).map("".join))
def test_bpe_gives_the_text_back(text):
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert BPE.separator not in ids


@FAST
@given(st.lists(st.sampled_from(["the", "cat", "'s", "7", "é", " ", "  ", "\n", "\t", "\u00a0", "!"])).map("".join))
def test_bpe_in_pieces_is_bpe_of_the_whole(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subwords, "CHUNK", 3)
        assert "".join(subwords._chunks(text)) == text
        assert BPE.encode(text).tolist() == BPE.backend.encode(text).ids


def test_long_texts_are_really_cut(monkeypatch):
    monkeypatch.setattr(subwords, "CHUNK", 3)
    assert list(subwords._chunks("the cat  sat on it ")) == ["the", " cat  sat", " on", " it "]


def test_bpe_is_trained_on_the_training_documents_alone():
    assert digest(made("bpe")) == digest(train_bpe(TEXT[:2], 270)) != digest(train_bpe(TEXT, 270))
    assert BPE.vocab_size == 270
    assert BPE.backend.id_to_token(BPE.separator) == END_OF_TEXT
    assert len(BPE.encode("the")) == 1
    parts = open_documents("pydoc")
    pydoc = make_tokenizer("bpe", parts, 500)
    assert digest(pydoc) == digest(make_tokenizer("bpe", parts, 500))
    assert pydoc.vocab_size == 500


def test_bpe_has_fewer_ids_where_the_text_has_no_more_pairs():
    assert 257 < train_bpe(["abab abab"], 4000).vocab_size < 300
    refused("^vocab_size=256.*at least 257", made, "bpe", 256)
    refused("^vocab_size=None", made, "bpe", None)


def test_characters_know_those_of_every_split():
    tokenizer = made("characters")
    assert tokenizer.alphabet == "".join(sorted(set("".join(TEXT))))
    assert tokenizer.alphabet[tokenizer.separator] == "\n"
    assert "\n" in make_tokenizer("characters", {"train": ["ab", "c"], "test": ["d"]}).alphabet
    single = make_tokenizer("characters", {"train": ["a b"], "validation": ["c"], "test": ["d"]})
    assert (single.alphabet, single.alphabet[single.separator]) == (" abcd", " ")
    assert made("text8").vocab_size == 27
    assert made("text8").separator == 0


def test_unknown_characters_are_refused_with_their_offset():
    tokenizer = made("characters")
    refused(r"^text\[4\]='X'", tokenizer.encode, "the Xat")
    refused(r"^text\[1\]='𝄟'", tokenizer.encode, "t𝄟")
    line = refused(r"^text\[3\]='X'.*a-z or space", made("text8").encode, "theXcat")
    assert "tokenizer=characters" in line
    refused(r"^text\[0\]='\\n'", made("text8").encode, "\n")


@pytest.mark.parametrize("name", NAMES)
def test_half_a_surrogate_pair_is_refused(name):
    refused("^text", made(name).encode, "the\ud800")


@pytest.mark.parametrize("name", NAMES)
def test_ids_out_of_range_are_refused(name):
    tokenizer = made(name)
    assert tokenizer.decode(np.array([], dtype=np.int64)) == ""
    refused(rf"^ids\[1\]={tokenizer.vocab_size}", tokenizer.decode, np.array([0, tokenizer.vocab_size]))
    refused(r"^ids\[0\]=-1", tokenizer.decode, np.array([-1]))
    refused("^ids=.*float", tokenizer.decode, np.array([0.5]))


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_compact_and_batches_are_the_same(name):
    tokenizer = made(name)
    texts = ["the cat", "", "sat on the mat"]
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]
    assert {ids.dtype for ids in batch} == {np.dtype(np.uint16)}


def test_a_large_alphabet_takes_more_bytes():
    alphabet = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x14000)]))
    tokenizer = CharacterTokenizer("characters", alphabet)
    assert tokenizer.encode("\U00013fff").tolist() == [len(alphabet) - 1]
    assert tokenizer.encode("a").dtype == np.int32


def test_a_cut_character_is_shown_as_one():
    assert ByteTokenizer().decode(np.array([0xC3])) == "\ufffd"


# ---------------------------------------------------------------- saved


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_tokenizer_is_the_same(tmp_path, name):
    tokenizer = made(name)
    tokenizer.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert digest(loaded) == digest(tokenizer)
    assert digest(make_tokenizer(str(tmp_path / "saved"), {"train": []})) == digest(tokenizer)
    assert (loaded.name, loaded.vocab_size, loaded.separator) == (name, tokenizer.vocab_size, tokenizer.separator)
    assert loaded.encode("the cat").tolist() == tokenizer.encode("the cat").tolist()
    for path in (tmp_path / "saved").iterdir():
        assert path.suffix == ".json"
        json.loads(path.read_text(encoding="utf-8"))


def test_digests_differ():
    tokenizers = [*map(made, NAMES), train_bpe(TEXT, 270), CharacterTokenizer("characters", "ab")]
    tokenizers.append(SubwordTokenizer("bpe", Backend.from_str(BPE.backend.to_str()), None))
    assert len({digest(tokenizer) for tokenizer in tokenizers}) == len(tokenizers)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "characters"},
        {"name": "bytes", "alphabet": "ab"},
        {"name": "os.system", "alphabet": "ab"},
        {"name": "characters", "alphabet": "ba"},
        {"name": "characters", "alphabet": "aa"},
        {"name": "characters", "alphabet": ""},
        {"name": "text8", "alphabet": "abc"},
        ["characters"],
    ],
)
def test_a_wrong_file_is_refused(tmp_path, values):
    (tmp_path / "tokenizer-symbols.json").write_text(json.dumps(values), encoding="utf-8")
    refused("tokenizer-symbols.json|^alphabet", load_tokenizer, tmp_path)


def test_wrong_files_of_subwords_are_refused(tmp_path):
    refused("a folder with", load_tokenizer, tmp_path)
    BPE.save(tmp_path)
    about = tmp_path / "tokenizer-about.json"
    for separator in (270, -1, True, "0", 1.5):
        about.write_text(json.dumps({"name": "bpe", "separator": separator}), encoding="utf-8")
        refused("tokenizer-about.json", load_tokenizer, tmp_path)
    BPE.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    refused(r"/tokenizer\.json", load_tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    refused(r"/tokenizer\.json", load_tokenizer, tmp_path)


# ---------------------------------------------------------------- tokenizers of others


@pytest.fixture
def foreign(tmp_path):
    """A folder as transformers saves a tokenizer: whole words, [BOS] before every text, an end-of-text token."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "[BOS]", "[EOS]", "the", "cat", "sat"]
    backend = Backend(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.post_processor = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    backend.enable_truncation(2)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[EOS]", unk_token="[UNK]")
    tokenizer.save_pretrained(tmp_path / "foreign")
    return tmp_path / "foreign"


def test_a_tokenizer_of_another_origin(foreign):
    tokenizer = make_tokenizer(str(foreign), {"train": TEXT}, 6)
    assert (tokenizer.vocab_size, tokenizer.separator) == (6, 2)
    assert tokenizer.encode("the cat sat dog").tolist() == [3, 4, 5, 0]
    assert tokenizer.decode(np.array([3, 4, 2])) == "the cat [EOS]"
    bare = make_tokenizer(str(foreign / "tokenizer.json"), {"train": TEXT})
    assert bare.separator is None
    assert bare.encode("sat sat sat").tolist() == [5, 5, 5]
    tokenizer.save(foreign.parent / "saved")
    again = load_tokenizer(foreign.parent / "saved")
    assert digest(again) == digest(tokenizer) != digest(bare)
    assert again.encode("the cat sat").tolist() == [3, 4, 5]


def test_more_ids_than_allowed_are_refused(foreign):
    refused("^vocab_size=5: expected at least 6", make_tokenizer, str(foreign), {"train": TEXT}, 5)
    refused("^vocab_size=26: expected at least 27", make_tokenizer, "text8", {"train": TEXT}, 26)


def test_a_folder_that_wants_to_run_code_is_refused(tmp_path):
    config = {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    refused("^tokenizer=", make_tokenizer, str(tmp_path), {"train": TEXT})
    assert not (tmp_path / "ran").exists()


def test_an_unknown_name_is_refused_without_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    line = refused("^tokenizer='caracters'", make_tokenizer, "caracters", {"train": TEXT})
    assert "characters, text8, bytes, bpe" in line
