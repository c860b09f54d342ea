"""The settings of a run: what determines its result, and how it is trained. A class for each family."""

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from diffusionblocks.config import (
    CONFIGS,
    BlockwiseConfig,
    CausalLmConfig,
    DitConfig,
    MaskedLmConfig,
    RecurrentLmConfig,
    VitConfig,
)
from diffusionblocks.errors import InputError
from diffusionblocks.training.config import Budget, TrainingConfig


class ImageData(BaseModel):
    """Which images, and into which patches they are cut."""

    dataset: Literal["digits", "fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet", "folder"] = Field(
        description="data set"
    )
    data_dir: str | None = Field(None, description="its folder, or hub:NAME; digits needs none")
    fold: int = Field(0, ge=0, le=4, description="digits: which fifth is the test split")
    flip: bool = Field(False, description="flip training images at random")

    image_size: int = Field(ge=1, description="height and width of the images, pixels")
    num_channels: int = Field(ge=1, description="channels of the images")
    num_classes: int | None = Field(None, ge=1, description="number of classes; default: as many as the data have")
    patch_size: int = Field(ge=1, description="height and width of a patch, pixels")

    def located(self, data_dir: str | None) -> Self:
        """The settings with the data where they are now, if they have moved."""
        return self if data_dir is None else self.model_copy(update={"data_dir": data_dir})

    @model_validator(mode="after")
    def _patches_fit(self) -> "ImageData":
        if self.image_size % self.patch_size:
            near = [p for p in range(1, self.image_size + 1) if self.image_size % p == 0]
            raise InputError(
                "patch_size", self.patch_size, f"a divisor of image_size={self.image_size}", f"one of {near}"
            )
        return self


class TextData(BaseModel):
    """Which text, and into which tokens and windows it is cut."""

    data: str = Field(description="pydoc (built in), a file or a folder (txt, jsonl, parquet), or hub:NAME")
    text_field: str = Field("text", description="column of the text in jsonl, parquet and hub data")
    encoding: str = Field("utf-8", description="encoding of plain text files")
    split_by: Literal["auto", "document", "position"] = Field(
        "auto", description="how text is split 90/5/5; auto: by document where there are 20 or more, else by position"
    )
    tokenizer: str = Field(
        description="characters, text8 (a-z and space), bytes, bpe (trained on the data), or a Hugging Face tokenizer"
    )
    vocab_size: int | None = Field(
        None, ge=2, description="number of tokens; bpe: how many to make; else default: as many as the tokenizer has"
    )
    seq_len: int = Field(ge=2, description="tokens of a window")

    def located(self, data: str | None) -> Self:
        """The settings with the data where they are now, if they have moved."""
        return self if data is None else self.model_copy(update={"data": data})


class RunConfig(BlockwiseConfig, TrainingConfig):
    """Blocks and training, whatever the family; the classes below add data and network."""

    recipe: str = Field(description="the recipe it started from")
    preset: Literal["default", "paper"] = Field("default", description="noise settings: ours, or the paper's")
    method: Literal["blocks", "end-to-end", "shallow", "shallow-ensemble", "checkpointing", "trunk"] = Field(
        "blocks",
        description="blocks; a control: the whole network, one with a block's number of layers, B of those averaged, "
        "the whole network with activation checkpointing; or the trunk of blocks to be trained elsewhere",
    )
    budget: Literal["layer-evaluations", "samples"] = Field(
        "layer-evaluations",
        description="what B blocks or members have as much of as the network end to end: N updates each, or N/B",
    )
    trunk: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the blocks' budget that one block over the whole noise range gets before they branch off",
    )
    trunk_schedule: Literal["updates", "budget"] = Field(
        "updates",
        description="what the learning rate follows over trunk and blocks: the updates that a block has behind it, or "
        "the share of the budget that is used up",
    )

    hidden_size: int = Field(64, ge=1, description="width d")
    num_layers: int = Field(6, ge=1, description="number of layers L")
    num_heads: int = Field(4, ge=1, description="attention heads")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states")

    @model_validator(mode="after")
    def _network_fits(self) -> "RunConfig":
        if self.num_blocks > self.num_layers:
            raise InputError(
                "num_blocks", self.num_blocks, f"at most num_layers={self.num_layers}", "take fewer blocks"
            )
        split = self.layer_split
        if split is not None and sum(split) != self.num_layers:
            raise InputError("layer_split", list(split), f"counts that sum to num_layers={self.num_layers}")
        if self.method == "trunk" and not self.trunk:
            raise InputError("trunk", self.trunk, "a share above 0 for method=trunk", "set trunk=0.5, say")
        if self.trunk and self.method not in ("blocks", "trunk"):
            raise InputError("trunk", self.trunk, f"0 for method={self.method}", "only blocks have a trunk")
        if self.hidden_size % self.num_heads:
            raise InputError("num_heads", self.num_heads, f"a divisor of hidden_size={self.hidden_size}")
        return self

    def blockwise(self) -> BlockwiseConfig:
        """The part that makes the converted model."""
        part = CONFIGS[self.family]
        return part(**{name: getattr(self, name) for name in part.model_fields})

    def training(self) -> TrainingConfig:
        """The part that the trainer reads; its budget is that of one unit."""
        values = {name: getattr(self, name) for name in TrainingConfig.model_fields}
        if self.budget == "samples" and self.method in ("blocks", "trunk", "shallow-ensemble"):
            if self.updates is not None:
                values["updates"] = max(1, round(self.updates / self.num_blocks))
            if self.epochs is not None:
                values["epochs"] = self.epochs / self.num_blocks
        if self.method == "checkpointing":
            values["checkpointing"] = True
        return TrainingConfig(**values)

    def unit_budget(self, num_samples: int) -> Budget:
        """The updates of each unit on a data set of this size.

        With a trunk of share s, blocks of N updates each become a trunk of B s N updates and (1 - s) N updates of each
        block after it: the same number of updates in all.

        Raises:
            InputError: a share that leaves the trunk or the blocks without an update.
        """
        updates = self.training().num_updates(num_samples)
        if not self.trunk:
            return Budget(0, updates, updates)
        shared = round(self.trunk * updates)
        if not 0 < shared < updates:
            raise InputError("trunk", self.trunk, f"a share that leaves an update to both of {updates}", "train longer")
        trunk = self.num_blocks * shared
        last = trunk + updates - shared
        total, pace = (last, 1) if self.trunk_schedule == "updates" else (self.num_blocks * updates, self.num_blocks)
        return Budget(0, trunk, total) if self.method == "trunk" else Budget(trunk, last, total, pace)

    def depth(self) -> int:
        """Layers of the largest unit: the whole network's, or those of the largest block."""
        if self.method not in ("shallow", "shallow-ensemble", "blocks", "trunk"):
            return self.num_layers
        return max(self.layer_split) if self.layer_split else math.ceil(self.num_layers / self.num_blocks)


class VitRun(VitConfig, ImageData, RunConfig):
    """A classifier of images."""

    randaugment: bool = Field(False, description="RandAugment of training images (2 operations, magnitude 9)")
    intermediate_size: int | None = Field(None, ge=1, description="width of the MLP; default: 4 d")


class DitRun(DitConfig, ImageData, RunConfig):
    """A generator of images of a class."""

    trunk_schedule: Literal["updates", "budget"] = Field(
        "budget", description="what the learning rate follows over trunk and blocks"
    )

    dataset: Literal["digits", "fashion-mnist", "cifar-10", "cifar-100", "tiny-imagenet", "folder", "latents"] = Field(
        description="data set; latents: a folder that `dblocks encode` made"
    )

    @model_validator(mode="after")
    def _method_fits(self) -> "DitRun":
        if self.method == "shallow-ensemble":
            raise InputError(
                "method",
                self.method,
                "another control",
                "denoisers of images that are averaged are no ensemble of them",
            )
        if self.flip and self.dataset == "latents":
            raise InputError("flip", True, "no for latents: a latent turned over is not that of the image turned over")
        return self


class MaskedLmRun(MaskedLmConfig, TextData, RunConfig):
    """A language model that fills in masked text."""

    trunk_schedule: Literal["updates", "budget"] = Field(
        "budget", description="what the learning rate follows over trunk and blocks"
    )
    intermediate_size: int | None = Field(None, ge=1, description="width of the gated MLP; default: 8/3 d")
    init_std: float | None = Field(None, gt=0, description="deviation of initial weights; default: 0.8 / sqrt(d)")
    global_every: int = Field(1, ge=1, description="every so many layers attention is global, in the others local")
    local_window: int = Field(128, ge=2, description="tokens that local attention sees")


class CausalLmRun(CausalLmConfig, TextData, RunConfig):
    """A language model that continues text."""

    trunk_schedule: Literal["updates", "budget"] = Field(
        "budget", description="what the learning rate follows over trunk and blocks"
    )
    intermediate_size: int | None = Field(None, ge=1, description="width of the gated MLP; default: 8/3 d")
    init_std: float | None = Field(None, gt=0, description="deviation of initial weights; default: 0.8 / sqrt(d)")
    tie_embeddings: bool = Field(False, description="whether the head has the weights of the embedding")


class RecurrentLmRun(RecurrentLmConfig, CausalLmRun):
    """A language model whose middle layers are a recurrent core."""

    method: Literal["blocks", "end-to-end", "full-bptt", "unlooped"] = Field(
        "blocks",
        description="blocks: one denoiser; or a control: the network as a loop trained end to end, by backpropagation "
        "through the last passes or through all; or without a loop",
    )
    budget: Literal["samples", "wall-clock"] = Field(
        "samples", description="what a comparison gives every method as much of: updates, or seconds of training"
    )
    num_recurrences: int = Field(
        32, ge=1, description="passes of the core in a loop: their mean in training, and how many there are after it"
    )
    bptt_steps: int = Field(8, ge=1, description="end to end: the last passes, which gradients go through")

    @model_validator(mode="after")
    def _core_fits(self) -> "RecurrentLmRun":
        if self.prelude + self.coda >= self.num_layers:
            raise InputError(
                "prelude + coda",
                self.prelude + self.coda,
                f"fewer than num_layers={self.num_layers}: the layers between them are the core",
            )
        if self.trunk:
            raise InputError("trunk", self.trunk, "0: there is one block alone, and nothing branches off")
        return self


ImageRun = VitRun | DitRun
TextRun = MaskedLmRun | CausalLmRun
AnyRun = ImageRun | TextRun
"""The settings of a run of any family."""

RUN_CONFIGS: dict[str, type[AnyRun]] = {
    "vit": VitRun,
    "dit": DitRun,
    "masked-lm": MaskedLmRun,
    "causal-lm": CausalLmRun,
    "recurrent-lm": RecurrentLmRun,
}
"""The settings class of each family."""


def run_config_class(values: Any, source: str = "") -> type[AnyRun]:
    """The class of settings that name their family.

    Raises:
        InputError: not settings, or no such family.
    """
    family = values.get("family") if isinstance(values, dict) else None
    if not isinstance(family, str) or family not in RUN_CONFIGS:
        raise InputError(f"{source} family".strip(), family, f"one of {', '.join(RUN_CONFIGS)}")
    return RUN_CONFIGS[family]
