"""A block: a complete shallow network of the user's own class, conditioned on noise, trained alone as a denoiser.

Each family subclasses `Block` in one file. What a block shares with the others is the noise law and a frozen table of
targets; its embeddings, layers, readout and conditioning are its own.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffusionblocks import precondition
from diffusionblocks.conditioning import Conditioning, LevelSlot, Modulate, NoiseLevel
from diffusionblocks.config import BlockwiseConfig
from diffusionblocks.errors import InputError
from diffusionblocks.noise import LogNormal, draw_levels
from diffusionblocks.partition import noise_edges, noise_intervals, training_interval
from diffusionblocks.sampling import Denoiser, SamplingPlan


@dataclass(frozen=True)
class NoiseDraw:
    """The randomness of one batch's loss.

    Attributes:
        sigma: noise levels (B,), float64.
        noise: unit normal noise (B, *target shape), float32.
        dropped: (B,) bool; these samples see z = 0.
    """

    sigma: Tensor
    noise: Tensor
    dropped: Tensor

    def to(self, device: torch.device) -> "NoiseDraw":
        return NoiseDraw(self.sigma.to(device), self.noise.to(device), self.dropped.to(device))

    def __getitem__(self, rows: slice) -> "NoiseDraw":
        return NoiseDraw(self.sigma[rows], self.noise[rows], self.dropped[rows])


class Block(nn.Module, abc.ABC):
    """A shallow backbone with its interval of noise levels and its conditioning.

    Args:
        backbone: network of the family's class that has only this block's layers.
        config: the blockwise config, with sigma_data resolved.
        index: which block it is; 0 has the first layers and the noisiest range.
        targets: frozen table of target embeddings (K, target_dim).

    Attributes:
        interval: the core interval, which no other block shares.
        trained_on: the core interval widened by the overlap.
    """

    family: ClassVar[str]
    backbone_class: ClassVar[type[PreTrainedModel]]
    layers_path: ClassVar[str]

    def __init__(self, backbone: PreTrainedModel, config: BlockwiseConfig, index: int, targets: Tensor):
        super().__init__()
        assert config.sigma_data is not None, "convert resolves sigma_data"
        self.config, self.index, self.sigma_data = config, index, config.sigma_data
        self.law = law_of(config)
        self.interval = noise_intervals(edges_of(config))[index]
        self.trained_on = training_interval(self.law, self.interval, config.gamma)
        steps = [step.sigma for step in plan_of(config).steps if step.block == index]
        self.plan_levels = torch.tensor(steps, dtype=torch.float64)
        self.slot = LevelSlot()
        self.modulated = True
        self.backbone = backbone
        sites = norm_sites(backbone, self.layers, self.example_input(backbone.config))
        width = backbone.config.hidden_size
        self.conditioning = Conditioning(config.conditioning, self.law, len(sites), width, config.conditioning_features)
        for site, norm in enumerate(sites):
            norm.register_forward_hook(Modulate(self.slot, site))
        # Not in the state dict: it is the same for all blocks and stored once.
        self.register_buffer("targets", targets, persistent=False)
        self.targets: Tensor

    @property
    def name(self) -> str:
        """block-k: as its folder is called."""
        return f"block-{self.index}"

    @property
    def layers(self) -> nn.ModuleList:
        """The residual layers of this block."""
        return self.backbone.get_submodule(self.layers_path)  # type: ignore[return-value]

    @classmethod
    @abc.abstractmethod
    def example_input(cls, backbone_config: Any) -> dict[str, Tensor]:
        """Arguments of the backbone's forward for one sample, to probe a network with."""

    @abc.abstractmethod
    def level(self, z: Tensor, sigma: Tensor) -> NoiseLevel:
        """How z (B, ...) at sigma (B,) enters through hooks, apart from the modulation."""

    @abc.abstractmethod
    def run_backbone(self, x: Tensor) -> Tensor:
        """Call the backbone on x (its level is set) and return the readout (B, ...)."""

    @abc.abstractmethod
    def denoised(self, readout: Tensor) -> Tensor:
        """D(z, sigma) from the readout, in the space of the targets (B, ...)."""

    @abc.abstractmethod
    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Weighted denoising loss of each sample (B,) for inputs x, targets y and given noise."""

    @classmethod
    @abc.abstractmethod
    def decode(cls, blocks: Sequence["Block"], x: Tensor, plan: SamplingPlan, **options: Any) -> Tensor:
        """The model's output for x: run the plan over the blocks and read the result."""

    @classmethod
    @abc.abstractmethod
    def output(cls, decoded: Tensor, labels: Tensor | None) -> Any:
        """The decoded result as the model output of the backbone's class, with a loss if there are labels."""

    def forward(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """The readout for x given the noisy target.

        Args:
            x: what the network is given (B, ...).
            z: noisy target (B, *target shape), unscaled.
            sigma: its noise level (B,), best in float64.

        Returns:
            The family's readout: logits (B, K) for classes.
        """
        sigma = torch.as_tensor(sigma, dtype=torch.float64, device=z.device).expand(z.shape[0])
        level = self.level(z, sigma)
        if self.modulated:
            level = dataclasses.replace(level, modulation=self.conditioning(sigma))
        with self.slot.set(level):
            return self.run_backbone(x)

    def denoiser(self, x: Tensor) -> Denoiser:
        """This block as D(z, sigma) with x given, as samplers take it."""
        return lambda z, sigma: self.denoised(self(x, z, sigma))

    def draw(self, batch_size: int, generator: torch.Generator) -> NoiseDraw:
        """Draw the noise of a batch: sigma, eps, and which samples see z = 0.

        sigma is from the law inside `trained_on`; a share `plan_draws` of it is from this block's levels in the stored
        plan instead (ours): with few steps a block runs at levels that the law hardly ever draws.
        """
        sigma = draw_levels(self.law, self.trained_on.lo, self.trained_on.hi, batch_size, generator)
        if self.config.plan_draws:
            which = torch.randint(len(self.plan_levels), (batch_size,), generator=generator)
            planned = torch.rand(batch_size, generator=generator) < self.config.plan_draws
            sigma = torch.where(planned, self.plan_levels[which], sigma)
        noise = torch.randn(batch_size, self.targets.shape[1], generator=generator)
        dropped = torch.rand(batch_size, generator=generator) < self.config.z_dropout
        return NoiseDraw(sigma, noise, dropped)

    def scaled(self, z: Tensor, sigma: Tensor) -> Tensor:
        """c_in * z: the noisy target as the network sees it, (B, ...)."""
        return precondition.per_sample(precondition.c_in(sigma, self.sigma_data), z) * z

    @contextlib.contextmanager
    def neutral(self) -> Iterator[None]:
        """Inside, `block.backbone(...)` is the plain network: no modulation, no extra input."""
        with self.slot.set(NoiseLevel()):
            yield

    @contextlib.contextmanager
    def unmodulated(self) -> Iterator[None]:
        """Inside, forwards leave the norms as they are (z still enters): for counting what conditioning costs."""
        before, self.modulated = self.modulated, False
        try:
            yield
        finally:
            self.modulated = before

    def enable_checkpointing(self) -> None:
        """Recompute each layer's activations in the backward pass (non-reentrant) at the level of its own forward."""
        self.backbone.activation_checkpointing_enable(
            activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": self.slot.checkpoint_contexts}
        )


def law_of(config: BlockwiseConfig) -> LogNormal:
    """The noise law of a config."""
    return LogNormal(config.p_mean, config.p_std, config.sigma_min, config.sigma_max)


def edges_of(config: BlockwiseConfig) -> tuple[float, ...]:
    """The B + 1 edges of a config's noise ranges, decreasing."""
    return noise_edges(law_of(config), config.num_blocks, config.cut)


def plan_of(config: BlockwiseConfig, num_sampling_steps: int | None = None) -> SamplingPlan:
    """A config's stored sampling plan, or the one with another number of steps."""
    steps = config.num_sampling_steps or config.num_blocks if num_sampling_steps is None else num_sampling_steps
    return SamplingPlan.build(law_of(config), edges_of(config), steps, config.spacing)


def norm_sites(backbone: PreTrainedModel, layers: nn.ModuleList, example: dict[str, Tensor]) -> list[nn.Module]:
    """The norms to modulate: modules inside a layer, named a norm by their class, whose output is the hidden state.

    A probe decides, since class names alone would take norms of queries and keys along.

    Raises:
        InputError: a layer without such a norm, by name.
    """
    width, found = backbone.config.hidden_size, dict[nn.Module, None]()

    def keep(module: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.shape[-1] == width:
            found[module] = None

    norms = [m for layer in layers for m in layer.modules() if "norm" in type(m).__name__.lower()]
    handles = [norm.register_forward_hook(keep) for norm in norms]
    modes = {module: module.training for module in backbone.modules()}
    parameter = next(backbone.parameters())
    try:
        with torch.no_grad():
            backbone.eval()(**{name: t.to(parameter.device, parameter.dtype) for name, t in example.items()})
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    for number, layer in enumerate(layers):
        if not any(module in found for module in layer.modules()):
            raise InputError(f"layer {number}", type(layer).__name__, "a norm to condition on the noise level")
    return [norm for norm in norms if norm in found]
