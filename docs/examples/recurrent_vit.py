"""A recurrent vision transformer: a ViT whose middle layers are a core, as one denoiser and as a loop."""

import contextlib

import torch
from torch.nn import functional

from diffusionblocks.conditioning import LevelSlot, NoiseLevel
from diffusionblocks.families.recurrent_networks import LoopDraw, core_of, draw_count
from diffusionblocks.families.vit import PlainVit, VitBlock
from diffusionblocks.precondition import c_skip, per_sample
from diffusionblocks.recurrence import Passes, Recurrence

PRELUDE, CODA = 1, 1


class RecurrentVitBlock(VitBlock):
    """The denoiser: the state of the core is the noisy embedding of the label, in every place."""

    def __init__(self, backbone, config, index, targets):
        super().__init__(backbone, config, index, targets)
        del self.entry  # z enters the core, and is no token
        core = core_of(self.layers, PRELUDE, CODA)
        self.recurrence = Recurrence(self.slot, core, backbone.config.hidden_size, targets.shape[1])

    @property
    def conditioned_layers(self):
        return self.layers[PRELUDE:]

    def level(self, z, sigma):
        # The best linear guess of the target that z gives.
        return NoiseLevel(state=(per_sample(c_skip(sigma, self.sigma_data), z) * z)[:, None])

    def run_backbone(self, x, z, sigma):
        # What z says of each label by Bayes' rule need not be learned.
        evidence = (z @ self.targets.T) / per_sample(sigma, z) ** 2
        return super().run_backbone(x, z, sigma).float() + evidence


class LoopedVit(PlainVit):
    """The same network as a loop, trained by backpropagation through its last passes (None: through all)."""

    def __init__(self, backbone, num_recurrences, with_gradient=None):
        super().__init__(backbone)
        self.num_recurrences, self.with_gradient = num_recurrences, with_gradient
        self.slot, self.width = LevelSlot(), backbone.config.hidden_size
        config = backbone.config
        self.places = (config.image_size // config.patch_size) ** 2 + 1
        self.recurrence = Recurrence(self.slot, core_of(self.layers, PRELUDE, CODA), self.width, self.width)

    def draw(self, batch_size, generator):
        start = torch.randn(batch_size, self.places, self.width, generator=generator)
        return LoopDraw(draw_count(self.num_recurrences, generator), start)

    def loss(self, x, y, draw):
        with self.looping(draw.start, draw.count):
            logits = super().forward(x)
        return functional.cross_entropy(logits.float(), y, reduction="none")

    def forward(self, x):
        with self.looping(x.new_zeros(len(x), self.places, self.width), self.num_recurrences):
            return super().forward(x)

    @contextlib.contextmanager
    def looping(self, start, count):
        with self.slot.set(NoiseLevel(state=start, passes=Passes(count, self.with_gradient))):
            yield
