"""What an update costs: measured memory and time of each method, on random data of the recipe's size.

Times are taken in alternation, a turn of updates of every unit in each round, so that a machine whose speed drifts does
not favour one side; ratios between methods are then those of one run.
"""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from diffusionblocks.block import plan_of
from diffusionblocks.data.batches import TensorBatches
from diffusionblocks.marks import before
from diffusionblocks.memory import MemoryReport
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.run_config import AnyRun, MaskedLmRun, TextRun
from diffusionblocks.training.data import empty_batch
from diffusionblocks.training.networks import blockwise_of, build_units
from diffusionblocks.training.step import make_optimizer, train_step
from diffusionblocks.training.trainer import Trainer


@dataclass(frozen=True)
class StepTime:
    """Seconds of one update of each unit of a method.

    Attributes:
        seconds: for each unit (block, member, or the one network) its seconds in every round.
    """

    seconds: tuple[tuple[float, ...], ...]

    @property
    def rounds(self) -> list[float]:
        """Seconds of an update of all units, one after the other, in every round."""
        return [math.fsum(units) for units in zip(*self.seconds, strict=True)]

    def to_dict(self) -> dict[str, float]:
        """Median, least and most of the rounds, in seconds, the number of units, and the threads of the processor."""
        rounds = self.rounds
        spread = {"median": statistics.median(rounds), "least": min(rounds), "most": max(rounds)}
        return {**spread, "units": len(self.seconds), "threads": torch.get_num_threads()}


def random_batches(config: AnyRun) -> TensorBatches:
    """One batch of the recipe's shape, keyed by the seed: costs do not depend on what is on the images."""
    generator = keyed_generator(config.seed, "costs")

    def filled(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator)
        return torch.randint(0, known or 1, tensor.shape, generator=generator)

    x, y = empty_batch(config)
    if isinstance(config, TextRun):
        known = config.vocab_size
        y = filled(y)
        # In one family x says which tokens are to be found: all; in the other it has those before each.
        return TensorBatches(*(x, y) if isinstance(config, MaskedLmRun) else before(y, torch.ones_like(y).bool()))
    known = config.num_classes
    return TensorBatches(filled(x), filled(y))


def step_memory(config: AnyRun, device: str = "cpu") -> MemoryReport:
    """Measured memory of an update of the method's largest unit (the first of those), over two real updates."""
    largest = max(build_units(config), key=lambda unit: len(unit.layers))  # type: ignore[arg-type]
    return unit_memory(largest, config, device)


def unit_memory(unit: nn.Module, config: AnyRun, device: str = "cpu") -> MemoryReport:
    """Measured memory of an update of a unit, over two real updates on the recipe's settings."""
    training = config.training().model_copy(update={"updates": 2, "epochs": None})
    trainer = Trainer([unit], random_batches(config), training, device=device, progress=False)
    (report,) = trainer.train().values()
    return report


def step_times(
    configs: Mapping[str, AnyRun], device: str = "cpu", rounds: int = 7, turn: int = 8, skipped: int = 2
) -> dict[str, StepTime]:
    """Seconds of one update by method.

    Args:
        configs: methods by name.
        device: where to compute.
        rounds: how often every unit has a turn.
        turn: updates of a turn.
        skipped: updates at the start of a turn that are not counted.
    """
    units = {
        (name, number): (config, *_prepared(unit, config, device))
        for name, config in configs.items()
        for number, unit in enumerate(build_units(config))
    }
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in units}
    for number in track(range(rounds), "timing", console=Console(stderr=True), transient=True):
        updates = range(number * turn, (number + 1) * turn)
        for key, (config, unit, optimizer) in units.items():
            seconds[key].append(_turn(unit, optimizer, config, updates, skipped))
    return {
        name: StepTime(tuple(tuple(values) for (other, _), values in seconds.items() if other == name))
        for name in configs
    }


def mean_seconds(configs: Mapping[str, AnyRun], device: str = "cpu", updates: int = 96) -> dict[str, float]:
    """Mean seconds of an update of each method that is one network, in alternation.

    The mean, where `step_times` has medians: an update of a loop takes as long as the number of passes it has drawn.

    Args:
        configs: methods by name.
        device: where to compute.
        updates: of each method, in turns of 8; the first turn is to warm up.
    """
    units = {name: (config, *_prepared(build_units(config)[0], config, device)) for name, config in configs.items()}
    seconds = dict.fromkeys(units, 0.0)
    for turn in track(range(updates // 8 + 1), "pace", console=Console(stderr=True), transient=True):
        for name, (config, unit, optimizer) in units.items():
            start = time.perf_counter()
            _turn(unit, optimizer, config, range(8 * turn, 8 * turn + 8), 0)
            seconds[name] += (time.perf_counter() - start) if turn else 0.0
    return {name: total / updates for name, total in seconds.items()}


def sampling_speed(
    configs: Mapping[str, AnyRun], device: str = "cpu", rounds: int = 5, images: int = 32
) -> dict[str, dict[str, float]]:
    """Images a second of each generator with its stored plan, blocks all resident, without guidance, in alternation.

    Args:
        configs: methods by name.
        device: where to compute.
        rounds: how often each has a turn.
        images: images of a turn, one batch.

    Returns:
        median, least and most of the rounds, by method.
    """
    models = {name: BlockwiseModel(build_units(c), blockwise_of(c)).to(device).eval() for name, c in configs.items()}  # type: ignore[arg-type]
    speeds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name, model in models.items():
            start = time.perf_counter()
            model.decode(torch.zeros(images, dtype=torch.long), guidance=1.0, batch_size=images)
            if number:  # the first is to warm up
                speeds[name].append(images / (time.perf_counter() - start))
    return {n: {"median": statistics.median(s), "least": min(s), "most": max(s)} for n, s in speeds.items()}


def generation_speed(
    configs: Mapping[str, Any], device: str = "cpu", rounds: int = 5, texts: int = 32
) -> dict[str, dict[str, float]]:
    """Tokens a second of each language model in texts of its window's length, with its cache, in alternation.

    Args:
        configs: methods by name.
        device: where to compute.
        rounds: how often each has a turn.
        texts: texts of a turn, one batch.

    Returns:
        median, least and most of the rounds, by method.
    """
    from diffusionblocks.evaluation.causal import ONE_STEP
    from diffusionblocks.families.causal_decoding import generate

    models = {}
    for name, config in configs.items():
        units = [unit.to(device).eval() for unit in build_units(config)]
        models[name] = units, plan_of(config.blockwise()) if config.method == "blocks" else ONE_STEP, config.seq_len
    speeds: dict[str, list[float]] = {name: [] for name in models}
    for number in track(range(rounds + 1), "generation", console=Console(stderr=True), transient=True):
        for name, (units, plan, length) in models.items():
            start = time.perf_counter()
            generate(units, torch.zeros(texts, 0, dtype=torch.long), plan, max_new_tokens=length, batch_size=texts)
            if number:  # the first is to warm up
                speeds[name].append(texts * length / (time.perf_counter() - start))
    return {n: {"median": statistics.median(s), "least": min(s), "most": max(s)} for n, s in speeds.items()}


def head_share(config: AnyRun) -> float:
    """Share of a language model's multiplications that is its readout's: of a block, which has one of its own.

    An embedding multiplies nothing; a tied one is the readout's.
    """
    unit: Any = max(build_units(config), key=lambda unit: len(unit.layers))  # type: ignore[arg-type]
    head = unit.backbone.get_output_embeddings().weight.numel()
    return head / (head + sum(p.numel() for p in unit.layers.parameters() if p.ndim == 2))


def losses(config: AnyRun, updates: int) -> list[float]:
    """Losses of the first updates of a method's first unit on random images: to tell whether two methods are equal."""
    unit, optimizer = _prepared(build_units(config)[0], config, "cpu")
    batches = random_batches(config)
    return [
        float(train_step(unit, optimizer, batches.x, batches.y, update=k, lr=config.lr, config=config.training())[0])
        for k in range(updates)
    ]


def _prepared(unit: nn.Module, config: AnyRun, device: str) -> tuple[Any, torch.optim.Optimizer]:
    unit.to(device).train()
    training = config.training()
    if training.checkpointing:
        unit.enable_checkpointing()  # type: ignore[operator]
    return unit, make_optimizer(unit, training)


def _turn(unit: Any, optimizer: torch.optim.Optimizer, config: AnyRun, updates: range, skipped: int) -> float:
    """Median seconds of one update over a turn."""
    batches, device, times = random_batches(config), next(unit.parameters()).device, []
    x, y = batches.x.to(device), batches.y.to(device)
    for update in updates:
        start = time.perf_counter()
        loss, _ = train_step(unit, optimizer, x, y, update=update, lr=config.lr, config=config.training())
        loss.item()  # waits for the device
        times.append(time.perf_counter() - start)
    return statistics.median(times[skipped:])
