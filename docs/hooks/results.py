"""The results pages, made from the JSON files under benchmarks/results: no number is typed by hand."""

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
KINDS = ("weights", "gradients", "optimizer", "activations")


def page(folder: Path = RESULTS) -> str:
    """Every comparison, then the other measurements that are there."""
    parts = [comparison(path) for path in sorted(folder.glob("*/compare.json"))]
    if not parts:
        parts = ["## Comparisons\n\nNone is committed yet. `dblocks compare` makes one."]
    if (folder / "published-code/digits.json").exists():
        parts.append(published_code(folder / "published-code/digits.json"))
    for name, title, table in (
        ("layer_memory", "Memory of one update", layer_memory),
        ("step_time", "Time of one update", step_time),
    ):
        for path in sorted(folder.glob(f"*/{name}.json")):
            parts.append(f"## {title}: {path.parent.name}\n\n{table(path)}\n\n{provenance(read(path))}")
    return "\n\n".join(parts)


def comparison(path: Path) -> str:
    """One compare.json: all methods, what the chain of blocks adds, whether depth helps, how it was made."""
    from diffusionblocks.report.statistics import group

    result = read(path)
    groups = group(result["rows"])
    parts = [
        f"## {result['recipe']}",
        _scores(groups),
        "### Blocks: first block, chain, average",
        _chains(groups),
        "### Does depth help?",
        _depth(groups),
        "### Memory and time",
        _costs(groups),
        provenance(result),
    ]
    return "\n\n".join(parts)


def reference(groups: dict[Any, list[dict[str, Any]]], key: Any) -> Any:
    """The end-to-end group that a group is compared with: of the same budget, preset and cut where there are several.

    Raises:
        ValueError: there is none.
    """
    candidates = [other for other in groups if other.method == "end-to-end"]
    if not candidates:
        raise ValueError("a comparison needs end-to-end rows")
    return max(
        candidates,
        key=lambda other: (other.budget == key.budget, other.preset == key.preset, other.num_blocks == key.num_blocks),
    )


def _scores(groups: dict[Any, list[dict[str, Any]]]) -> str:
    from diffusionblocks.report.statistics import mean_sd, paired_difference

    rows = [
        "| method | preset | B | budget | updates | n | accuracy % | minus end to end, points | 95% interval | "
        "cross-entropy, nats |",
        "|---|---|--:|---|--:|--:|--:|--:|---|--:|",
    ]
    for key, own in groups.items():
        scored = [row["metrics"] for row in own if "accuracy" in row["metrics"]]
        if not scored:  # what changes memory alone has no accuracy of its own
            continue
        accuracy, accuracy_sd = mean_sd([metrics["accuracy"] for metrics in scored])
        entropy, entropy_sd = mean_sd([metrics["cross_entropy"] for metrics in scored])
        other = reference(groups, key)
        difference = ("", "")
        if other != key:
            found = paired_difference(own, groups[other], "accuracy")
            difference = (points(found.mean), f"{points(found.low)} to {points(found.high)}")
        rows.append(
            f"| {key.method} | {key.preset} | {key.num_blocks} | {key.budget} | {key.updates} | {len(scored)} | "
            f"{100 * accuracy:.2f} ± {_number(100 * accuracy_sd, 2)} | {difference[0]} | {difference[1]} | "
            f"{entropy:.4f} ± {_number(entropy_sd, 4)} |"
        )
    return "\n".join(rows)


def _chains(groups: dict[Any, list[dict[str, Any]]]) -> str:
    from diffusionblocks.report.statistics import mean_sd

    names = ("block0_accuracy", "chain_gain", "average_accuracy")
    rows = [
        "| method | preset | B | budget | block 0 alone % | chain gain, points | average of blocks % |",
        "|---|---|--:|---|--:|--:|--:|",
    ]
    for key, own in groups.items():
        if all(name in row["metrics"] for row in own for name in names):
            cells = []
            for name in names:
                mean, sd = mean_sd([row["metrics"][name] for row in own])
                sign = "+" if name == "chain_gain" else ""
                cells.append(f"{100 * mean:{sign}.2f} ± {_number(100 * sd, 2)}")
            rows.append(f"| {key.method} | {key.preset} | {key.num_blocks} | {key.budget} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else "There are no blocks among the rows."


def _depth(groups: dict[Any, list[dict[str, Any]]]) -> str:
    """A line a shallow control: does end to end beat it by two standard errors of the paired difference?"""
    from diffusionblocks.report.statistics import beats, paired_difference

    lines = []
    for key, own in groups.items():
        if key.method == "shallow":
            deep = groups[reference(groups, key)]
            gap = paired_difference(deep, own, "accuracy")
            answer = "Yes" if beats(deep, own) else "Not shown" if gap.n > 1 else "Open (it takes two seeds)"
            lines.append(
                f"- {answer}: end to end minus shallow is {points(gap.mean)} points "
                f"({points(gap.low)} to {points(gap.high)}, n = {gap.n}); the shallow network had {key.updates} "
                f"updates (budget {key.budget}, B = {key.num_blocks})."
            )
    return "\n".join(lines) if lines else "There is no shallow control among the rows, so nothing can be said."


def _costs(groups: dict[Any, list[dict[str, Any]]]) -> str:
    """Bytes of the first seed (they do not depend on it), time as the mean over seeds."""
    from diffusionblocks.report.statistics import mean_sd

    rows = [
        "| method | preset | B | weights + gradients + optimizer, MB | activations, MB | other, MB | "
        "layers: states, MB | layers: activations, MB | time of an update, ms | samples/s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for key, own in groups.items():
        whole, layers = own[0]["memory_bytes"], own[0]["layer_memory_bytes"]
        sizes = [_states(whole), whole["activations"], whole["other"], _states(layers), layers["activations"]]
        seconds, _ = mean_sd([row["step_seconds"] for row in own])
        speed, _ = mean_sd([row["samples_per_second"] for row in own])
        cells = [*(_megabytes(size) for size in sizes), f"{1000 * seconds:.2f}", f"{speed:.0f}"]
        row = f"| {key.method} | {key.preset} | {key.num_blocks} | {' | '.join(cells)} |"
        if row not in rows:
            rows.append(row)
    return "\n".join(rows)


def layer_memory(path: Path = RESULTS / "vit-digits/layer_memory.json") -> str:
    """Bytes of a block's update times B over those of the network end to end."""
    result = read(path)
    rows = [
        "| part | kind | a block, bytes | end to end, bytes | block times B / end to end |",
        "|---|---|--:|--:|--:|",
    ]
    for part, name in (("total", "everything"), ("layers", "layers"), ("plain_layers", "layers, no conditioning")):
        whole = result["end-to-end"]["total" if part == "total" else "layers"]
        for kind in (*KINDS, "peak_total") if part == "total" else KINDS:
            ratio = result["ratio_times_B"][part][kind]
            rows.append(f"| {name} | {kind} | {result['block'][part][kind]:,} | {whole[kind]:,} | {ratio:.3f} |")
    return "\n".join(rows)


def memory_ratios(path: Path = RESULTS / "vit-digits/layer_memory.json") -> str:
    """The range of the layers' ratios in a sentence."""
    ratios = read(path)["ratio_times_B"]
    layers, total = ratios["layers"].values(), ratios["total"]
    return (
        f"For the digits recipe the layers of a block take {min(layers):.2f}/B to {max(layers):.2f}/B of what the "
        f"layers of the whole network take, by kind. Everything, at its peak, takes {total['peak_total']:.2f}/B."
    )


def step_time(path: Path = RESULTS / "vit-digits/step_time.json") -> str:
    """Seconds of an update and their ratio."""
    rows = [
        "| case | B | batch | threads | sum of blocks, ms | end to end, ms | ratio, median of rounds | range |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for case in read(path)["cases"]:
        blocks = math.fsum(seconds for name, seconds in case["seconds"].items() if name.startswith("block"))
        ratio = case["ratio"]
        rows.append(
            f"| {case['case']} | {case['num_blocks']} | {case['batch_size']} | {case['threads']} | "
            f"{1000 * blocks:.1f} | {1000 * case['seconds']['end to end']:.1f} | {ratio['median']:.3f} | "
            f"{ratio['min']:.2f} to {ratio['max']:.2f} |"
        )
    return "\n".join(rows)


def published_code(path: Path) -> str:
    """Accuracy of a small network with the published defects, without each, and without all."""
    result = read(path)
    rows = [
        "| defects | n | accuracy % | after block 0 % | minus `published`, points |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, row in result["table"].items():
        pairs = (("chain", "chain_sd"), ("block_0", "block_0_sd"), ("gain", "gain_sd"))
        cells = " | ".join(f"{100 * row[mean]:.2f} ± {100 * row[sd]:.2f}" for mean, sd in pairs)
        rows.append(f"| {name} | {len(result['seeds'])} | {cells} |")
    intro = (
        "## What the published code's defects do\n\nA small independent network with the defects as switches, "
        f"{result['epochs']} epochs of scikit-learn's digits. `published` has all defects of the code, `none` none; "
        "the others switch one. Differences are paired by seed."
    )
    return f"{intro}\n\n" + "\n".join(rows) + f"\n\n{provenance(result, COMMANDS[path.name])}"


COMMANDS = {"digits.json": "python benchmarks/published_code.py train --out FILE.json"}
"""How files that do not carry their command were made."""


def provenance(result: dict[str, Any], command: str = "") -> str:
    """How to make a result again: command, commit, hardware, versions."""
    lines = [f"    {result.get('command', command)}", "", f"Commit `{result['commit']}`."]
    for name in ("hardware", "versions"):
        if name in result:
            lines.append(f"{name.capitalize()}: " + ", ".join(f"{k} {v}" for k, v in result[name].items()) + ".")
    return "To reproduce:\n\n" + "\n".join(lines)


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def mean_spread(shares: list[float]) -> str:
    """Mean and sample standard deviation in percent."""
    from diffusionblocks.report.statistics import mean_sd

    mean, sd = mean_sd(shares)
    return f"{100 * mean:.2f}" + (f" ± {100 * sd:.2f}" if len(shares) > 1 else "")


def _states(sizes: dict[str, int]) -> int:
    return sizes["weights"] + sizes["gradients"] + sizes["optimizer"]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3f}"


def points(share: float) -> str:
    """A difference of shares in points of a percentage."""
    return _number(100 * share, 2, "+")


def _number(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}" if math.isfinite(value) else "unknown"
