"""The commands on an autoregressive language model: train, eval, generate, report, plan; and a comparison."""

import json

import pytest
import torch

from diffusionblocks import BlockwiseModel
from diffusionblocks.cli import main
from diffusionblocks.compare import compare
from diffusionblocks.comparison import Comparison
from diffusionblocks.config import read_json
from diffusionblocks.data.tokenizers import load_tokenizer
from diffusionblocks.families.causal_networks import PlainCausalLm
from diffusionblocks.report.page import write_report

ALPHABET = "abcdefghij .\n"
TINY = {"hidden_size": 16, "num_heads": 2, "num_layers": 3, "seq_len": 16, "updates": 3, "batch_size": 8}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    numbers = torch.randint(len(ALPHABET), (6000,), generator=torch.Generator().manual_seed(0))
    path.write_text("".join(ALPHABET[k] for k in numbers.tolist()), encoding="utf-8")
    return path


def trained(text, folder, *flags):
    tiny = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train", "ar-shakespeare", "--data", str(text), "--vocab-size", "20", "--run", str(folder), *tiny]
    assert main([*command, *flags]) == 0
    return folder


@pytest.fixture(scope="module")
def run_dir(text, tmp_path_factory):
    return trained(text, tmp_path_factory.mktemp("runs") / "run")


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_eval_says_what_each_answer_is(run_dir, capsys):
    assert main(["eval", str(run_dir), "--samples", "6", "--sampling-seeds", "2"]) == 0
    result, shown = read_json(run_dir / "eval-test.json"), capsys.readouterr().out
    assert (result["tokens"], result["characters"], result["estimate"]) == (300, 300, "exact")
    found = {answer["answer"]: answer["estimate"] for answer in result["answers"]}
    assert found == {"average": "exact", "chain": "bound", "block 0 from noise": "bound"}
    assert f"{result['bits_per_character']:.3f} bits per character" in shown
    assert "upper bound" in shown
    assert all(set(example) <= set(ALPHABET) and len(example) == 16 for example in result["examples"])
    assert main(["eval", str(run_dir), "--samples", "0", "--decoding", "chain", "--start", "noise"]) == 0
    chain = read_json(run_dir / "eval-test.json")
    assert (chain["estimate"], chain["answer"], "text" in chain) == ("bound", "chain", False)


def test_generate_keeps_prompts_and_is_the_same_without_a_cache_and_from_the_model(run_dir, tmp_path):
    out = tmp_path / "texts.jsonl"
    one = [
        "generate",
        str(run_dir),
        "--prompt",
        "abc.",
        "--prompt",
        "j",
        "--num",
        "2",
        "--out",
        str(out),
        "--seed",
        "5",
    ]
    for chain in ([], ["--bridge", "soft", "--num-sampling-steps", "4"], ["--decoding", "chain", "--start", "noise"]):
        assert main([*one, *chain]) == 0
        texts = lines_of(out)
        assert [line["prompt"] for line in texts] == ["abc.", "abc.", "j", "j"]
        assert all(len(line["text"]) == 12 and set(line["text"]) <= set(ALPHABET) for line in texts)
        for other in ([*one, *chain, "--no-cache"], ["generate", str(run_dir / "model"), *one[2:], *chain]):
            assert main(other) == 0
            assert lines_of(out) == texts


def test_the_model_generates_in_python_what_the_command_does(run_dir, tmp_path):
    out = tmp_path / "texts.jsonl"
    assert main(["generate", str(run_dir), "--prompt", "ab", "--max-new-tokens", "5", "--out", str(out)]) == 0
    tokenizer = load_tokenizer(run_dir / "tokenizer")
    ids = torch.from_numpy(tokenizer.encode("ab").astype("int64"))[None]
    found = BlockwiseModel.from_pretrained(run_dir / "model").generate(ids, max_new_tokens=5)
    assert tokenizer.decode(found[0].numpy()) == "ab" + lines_of(out)[0]["text"]


@pytest.mark.parametrize("method", ["end-to-end", "shallow-ensemble"])
def test_controls_are_scored_and_generate(text, tmp_path, method):
    run_dir = trained(text, tmp_path / "run", "--method", method)
    assert main(["eval", str(run_dir), "--samples", "4", "--sampling-seeds", "1"]) == 0
    result = read_json(run_dir / "eval-test.json")
    assert (result["estimate"], result["blocks"]) == ("exact", [])
    assert main(["generate", str(run_dir), "--prompt", "a", "--out", str(tmp_path / "x.jsonl")]) == 0
    assert main(["generate", str(run_dir), "--bridge", "soft"]) == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt", "xyz"], "'x'"),
        (["--prompt", "a" * 16], "prompt='16 tokens': expected fewer than 16"),
        (["--prompt", "a" * 10, "--max-new-tokens", "9"], "at most 6 new tokens fit"),
        (["--temperature", "0"], "temperature=0.0"),
        (["--top-p", "1.5"], "top_p=1.5"),
        (["--top-p", "most"], "top_p='most'"),
        (["--num-sampling-steps", "2"], "num_sampling_steps=2"),
        (["--bridge-top-k", "0"], "bridge_top_k='0'"),
        (["--stale-cache", "--no-cache"], "stale=True"),
        (["--out", "nowhere/x.jsonl"], "out="),
    ],
)
def test_what_cannot_be_generated_is_one_line_and_status_2(run_dir, flags, words, capsys):
    assert main(["generate", str(run_dir), *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error


def test_commands_of_other_families_are_refused(run_dir, capsys):
    assert main(["sample", str(run_dir)]) == 2
    assert "dblocks generate" in capsys.readouterr().err
    assert main(["eval", str(run_dir), "--guidance", "2"]) == 2
    assert main(["eval", str(run_dir), "--sampler", "counts"]) == 2


def test_report_and_plan(run_dir, tmp_path, capsys):
    assert main(["eval", str(run_dir), "--samples", "4", "--sampling-seeds", "1"]) == 0
    out = tmp_path / "page.html"
    assert main(["report", str(run_dir), "--out", str(out), "--split", "test"]) == 0
    page = out.read_text(encoding="utf-8")
    assert "the exact negative log-likelihood" in page
    assert "given away by z" in page
    assert main(["plan", "ar-pydoc", "--num-blocks", "3"]) == 0
    assert "shallow-ensemble" in capsys.readouterr().out


def test_a_comparison_has_both_contexts(text, tmp_path):
    settings = {**TINY, "data": str(text), "vocab_size": 20, "updates": 12}
    comparison = Comparison(
        "ar-shakespeare",
        settings,
        seeds=1,
        methods=("end-to-end", "shallow", "blocks"),
        presets=("default",),
        variants=("plan draws",),
        samples=4,
        sampling_seeds=1,
    )
    result = compare(comparison, tmp_path, progress=False)
    rows = {(r["method"], r["variant"], r["budget"], r["updates"], r["seed"]): r for r in result["rows"]}
    kept = read_json(tmp_path / "compare.json")
    assert (kept["family"], kept["metric"], kept["likelihood"]["characters"]) == (
        "causal-lm",
        "bits_per_character",
        300,
    )
    for variant in ("", "concat"):
        assert ("blocks", variant, "layer-evaluations", 12, 0) in rows
        assert ("blocks", variant, "samples", 4, 0) in rows
    assert ("blocks", "plan draws", "layer-evaluations", 12, 0) in rows
    blocks, concat = (rows["blocks", variant, "layer-evaluations", 12, 0] for variant in ("", "concat"))
    # A sequence twice as long keeps about twice the activations; readout and states are the same.
    ratio = concat["layer_memory_bytes"]["activations"] / blocks["layer_memory_bytes"]["activations"]
    assert 1.8 < ratio < 2.3
    assert blocks["metrics"]["block0_bits"] == blocks["metrics"]["each_bits"][0]
    assert "block0_bits" not in rows["end-to-end", "", "layer-evaluations", 12, 0]["metrics"]
    assert blocks["tokens_per_second"] > 0
    page = write_report(tmp_path, "test").read_text(encoding="utf-8")
    assert "Each block beside the shallow network" in page


def test_a_trunk_goes_on_as_every_block(text, tmp_path):
    run_dir = trained(text, tmp_path / "run", "--trunk", "0.7", "--updates", "10")
    model = BlockwiseModel.from_pretrained(run_dir / "model")
    assert len(model.block_list) == 3
    assert not any(isinstance(block, PlainCausalLm) for block in model.block_list)
    assert main(["eval", str(run_dir), "--samples", "0"]) == 0
