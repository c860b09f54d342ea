"""A block: a complete shallow network of the user's own class, conditioned on noise, trained alone as a denoiser.

Each family subclasses `Block` in one file. What a block shares with the others is the noise law and a frozen table of
targets; its embeddings, layers, readout and conditioning are its own.
"""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffusionblocks.backbones import TRANSFORMERS, Framework
from diffusionblocks.conditioning import Conditioning, LevelSlot, Modulate, Modulation, NoiseLevel
from diffusionblocks.config import BlockwiseConfig
from diffusionblocks.errors import InputError
from diffusionblocks.noise import draw_levels
from diffusionblocks.partition import noise_edges, noise_intervals, training_interval
from diffusionblocks.sampling import Denoiser, SamplingPlan


@dataclass(frozen=True)
class NoiseDraw:
    """The randomness of one batch's loss.

    Attributes:
        sigma: noise levels (B,), float64; (B, n) for a text each of whose tokens has a level of its own.
        noise: (B, *target shape), float32: unit normal, or uniform where tokens are masked.
        dropped: bool, of sigma's shape; these do not see what the family drops: z for discrete targets, the label for
            images.
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
        config: the blockwise config, with all that is measured resolved.
        index: which block it is; 0 has the first layers and the noisiest range.
        targets: frozen table of target embeddings (K, target_dim), for targets that are discrete.

    Attributes:
        interval: the core interval, which no other block shares.
        trained_on: the core interval widened by the overlap.
    """

    family: ClassVar[str]
    framework: ClassVar[Framework] = TRANSFORMERS
    backbone_classes: ClassVar[tuple[type[nn.Module], ...]]
    layers_path: ClassVar[str]
    has_targets: ClassVar[bool] = False
    plan_per_sample: ClassVar[bool] = False  # whether `decode` takes a plan for each input
    stratified: ClassVar[bool] = False  # whether a batch's levels are spread over the interval
    # The class of the family's network without noise; None where the whole network is itself a denoiser, one block.
    plain: ClassVar[type[Any] | None] = None
    # What averages the answers of networks trained apart; None where an average of answers is no answer.
    ensemble: ClassVar[type[Any] | None] = None

    def __init__(self, backbone: nn.Module, config: BlockwiseConfig, index: int, targets: Tensor | None = None):
        super().__init__()
        self.config, self.index = config, index
        self.name = f"block-{index}"  # as its folder is called
        self.law = config.law()
        self.interval = noise_intervals(edges_of(config))[index]
        self.trained_on = training_interval(self.law, self.interval, config.gamma)
        steps = [step.sigma for step in plan_of(config).steps if step.block == index]
        self.plan_levels = torch.tensor(steps, dtype=torch.float64)
        self.slot = LevelSlot()
        self.modulated = True
        self.backbone = backbone
        self.conditioning = None if config.conditioning == "own" else self._condition_norms(backbone)
        # Not in the state dict: it is the same for all blocks and stored once.
        self.register_buffer("targets", targets, persistent=False)
        self.targets: Any

    def _condition_norms(self, backbone: Any) -> Conditioning:
        """Hooks at the norms of the layers, and what they read."""
        sites = norm_sites(backbone, self.conditioned_layers, self.example_input(backbone.config))
        for site, norm in enumerate(sites):
            norm.register_forward_hook(Modulate(self.slot, site))
        width, kind, features = backbone.config.hidden_size, self.config.conditioning, self.config.conditioning_features
        assert kind != "own"
        return Conditioning(kind, self.law, len(sites), width, features)

    @property
    def layers(self) -> nn.ModuleList:
        """The residual layers of this block."""
        return self.backbone.get_submodule(self.path_of_layers(self.backbone))  # type: ignore[return-value]

    @property
    def conditioned_layers(self) -> nn.ModuleList:
        """Those whose norms see the noise level."""
        return self.layers

    @classmethod
    def class_of(cls, backbone: Any) -> Any | None:
        """Which of `backbone_classes` a network or its config is of; None: of none."""
        return cls.framework.class_of(backbone, cls.backbone_classes)

    @classmethod
    def path_of_layers(cls, backbone: Any) -> str:
        """Name of the layers in a network."""
        return cls.layers_path

    @classmethod
    def initialise(cls, backbone: Any) -> None:
        """Change what a fresh network starts from, where its class does not start as its blocks should."""

    @classmethod
    def make_targets(cls, config: BlockwiseConfig, backbone_config: Any) -> Tensor | None:
        """The frozen table of target embeddings (K, target_dim) for discrete targets."""
        return None

    @classmethod
    def example_input(cls, backbone_config: Any) -> dict[str, Tensor]:
        """Arguments of the backbone's forward for one sample, to find the norms with (unless conditioning is "own")."""
        raise NotImplementedError

    def level(self, z: Tensor, sigma: Tensor) -> NoiseLevel:
        """How z (B, ...) at sigma (B,) enters through hooks, apart from the modulation."""
        return NoiseLevel()

    @abc.abstractmethod
    def run_backbone(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Call the backbone on x (its level is set) and return the readout (B, ...)."""

    @property
    @abc.abstractmethod
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one target, and so of z without its batch dimension."""

    @property
    def dropped_share(self) -> float:
        """Share of training samples that do not see what the family drops."""
        return 0.0

    @abc.abstractmethod
    def denoised(self, readout: Tensor) -> Tensor:
        """D(z, sigma) from the readout, in the space of the targets (B, ...)."""

    @abc.abstractmethod
    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Weighted denoising loss of each sample (B,) for inputs x, targets y and given noise."""

    @classmethod
    def decoding_options(cls, config: Any, num_sampling_steps: Any = None, **options: Any) -> dict[str, Any]:
        """Options of `decode` for a model with this config: those given, and what the config says about the others."""
        return options

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
            sigma: its noise level (B,), best in float64; (B, n) where each token has its own.

        Returns:
            The family's readout: logits (B, K) for classes.
        """
        sigma = torch.as_tensor(sigma, dtype=torch.float64, device=z.device)
        sigma = sigma.expand(z.shape[0]) if sigma.ndim < 2 else sigma
        level = self.level(z, sigma)
        if self.conditioning is not None and self.modulated:
            level = dataclasses.replace(level, modulation=self.modulation(z, sigma))
        with self.slot.set(level):
            return self.run_backbone(x, z, sigma)

    def modulation(self, z: Tensor, sigma: Tensor) -> Modulation:
        """What every norm adds to its output for z (B, ...) at sigma (B,)."""
        assert self.conditioning is not None
        return self.conditioning(sigma)

    def denoiser(self, x: Tensor) -> Denoiser:
        """This block as D(z, sigma) with x given, as samplers take it."""
        return lambda z, sigma: self.denoised(self(x, z, sigma))

    def draw(self, batch_size: int, generator: torch.Generator) -> NoiseDraw:
        """Draw the noise of a batch: sigma, eps, and which samples are dropped.

        sigma is from the law inside `trained_on`; a share `plan_draws` of it is from this block's levels in the stored
        plan instead (ours): with few steps a block runs at levels that the law hardly ever draws.
        """
        lo, hi, shape = self.trained_on.lo, self.trained_on.hi, self.level_shape(batch_size)
        sigma = draw_levels(self.law, lo, hi, math.prod(shape), generator, self.stratified).view(shape)
        if self.config.plan_draws:
            which = torch.randint(len(self.plan_levels), shape, generator=generator)
            planned = torch.rand(shape, generator=generator) < self.config.plan_draws
            sigma = torch.where(planned, self.plan_levels[which], sigma)
        noise = self.draw_noise(batch_size, generator)
        dropped = torch.rand(shape, generator=generator) < self.dropped_share
        return NoiseDraw(sigma, noise, dropped)

    def level_shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape of a batch's noise levels."""
        return (batch_size,)

    def draw_noise(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """The noise of a batch's targets (B, *target shape), float32."""
        return torch.randn(batch_size, *self.target_shape, generator=generator)

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
        contexts = None if self.conditioning is None else self.slot.checkpoint_contexts
        self.framework.enable_checkpointing(self.backbone, contexts)


BlockLoader = Callable[[], Any]
"""What gives a block of a plan when it is asked for: from memory, or from disk so that one at a time is held."""


def held(blocks: Sequence[Block]) -> list[BlockLoader]:
    """Loaders of blocks that are in memory already, all of them."""
    return [lambda block=block: block for block in blocks]


def edges_of(config: BlockwiseConfig) -> tuple[float, ...]:
    """The B + 1 edges of a config's noise ranges, decreasing."""
    return noise_edges(config.law(), config.num_blocks, config.cut)


def plan_of(config: BlockwiseConfig, num_sampling_steps: int | None = None) -> SamplingPlan:
    """A config's stored sampling plan, or the one with another number of steps."""
    steps = config.num_sampling_steps or config.num_blocks if num_sampling_steps is None else num_sampling_steps
    return SamplingPlan.build(config.law(), edges_of(config), steps, config.spacing, config.allotment)


def norm_sites(backbone: Any, layers: nn.ModuleList, example: dict[str, Tensor]) -> list[nn.Module]:
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
            backbone.eval()(**{name: _placed(t, parameter) for name, t in example.items()})
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    for number, layer in enumerate(layers):
        if not any(module in found for module in layer.modules()):
            raise InputError(f"layer {number}", type(layer).__name__, "a norm to condition on the noise level")
    return [norm for norm in norms if norm in found]


def _placed(tensor: Tensor, like: Tensor) -> Tensor:
    """On the device of `like`, and of its dtype unless it holds ids."""
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)
