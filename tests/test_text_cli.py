"""The commands on a masked language model: train, eval, sample, report, plan; and a comparison of one seed."""

import json
import math

import pytest
import torch

from diffusionblocks.cli import main
from diffusionblocks.compare import compare
from diffusionblocks.comparison import Comparison
from diffusionblocks.config import read_json
from diffusionblocks.data.tokenizers import load_tokenizer
from diffusionblocks.evaluation.language import LanguageOptions
from diffusionblocks.evaluation.score import score_run

ALPHABET = "abcdefghij .\n"
TINY = {"hidden_size": 16, "num_heads": 2, "num_layers": 3, "seq_len": 16, "updates": 3, "batch_size": 8}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    numbers = torch.randint(len(ALPHABET), (6000,), generator=torch.Generator().manual_seed(0))
    path.write_text("".join(ALPHABET[k] for k in numbers.tolist()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run_dir(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train", "mdm-shakespeare", "--data", str(text), "--vocab-size", "20", "--run", str(folder), *flags]
    assert main(command) == 0
    return folder


def test_eval_says_bits_per_character_of_every_token_once(run_dir, text, capsys):
    assert main(["eval", str(run_dir), "--samples", "6", "--sampling-seeds", "2", "--draws", "6"]) == 0
    result, shown = read_json(run_dir / "eval-test.json"), capsys.readouterr().out
    assert (result["tokens"], result["characters"], result["bytes"]) == (300, 300, 300)
    assert math.isclose(sum(b["bits_per_character"] for b in result["blocks"]), result["bits_per_character"])
    assert f"{result['bits_per_character']:.3f} bits per character" in shown
    assert "upper bound" in shown
    assert result["text"]["samples"] == [6, 6]
    assert all(set(example) <= set(ALPHABET) and len(example) == 16 for example in result["examples"])


def test_eval_without_samples_and_with_the_data_elsewhere(run_dir, text, tmp_path):
    moved = tmp_path / "moved.txt"
    moved.write_bytes(text.read_bytes())
    assert main(["eval", str(run_dir), "--samples", "0", "--data", str(moved), "--split", "validation"]) == 0
    assert "text" not in read_json(run_dir / "eval-validation.json")


def test_sample_keeps_a_prompt_and_writes_lines(run_dir, tmp_path):
    out = tmp_path / "texts.jsonl"
    one = ["sample", str(run_dir), "--prompt", "abc.", "--num", "3", "--out", str(out), "--seed", "5"]
    assert main(one) == 0
    texts = [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(texts) == 3
    assert all(found.startswith("abc.") and len(found) == 16 and set(found) <= set(ALPHABET) for found in texts)
    # One block at a time, and from the model alone, are the same.
    for other in ([*one, "--resident", "one"], ["sample", str(run_dir / "model"), *one[2:]]):
        assert main(other) == 0
        assert [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()] == texts


def test_infilling_keeps_what_is_around_the_blanks(run_dir, tmp_path):
    out = tmp_path / "texts.jsonl"
    assert main(["sample", str(run_dir), "--infill", "ab??cd?", "--blank", "?", "--out", str(out), "--num", "2"]) == 0
    for line in out.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)["text"]
        assert (found[:2], found[4:6], len(found)) == ("ab", "cd", 7)
        assert "?" not in found


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt", "xyz"], "'x'"),
        (["--prompt", "a" * 16], "prompt='16 tokens': expected fewer than 16"),
        (["--infill", "abc"], "infill='abc': expected a text with blanks"),
        (["--infill", "a_" * 9], "infill='18 tokens': expected at most 16"),
        (["--infill", "a_", "--prompt", "b"], "prompt='b': expected no prompt besides an infill"),
        (["--temperature", "0"], "temperature=0.0"),
        (["--temperature", "warm"], "temperature='warm'"),
        (["--sampler", "euler"], "sampler='euler': expected counts or ancestral"),
        (["--classes", "1"], "classes='1'"),
        (["--num-sampling-steps", "2"], "num_sampling_steps=2"),
        (["--out", "nowhere/x.jsonl"], "out="),
    ],
)
def test_what_cannot_be_sampled_is_one_line_and_status_2(run_dir, flags, words, capsys):
    assert main(["sample", str(run_dir), *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error


@pytest.mark.parametrize("flag", ["--guidance", "--chains", "--vae"])
def test_flags_of_other_families_are_refused(run_dir, flag, capsys):
    assert main(["eval", str(run_dir), flag, "2"]) == 2
    assert "masked-lm" in capsys.readouterr().err


def test_report_and_plan(run_dir, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(run_dir), "--out", str(out), "--split", "test"]) == 0
    assert "bits" in out.read_text(encoding="utf-8")
    assert main(["plan", "mdm-pydoc", "--num-blocks", "3"]) == 0
    assert "shallow-ensemble" in capsys.readouterr().out


def test_a_comparison_has_every_control_in_the_same_metric(text, tmp_path):
    settings = {**TINY, "data": str(text), "vocab_size": 20, "updates": 12}
    comparison = Comparison(
        "mdm-shakespeare",
        settings,
        seeds=2,
        variants=("cosine, equal t",),
        variant_seeds=1,
        samples=20,
        sampling_seeds=2,
    )
    result = compare(comparison, tmp_path, progress=False)
    rows = {(r["method"], r["variant"], r["budget"], r["updates"], r["seed"]): r for r in result["rows"]}
    kept = read_json(tmp_path / "compare.json")
    assert kept["metric"] == "bits_per_character"
    assert kept["likelihood"]["characters"] == 300
    assert {key[1] for key in rows if key[4] == 1} == {""}  # a variant has the seeds that it is to have
    assert ("blocks", "cosine, equal t", "layer-evaluations", 12, 0) in rows
    # The shallow network at N is the first member of the ensemble; trained and scored by itself it is the same.
    alone = comparison.config(method="shallow")
    assert main_run(alone, tmp_path / "alone") == pytest.approx(
        rows["shallow", "", "layer-evaluations", 12, 0]["metrics"]["bits_per_character"], abs=1e-9
    )
    ensemble = rows["shallow-ensemble", "", "layer-evaluations", 12, 0]["metrics"]
    assert (
        ensemble["bits_per_character"]
        != rows["shallow", "", "layer-evaluations", 12, 0]["metrics"]["bits_per_character"]
    )
    for row in result["rows"]:
        if row["method"] != "checkpointing":
            assert 0 < row["metrics"]["ngram_divergence"] <= 1
            assert row["metrics"]["bits_per_character"] < 2 * math.log2(21)


def main_run(config, folder):
    """Train a run and score it as the comparison does."""
    from diffusionblocks.training.run import export_model, make_trainers

    for trainer in make_trainers(config, folder, progress=False):
        trainer.train()
    export_model(folder, config, trainer.num_updates)
    assert load_tokenizer(folder / "tokenizer").vocab_size == len(ALPHABET)
    return score_run(folder, "test", LanguageOptions(samples=0))["bits_per_character"]
