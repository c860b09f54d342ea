"""Image classification with `transformers`' ViT: x is an image, y its label, z a noisy embedding of the label.

z enters as one more token after [CLS] and the patches; logits are read from [CLS] by the network's own classifier.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, ViTForImageClassification
from transformers import ViTConfig as ViTBackboneConfig
from transformers.modeling_outputs import ImageClassifierOutput

from diffusionblocks import precondition, targets
from diffusionblocks.backbones import TRANSFORMERS
from diffusionblocks.block import Block, NoiseDraw
from diffusionblocks.conditioning import LevelSlot, NoiseLevel
from diffusionblocks.config import VitConfig
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import SamplingPlan, Start, initial_state, trajectory

Decoding = Literal["chain", "average"]
LAYERS_PATH = "vit.layers"


class AppendToken:
    """Forward hook of the embeddings: the embedded noisy target becomes the last token."""

    def __init__(self, slot: LevelSlot):
        self.slot = slot

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        token = self.slot.require().token
        return None if token is None else torch.cat([out, token[:, None].to(out.dtype)], dim=1)


class ReadDenoised:
    """Forward pre-hook of the classifier: it reads c_skip * z + c_out * hidden in place of the hidden state."""

    def __init__(self, slot: LevelSlot):
        self.slot = slot

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> Tensor | None:
        readout = self.slot.require().readout
        return None if readout is None else readout[0].to(args[0].dtype) + readout[1].to(args[0].dtype) * args[0]


class PlainVit(nn.Module):
    """A control: a network trained end to end without noise, through the same trainer.

    Args:
        backbone: the network.
        index: with its seed the key of its randomness; members of an ensemble count from 0.
        name: its folder's name.
    """

    framework = TRANSFORMERS

    def __init__(self, backbone: PreTrainedModel, index: int = 0, name: str = "network"):
        super().__init__()
        self.backbone, self.index, self.name = backbone, index, name

    @property
    def layers(self) -> nn.ModuleList:
        return self.backbone.get_submodule(LAYERS_PATH)  # type: ignore[return-value]

    def draw(self, batch_size: int, generator: torch.Generator) -> None:
        """No noise."""

    def loss(self, x: Tensor, y: Tensor, draw: None = None) -> Tensor:
        """Cross-entropy of each sample, (B,) float32."""
        return functional.cross_entropy(self(x).float(), y, reduction="none")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        return self.backbone(pixel_values=x).logits

    @contextlib.contextmanager
    def unmodulated(self) -> Iterator[None]:
        """As for a block; there is nothing to leave out."""
        yield

    def enable_checkpointing(self) -> None:
        """Recompute each layer's activations in the backward pass (non-reentrant)."""
        self.framework.enable_checkpointing(self.backbone, None)


class VitEnsemble(nn.Module):
    """A control: plain networks trained apart, whose log-probabilities are averaged."""

    def __init__(self, members: Sequence[PlainVit]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities (B, K) of images (B, C, H, W): the members' mean, normalised."""
        return torch.stack([log_probs(member(x)) for member in self.members]).mean(dim=0).log_softmax(dim=-1)


class VitBlock(Block):
    """A block of a ViT classifier; see `Block` for arguments."""

    family = "vit"
    backbone_classes = (ViTForImageClassification,)
    layers_path = LAYERS_PATH
    has_targets = True
    plain = PlainVit
    ensemble = VitEnsemble

    config: VitConfig

    def __init__(self, backbone: PreTrainedModel, config: VitConfig, index: int, targets: Tensor):
        super().__init__(backbone, config, index, targets)
        assert config.sigma_data is not None, "convert resolves sigma_data"
        self.sigma_data = config.sigma_data
        if backbone.config.num_labels != len(targets):
            raise InputError("targets", len(targets), f"{backbone.config.num_labels} rows, one per label")
        # The bias is the token's position embedding.
        self.entry = nn.Linear(targets.shape[1], backbone.config.hidden_size)
        backbone.get_submodule("vit.embeddings").register_forward_hook(AppendToken(self.slot))
        if config.readout == "preconditioned":
            backbone.get_submodule("classifier").register_forward_pre_hook(ReadDenoised(self.slot))

    @classmethod
    def example_input(cls, backbone_config: ViTBackboneConfig) -> dict[str, Tensor]:
        size = cast(int, backbone_config.image_size)
        return {"pixel_values": torch.zeros(1, cast(int, backbone_config.num_channels), size, size)}

    @classmethod
    def make_targets(cls, config: Any, backbone_config: Any) -> Tensor:
        """The frozen table of label embeddings (K, target_dim)."""
        if config.targets == "simplex":
            return targets.simplex_table(backbone_config.num_labels)
        return targets.random_table(backbone_config.num_labels, backbone_config.hidden_size, config.targets_seed)

    def level(self, z: Tensor, sigma: Tensor) -> NoiseLevel:
        readout = None
        if self.config.readout == "preconditioned":
            skip = precondition.per_sample(precondition.c_skip(sigma, self.sigma_data), z) * z
            readout = skip, precondition.per_sample(precondition.c_out(sigma, self.sigma_data), z)
        return NoiseLevel(token=self.entry(precondition.scaled(z, sigma, self.sigma_data)), readout=readout)

    def run_backbone(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        return self.backbone(pixel_values=x).logits

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.targets.shape[1],)

    @property
    def dropped_share(self) -> float:
        """These see z = 0."""
        return self.config.z_dropout

    def denoised(self, readout: Tensor) -> Tensor:
        """The mean of the targets under softmax(logits), (B, target_dim)."""
        return readout.float().softmax(dim=-1) @ self.targets

    def noisy_target(self, y: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """z = e_y + sigma * eps for labels y (B,), (B, target_dim)."""
        return self.targets[y] + precondition.per_sample(sigma, noise) * noise

    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Cross-entropy of the label given image and noisy label, (B,) float32, unweighted unless weight="edm"."""
        z = self.noisy_target(y, draw.sigma, draw.noise)
        z = torch.where(draw.dropped[:, None], 0.0, z)
        loss = functional.cross_entropy(self(x, z, draw.sigma).float(), y, reduction="none")
        if self.config.weight == "edm":
            loss = loss * precondition.edm_weight(draw.sigma, self.sigma_data).to(loss.dtype)
        return loss

    @classmethod
    def decoding_options(cls, config: Any, num_sampling_steps: Any = None, **options: Any) -> dict[str, Any]:
        options["decoding"] = decoding_of(config, num_sampling_steps=num_sampling_steps, **options)
        options.setdefault("start", config.start)
        # Without a generator the start noise is a fixed one, so that a plain call is a function of x.
        options.setdefault("generator", keyed_generator(0, "start"))
        return options

    @classmethod
    def decode(
        cls,
        blocks: Sequence[Block],
        x: Tensor,
        plan: SamplingPlan,
        *,
        start: Start = "zero",
        decoding: Decoding = "chain",
        chains: int = 1,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """Log-probabilities of the classes (B, K).

        Args:
            blocks: all blocks in order.
            x: images (B, C, H, W).
            plan: steps of the chain.
            start: z = 0, or noise at the plan's first level (then `generator` is needed).
            decoding: "chain" reads the last step; "average" is the mean of the blocks' log-probabilities at z = 0,
                normalised, each at the level of its first step: an ensemble that runs no chain.
            chains: with start "noise", the number of chains whose probabilities are averaged.
            generator: noise of the start.
        """
        if options:
            raise InputError("option", sorted(options), "one of start, decoding, chains, generator")
        if decoding == "average":
            first, width = plan.first_sigmas(), blocks[0].targets.shape[1]
            free = [log_probs(block(x, x.new_zeros(len(x), width), _same(first[block.index], x))) for block in blocks]
            return torch.stack(free).mean(dim=0).log_softmax(dim=-1)
        if chains < 1 or (chains > 1 and start == "zero"):
            raise InputError("chains", chains, "1, or more with start=noise (from z = 0 all chains are the same)")
        shape = (len(x), blocks[0].targets.shape[1])
        runs = [chain(blocks, x, initial_state(shape, plan, start, generator).to(x), plan)[-1] for _ in range(chains)]
        return torch.stack(runs).logsumexp(dim=0).log_softmax(dim=-1)

    @classmethod
    def output(cls, decoded: Tensor, labels: Tensor | None) -> ImageClassifierOutput:
        """Log-probabilities as logits; the loss is their cross-entropy."""
        loss = None if labels is None else functional.nll_loss(decoded, labels)
        return ImageClassifierOutput(loss=loss, logits=decoded)  # type: ignore[arg-type]


def decoding_of(
    config: VitConfig,
    *,
    decoding: str | None = None,
    start: str | None = None,
    chains: int = 1,
    num_sampling_steps: int | None = None,
    **options: Any,
) -> str:
    """The decoding that is asked for: the one named, the chain for whoever names a part of it, else the config's."""
    if decoding is not None:
        return decoding
    return "chain" if start is not None or chains != 1 or num_sampling_steps is not None else config.decoding


def chain(blocks: Sequence[Block], x: Tensor, z: Tensor, plan: SamplingPlan) -> list[Tensor]:
    """Run the plan from state z under Euler and return the log-probabilities (B, K) after each of its steps."""
    seen: list[Tensor] = []

    def bind(block: Block):
        def denoise(z: Tensor, sigma: Tensor) -> Tensor:
            logits = block(x, z, sigma)
            seen.append(log_probs(logits))
            return block.denoised(logits)

        return denoise

    for _ in trajectory([bind(block) for block in blocks], z, plan):
        pass
    return seen


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities in float32."""
    return logits.float().log_softmax(dim=-1)


def _same(sigma: float, x: Tensor) -> Tensor:
    return torch.full((len(x),), sigma, dtype=torch.float64, device=x.device)
