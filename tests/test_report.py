"""The report says what the run folder says, shows what the network answers, and does not run without its parts."""

import base64
import html
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from report_folders import PREDICTED, ROWS, compare, foresee, row, train
from scipy import stats

from diffusionblocks import cli, commands
from diffusionblocks.block import edges_of
from diffusionblocks.cli import main
from diffusionblocks.data.images import to_float
from diffusionblocks.recipes import resolve
from diffusionblocks.training.data import load_split
from diffusionblocks.training.run import load_config, load_trained

SECTIONS = [
    "Noise law and its cut",
    "Training loss",
    "Accuracy along the chain",
    "Oracle gap and scrambled images",
    "Memory of one update",
    "Samples",
    "Settings",
    "How to reproduce",
]
OF_BLOCKS = ("Noise law", "Accuracy along", "Oracle gap")


@pytest.fixture(autouse=True)
def known_prediction(monkeypatch):
    foresee(monkeypatch)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "digits", "--num-sampling-steps", "3")


@pytest.fixture(scope="module")
def control_dir(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "whole", "--method", "end-to-end")


@pytest.fixture(scope="module")
def page(run_dir):
    with pytest.MonkeyPatch.context() as monkeypatch:
        foresee(monkeypatch)
        assert main(["report", str(run_dir)]) == 0
    return (run_dir / "report.html").read_text()


def headings(page, level=2):
    return [html.unescape(text) for text in re.findall(rf"<h{level}[^>]*>(.*?)</h{level}>", page)]


def text_of(page):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def first_line(page):
    return text_of(re.search(r"</h1>\s*<p[^>]*>(.*?)</p>", page, flags=re.DOTALL)[1])


def labels(page):
    return [html.unescape(label) for label in re.findall(r'<svg role="img" aria-label="([^"]*)"', page)]


def test_the_page_has_its_sections_in_order_and_needs_nothing_else(page):
    assert headings(page) == SECTIONS
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<script" not in page
    assert set(re.findall(r'<link[^>]*href="([^"]*)"', page)) == {"data:,"}
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)"', page))
    assert not re.search(r"url\((?!#)", page)
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "ids are unique"
    assert set(re.findall(r'href="#([^"]*)"', page)) | set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_the_headline_is_that_of_the_evaluation(run_dir, page):
    result = json.loads((run_dir / "eval-test.json").read_text())
    text = text_of(page)
    low, high = stats.binomtest(round(result["accuracy"] * 360), 360).proportion_ci(method="wilson")
    assert f"95% interval {100 * low:.1f} to {100 * high:.1f}% (Wilson), n = 360 images" in text
    for share in (result["accuracy"], result["average"]["accuracy"], result["blocks"][0]["chain_after"]["accuracy"]):
        assert f"{100 * share:.2f}%" in text
    assert "one seed (0); 3 updates each of 256 samples" in text


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (-4 / 360, "The chain is worse than block 0 alone: 50.00% after"),
        (0.0, "The chain gains nothing over block 0 alone: both have 50.00% of 360 test images, one seed."),
        (1 / 360, "The chain gains 0.28 points over block 0 alone"),
    ],
)
def test_the_first_line_says_whether_the_chain_gains(run_dir, tmp_path, page, gain, words):
    folder = shutil.copytree(run_dir, tmp_path / "run")
    result = json.loads((folder / "eval-test.json").read_text())
    result["chain_gain"], result["blocks"][-1]["chain_after"]["accuracy"] = gain, 0.5
    (folder / "eval-test.json").write_text(json.dumps(result))
    assert main(["report", str(folder)]) == 0
    assert first_line((folder / "report.html").read_text()).startswith(words)


def test_figures_show_the_numbers_of_the_run(run_dir, page):
    law, loss, chain, oracle, memory = labels(page)
    result = json.loads((run_dir / "eval-test.json").read_text())
    assert law.endswith(", ".join(f"{edge:.3g}" for edge in edges_of(load_config(run_dir))))
    for k, block in enumerate(result["blocks"]):
        last = json.loads((run_dir / f"block-{k}/metrics.jsonl").read_text().splitlines()[-1])
        assert f"block {k} ends at {last['loss']:.3g}" in loss
        after, alone = (100 * block[name]["accuracy"] for name in ("chain_after", "alone"))
        assert f"after block {k} {after:.1f}, alone {alone:.1f}" in chain
        assert f"scrambled {100 * block['scrambled']['accuracy']:.1f}" in oracle
    blocks = [json.loads((run_dir / f"block-{k}/memory.json").read_text())["total"] for k in (0, 1)]
    largest = max(blocks, key=lambda total: sum(total.values()))
    for kind in ("weights", "gradients", "optimizer", "activations", "other"):
        assert f"{kind} {largest[kind] / 1e6:.3g} and {PREDICTED[kind] / 1e6:.3g}" in memory
    svgs = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(svgs) == 5
    for svg in svgs:
        assert "#05050" not in svg
        assert "#0101" not in svg
        assert {int(size) for size in re.findall(r"font(?:-size)?: ([0-9.]+)px", svg)} == {12}


def test_samples_are_the_first_and_the_first_wrong_with_the_answers_of_the_chain(run_dir, page):
    config = load_config(run_dir)
    images, (model, _) = load_split(config, "test"), load_trained(run_dir, config)
    x = to_float(images.images)
    with torch.no_grad():
        final = model(x).logits.softmax(-1)
        # The chain done step by step: three steps, of which the first block has two.
        z, after = torch.zeros(len(x), 9), {}
        for step in model.plan.steps:
            chances = model.block_list[step.block](x, z, torch.full((len(x),), step.sigma)).softmax(-1)
            share = step.sigma_next / step.sigma
            z, after[step.block] = share * z + (1 - share) * chances @ model.targets, chances
    assert [step.block for step in model.plan.steps] == [0, 0, 1]
    wrong = [int(k) for k in torch.nonzero(final.argmax(-1) != images.labels) if k > 5][:6]
    items = re.findall(r'<li class="(right|wrong)">(.*?)</li>', page, flags=re.DOTALL)
    assert len(items) == 12
    for index, (verdict, item) in zip([*range(6), *wrong], items, strict=True):
        label = int(images.labels[index])
        assert f"test image {index}, true class {images.classes[label]}" in item
        png = base64.b64decode(re.search(r"base64,([^\"]*)", item)[1])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), images.images[index, 0].numpy())
        for block in (0, 1):
            top = int(after[block][index].argmax())
            mark = "" if top == label else " ✗"
            chance = float(after[block][index, top])
            assert f"block {block} {images.classes[top]}{mark} {100 * chance:.1f}%" in text_of(item)
        assert (verdict == "right") == (int(final[index].argmax()) == label)
        assert ("✓ right" if verdict == "right" else "✗ wrong") in item


def test_the_commands_of_the_page_give_the_same_settings(tmp_path):
    from diffusionblocks.report.run_page import _commands

    flags = {"preset": "paper", "num_layers": "5", "layer_split": ["2", "2", "1"], "epochs": "2.5", "flip": "true"}
    config = resolve("vit-digits", flags=flags)
    result = {"blocks": [], "start": "zero", "num_sampling_steps": 6, "chains": 1, "decoding": "average"}
    run, score, report = (shlex.split(line) for line in _commands(tmp_path / "a run", config, result, "validation"))
    arguments = cli._parser().parse_args(run[1:])
    assert resolve(arguments.recipe, None, commands.settings_of(arguments)) == config
    assert arguments.run == str(tmp_path / "a run")
    arguments = cli._parser().parse_args(score[1:])
    found = arguments.start, arguments.num_sampling_steps, arguments.chains, arguments.decoding, arguments.split
    assert found == ("zero", "6", None, "average", "validation")
    assert cli._parser().parse_args(report[1:]).folder == str(tmp_path / "a run")


def test_the_page_tells_what_started_the_run_and_what_wrote_the_page(run_dir, page):
    started = json.loads((run_dir / "provenance.json").read_text())
    text = text_of(page[page.index("How to reproduce") :])
    for part in ("The run was started by", "This report was written by"):
        _, after = text.split(part)
        assert started["commit"] in after
        assert f"torch {torch.__version__}" in after
        assert f"processor {started['hardware']['processor']}; cores" in after
    here = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    assert (
        started["commit"].rstrip("+")
        == subprocess.run(here, capture_output=True, text=True, check=False).stdout.strip()
    )


def test_a_run_without_evaluation_is_evaluated_first(run_dir, tmp_path, capsys):
    folder = shutil.copytree(run_dir, tmp_path / "run")
    (folder / "eval-validation.json").unlink(missing_ok=True)
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--split", "validation", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"has no eval-validation.json; running: dblocks eval {folder} --split validation" in shown
    assert f"report: {out}" in shown
    by_report = json.loads((folder / "eval-validation.json").read_text())
    assert main(["eval", str(folder), "--split", "validation"]) == 0
    assert json.loads((folder / "eval-validation.json").read_text()) == by_report
    assert f"n = {by_report['images']} images" in text_of(out.read_text())


def test_a_control_has_no_empty_sections(control_dir):
    assert main(["report", str(control_dir)]) == 0
    page = (control_dir / "report.html").read_text()
    assert headings(page) == [name for name in SECTIONS if not name.startswith(OF_BLOCKS)]
    assert "right (95% interval" in first_line(page)
    assert not re.search(r"\b(chain|depth|block 0)\b", text_of(page[page.index("<main") :]))


def test_a_comparison_says_the_paired_differences(run_dir, control_dir, tmp_path, page):
    folder = compare(tmp_path / "all", ROWS, run_dir, control_dir)
    assert main(["report", str(folder)]) == 0
    text = text_of((folder / "report.html").read_text())
    blocks, whole, shallow = ([r["metrics"]["accuracy"] for r in ROWS[k : k + 3]] for k in (0, 3, 9))
    for other, count in ((whole, 2), (shallow, 1)):
        low, high = (100 * end for end in stats.ttest_rel(blocks, other).confidence_interval())
        mean = 100 * (np.mean(blocks) - np.mean(other))
        words = f"{mean:+.2f} points (95% interval {low:+.2f} to {high:+.2f}, n = 3)".replace("-", "−")
        assert text.count(words) == count, "in its card, and end to end in the lead too"
    assert f"94.00% (sd {100 * np.std(blocks, ddof=1):.2f} points, n = 3 seeds)" in text
    assert "gain of the chain over block 0 +2.00 points" in text
    assert "Depth helps here: end to end beats the shallow network after equally many samples by +10.00 points" in text
    assert "vit-digits: 2 blocks: digits, 360 test images" in text
    assert "12.5 4,321" in text
    assert "Checkpointing: memory and time alone differ from end to end" in text
    assert "nan" not in text.lower()
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", (folder / "report.html").read_text().split("Means over")[1])
    columns = cells[: cells.index("samples/s") + 1]
    table = [cells[k : k + len(columns)] for k in range(len(columns), 6 * len(columns), len(columns))]
    by_name = {(line[0], line[2]): dict(zip(columns, line, strict=True)) for line in table}
    assert by_name["blocks, B = 2", "3"]["chain gain, points"] == "2.00"
    assert by_name["shallow, B = 2", "6"]["minus end to end, points"].startswith("−0.33 [")
    assert by_name["end-to-end", "3"]["minus end to end, points"] == by_name["checkpointing", "3"]["accuracy, %"] == "–"
    assert by_name["checkpointing", "3"]["sum, MB"] == "10"
    dots, memory, *_ = labels((folder / "report.html").read_text())
    assert "shallow, B = 2; 6 updates mean 92.67 over 3" in dots
    assert "end-to-end, predicted" in memory
    assert "blocks, B = 2, predicted" in memory


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        ((0.90, 0.95, 0.94), "Depth helps here"),
        ((0.80, 0.95, 0.78), "the data do not show a benefit of depth"),
        ((0.90,), "One seed cannot show a benefit of depth"),
        ((), "nothing is said about depth"),
    ],
)
def test_depth_is_only_spoken_of_where_the_data_show_it(tmp_path, whole, words):
    rows = [row("end-to-end", seed, accuracy) for seed, accuracy in enumerate(whole)]
    folder = compare(tmp_path / "all", [*ROWS[:3], *ROWS[6:12], *rows])
    assert main(["report", str(folder)]) == 0
    sentences = [s for s in re.split(r"(?<=[.])\s", text_of((folder / "report.html").read_text())) if "epth" in s]
    assert len(sentences) == 1
    assert words in sentences[0]


def test_one_seed_has_no_interval_and_a_chain_without_gain_is_named_first(tmp_path):
    rows = [row("blocks", 0, 0.91), row("end-to-end", 0, 0.90)]
    rows[0]["metrics"]["chain_gain"] = -0.01
    folder = compare(tmp_path / "all", rows)
    assert main(["report", str(folder), "--out", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert first_line(page) == "blocks, B = 2, equal layer evaluations: the chain gains nothing over block 0 alone."
    assert "+1.00 points (one seed: no interval) beside end to end" in text_of(page)
    assert "nan" not in text_of(page[page.index("<main") :]).lower()
    assert "One run of blocks" not in page


def test_folds_count_as_runs_and_are_paired_with_themselves(tmp_path):
    rows = [row("blocks", seed, 0.9, fold=fold) for seed in (0, 1) for fold in range(3)]
    rows += [row("end-to-end", seed, 0.8 + 0.01 * fold, fold=fold) for seed in (0, 1) for fold in range(3)]
    folder = compare(tmp_path / "all", rows)
    assert main(["report", str(folder)]) == 0
    text = text_of((folder / "report.html").read_text())
    low, high = stats.ttest_rel([90.0] * 6, [80.0, 81.0, 82.0] * 2).confidence_interval()
    assert f"+9.00 points (95% interval {low:+.2f} to {high:+.2f}, n = 6)" in text
    assert "90.00% (sd 0.00 points, n = 6 runs (2 seeds, 3 folds))" in text


def test_a_comparison_shows_a_run_of_blocks_on_the_split_that_it_compares(run_dir, control_dir, tmp_path):
    from diffusionblocks.report.page import runs_of

    folder = compare(tmp_path / "all", ROWS, run_dir, control_dir)
    trunk = shutil.copytree(run_dir, folder / "runs/a-trunk")
    config = json.loads((trunk / "config.json").read_text())
    (trunk / "config.json").write_text(json.dumps(config | {"trunk": 0.5}))
    assert runs_of(folder) == ([folder / "runs" / run_dir.name], "test")
    stored = json.loads((folder / "compare.json").read_text())
    (folder / "compare.json").write_text(json.dumps(stored | {"split": "validation"}))
    assert runs_of(folder)[1] == "validation"
    assert runs_of(folder, "train")[1] == "train"
    assert runs_of(run_dir) == ([run_dir], "test")


def one_line(capsys):
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_bad_folders_and_files_are_one_line(run_dir, page, tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "compare.json" in one_line(capsys)
    assert main(["report", str(run_dir), "--out", str(tmp_path / "none/x.html")]) == 2
    assert "out=" in one_line(capsys)
    (tmp_path / "compare.json").write_text(json.dumps({"recipe": "x", "rows": [{"method": "blocks"}]}))
    assert main(["report", str(tmp_path)]) == 2
    assert "preset" in one_line(capsys)
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("evaluated", [True, False])
def test_data_that_are_gone_are_asked_for(run_dir, page, tmp_path, capsys, evaluated):
    folder = shutil.copytree(run_dir, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config |= {"dataset": "fashion-mnist", "data_dir": "/nowhere", "image_size": 28, "patch_size": 14}
    (folder / "config.json").write_text(json.dumps(config))
    if not evaluated:
        (folder / "eval-test.json").unlink()
    assert main(["report", str(folder)]) == 2
    line = one_line(capsys)
    assert "/nowhere" in line
    assert "--data-dir" in line


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_one_line_names_it(run_dir, monkeypatch, capsys, package):
    for name in [name for name in sys.modules if name.startswith("diffusionblocks.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["report", str(run_dir)]) == 2
    line = one_line(capsys)
    assert package in line
    assert "diffusionblocks[report]" in line
