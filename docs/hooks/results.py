"""The results pages, made from the JSON files under benchmarks/results: no number is typed by hand."""

import json
import math
from pathlib import Path
from typing import Any

from diffusionblocks.report.columns import shown_columns
from diffusionblocks.report.comparison import load_comparison, measured_with
from diffusionblocks.report.groups import Groups, control, ratio
from diffusionblocks.report.metrics import METRICS, Metric
from diffusionblocks.report.statistics import Key, beats, mean_sd, paired_difference, values
from diffusionblocks.report.verdicts import STATES

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
        ("sampling", "Cost of sampling", sampling),
        ("generation", "Cost of autoregressive blocks", generation),
    ):
        for path in sorted(folder.glob(f"*/{name}.json")):
            parts.append(f"## {title}: {path.parent.name}\n\n{table(path)}\n\n{provenance(read(path))}")
    return "\n\n".join(parts)


def comparison(path: Path) -> str:
    """One compare.json: all methods, what the chain of blocks adds, whether depth helps, how it was made."""
    stored = load_comparison(path)
    groups, metric = stored.groups, stored.metric
    with_what = measured_with(stored.content)
    parts = [f"## {stored.content['recipe']}"]
    if with_what:
        parts.append(" ".join([*with_what, metric.note]))
    parts.append(_scores(groups, metric))
    if metric.has_chain:
        parts += ["### Blocks: first block, chain, average", _chains(groups)]
    parts += [
        "### Does depth help?",
        _depth(groups, metric),
        "### Memory and time",
        _costs(groups, metric),
        provenance(stored.content),
    ]
    return "\n\n".join(parts)


def _table(names: list[str], alignment: str, rows: list[list[str]]) -> str:
    """A Markdown table; alignment has l or r for each column. Lines that say the same stand once."""
    marks = {"l": "---", "r": "--:"}
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(marks[side] for side in alignment)}|"]
    return "\n".join(dict.fromkeys([*lines, *(f"| {' | '.join(row)} |" for row in rows)]))


def _settings(key: Key, groups: Groups) -> list[str]:
    """Method, preset and B of a group, with the variant where the comparison has any."""
    variant = [key.variant] if any(other.variant for other in groups) else []
    return [key.method, *variant, key.preset, str(key.num_blocks)]


def _settings_names(groups: Groups) -> tuple[list[str], str]:
    """The names of these columns, and their alignment."""
    variant = ["variant"] if any(key.variant for key in groups) else []
    return ["method", *variant, "preset", "B"], "l" * (2 + len(variant)) + "r"


def _scores(groups: Groups, metric: Metric) -> str:
    names, sides = _settings_names(groups)
    further = [column for column in shown_columns(groups, metric) if not column.of_blocks]
    headings = [*names, "budget", "updates", "n", f"{metric.label} {metric.unit}".rstrip(), metric.against]
    headings += ["95% interval", *(column.heading for column in further)]
    rows = []
    for key, own in groups.items():
        scored = values(own, metric.name)
        if not scored:  # what changes memory alone has no score of its own
            continue
        other, difference = control(groups, "end-to-end", key), ["", ""]
        if other is not None and other != key:
            found = paired_difference(own, groups[other], metric.name)
            mean, low, high = (_difference(value, metric) for value in (found.mean, found.low, found.high))
            difference = [mean, f"{low} to {high}"]
        cells = [key.budget, str(key.updates), str(len(scored)), _mean_sd(scored, metric.scale, metric.digits)]
        cells += [*difference, *(_mean_sd(values(own, c.source), c.scale, c.digits) for c in further)]
        rows.append([*_settings(key, groups), *cells])
    return _table(headings, f"{sides}lrrrrl" + "r" * len(further), rows)


def _chains(groups: Groups) -> str:
    names = ("block0_accuracy", "chain_gain", "average_accuracy")
    headings, sides = _settings_names(groups)
    headings += ["budget", "block 0 alone %", "chain gain, points", "average of blocks %"]
    rows = [
        [
            *_settings(key, groups),
            key.budget,
            *(_mean_sd(values(own, name), 100, 2, "+" if name == "chain_gain" else "") for name in names),
        ]
        for key, own in groups.items()
        if all(name in row["metrics"] for row in own for name in names)
    ]
    return _table(headings, f"{sides}lrrr", rows) if rows else "There are no blocks among the rows."


def _depth(groups: Groups, metric: Metric) -> str:
    """A line a shallow control: does end to end beat it by two standard errors of the paired difference?"""
    lines = []
    for key, own in groups.items():
        other = control(groups, "end-to-end", key)
        if key.method == "shallow" and other is not None:
            deep = groups[other]
            gap = paired_difference(deep, own, metric.name)
            better = beats(deep, own, metric.name, metric.lower_is_better)
            answer = "Yes" if better else "Not shown" if gap.n > 1 else "Open (it takes two seeds)"
            mean, low, high = (_difference(value, metric) for value in (gap.mean, gap.low, gap.high))
            lines.append(
                f"- {answer}: end to end minus shallow is {mean} {metric.difference_unit or metric.label} "
                f"({low} to {high}, n = {gap.n}){metric.direction}; the shallow network had {key.updates} "
                f"updates (budget {key.budget}, B = {key.num_blocks}{f', {key.variant}' if key.variant else ''})."
            )
    if lines:
        return "\n".join(lines)
    return "There is no shallow control with an end-to-end one among the rows, so nothing can be said."


def _costs(groups: Groups, metric: Metric) -> str:
    """Bytes of the first seed (they do not depend on it), time as the mean over seeds."""
    names, sides = _settings_names(groups)
    headings = [
        *names,
        "weights + gradients + optimizer, MB",
        "activations, MB",
        "other, MB",
        "layers: states, MB",
        "layers: activations, MB",
        "time of an update, ms",
        "samples/s",
        *(column.heading for column in metric.ratios),
    ]
    rows = []
    for key, own in groups.items():
        whole, layers = own[0]["memory_bytes"], own[0]["layer_memory_bytes"]
        sizes = [_states(whole), whole["activations"], whole["other"], _states(layers), layers["activations"]]
        seconds, _ = mean_sd([row["step_seconds"] for row in own])
        speed, _ = mean_sd([row["samples_per_second"] for row in own])
        cells = [*(_megabytes(size) for size in sizes), f"{1000 * seconds:.2f}", f"{speed:.0f}"]
        for column in metric.ratios:
            found = ratio(groups, key, column.source)
            cells.append("" if found is None else f"{column.scale * found:.{column.digits}f}")
        rows.append([*_settings(key, groups), *cells])
    return _table(headings, sides + "r" * (len(headings) - len(sides)), rows)


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


def sampling(path: Path) -> str:
    """Operations of a step, images a second, and memory while sampling, blocks beside the network end to end."""
    result = read(path)
    steps, speed, peaks = (result[name] for name in ("flops_per_step", "images_per_second", "peak_bytes"))
    blocks = result["config"]["num_blocks"]
    rows = [
        ["operations of a denoising step, x 10^6", *(f"{steps[m] / 1e6:.2f}" for m in ("blocks", "end-to-end"))],
        ["images/s", *(f"{speed[m]['median']:.1f}" for m in ("blocks", "end-to-end"))],
    ]
    table = _table([f"B = {blocks}, {result['batch']} images at a time", "blocks", "end to end"], "lrr", rows)
    return (
        f"{table}\n\nA step of blocks takes {result['ratios']['flops_per_step_times_B']:.3f} / B of the operations; "
        f"sampling is {speed['blocks']['median'] / speed['end-to-end']['median']:.2f} times as fast. With one block "
        f"resident the peak of all that is alive is {peaks['one_resident'] / 1e6:.2f} MB, "
        f"{result['ratios']['one_resident_over_largest_block_and_shared']:.3f} of the largest block's own forward and "
        f"the images; with all resident it is {peaks['all_resident'] / 1e6:.2f} MB."
    )


def generation(path: Path) -> str:
    """Tokens a second of training and generation by blocks and end to end, for each number of tokens."""
    rows = []
    for case in read(path)["cases"]:
        for what in ("training", "generation"):
            for name, own in case[what].items():
                found = own["ratio"]
                spread = f"{found['median']:.2f} ({found['least']:.2f} to {found['most']:.2f})"
                share = f"{100 * own['head_share']:.0f}" if "head_share" in own else ""
                cells = [str(case["vocab_size"]), what, name, f"{own['tokens_per_second']:,.0f}", spread, share]
                rows.append(cells)
    headings = ["tokens", "of", "network", "tokens/s", "ratio to end to end, median of rounds (range)"]
    return _table([*headings, "readout's share of multiplications, %"], "rllrrr", rows)


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
    mean, sd = mean_sd(shares)
    return f"{100 * mean:.2f}" + (f" ± {100 * sd:.2f}" if len(shares) > 1 else "")


def _states(sizes: dict[str, int]) -> int:
    return sum(sizes[kind] for kind in STATES)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3f}"


def points(share: float) -> str:
    """A difference of shares in points of a percentage."""
    return _difference(share, METRICS["vit"])


def _difference(value: float, metric: Metric) -> str:
    return _number(metric.scale * value, metric.digits, "+")


def _mean_sd(found: list[float], scale: float, digits: int, sign: str = "") -> str:
    """Mean and sample standard deviation; nothing where there is no value."""
    mean, sd = mean_sd(found)
    return f"{_number(scale * mean, digits, sign)} ± {_number(scale * sd, digits)}" if found else ""


def _number(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}" if math.isfinite(value) else "unknown"
