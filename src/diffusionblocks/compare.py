"""`dblocks compare`: blocks beside every control, over seeds, at both budgets, as the rows of one table.

With N the updates of the network end to end: at equal layer evaluations each of the B blocks (or members of the
ensemble) has N updates, at equal samples N/B; the shallow network has N (as many samples as end to end) and B*N (as
many layer evaluations, and as much memory and compute as the blocks).

DIR/runs/NAME/     an ordinary run folder for each run, with eval-SPLIT.json
DIR/costs.json     memory and time of an update of each method, measured in one go
DIR/compare.json   the rows
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionblocks import checkpoint
from diffusionblocks.config import read_json
from diffusionblocks.data.sources import NUM_FOLDS
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.costs import losses, step_memory, step_times
from diffusionblocks.evaluation.score import score_run
from diffusionblocks.memory import KINDS
from diffusionblocks.provenance import provenance
from diffusionblocks.recipes import RunConfig, resolve
from diffusionblocks.training.run import PROVENANCE_FILE, claim_folder, make_trainers

COMPARE_FILE = "compare.json"
METHODS = ("end-to-end", "checkpointing", "shallow", "shallow-ensemble", "blocks", "blocks+trunk")
BUDGETS = ("layer-evaluations", "samples")
PRESETS = ("default", "paper")


@dataclass(frozen=True)
class Entry:
    """A row and the run that it comes from.

    Attributes:
        run: name of the run folder.
        method: the row's method.
        config: the row's settings.
        trained: settings of the run; those of the row, unless it is a member of an ensemble.
    """

    run: str
    method: str
    config: RunConfig
    trained: RunConfig

    @property
    def cost(self) -> str:
        """Which measurement of costs is its own: budget and trunk change how long, not how much."""
        method = self.method.removesuffix("+trunk")
        return method if self.config.preset == "default" else f"{method}, {self.config.preset}"


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        recipe: name of the recipe.
        settings: flags for all runs.
        config_file: settings for all runs.
        seeds, folds: every seed with every fold (digits has 5).
        methods, budgets, presets: which of each.
        trunk: share of the budget for the trunk of blocks+trunk.
        split: what is scored.

    Raises:
        InputError: an unknown method, budget or preset, or a number out of range.
    """

    recipe: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    config_file: Path | None = None
    seeds: int = 3
    folds: int = 1
    methods: Sequence[str] = METHODS
    budgets: Sequence[str] = BUDGETS
    presets: Sequence[str] = PRESETS
    trunk: float = 0.75
    split: str = "test"

    def __post_init__(self) -> None:
        for name, known in (("methods", METHODS), ("budgets", BUDGETS), ("presets", PRESETS)):
            for value in getattr(self, name):
                if value not in known:
                    raise InputError(name, value, f"one of {', '.join(known)}")
        if not 1 <= self.folds <= NUM_FOLDS:
            raise InputError("folds", self.folds, f"1..{NUM_FOLDS}")

    def config(self, **settings: Any) -> RunConfig:
        """The settings of a run of it."""
        own = {"preset": "default", "method": "blocks", "trunk": 0, "budget": "layer-evaluations", "seed": 0, "fold": 0}
        return resolve(self.recipe, self.config_file, {**self.settings, **own, **settings})

    def entries(self) -> list[Entry]:
        """Every run, seed by seed."""
        pairs = [(seed, fold) for seed in range(self.seeds) for fold in range(self.folds)]
        return [entry for seed, fold in pairs for entry in self._entries(seed=seed, fold=fold)]

    def _entries(self, **key: int) -> Iterator[Entry]:
        suffix = "".join(f"-{name}{value}" for name, value in key.items() if name == "seed" or self.folds > 1)

        def entry(run: str, method: str, config: RunConfig, trained: RunConfig | None = None) -> Entry:
            return Entry(run + suffix, method, config, trained or config)

        if "end-to-end" in self.methods:
            yield entry("end-to-end", "end-to-end", self.config(method="end-to-end", **key))
        for budget in self.budgets:
            if "shallow-ensemble" in self.methods:
                config = self.config(method="shallow-ensemble", budget=budget, **key)
                yield entry(f"shallow-ensemble-{budget}", "shallow-ensemble", config)
            for preset in self.presets if "blocks" in self.methods else ():
                config = self.config(preset=preset, budget=budget, **key)
                yield entry(f"blocks-{preset}-{budget}", "blocks", config)
            if "blocks+trunk" in self.methods:
                config = self.config(budget=budget, trunk=self.trunk, **key)
                yield entry(f"blocks+trunk-{budget}", "blocks+trunk", config)
        if "shallow" in self.methods:
            once = self.config(method="shallow", **key)
            # The first member of the ensemble is this very network; it need not be trained again.
            if "shallow-ensemble" in self.methods and "layer-evaluations" in self.budgets:
                members = self.config(method="shallow-ensemble", **key)
                yield entry("shallow-ensemble-layer-evaluations", "shallow", once, members)
            else:
                yield entry("shallow-N", "shallow", once)
            yield entry("shallow-BN", "shallow", _longer(once, once.num_blocks))


def _longer(config: RunConfig, times: int) -> RunConfig:
    """The same settings with a longer budget."""
    name = "epochs" if config.updates is None else "updates"
    return config.model_copy(update={name: getattr(config, name) * times})


def compare(comparison: Comparison, folder: Path, device: str = "cpu", progress: bool = True) -> dict[str, Any]:
    """Train and score whatever is missing, measure the costs, and write DIR/compare.json.

    Returns:
        What the file holds.

    Raises:
        InputError: settings or data that do not fit; a folder with runs of other settings.
        Interrupted: Ctrl-C; the same call goes on.
    """
    entries = comparison.entries()
    folder.mkdir(parents=True, exist_ok=True)
    scored = []
    for number, entry in enumerate(entries):
        run_dir = folder / "runs" / entry.run
        if not _is_scored(run_dir, entry.trained, comparison.split):
            print(f"run {number + 1} of {len(entries)}: {entry.run}", flush=True)
            for trainer in make_trainers(entry.trained, run_dir, device=device, progress=progress):
                trainer.train()
            checkpoint.write_text(run_dir / "budget.json", json.dumps(dataclasses.asdict(trainer.budget)))
            score_run(run_dir, comparison.split, device=device)
        scored.append((entry, run_dir))
    costs = measure_costs(comparison, folder / "costs.json", device)
    rows = [_row(entry, run_dir, comparison.split, costs[entry.cost]) for entry, run_dir in scored]
    if "checkpointing" in comparison.methods:
        rows.append(_checkpointing_row(comparison.config(method="checkpointing"), costs))
    made = provenance()
    result = {"recipe": comparison.recipe, **made, "split": comparison.split, "costs": costs, "rows": rows}
    checkpoint.write_text(folder / COMPARE_FILE, json.dumps(result, indent=1) + "\n")
    return result


def _is_scored(run_dir: Path, config: RunConfig, split: str) -> bool:
    """Whether a run is finished and scored; its folder must be one of these settings."""
    if not (run_dir / "budget.json").exists() or not (run_dir / f"eval-{split}.json").exists():
        return False
    claim_folder(run_dir, config)
    return True


def measure_costs(comparison: Comparison, path: Path, device: str = "cpu") -> dict[str, Any]:
    """Memory by kind and seconds of an update of each method, from the file if it has those of the same settings."""
    configs = {entry.cost: entry.config for entry in reversed(comparison.entries())}
    if "checkpointing" in comparison.methods:
        configs["checkpointing"] = comparison.config(method="checkpointing")
    # Costs depend on neither budget nor seed; the first seed stands for all.
    settings = {name: config.model_dump(mode="json", exclude={"data_dir"}) for name, config in configs.items()}
    if path.exists() and (stored := read_json(path))["settings"] == settings:
        return stored["costs"]
    times = step_times(configs, device)
    costs = {
        name: {**step_memory(config, device).to_dict(), "step": times[name].to_dict()}
        for name, config in configs.items()
    }
    if "checkpointing" in configs:
        costs["checkpointing"]["losses"] = losses(configs["checkpointing"], 5)
        costs["checkpointing"]["end-to-end losses"] = losses(comparison.config(method="end-to-end"), 5)
    checkpoint.write_text(path, json.dumps({"settings": settings, **provenance(), "costs": costs}, indent=1))
    return costs


def _row(entry: Entry, run_dir: Path, split: str, costs: dict[str, Any]) -> dict[str, Any]:
    """One row; updates are those of each block, with its share of the trunk's; commit is that which began the run."""
    config, result, budget = entry.config, read_json(run_dir / f"eval-{split}.json"), read_json(run_dir / "budget.json")
    updates = budget["last"] - budget["first"] + budget["first"] // config.num_blocks
    scores = result["members"][0] if entry.config.method != entry.trained.method else result
    metrics = {name: scores[name] for name in ("accuracy", "cross_entropy")}
    if "blocks" in result:
        metrics |= {
            "block0_accuracy": result["blocks"][0]["alone"]["accuracy"],
            "chain_accuracy": result["chain"]["accuracy"],
            "chain_gain": result["chain_gain"],
            "average_accuracy": result["average"]["accuracy"],
        }
    return {
        "method": entry.method,
        "preset": config.preset,
        "num_blocks": config.num_blocks,
        "seed": config.seed,
        "fold": config.fold,
        "budget": config.budget,
        "updates": updates,
        "metrics": metrics,
        "commit": read_json(run_dir / PROVENANCE_FILE)["commit"],
        **_costs(costs, config.batch_size),
    }


def _costs(costs: dict[str, Any], batch_size: int) -> dict[str, Any]:
    step = costs["step"]
    return {
        "memory_bytes": {kind: costs["total"][kind] for kind in KINDS},
        "layer_memory_bytes": {kind: costs["layers"].get(kind, 0) for kind in KINDS},
        "peak_bytes": costs["total"]["peak_total"],
        "step_seconds": step["median"],
        "samples_per_second": batch_size * step["units"] / step["median"],
    }


def _checkpointing_row(config: RunConfig, costs: dict[str, Any]) -> dict[str, Any]:
    """Activation checkpointing changes memory and time alone: a row without an accuracy, with the check of its loss."""
    cost = costs["checkpointing"]
    differences = [abs(a - b) for a, b in zip(cost["losses"], cost["end-to-end losses"], strict=True)]
    row = {"method": "checkpointing", "preset": config.preset, "num_blocks": config.num_blocks, "seed": config.seed}
    row |= {"fold": config.fold, "budget": "layer-evaluations", "updates": len(differences)}
    return {**row, "metrics": {"largest_loss_difference": max(differences)}} | _costs(cost, config.batch_size)
