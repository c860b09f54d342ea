"""Recurrent-depth language models: the looped network is one denoiser over the whole range of noise levels.

The layers of a decoder are a prelude, a recurrent core and a coda (`recurrence`). The state of the core in a place is a
noisy embedding of the token after it, so a training step is one pass, and a loop of K passes is a chain of K denoising
steps. A place sees the noisy tokens of the places before it, which are versions of tokens that it sees anyway.
"""

from typing import Any

from torch import Tensor, nn

from diffusionblocks import precondition
from diffusionblocks.conditioning import NoiseLevel
from diffusionblocks.config import RecurrentLmConfig
from diffusionblocks.families.causal_lm import CausalLmBlock
from diffusionblocks.families.recurrent_networks import core_of
from diffusionblocks.recurrence import Recurrence


class RecurrentLmBlock(CausalLmBlock):
    """The denoiser; see `Block` for arguments. Only the core and the coda see the noise level."""

    family = "recurrent-lm"

    config: RecurrentLmConfig  # type: ignore[assignment]

    @property
    def conditioned_layers(self) -> nn.ModuleList:
        return self.layers[self.config.prelude :]  # type: ignore[return-value]

    def add_entry(self, target_size: int, hidden_size: int) -> None:
        core = core_of(self.layers, self.config.prelude, self.config.coda)
        self.recurrence = Recurrence(self.slot, core, hidden_size, target_size)

    def level(self, z: Tensor, sigma: Tensor) -> NoiseLevel:
        if self.config.state_scale == "target":
            return NoiseLevel(state=precondition.per_sample(precondition.c_skip(sigma, self.sigma_data), z) * z)
        return NoiseLevel(state=precondition.scaled(z, sigma, self.sigma_data))

    def enter(self, z: Tensor, sigma: Tensor) -> Tensor:
        """Nothing is added to embeddings: z enters the core."""
        network: Any = self.backbone
        return z.new_zeros((), dtype=network.dtype)
