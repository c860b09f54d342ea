"""Settings of training, the same for blocks and for the networks they are compared with."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diffusionblocks.errors import InputError


@dataclass(frozen=True)
class Budget:
    """The updates of a unit: from number `first` up to `last`, on a learning rate schedule of `total` updates.

    A network trained alone goes from 0 to the end. With a trunk the schedule is shared: the trunk has its beginning,
    and each block that starts from the trunk goes on to its end, `pace` updates of the schedule in each of its own.
    """

    first: int
    last: int
    total: int
    pace: int = 1

    def position(self, update: int) -> int:
        """Where on the schedule an update of the unit is."""
        return self.first + (update - self.first) * self.pace


class TrainingConfig(BaseModel):
    """Optimization of one unit (a block, or a plain network): budgets and schedules count its own updates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="seed of initialisation, data order and noise")
    updates: int | None = Field(None, ge=1, description="optimizer steps of each block (or set epochs)")
    epochs: float | None = Field(None, gt=0, description="passes over the data of each block (or set updates)")
    batch_size: int = Field(128, ge=1, description="samples of one update")
    micro_batches: int = Field(1, ge=1, description="parts of a batch whose gradients are accumulated")
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    lr_final: float = Field(0.0, ge=0, description="learning rate at the end of the cosine")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the updates with a rising learning rate")
    weight_decay: float = Field(0.05, ge=0, description="AdamW's decay, on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first decay rate")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second decay rate")
    clip_norm: float = Field(1.0, gt=0, description="largest gradient norm of a block")
    ema_decay: float = Field(0.0, ge=0, lt=1, description="decay of the averaged weights, used to evaluate; 0: none")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="autocast; auto: bf16 where a GPU has it")
    checkpointing: bool = Field(False, description="recompute the layers' activations in the backward pass")
    rotate_every: int = Field(20, ge=1, description="updates of a block before the next one's turn")
    checkpoint_every: int = Field(1000, ge=1, description="updates of a block between its checkpoints")
    num_workers: int = Field(0, ge=0, description="processes that prepare the data of a block")

    @model_validator(mode="after")
    def _budget_fits(self) -> "TrainingConfig":
        if (self.updates is None) == (self.epochs is None):
            raise InputError("updates", self.updates, f"either updates or epochs (epochs={self.epochs})", "set one")
        if self.micro_batches > self.batch_size:
            raise InputError("micro_batches", self.micro_batches, f"at most batch_size={self.batch_size}")
        if self.lr_final > self.lr:
            raise InputError("lr_final", self.lr_final, f"at most lr={self.lr}")
        return self

    def num_updates(self, num_samples: int) -> int:
        """Updates of each unit on a data set of this size; at least 1."""
        if self.updates is not None:
            return self.updates
        assert self.epochs is not None
        return max(1, round(self.epochs * num_samples / self.batch_size))
