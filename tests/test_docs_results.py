"""The results page of the documentation has the numbers of its JSON files, and claims what they support."""

import json
import re
from typing import Any

import ablation
import dit_folders
import numpy as np
import pytest
import results
from scipy import stats


def synthetic_comparison() -> dict[str, Any]:
    """Four seeds of end-to-end, blocks, and shallow networks at N and 3 N updates, checkpointing unscored."""
    noise = np.random.default_rng(0)
    rows = []
    for method, updates, level in (
        ("end-to-end", 60, 0.95),
        ("blocks", 60, 0.9),
        ("shallow", 60, 0.8),
        ("shallow", 180, 0.955),
        ("checkpointing", 60, None),
    ):
        seeds = [3, 1, 0, 2] if method == "end-to-end" else range(4)
        for seed in seeds:
            metrics = {}
            if level is not None:
                accuracy = level + 0.01 * float(noise.standard_normal())
                metrics = {"accuracy": accuracy, "cross_entropy": -float(np.log(accuracy))}
            if method == "blocks":
                metrics |= {"block0_accuracy": accuracy - 0.02, "chain_gain": 0.02, "average_accuracy": accuracy + 0.01}
            size = 3 if method == "end-to-end" else 1
            memory = {"weights": size * 10**6, "gradients": size * 10**6, "optimizer": 2 * size * 10**6}
            memory |= {"activations": size * 5 * 10**6, "other": 4321000}
            rows.append(
                {"method": method, "preset": "default", "num_blocks": 3, "seed": seed, "budget": "layer-evaluations"}
                | {"updates": updates, "metrics": metrics, "memory_bytes": memory, "layer_memory_bytes": memory}
                | {"step_seconds": 0.01 * size + 0.001 * seed, "samples_per_second": 100.0}
            )
    return {
        "recipe": "vit-synthetic",
        "commit": "0123abc",
        "versions": {"torch": "9.9"},
        "hardware": {"cores": 64},
        "command": "dblocks compare vit-synthetic --seeds 4",
        "rows": rows,
    }


@pytest.fixture
def comparison(tmp_path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """The generated page, and the rows by method and updates."""
    written = synthetic_comparison()
    (tmp_path / "vit-synthetic").mkdir()
    (tmp_path / "vit-synthetic/compare.json").write_text(json.dumps(written))
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(written["rows"], key=lambda row: row["seed"]):
        rows.setdefault(f"{row['method']} {row['updates']}", []).append(row)
    return results.page(tmp_path), rows


def tables(page: str) -> list[list[dict[str, str]]]:
    """Markdown tables as rows by column, in order."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", page, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()]
        names = lines[0]
        assert all(len(line) == len(names) for line in lines)
        found.append([dict(zip(names, line, strict=True)) for line in lines[2:]])
    return found


def test_scores_of_the_results_page_are_those_of_numpy_and_scipy(comparison):
    page, rows = comparison
    scores = {f"{row['method']} {row['updates']}": row for row in tables(page)[0]}
    assert scores.keys() == rows.keys() - {"checkpointing 60"}  # its network is the end-to-end one
    deep = np.array([row["metrics"]["accuracy"] for row in rows["end-to-end 60"]])
    for name, row in scores.items():
        own = np.array([row["metrics"]["accuracy"] for row in rows[name]])
        entropy = np.array([row["metrics"]["cross_entropy"] for row in rows[name]])
        assert row["n"] == "4"
        assert row["accuracy %"] == f"{100 * own.mean():.2f} ± {100 * own.std(ddof=1):.2f}"
        assert row["cross-entropy, nats"] == f"{entropy.mean():.4f} ± {entropy.std(ddof=1):.4f}"
        if name == "end-to-end 60":
            assert row["minus end to end, points"] == ""
            continue
        low, high = stats.ttest_rel(own, deep).confidence_interval(0.95)
        assert row["minus end to end, points"] == f"{100 * (own - deep).mean():+.2f}"
        assert row["95% interval"] == f"{100 * low:+.2f} to {100 * high:+.2f}"


def test_the_other_tables_of_the_results_page(comparison):
    page, rows = comparison
    _, chains, costs = tables(page)
    (chain,) = chains
    alone = 100 * np.array([row["metrics"]["block0_accuracy"] for row in rows["blocks 60"]])
    assert chain["block 0 alone %"] == f"{alone.mean():.2f} ± {alone.std(ddof=1):.2f}"
    assert chain["chain gain, points"] == "+2.00 ± 0.00"
    by_method = {row["method"]: row for row in costs}
    assert "checkpointing" in by_method
    assert by_method["end-to-end"]["weights + gradients + optimizer, MB"] == "12.000"
    assert by_method["end-to-end"]["activations, MB"] == "15.000"
    assert by_method["blocks"]["other, MB"] == "4.321"
    assert by_method["end-to-end"]["time of an update, ms"] == "31.50"  # mean over seeds 0..3


def test_depth_is_claimed_only_beyond_two_standard_errors(comparison):
    page, rows = comparison
    verdicts = re.findall(r"^- (Yes|Not shown)\b.* had (\d+) updates", page, flags=re.MULTILINE)
    deep = np.array([row["metrics"]["accuracy"] for row in rows["end-to-end 60"]])
    wanted = []
    for updates in (60, 180):
        gaps = deep - np.array([row["metrics"]["accuracy"] for row in rows[f"shallow {updates}"]])
        wanted.append(("Yes" if gaps.mean() > 2 * stats.sem(gaps) else "Not shown", str(updates)))
    assert verdicts == wanted
    assert [answer for answer, _ in wanted] == ["Yes", "Not shown"]  # the example has both


def test_results_say_how_to_make_them_again(comparison):
    page, _ = comparison
    for part in ("    dblocks compare vit-synthetic --seeds 4", "Commit `0123abc`", "cores 64", "torch 9.9"):
        assert part in page


def test_one_seed_gives_no_interval_and_no_claim(tmp_path):
    written = synthetic_comparison()
    written["rows"] = [row for row in written["rows"] if row["seed"] == 0]
    (tmp_path / "one").mkdir()
    (tmp_path / "one/compare.json").write_text(json.dumps(written))
    page = results.page(tmp_path)
    assert all(row["accuracy %"].endswith(" ± unknown") for row in tables(page)[0])
    assert page.count("- Open (it takes two seeds)") == 2
    assert "nan" not in page


def spread(numbers, digits, sign=""):
    return f"{np.mean(numbers):{sign}.{digits}f} ± {np.std(numbers, ddof=1):.{digits}f}"


def test_the_committed_comparison_of_classifiers_has_these_tables():
    path = results.RESULTS / "vit-fashion/compare.json"
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in json.loads(path.read_text())["rows"]:
        own = groups.setdefault((row["method"], row["preset"], row["num_blocks"], row["budget"], row["updates"]), [])
        own.append(row)
    (deep,) = ({row["seed"]: row for row in own} for key, own in groups.items() if key[0] == "end-to-end")
    scores, chains, costs = [], [], []
    for (method, preset, num_blocks, budget, updates), own in groups.items():
        metrics = {name: [row["metrics"].get(name, np.nan) for row in own] for name in own[0]["metrics"]}
        if "accuracy" in metrics:
            percent, interval = 100 * np.array(metrics["accuracy"]), ["  ", "  "]
            if method != "end-to-end":
                whole = [100 * deep[row["seed"]]["metrics"]["accuracy"] for row in own]
                low, high = stats.ttest_rel(percent, whole).confidence_interval(0.95)
                interval = [f" {np.mean(percent - whole):+.2f} ", f" {low:+.2f} to {high:+.2f} "]
            start = f"| {method} | {preset} | {num_blocks} | {budget} | {updates} | {len(own)} | {spread(percent, 2)} |"
            scores.append(f"{start}{'|'.join(interval)}| {spread(metrics['cross_entropy'], 4)} |")
        if "chain_gain" in metrics:
            first, gain, average = (
                100 * np.array(metrics[name]) for name in ("block0_accuracy", "chain_gain", "average_accuracy")
            )
            cells = f"{spread(first, 2)} | {spread(gain, 2, '+')} | {spread(average, 2)}"
            chains.append(f"| {method} | {preset} | {num_blocks} | {budget} | {cells} |")
        whole, layers = own[0]["memory_bytes"], own[0]["layer_memory_bytes"]
        sizes = [sum(part[kind] for kind in ("weights", "gradients", "optimizer")) for part in (whole, layers)]
        sizes = [sizes[0], whole["activations"], whole["other"], sizes[1], layers["activations"]]
        time, speed = (np.mean([row[name] for row in own]) for name in ("step_seconds", "samples_per_second"))
        cells = " | ".join([*(f"{size / 1e6:.3f}" for size in sizes), f"{1000 * time:.2f}", f"{speed:.0f}"])
        costs.append(f"| {method} | {preset} | {num_blocks} | {cells} |")
    expected = [
        "| method | preset | B | budget | updates | n | accuracy % | minus end to end, points | 95% interval | "
        "cross-entropy, nats |",
        "|---|---|--:|---|--:|--:|--:|--:|---|--:|",
        *scores,
        "| method | preset | B | budget | block 0 alone % | chain gain, points | average of blocks % |",
        "|---|---|--:|---|--:|--:|--:|",
        *chains,
        "| method | preset | B | weights + gradients + optimizer, MB | activations, MB | other, MB | "
        "layers: states, MB | layers: activations, MB | time of an update, ms | samples/s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *dict.fromkeys(costs),
    ]
    assert [line for line in results.comparison(path).splitlines() if line.startswith("|")] == expected


def test_a_comparison_of_generators_has_its_own_columns(tmp_path):
    page = results.comparison(dit_folders.comparison(tmp_path / "dit") / "compare.json")
    scores, costs = tables(page)
    assert list(scores[0])[7:] == [
        *("FID", "minus end to end", "95% interval", "KID", "precision", "recall", "denoising error"),
        "se over sampling seeds",
    ]
    fids = {
        (row["method"], row["variant"], row["updates"]): [
            r["metrics"]["fid"]
            for r in dit_folders.ROWS
            if (r["method"], r["variant"], str(r["updates"])) == (row["method"], row["variant"], row["updates"])
        ]
        for row in scores
    }
    assert len(fids) == 8
    for row in scores:
        own, whole = (
            fids[key] for key in ((row["method"], row["variant"], row["updates"]), ("end-to-end", "", "1000"))
        )
        if "guidance" in row["variant"]:
            whole = fids["end-to-end", "guidance 2", "1000"]
        assert row["FID"] == spread(own, 2)
        if row["method"] != "end-to-end":
            low, high = stats.ttest_rel(own, whole).confidence_interval(0.95)
            assert row["minus end to end"] == f"{np.mean(own) - np.mean(whole):+.2f}"
            assert row["95% interval"] == f"{low:+.2f} to {high:+.2f}"
    by_method = {row["method"]: row for row in costs}
    assert by_method["blocks"]["FLOPs of a denoising step, ratio"] == "0.350"
    verdicts = re.findall(r"^- (Yes|Not shown): end to end minus shallow is (-[\d.]+) FID", page, flags=re.MULTILINE)
    assert [answer for answer, _ in verdicts] == ["Yes", "Yes"]
    for words in ("A lower FID is better", dit_folders.FEATURES["sha256"], "no ensemble of shallow networks"):
        assert words in page
    assert "first block, chain" not in page


def test_committed_measurements_are_shown_as_they_are():
    page = results.page()
    published = json.loads((results.RESULTS / "published-code/digits.json").read_text())
    shown = {row["defects"]: row for table in tables(page) for row in table if "defects" in row}
    assert shown.keys() == published["table"].keys()
    for name in published["table"]:
        chains = [run[name]["chain"] for run in published["runs"]]
        assert shown[name]["accuracy %"] == f"{100 * np.mean(chains):.2f} ± {100 * np.std(chains, ddof=1):.2f}"
        gaps = [run[name]["chain"] - run["published"]["chain"] for run in published["runs"]]
        difference = f"{100 * np.mean(gaps):.2f} ± {100 * np.std(gaps, ddof=1):.2f}"
        assert shown[name]["minus `published`, points"] == difference
    assert published["commit"] in page


def test_an_ablation_shows_differences_to_the_default_paired_by_run(tmp_path):
    rng = np.random.default_rng(0)
    runs = []
    for fold in range(5):
        for variant in ("default", "gamma 0"):
            scores = dict(zip(("chain", "average", "chain from noise", "block 0"), rng.uniform(size=4), strict=True))
            runs.append({"variant": variant, "seed": 0, "fold": fold, **scores})
        runs.append({"variant": "end-to-end", "seed": 0, "fold": fold, "accuracy": rng.uniform()})
    path = tmp_path / "vit-x/ablate.json"
    path.parent.mkdir()
    made = {"command": "python x", "commit": "abc", "hardware": {}, "versions": {}}
    path.write_text(json.dumps({"recipe": "vit-x", "runs": runs, "common": {"epochs": "2"}, **made}))
    text = ablation.page(tmp_path)
    assert "vit-x with epochs=2" in text
    default = np.array([run["chain"] for run in runs if run["variant"] == "default"])
    for variant, metric in (("gamma 0", "chain"), ("end-to-end", "accuracy")):
        own = np.array([run[metric] for run in runs if run["variant"] == variant])
        low, high = stats.ttest_rel(own, default).confidence_interval()
        line = next(line for line in text.splitlines() if line.startswith(f"| {variant} | 5 |"))
        assert f"{100 * own.mean():.2f} ± {100 * own.std(ddof=1):.2f}" in line
        assert f"{100 * (own - default).mean():+.2f} | {100 * low:+.2f} to {100 * high:+.2f} |" in line


def test_the_planners_check_is_read_from_its_file():
    stored = json.loads((ablation.RESULTS / "planner/planner.json").read_text())
    assert stored["exact"] == ("is 0 bytes" in ablation.planner())
