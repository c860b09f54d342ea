"""The trainer: which unit is next, when to log and to save. The mathematics is in `step` and in the blocks.

Units (blocks, or one plain network) take turns of `rotate_every` updates; the one with the fewest updates is next. All
randomness is keyed by (seed, unit, update), so the order of turns does not change what a unit learns.
"""

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from diffusionblocks.data.batches import Batches, BlockBatches
from diffusionblocks.errors import InputError, TrainingError
from diffusionblocks.memory import MemoryReport, StepMeter
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.training.config import Budget, TrainingConfig
from diffusionblocks.training.ema import Ema
from diffusionblocks.training.progress import Log
from diffusionblocks.training.schedule import learning_rate
from diffusionblocks.training.state import branch, restore, save
from diffusionblocks.training.step import autocast, draw_for, make_optimizer, micro_batches, train_step


class Interrupted(KeyboardInterrupt):
    """Training was stopped by the user after its state was saved."""


@dataclass
class UnitState:
    """A unit with everything that its training moves; the trainer and the memory planner update it in the same way."""

    unit: Any
    optimizer: torch.optim.Optimizer
    ema: Ema | None
    meter: StepMeter | None
    updates: int = 0
    saved_at: int = 0
    batches: Iterator[tuple[Tensor, Tensor]] | None = None
    pending: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def prepare(cls, unit: Any, config: TrainingConfig) -> "UnitState":
        """A unit in training mode with its optimizer and averages, before its first update."""
        unit.train()
        if config.checkpointing:
            unit.enable_checkpointing()
        ema = Ema(unit, config.ema_decay) if config.ema_decay else None
        return cls(unit, make_optimizer(unit, config), ema, None)

    def measure(self) -> None:
        """Measure the next two updates."""
        self.meter = StepMeter(self.unit, self.optimizer, self.ema.average.values() if self.ema else ())

    def update(self, x: Tensor, y: Tensor, lr: float, config: TrainingConfig) -> None:
        """One update on a batch (B, ...), measured if that is asked for."""
        with contextlib.nullcontext() if self.meter is None else self.meter.step(x, y):
            self.pending.append(train_step(self.unit, self.optimizer, x, y, update=self.updates, lr=lr, config=config))
            if self.ema is not None:
                self.ema.update(self.updates)
        self.updates += 1

    def report(self, x: Tensor, y: Tensor, config: TrainingConfig) -> MemoryReport:
        """Finish the measurement with forwards that change nothing: their randomness is put back."""
        assert self.meter is not None, "nothing was measured"
        draw = draw_for(self.unit, len(x), self.updates, config.seed)
        # What layers keep is kept for one micro-batch at a time.
        rows = next(micro_batches(len(x), config.micro_batches))
        part = None if draw is None else draw.to(x.device)[rows]

        def forward() -> Tensor:
            with autocast(x.device, config):
                return self.unit.loss(x[rows], y[rows], part)

        def plain() -> Tensor:
            with self.unit.unmodulated():
                return forward()

        with torch.random.fork_rng():
            return self.meter.report(plain, forward)

    @property
    def name(self) -> str:
        """block 0, block 1, ..., or network: as its folder is called."""
        return self.unit.name.replace("-", " ")


class Trainer:
    """Trains blocks, each alone, in turn.

    Args:
        units: a BlockwiseModel, or some of its blocks, or one plain network.
        data: the training data.
        config: budgets and schedules; they count a unit's own updates.
        run_dir: folder for checkpoints and logs; None keeps nothing. With checkpoints in it training goes on from them.
        device: where to train.
        progress: show progress bars.
        measure_memory: measure the memory of each unit's first two updates (they run slower).
        budget: the updates, if other than from 0 to the number that config gives.
        trunk: a checkpoint of the trunk that blocks without a checkpoint of their own start from.
    """

    def __init__(
        self,
        units: BlockwiseModel | Sequence[nn.Module],
        data: Batches,
        config: TrainingConfig,
        run_dir: str | Path | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
        measure_memory: bool = True,
        budget: Budget | None = None,
        trunk: Path | None = None,
    ):
        self.data, self.config, self.device = data, config, torch.device(device)
        self.run_dir = None if run_dir is None else Path(run_dir)
        updates = config.num_updates(len(data))
        self.budget = budget or Budget(0, updates, updates)
        self.num_updates = self.budget.last
        self.progress = progress
        self.messages: list[str] = []
        self.memory: dict[int, MemoryReport] = {}
        self._stop = False
        modules = units.block_list if isinstance(units, BlockwiseModel) else list(units)
        if not modules:
            raise InputError("units", [], "at least one block to train")
        self.states = [self._prepare(module, measure_memory, trunk) for module in modules]

    def _prepare(self, unit: Any, measure_memory: bool, trunk: Path | None) -> UnitState:
        state = UnitState.prepare(unit.to(self.device), self.config)
        if self.run_dir is not None:
            state.updates, messages = restore(self.run_dir / unit.name, unit, state.optimizer, state.ema)
            state.saved_at = state.updates
            self.messages += messages
        if trunk is not None and not state.updates:
            state.updates = branch(trunk, unit, state.optimizer, state.ema)
        if measure_memory and state.updates + 2 <= self.num_updates:
            state.measure()
        return state

    @property
    def is_trunk(self) -> bool:
        """Whether its schedule ends in another trainer's units."""
        return self.budget.position(self.budget.last) < self.budget.total

    def plan(self) -> str:
        """What will be trained, in one line: updates and samples of each unit, and what is done already."""
        names = ", ".join(f"{s.name} {s.updates}/{self.num_updates}" for s in self.states)
        samples = (self.num_updates - self.budget.first) * self.config.batch_size
        return f"updates done {names}; {samples} samples each, batch {self.config.batch_size}, on {self.device}"

    def train(self) -> dict[int, MemoryReport]:
        """Train every unit to the end of its budget.

        Returns:
            The measured memory of each unit, by index.

        Raises:
            TrainingError: a loss that is not finite; that unit's last checkpoint stays, the others are saved.
            Interrupted: Ctrl-C; everything is saved first.
        """
        units = {state.unit.index: (state.name, state.updates) for state in self.states}
        with Log(self.run_dir, units, self.num_updates, self.progress) as log, self._signals():
            for message in self.messages:
                log.say(message)
            while not self._stop and (left := [s for s in self.states if s.updates < self.num_updates]):
                state = min(left, key=lambda s: s.updates // self.config.rotate_every)
                try:
                    self._turn(state, log)
                except TrainingError:
                    for other in self.states:
                        if other is not state:
                            self._save(other)
                    raise
            for state in self.states:
                self._save(state)
        if self._stop:
            raise Interrupted
        return self.memory

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, every unit has its averaged weights (where there are any): for evaluation and export."""
        with contextlib.ExitStack() as stack:
            for state in self.states:
                if state.ema is not None:
                    stack.enter_context(state.ema.applied())
            yield

    def _turn(self, state: UnitState, log: Log) -> None:
        """Updates of one unit until the end of its turn, then log them and save if it is time."""
        start, first = time.perf_counter(), state.updates
        last = min(first - first % self.config.rotate_every + self.config.rotate_every, self.num_updates)
        while state.updates < last and not self._stop:
            self._update(state)
        losses = self._checked_losses(state)
        seconds = time.perf_counter() - start
        if losses:
            count = state.updates - first
            row = {
                "block": state.unit.index,
                "update": state.updates,
                "loss": math.fsum(loss for loss, _ in losses) / count,
                "grad_norm": math.fsum(norm for _, norm in losses) / count,
                "lr": self._learning_rate(state.updates - 1),
                "images_per_second": count * self.config.batch_size / seconds,
            }
            log.row(row)
        if state.updates // self.config.checkpoint_every > state.saved_at // self.config.checkpoint_every:
            self._save(state)

    def _update(self, state: UnitState) -> None:
        if state.batches is None:
            state.batches = self._loader(state)
        x, y = (t.to(self.device, non_blocking=True) for t in next(state.batches))
        state.update(x, y, self._learning_rate(state.updates), self.config)
        if state.meter is not None and not state.meter.wants_steps:
            self.memory[state.unit.index] = self._report(state, x, y)
            state.meter = None

    def _learning_rate(self, update: int) -> float:
        return learning_rate(self.budget.position(update), self.budget.total, self.config)

    def _loader(self, state: UnitState) -> Iterator[tuple[Tensor, Tensor]]:
        batches = BlockBatches(self.data, self.config.batch_size, self.config.seed, state.unit.index)
        numbers = range(state.updates, self.num_updates)
        workers = self.config.num_workers
        start = _leave_ctrl_c_to_the_trainer
        return iter(DataLoader(batches, None, sampler=numbers, num_workers=workers, worker_init_fn=start))

    def _report(self, state: UnitState, x: Tensor, y: Tensor) -> MemoryReport:
        report = state.report(x, y, self.config)
        if self.run_dir is not None:
            folder = self.run_dir / state.unit.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.json").write_text(json.dumps(report.to_dict(), indent=1))
        return report

    def _checked_losses(self, state: UnitState) -> list[tuple[float, float]]:
        """Losses and gradient norms since the last call, read from the device once a turn.

        Raises:
            TrainingError: one that is not finite, with block, update and noise levels.
        """
        values = [(float(loss), float(norm)) for loss, norm in state.pending]
        state.pending.clear()
        for number, pair in enumerate(values):
            if not all(map(math.isfinite, pair)):
                raise TrainingError(self._describe(state, state.updates - len(values) + number, pair))
        return values

    def _describe(self, state: UnitState, update: int, values: tuple[float, float]) -> str:
        draw = draw_for(state.unit, self.config.batch_size, update, self.config.seed)
        levels = "" if draw is None else f", sigma from {draw.sigma.min():.4g} to {draw.sigma.max():.4g}"
        kept = f"the checkpoint after update {state.saved_at} is kept" if state.saved_at else "nothing was saved yet"
        return (
            f"{state.name}, update {update}{levels}: loss {values[0]}, gradient norm {values[1]}; {kept}; "
            "try a lower lr or precision=fp32"
        )

    def _save(self, state: UnitState) -> None:
        if self.run_dir is None or state.updates == state.saved_at:
            return
        save(self.run_dir / state.unit.name, state.unit, state.optimizer, state.ema, state.updates)
        state.saved_at = state.updates

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) ends training after the running update; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _leave_ctrl_c_to_the_trainer(worker: int) -> None:
    """A terminal sends Ctrl-C to the workers too; the update that is running still needs their batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
