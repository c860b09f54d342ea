"""A small family of blocks: classifiers of vectors by residual MLPs."""

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from diffusionblocks import Block
from diffusionblocks.conditioning import NoiseLevel
from diffusionblocks.precondition import per_sample, scaled
from diffusionblocks.sampling import initial_state, trajectory


class MlpConfig(PreTrainedConfig):
    model_type = "residual-mlp"

    num_features: int = 64
    hidden_size: int = 64
    num_hidden_layers: int = 6


class MlpLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(functional.gelu(self.up(self.norm(h))))


class ResidualMlp(PreTrainedModel):
    """An ordinary network. It knows nothing of noise."""

    config_class = MlpConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Linear(config.num_features, config.hidden_size)
        self.layers = nn.ModuleList(MlpLayer(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h)


class AddToken:
    """Forward hook of the embedding: the embedded z is added to its output."""

    def __init__(self, slot):
        self.slot = slot

    def __call__(self, module, args, out):
        token = self.slot.require().token
        return None if token is None else out + token.to(out.dtype)


class MlpBlock(Block):
    family = "residual-mlp"
    backbone_classes = (ResidualMlp,)
    layers_path = "layers"

    def __init__(self, backbone, config, index, targets):
        super().__init__(backbone, config, index, targets)
        self.sigma_data = config.sigma_data
        self.entry = nn.Linear(targets.shape[1], backbone.config.hidden_size)
        backbone.embed.register_forward_hook(AddToken(self.slot))

    @classmethod
    def example_input(cls, backbone_config):
        return {"x": torch.zeros(1, backbone_config.num_features)}

    def level(self, z, sigma):
        return NoiseLevel(token=self.entry(scaled(z, sigma, self.sigma_data)))

    @property
    def target_shape(self):
        return (self.targets.shape[1],)

    @property
    def dropped_share(self):
        return self.config.z_dropout

    def run_backbone(self, x, z, sigma):
        return self.backbone(x)

    def denoised(self, readout):
        return readout.softmax(dim=-1) @ self.targets

    def loss(self, x, y, draw):
        z = self.targets[y] + per_sample(draw.sigma, draw.noise) * draw.noise
        z = torch.where(draw.dropped[:, None], 0.0, z)
        return functional.cross_entropy(self(x, z, draw.sigma), y, reduction="none")

    @classmethod
    def decode(cls, blocks, x, plan, *, start="zero", decoding="average", generator=None):
        if decoding == "average":  # every block once at z = 0
            z, first = x.new_zeros(len(x), blocks[0].targets.shape[1]), plan.first_sigmas()
            free = [block(x, z, torch.tensor(first[block.index])).log_softmax(dim=-1) for block in blocks]
            return torch.stack(free).mean(dim=0).log_softmax(dim=-1)
        logits = []

        def read(block):
            def denoise(z, sigma):
                logits.append(block(x, z, sigma))
                return block.denoised(logits[-1])

            return denoise

        z = initial_state((len(x), blocks[0].targets.shape[1]), plan, start, generator)
        for _ in trajectory([read(block) for block in blocks], z.to(x), plan):
            pass
        return logits[-1].log_softmax(dim=-1)

    @classmethod
    def output(cls, decoded, labels):
        loss = None if labels is None else functional.nll_loss(decoded, labels)
        return SequenceClassifierOutput(loss=loss, logits=decoded)
