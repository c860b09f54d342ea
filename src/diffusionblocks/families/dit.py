"""Images of a class with `diffusers`' DiT: x is the class, y an image (or its latents), z the image under noise.

The network is unchanged: its own AdaLN sees the noise level as a timestep, so no hooks are added. The target is joint,
so a block is an expert for its range of noise levels, and a denoising step runs its layers alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers.models.embeddings import LabelEmbedding
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
from torch import Tensor, nn

from diffusionblocks import precondition
from diffusionblocks.backbones import DIFFUSERS
from diffusionblocks.block import Block, BlockLoader, NoiseDraw, held
from diffusionblocks.config import DitConfig
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.sampling import SAMPLERS, Denoiser, SamplingPlan


class DitBlock(Block):
    """A block of a DiT: D(z, sigma) = c_skip z + c_out F(c_in z, 1000 c_noise, class); see `Block` for arguments.

    z and D are in units in which the data have standard deviation sigma_data; images go in and come out in their own.
    """

    family = "dit"
    framework = DIFFUSERS
    backbone_classes = (DiTTransformer2DModel,)
    layers_path = "transformer_blocks"
    config: DitConfig

    def __init__(self, backbone: nn.Module, config: DitConfig, index: int, targets: None = None):
        super().__init__(backbone, config, index, targets)
        self.sigma_data = config.sigma_data
        network: Any = backbone.config
        channels = network["in_channels"]
        if network["out_channels"] not in (None, channels):
            raise InputError("out_channels", network["out_channels"], f"{channels}, as in_channels: no variance")
        for name in ("data_mean", "data_std"):
            value = getattr(config, name)
            if value is None or len(value) != channels:
                todo = f"pass {name}=(...) of the training data; `dblocks train` measures it"
                raise InputError(name, value, f"{channels} numbers, one a channel", todo)
        scale = [config.sigma_data / std for std in config.data_std or ()]
        self.register_buffer("data_mean", torch.tensor(config.data_mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("data_scale", torch.tensor(scale).view(-1, 1, 1), persistent=False)
        self.data_mean: Tensor
        self.data_scale: Tensor
        # Every layer has a label embedder that would drop labels on its own; labels are dropped once a sample, by us.
        for module in backbone.modules():
            if isinstance(module, LabelEmbedding):
                module.dropout_prob = 0.0

    @classmethod
    def initialise(cls, backbone: Any) -> None:
        """Zero the gates and the readout of a fresh network, so that each layer is the identity and F is 0."""
        for layer in backbone.transformer_blocks:
            nn.init.zeros_(layer.norm1.linear.weight)
            nn.init.zeros_(layer.norm1.linear.bias)
        for readout in (backbone.proj_out_1, backbone.proj_out_2):
            nn.init.zeros_(readout.weight)
            nn.init.zeros_(readout.bias)

    @property
    def num_classes(self) -> int:
        """K; the id K stands for no class."""
        return self.backbone.config["num_embeds_ada_norm"]  # type: ignore[index]

    @property
    def target_shape(self) -> tuple[int, ...]:
        network: Any = self.backbone.config
        return network["in_channels"], network["sample_size"], network["sample_size"]

    @property
    def dropped_share(self) -> float:
        """These see no class."""
        return self.config.label_dropout

    def run_backbone(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """D for classes x (B,) and z (B, C, H, W), in fp32 whatever the network computes in."""
        # c_noise itself is in about [-1.6, 1.1], over which sinusoids made for timesteps 0..1000 hardly move.
        timestep = (1000.0 * precondition.c_noise(sigma)).float()
        scaled = precondition.scaled(z, sigma, self.sigma_data)
        out = self.backbone(scaled, timestep=timestep, class_labels=x).sample.float()
        skip, scale = precondition.c_skip(sigma, self.sigma_data), precondition.c_out(sigma, self.sigma_data)
        return precondition.per_sample(skip, z) * z + precondition.per_sample(scale, z) * out

    def denoised(self, readout: Tensor) -> Tensor:
        return readout

    def noisy_target(self, y: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """z for images y in their own units, (B, C, H, W)."""
        return self.to_units(y) + precondition.per_sample(sigma, noise) * noise

    def to_units(self, y: Tensor) -> Tensor:
        """Data in the units of z: each channel centred, with standard deviation sigma_data."""
        return (y - self.data_mean) * self.data_scale

    def from_units(self, z: Tensor) -> Tensor:
        """The inverse of `to_units`."""
        return z / self.data_scale + self.data_mean

    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Squared error of D, mean over pixels, weighted by 1 / c_out^2 (EDM) unless weight="none": (B,) float32."""
        labels = torch.where(draw.dropped, self.num_classes, x)
        return self.error(labels, y, draw.sigma, draw.noise)

    def error(self, labels: Tensor, y: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """The loss with labels (B,) as they are given; id K is no class."""
        denoised = self(labels, self.noisy_target(y, sigma, noise), sigma)
        error = (denoised - self.to_units(y)).square().flatten(1).mean(dim=1)
        if self.config.weight == "edm":
            error = error * precondition.edm_weight(sigma, self.sigma_data).to(error.dtype)
        return error

    def guided(self, x: Tensor, guidance: float) -> Denoiser:
        """D(z, sigma) for classes x (B,) under classifier-free guidance g: D_0 + g (D_x - D_0), D_0 without class.

        At 1 it is the conditional denoiser itself and at 0 the unconditional one, in one forward.
        """
        nothing = torch.full_like(x, self.num_classes)
        if guidance in (0.0, 1.0):
            return self.denoiser(x if guidance else nothing)
        both = self.denoiser(torch.cat([x, nothing]))

        def denoise(z: Tensor, sigma: Tensor) -> Tensor:
            conditional, free = both(torch.cat([z, z]), torch.cat([sigma, sigma])).chunk(2)
            return free + guidance * (conditional - free)

        return denoise

    @classmethod
    def decoding_options(cls, config: Any, num_sampling_steps: Any = None, **options: Any) -> dict[str, Any]:
        return {"sampler": config.sampler, "guidance": config.guidance, **options}

    @classmethod
    def decode(
        cls,
        blocks: Sequence[Block],
        x: Tensor,
        plan: SamplingPlan,
        *,
        sampler: str = "euler",
        guidance: float | Sequence[float] = 1.0,
        seed: int = 0,
        batch_size: int = 64,
        **options: Any,
    ) -> Tensor:
        """Images of classes x (B,), in their own units (B, C, H, W); arguments as for `generate`."""
        if options:
            raise InputError("option", sorted(options), "one of sampler, guidance, seed, batch_size")
        return generate(held(blocks), x, plan, sampler=sampler, guidance=guidance, seed=seed, batch_size=batch_size)

    @classmethod
    def output(cls, decoded: Tensor, labels: Tensor | None) -> Transformer2DModelOutput:
        """Images as the sample of the network's own output; a loss needs a noise level, so labels are refused."""
        if labels is not None:
            raise InputError("labels", tuple(labels.shape), "none: the classes to generate are the input itself")
        return Transformer2DModelOutput(sample=decoded)  # type: ignore[arg-type]


@torch.no_grad()
def generate(
    loaders: Sequence[BlockLoader],
    x: Tensor,
    plan: SamplingPlan,
    *,
    sampler: str = "euler",
    guidance: float | Sequence[float] = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Tensor:
    """Run the plan block by block: every image goes through a block's steps before the next block is asked for.

    So each block is loaded once, and one at a time is enough (`loaders` may read it from disk and let it go after).

    Args:
        loaders: for each block of the plan, what gives it.
        x: classes (B,), in 0..K-1.
        plan: the steps.
        sampler: a name in `sampling.SAMPLERS`.
        guidance: one scale, or one for each block.
        seed: image number k starts from noise of the key (seed, k), whatever is generated beside it.
        batch_size: images at a time.
        device: where to compute; None: where each block is.
        advance: called with a number of images after each step of a batch, to show progress.

    Returns:
        Images (B, C, H, W) in their own units, on the CPU.

    Raises:
        InputError: a class out of range, an unknown sampler, guidance of blocks that never saw a dropped label.
    """
    scales = check_sampling(sampler, guidance, len(loaders))
    batches = [range(first, min(first + batch_size, len(x))) for first in range(0, len(x), batch_size)]
    steps = [SAMPLERS[sampler]() for _ in batches]
    states: list[Tensor] = []
    images: list[Tensor] = []
    for index, load in enumerate(loaders):
        block = load()
        if device is not None:
            block.to(device)
        place = block.data_mean.device
        check_request(block, x, scales[index])
        if not states:
            states = [plan.steps[0].sigma * start_noise(rows, block.target_shape, seed) for rows in batches]
        for number, rows in enumerate(batches):
            denoise = block.guided(x[rows.start : rows.stop].to(place), scales[index])
            z = states[number].to(place)
            for step in plan.steps:
                if step.block == index:
                    z, _ = steps[number](denoise, z, step, None)
                    advance(len(rows))
            states[number] = z
        if index == len(loaders) - 1:
            images = [block.from_units(z).cpu() for z in states]
        # Let go of it before the next one is loaded.
        del block, denoise
    return torch.cat(images)


def check_sampling(sampler: str, guidance: float | Sequence[float], num_blocks: int) -> list[float]:
    """The guidance of each block; a sampler that is not there, or another number of scales, is refused."""
    if sampler not in SAMPLERS:
        raise InputError("sampler", sampler, f"one of {', '.join(SAMPLERS)}")
    scales = [float(g) for g in ([guidance] * num_blocks if isinstance(guidance, int | float) else guidance)]
    if len(scales) != num_blocks:
        raise InputError("guidance", scales, f"one number, or {num_blocks}, one for each block")
    return scales


def check_request(block: DitBlock, x: Tensor, guidance: float) -> None:
    """Refuse classes that are not there, and guidance of a block that never saw a dropped label."""
    if guidance != 1 and not block.config.label_dropout:
        raise InputError(
            "guidance", guidance, "1 for a model trained without label dropout", "train with label_dropout"
        )
    if not len(x) or int(x.min()) < 0 or int(x.max()) >= block.num_classes:
        raise InputError("classes", x.tolist()[:10], f"classes in 0..{block.num_classes - 1}")


def start_noise(rows: range, shape: Sequence[int], seed: int) -> Tensor:
    """Unit noise (n, *shape) for images of these numbers, each from a key of its own."""
    return torch.stack([torch.randn(*shape, generator=keyed_generator(seed, "sample", k)) for k in rows])
