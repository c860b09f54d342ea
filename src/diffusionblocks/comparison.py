"""What `dblocks compare` compares: every run that its table needs, seed by seed, with its settings.

With N the updates of the network end to end: at equal layer evaluations each of the B blocks (or members of the
ensemble) has N updates, at equal samples N/B; the shallow network has N (as many samples as end to end) and B*N (as
many layer evaluations, and as much memory and compute as the blocks).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionblocks.data.sources import NUM_FOLDS
from diffusionblocks.errors import InputError
from diffusionblocks.recipes import family_of_recipe, resolve
from diffusionblocks.run_config import AnyRun

METHODS = {
    "vit": ("end-to-end", "checkpointing", "shallow", "shallow-ensemble", "blocks", "blocks+trunk"),
    # Denoisers of images that are averaged are another model, not an ensemble of generators.
    "dit": ("end-to-end", "checkpointing", "shallow", "blocks", "blocks+trunk"),
    "masked-lm": ("end-to-end", "checkpointing", "shallow", "shallow-ensemble", "blocks", "blocks+trunk"),
    "causal-lm": ("end-to-end", "checkpointing", "shallow", "shallow-ensemble", "blocks", "blocks+trunk"),
    # End to end is the loop, by truncated backpropagation through time.
    "recurrent-lm": ("end-to-end", "unlooped", "blocks"),
}
SAMPLES = {"dit": 1000, "masked-lm": 200, "causal-lm": 200, "recurrent-lm": 200}
"""Of generators, how many images or texts a sampling seed has unless it is said."""
BUDGETS = {
    **dict.fromkeys(("vit", "dit", "masked-lm", "causal-lm"), ("layer-evaluations", "samples")),
    "recurrent-lm": ("wall-clock", "samples"),
}
PRESETS = {
    "vit": ("default", "paper"),
    "dit": ("default",),
    "masked-lm": ("default",),
    "causal-lm": ("default", "paper"),
    "recurrent-lm": ("default", "paper"),
}
SIDES: dict[str, dict[str, dict[str, Any]]] = {
    "causal-lm": {"concat": {"context": "concat", "noise_per": "token"}},
}
"""Of families that have blocks of two kinds, what the other kind is: rows of the table at every budget and seed."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "vit": {},
    "dit": {
        "blocks 2": {"num_blocks": 2},
        "blocks 6": {"num_blocks": 6},
        "cut uniform-log": {"cut": "uniform-log"},
        "overlap 0": {"gamma": 0.0},
        "guidance 2": {"guidance": 2.0},
    },
    # At equal decrements of alpha the blocks of both schedules are the same, and so is their training.
    "masked-lm": {
        "blocks 2": {"num_blocks": 2},
        "blocks 6": {"num_blocks": 6},
        "cosine, equal t": {"schedule": "cosine", "cut": "uniform-linear"},
    },
    "causal-lm": {
        "blocks 2": {"num_blocks": 2},
        "blocks 6": {"num_blocks": 6},
        "law of the paper": {"p_mean": -1.2, "p_std": 1.2},
        "weight edm": {"weight": "edm"},
        "z always": {"z_dropout": 0.0},
        "plan draws": {"plan_draws": 0.5},
    },
    "recurrent-lm": {
        "full BPTT": {"method": "full-bptt"},
        "without evidence": {"evidence": False},
        "state of unit size": {"state_scale": "unit"},
        "law of the paper": {"p_mean": -1.2, "p_std": 1.2, "sigma_min": 0.002, "sigma_max": 80.0},
        "half see z": {"z_dropout": 0.5},
        "preset of the paper": {"preset": "paper"},
    },
}
"""Of each family what blocks are trained with besides. Guidance takes no training: it is a further score of the runs of
blocks and end to end."""


@dataclass(frozen=True)
class Entry:
    """A row and the run that it comes from.

    Attributes:
        run: name of the run folder.
        method: the row's method.
        config: the row's settings.
        trained: settings of the run; those of the row, unless it is a member of an ensemble.
        variant: what else is different from the row's method, in words.
        size: what makes its costs others than its method's: another number of blocks.
        guidance: how it is scored, if not as its settings say.
        fold: which fifth of the digits is its test split.
    """

    run: str
    method: str
    config: AnyRun
    trained: AnyRun
    variant: str = ""
    size: str = ""
    guidance: float | None = None
    fold: int = 0

    @property
    def cost(self) -> str:
        """Which measurement of costs is its own: budget, trunk and most variants change how long, not how much."""
        preset = self.config.preset if self.config.preset != "default" else ""
        side = self.variant if self.variant in SIDES.get(self.config.family, {}) else ""
        return ", ".join(filter(None, [self.method.removesuffix("+trunk"), preset, side, self.size]))

    @property
    def score_name(self) -> str:
        """What its result's file has in its name besides the split."""
        return "" if self.guidance is None else f"-guidance-{self.guidance:g}"

    @property
    def is_member(self) -> bool:
        """Whether the row is of the first member of an ensemble alone."""
        return self.config.method != self.trained.method


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        recipe: name of the recipe.
        settings: flags for all runs.
        config_file: settings for all runs.
        seeds, folds: every seed with every fold (digits has 5).
        methods, budgets, presets, variants: which of each; None: all that the family has.
        paces: of each method (and preset), how many updates it makes in the time of one of end to end; for equal
            wall-clock. `compare` measures them.
        variant_seeds: seeds that variants are trained with; None: all.
        trunk: share of the budget for the trunk of blocks+trunk.
        split: what is scored.
        samples, sampling_seeds: of generators, images or texts of a seed (None: as many as usual), and seeds.
        judge, mauve: of language models, what judges their texts (see `evaluation.language`).

    Raises:
        InputError: an unknown method, budget, preset or variant, or a number out of range.
    """

    recipe: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    config_file: Path | None = None
    seeds: int = 3
    folds: int = 1
    methods: Sequence[str] | None = None
    budgets: Sequence[str] | None = None
    presets: Sequence[str] | None = None
    variants: Sequence[str] | None = None
    variant_seeds: int | None = None
    trunk: float = 0.75
    split: str = "test"
    samples: int | None = None
    sampling_seeds: int = 3
    judge: str | None = None
    mauve: str | None = None
    paces: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        known: Any = {"methods": METHODS, "presets": PRESETS, "variants": VARIANTS, "budgets": BUDGETS}
        for name, of_family in known.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, tuple(of_family[self.family]))
        if self.samples is None:
            object.__setattr__(self, "samples", SAMPLES.get(self.family, 0))
        for name, allowed in {n: k[self.family] for n, k in known.items()}.items():
            for value in getattr(self, name):
                if value not in allowed:
                    what = f"one of {', '.join(allowed)}" if allowed else f"none: the family {self.family} has none"
                    raise InputError(name, value, what)
        if not 1 <= self.folds <= NUM_FOLDS:
            raise InputError("folds", self.folds, f"1..{NUM_FOLDS}")

    @property
    def family(self) -> str:
        """The recipe's family."""
        return family_of_recipe(self.recipe)

    def config(self, **settings: Any) -> AnyRun:
        """The settings of a run of it."""
        budget = BUDGETS[self.family][0] if self.family != "recurrent-lm" else "samples"
        own = {"preset": "default", "method": "blocks", "trunk": 0, "budget": budget, "seed": 0}
        return resolve(self.recipe, self.config_file, {**self.settings, **own, **settings})

    def entries(self) -> list[Entry]:
        """Every run, seed by seed."""
        # Only digits have folds.
        keys = [{"seed": seed} for seed in range(self.seeds)]
        if self.folds > 1:
            keys = [{**key, "fold": fold} for key in keys for fold in range(self.folds)]
        return [dataclasses.replace(entry, fold=key.get("fold", 0)) for key in keys for entry in self._entries(**key)]

    def _entries(self, **key: int) -> Iterator[Entry]:
        methods, variants = self.methods or (), self.variants or ()
        if self.variant_seeds is not None and key["seed"] >= self.variant_seeds:
            variants = ()
        suffix = "".join(f"-{name}{value}" for name, value in key.items())
        main = []
        for run, method, config, *rest in self._main(**key):
            entry = Entry(run + suffix, method, config, *(rest or [config]))
            main.append(entry)
            yield entry
        for variant in variants:
            changed = VARIANTS[self.family][variant]
            if "guidance" in changed:
                scored = [e for e in main if e.config.budget == "layer-evaluations" and e.method != "shallow"]
                yield from (dataclasses.replace(e, variant=variant, **changed) for e in scored)
            elif "blocks" in methods:
                config = self.config(**changed, **key)
                run = f"{config.method}-{variant.replace(',', '').replace(' ', '-')}{suffix}"
                # The number of blocks has a column of its own.
                other: dict[str, Any] = (
                    {"size": f"B = {config.num_blocks}"} if "num_blocks" in changed else {"variant": variant}
                )
                other = {} if config.method != "blocks" else other
                yield Entry(run, config.method, config, config, **other)

    def _main(self, **key: int) -> Iterator[tuple[Any, ...]]:
        """(run, method, settings of the row[, settings of the run[, variant]]) of the table's main rows."""
        methods = self.methods or ()
        if "end-to-end" in methods:
            yield "end-to-end", "end-to-end", self.config(method="end-to-end", **key)
        if self.family == "recurrent-lm":
            yield from self._recurrent(**key)
            return
        for budget in self.budgets or ():
            if "shallow-ensemble" in methods:
                yield (
                    f"shallow-ensemble-{budget}",
                    "shallow-ensemble",
                    self.config(method="shallow-ensemble", budget=budget, **key),
                )
            for preset in (self.presets or ()) if "blocks" in methods else ():
                yield f"blocks-{preset}-{budget}", "blocks", self.config(preset=preset, budget=budget, **key)
            for side, changed in SIDES.get(self.family, {}).items() if "blocks" in methods else ():
                config = self.config(budget=budget, **changed, **key)
                yield f"blocks-{side}-{budget}", "blocks", config, config, side
            if "blocks+trunk" in methods:
                yield f"blocks+trunk-{budget}", "blocks+trunk", self.config(budget=budget, trunk=self.trunk, **key)
        if "shallow" in methods:
            once = self.config(method="shallow", **key)
            # The first member of the ensemble is this very network; it need not be trained again.
            if "shallow-ensemble" in methods and "layer-evaluations" in (self.budgets or ()):
                members = self.config(method="shallow-ensemble", **key)
                yield "shallow-ensemble-layer-evaluations", "shallow", once, members
            else:
                yield "shallow-N", "shallow", once
            yield "shallow-BN", "shallow", _longer(once, once.num_blocks)

    def _recurrent(self, **key: int) -> Iterator[tuple[str, str, AnyRun]]:
        """As `_main`, of what a recurrent network has beside its loop."""
        for budget in self.budgets or ():
            for method in ("unlooped", "blocks"):
                for preset in (self.presets or ()) if method in (self.methods or ()) else ():
                    if method == "unlooped" and preset != "default":
                        continue  # it has no noise
                    config = self.config(method=method, preset=preset, budget=budget, **key)
                    if budget == "wall-clock":
                        config = _longer(config, self.paces.get(pace_of(config), 1.0))
                    yield f"{method}-{preset}-{budget}", method, config


def pace_of(config: AnyRun) -> str:
    """Which of `Comparison.paces` is that of a run."""
    return config.method if config.preset == "default" else f"{config.method}, {config.preset}"


def _longer(config: AnyRun, times: float) -> AnyRun:
    """The same settings with a longer budget."""
    if config.updates is None:
        return config.model_copy(update={"epochs": (config.epochs or 0) * times})
    return config.model_copy(update={"updates": round(config.updates * times)})
