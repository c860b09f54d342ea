"""The tables of ablations and of the planner's check, made from the JSON files under benchmarks/results."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from results import RESULTS, mean_spread, points, provenance, read


def page(folder: Path = RESULTS) -> str:
    """Every ablation that is there."""
    found = [table(path) for path in sorted(folder.glob("*/ablate.json"))]
    return "\n\n".join(found) or "None is committed yet. `python benchmarks/ablate.py` makes one."


def table(path: Path) -> str:
    """One setting at a time: scores on the validation split and the difference to the default, paired by run."""
    result = read(path)
    runs = defaultdict[str, dict[tuple[int, int], dict[str, Any]]](dict)
    for run in result["runs"]:
        runs[run["variant"]][run["seed"], run["fold"]] = run
    rows = [
        "| setting | n | chain % | z-free average % | chain from noise % | block 0 % | minus default, points | "
        "95% interval |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for variant, own in runs.items():
        plain = "accuracy" in next(iter(own.values()))
        names = ("accuracy",) if plain else ("chain", "average", "chain from noise", "block 0")
        cells = [mean_spread([run[name] for run in own.values()]) for name in names] + [""] * (4 - len(names))
        rows.append(f"| {variant} | {len(own)} | {' | '.join(cells)} | {_against(own, runs['default'], names[0])} |")
    common = ", ".join(f"{name}={value}" for name, value in result["common"].items() if name != "data_dir")
    with_what = f" with {common}" if common else ""
    return f"### {result['recipe']}{with_what}\n\n" + "\n".join(rows) + f"\n\n{provenance(result)}"


def _against(own: dict[Any, dict[str, Any]], default: dict[Any, dict[str, Any]], name: str) -> str:
    """Difference of the chain (or of a control's accuracy) to the default's chain, over the runs that both have."""
    from diffusionblocks.report.statistics import paired_difference

    if own is default:
        return " | "
    sides = [
        [{"seed": key, "metrics": {"it": run[metric]}} for key, run in side.items()]
        for side, metric in ((own, name), (default, "chain"))
    ]
    found = paired_difference(*sides, "it")
    return f"{points(found.mean)} | {points(found.low)} to {points(found.high)}"


def planner(path: Path = RESULTS / "planner/planner.json") -> str:
    """How far plans were from measured updates, and how long one took."""
    result = read(path)
    parts = [part for row in result["rows"] for part in row["predicted_minus_measured"].values()]
    differences = [abs(size) for part in parts for size in part.values()]
    plan = result["plan"]
    return (
        f"Over {len(result['rows'])} settings, {len(differences)} figures in all, the largest difference of plan and "
        f"measurement is {max(differences)} bytes. Planning {plan['recipe']} ({plan['rows']} rows) took "
        f"{plan['processor_seconds']:.0f} s of processor time."
    )
