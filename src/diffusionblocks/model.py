"""A converted network: its blocks, the noise law and the plan by which they run together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffusionblocks import checkpoint
from diffusionblocks.block import Block, plan_of
from diffusionblocks.config import BlockwiseConfig, config_class, read_json, validate
from diffusionblocks.errors import InputError
from diffusionblocks.families import block_class_of
from diffusionblocks.sampling import Denoiser, SamplingPlan

CONFIG_FILE = "diffusionblocks.json"
TARGETS_FILE = "targets.safetensors"


class BlockwiseModel(nn.Module):
    """All blocks of a network; calling it runs the stored sampling plan.

    Args:
        blocks: blocks 0..B-1 in order.
        config: the config they were built from.

    Raises:
        InputError: a block that is missing or not of this config.
    """

    def __init__(self, blocks: Sequence[Block], config: BlockwiseConfig):
        super().__init__()
        if [block.index for block in blocks] != list(range(config.num_blocks)):
            raise InputError("blocks", [block.index for block in blocks], f"blocks 0..{config.num_blocks - 1} in order")
        if any(block.config != config for block in blocks):
            raise InputError("blocks", [block.index for block in blocks], "blocks with one and the same config")
        self.config = config
        self.blocks = nn.ModuleList(blocks)

    @property
    def plan(self) -> SamplingPlan:
        """The stored sampling plan."""
        return plan_of(self.config)

    @property
    def targets(self) -> Any:
        """The frozen table of target embeddings (K, target_dim), where targets are discrete."""
        return self.block_list[0].targets

    @property
    def block_list(self) -> list[Block]:
        """The blocks with their type."""
        return list(self.blocks)  # type: ignore[arg-type]

    def denoisers(self, x: Tensor) -> list[Denoiser]:
        """Every block as D(z, sigma) given x, for `sampling.sample`."""
        return [block.denoiser(x) for block in self.block_list]

    def decode(self, x: Tensor, *, num_sampling_steps: int | Sequence[int] | None = None, **options: Any) -> Tensor:
        """Run a plan and return the family's result: log-probabilities (B, K) for classes.

        Args:
            x: inputs (B, ...).
            num_sampling_steps: steps, if other than the stored plan's; at least one per block. Of a model that
                generates text also those of each prompt.
            **options: the family's; for classes start, decoding, chains, generator (see `VitBlock.decode`).
        """
        block_class = type(self.block_list[0])
        options = block_class.decoding_options(self.config, num_sampling_steps, **options)
        if not isinstance(num_sampling_steps, Sequence):
            return block_class.decode(self.block_list, x, plan_of(self.config, num_sampling_steps), **options)
        if not block_class.plan_per_sample:
            raise InputError("num_sampling_steps", list(num_sampling_steps), "one number for all inputs")
        plans: Any = [plan_of(self.config, steps) for steps in num_sampling_steps]
        return block_class.decode(self.block_list, x, plans, **options)

    def generate(self, x: Tensor, **options: Any) -> Tensor:
        """`decode` of a model of text, by the name that it has in transformers: token ids that go on after prompts."""
        return self.decode(x, **options)

    def forward(self, x: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        """Run the stored plan on x; the result is the model output of the backbone's own class.

        Args:
            x: inputs (B, ...): pixel values (B, C, H, W).
            labels: classes (B,); with them the output has a loss, the cross-entropy of the decoded probabilities.
            **options: as for `decode`.
        """
        return self.block_list[0].output(self.decode(x, **options), labels)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model: a folder per block, the table of targets and diffusionblocks.json; whole or not at all.

        Raises:
            InputError: `folder` has something else in it.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists():
            raise InputError("folder", str(folder), "a new or empty folder, or one with a saved model", "take another")
        with checkpoint.atomic_folder(folder) as draft:
            for block in self.block_list:
                part = draft / f"block-{block.index}"
                part.mkdir()
                checkpoint.save_network(block, part)
            if self.targets is not None:
                checkpoint.save_tensors({"targets": self.targets}, draft / TARGETS_FILE)
            (draft / CONFIG_FILE).write_text(self.config.model_dump_json(indent=1), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "BlockwiseModel":
        """Read a model that `save_pretrained` wrote, in evaluation mode on the CPU.

        Raises:
            InputError: not such a folder, a missing block, or files that are broken or do not fit together.
        """
        config, targets = read_model(folder := Path(folder))
        blocks = [load_block(folder, config, k, targets) for k in range(config.num_blocks)]
        return cls(blocks, config).eval()


def read_model(folder: Path) -> tuple[BlockwiseConfig, Tensor | None]:
    """What the blocks of a saved model have in common: the config, and the table of targets where there is one.

    Raises:
        InputError: not such a folder, or broken files.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InputError("folder", str(folder), f"a saved model with {CONFIG_FILE}")
    values = read_json(path)
    family = values.get("family") if isinstance(values, dict) else None
    config = validate(config_class(family, str(path)), values, str(path))
    table = None
    if block_class_of(config.family).has_targets:
        table = checkpoint.load_tensors(folder / TARGETS_FILE).get("targets")
        if table is None or table.ndim != 2:
            raise InputError("file", str(folder / TARGETS_FILE), "a table `targets` (K, target_dim)")
    return config, table


def load_block(folder: Path, config: BlockwiseConfig, index: int, targets: Tensor | None) -> Block:
    """Read one block of a saved model.

    Raises:
        InputError: missing or broken files, or weights that do not fit config or targets.
    """
    block_class, part = block_class_of(config.family), folder / f"block-{index}"
    backbone = block_class.framework.load(block_class.backbone_classes, part)
    with torch.random.fork_rng(devices=[]):  # building draws an initialisation that the loaded weights replace
        block = block_class(backbone, config, index, targets)
    checkpoint.load_added(block, part)
    return block.eval()
