"""Autoregressive language models with decoders of `transformers`: x is the text before each token, y the token.

z is a noisy embedding of y, from a frozen table of targets. There are two ways for a token to see what is before it:

* `context="concat"` (the paper's): the clean tokens, then a noisy place for each y. A noisy place sees the clean tokens
  before its y, and itself. Clean tokens are not modulated, so their keys and values are the same at any noise level.
* `context="fused"` (ours): one place for each y has the token before y with z mixed in, under the network's own causal
  attention. The places before it carry noisy versions of tokens that it sees anyway. Half the length, so half the cost.

At z = 0 a block answers without noise, at a level of its own (`FREE`): its answer is a distribution of the next token
with an exact likelihood. A share `z_dropout` of the training samples is of this kind.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from diffusionblocks import precondition, targets
from diffusionblocks.block import Block, NoiseDraw
from diffusionblocks.conditioning import Modulation
from diffusionblocks.config import CausalLmConfig
from diffusionblocks.errors import InputError
from diffusionblocks.families.causal_networks import (
    CLASSES,
    CausalLmEnsemble,
    PlainCausalLm,
    Vocabulary,
    attention_masks,
    mean_loss,
)
from diffusionblocks.families.token_loss import token_losses
from diffusionblocks.sampling import SamplingPlan

FREE = 100.0
"""Where nothing is known of y, z is 0 and its level, in units of the noisiest, is this: one that no noise has."""


class CausalLmBlock(Block):
    """A block of an autoregressive language model; see `Block` for arguments."""

    family = "causal-lm"
    backbone_classes = CLASSES
    has_targets = True
    plan_per_sample = True
    plain = PlainCausalLm
    ensemble = CausalLmEnsemble

    config: CausalLmConfig

    def __init__(self, backbone: PreTrainedModel, config: CausalLmConfig, index: int, targets: Tensor):
        super().__init__(backbone, config, index, targets)
        assert config.sigma_data is not None, "convert resolves sigma_data"
        self.sigma_data = config.sigma_data
        network: Any = backbone.config
        self.vocabulary = Vocabulary.of(network)
        self.seq_len: int = network.max_position_embeddings
        if self.vocabulary.size != len(targets):
            raise InputError("targets", len(targets), f"{self.vocabulary.size} rows, one for each token")
        self.is_fused = config.context == "fused"
        self.free_level = FREE * self.law.noisiest
        self.add_entry(targets.shape[1], network.hidden_size)

    def add_entry(self, target_size: int, hidden_size: int) -> None:
        """Make what brings z into the network."""
        # In concat the bias is the embedding of a noisy place.
        self.entry = nn.Linear(target_size, hidden_size, bias=not self.is_fused)
        if self.is_fused:  # a fresh block is the network itself, whatever z
            nn.init.zeros_(self.entry.weight)

    @classmethod
    def path_of_layers(cls, backbone: Any) -> str:
        return f"{backbone.base_model_prefix}.layers"

    @classmethod
    def example_input(cls, backbone_config: Any) -> dict[str, Tensor]:
        return {"input_ids": torch.zeros(1, 2, dtype=torch.long)}

    @classmethod
    def make_targets(cls, config: Any, backbone_config: Any) -> Tensor:
        """The frozen table of token embeddings (K, target_dim).

        Raises:
            InputError: a folder without a model, or one with another number of tokens.
        """
        size = Vocabulary.of(backbone_config).size
        if config.targets == "random":
            return targets.random_table(size, backbone_config.hidden_size, config.targets_seed)
        table = input_embeddings(Path(config.targets))
        if len(table) < size:
            raise InputError(
                "targets", f"{len(table)} rows in {config.targets}", f"at least {size}, one for each token"
            )
        return targets.centred_unit(table[:size])

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.seq_len, self.targets.shape[1])

    def level_shape(self, batch_size: int) -> tuple[int, ...]:
        return (batch_size,) if self.config.noise_per == "sequence" else (batch_size, self.seq_len)

    @property
    def dropped_share(self) -> float:
        return self.config.z_dropout

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings (B, n, d) of tokens x (B, n), as the network itself makes them."""
        return self.backbone.get_input_embeddings()(self.vocabulary.ids(x))  # type: ignore[operator]

    def head(self, states: Tensor) -> Tensor:
        """Logits (..., V) of states (..., d), or of those `with_evidence`."""
        network: Any = self.backbone
        if not self.config.evidence:
            return network.get_output_embeddings()(states)[..., : self.vocabulary.size]
        width = network.config.hidden_size
        logits = network.get_output_embeddings()(states[..., :width].to(network.dtype))[..., : self.vocabulary.size]
        return logits.float() + states[..., width:].float() @ self.targets.T

    def with_evidence(self, states: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """States (..., d), followed by z / sigma^2 (..., target_dim) where the readout has the evidence of z.

        By Bayes' rule z adds z e_k / sigma^2 to the log-probability of token k with the target e_k of unit norm (ours):
        a readout that has it leaves to the network what only the text before tells.
        """
        if not self.config.evidence:
            return states
        return torch.cat([states.float(), z / precondition.per_sample(sigma, z).square()], dim=-1)

    def enter(self, z: Tensor, sigma: Tensor) -> Tensor:
        """What z (B, n, target_dim) at sigma (B,) or (B, n) adds to embeddings (B, n, d), in their dtype."""
        network: Any = self.backbone
        return self.entry(precondition.scaled(z, sigma, self.sigma_data)).to(network.dtype)

    def modulation(self, z: Tensor, sigma: Tensor, clean: int | None = None) -> Modulation:
        """By level for noisy places; in concat, exactly neutral for the clean ones before them (None: as many)."""
        assert self.conditioning is not None
        parts = self.conditioning(sigma.flatten())
        if self.is_fused:
            return parts
        places = z.shape[1]
        before = places if clean is None else clean

        def placed(part: Tensor) -> Tensor:
            each = part.view(len(z), -1, part.shape[-1]).expand(-1, places, -1)
            return functional.pad(each, (0, 0, before, 0))

        return tuple((None if scale is None else placed(scale), placed(shift)) for scale, shift in parts)

    def run_backbone(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Last hidden states (B, n, d) of the places of y, for the tokens before them x (B, n)."""
        network: Any = self.backbone.base_model
        if self.is_fused:
            embeds = self.embed(x) + self.enter(z, sigma)
            return network(inputs_embeds=embeds, use_cache=False).last_hidden_state
        clean, noisy = self.embed(x), self.enter(z, sigma)
        place = torch.arange(x.shape[1], device=x.device)
        # A noisy place is where its y would be; it sees the clean places up to that of the token before y.
        return self.two_streams(clean, noisy, place, place + 1, place[:, None] >= place)

    def two_streams(self, first: Tensor, second: Tensor, place: Tensor, places: Tensor, sees: Tensor) -> Tensor:
        """Last hidden states (B, n, d) of the second of two streams of places (its level is set).

        Args:
            first: embeddings (B, n, d); each place sees those up to itself.
            second: embeddings (B, n, d); each place sees itself and some of the first.
            place, places: positions (n,) of the first and the second.
            sees: (n, n) bool; which of the first each of the second sees.
        """
        n = len(place)
        both = torch.cat([place, places])
        visible = torch.zeros(2 * n, 2 * n, dtype=torch.bool, device=first.device)
        visible[:n, :n] = place[:, None] >= place
        visible[n:, :n] = sees
        visible[n:, n:] = torch.eye(n, dtype=torch.bool, device=first.device)
        network: Any = self.backbone.base_model
        masks = attention_masks(self.backbone.config, visible[None], both[None], both[None], first.dtype)
        states = network(
            inputs_embeds=torch.cat([first, second], dim=1),
            attention_mask=masks,
            position_ids=both[None],
            use_cache=False,
        ).last_hidden_state
        return states[:, n:]

    @contextlib.contextmanager
    def at(self, z: Tensor, sigma: Tensor, clean: int | None = None) -> Iterator[None]:
        """Inside, the backbone is at the level sigma (B,) of noisy targets z (B, n, target_dim).

        Args:
            z, sigma: noisy targets and their levels.
            clean: in concat, the number of clean places before the noisy ones; None: as many.
        """
        assert self.conditioning is not None
        modulation = self.modulation(z, sigma, clean) if self.modulated else None
        with self.slot.set(dataclasses.replace(self.level(z, sigma), modulation=modulation)):
            yield

    def states(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Last hidden states (B, n, d) of the places of y; arguments as for `forward`."""
        return self.with_evidence(super().forward(x, z, sigma), z, sigma)

    def forward(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """Logits (B, n, V) of y.

        Args:
            x: the tokens before each y (B, n), the first of them BEGIN.
            z: noisy targets (B, n, target_dim).
            sigma: their noise levels (B,), or (B, n) with noise_per="token".
        """
        return self.head(self.states(x, z, sigma))

    def free(self, x: Tensor) -> Tensor:
        """Last hidden states (B, n, d) of the places of y without noise, z = 0, for the tokens before them x (B, n)."""
        z = torch.zeros(*x.shape, self.targets.shape[1], device=x.device)
        return self.states(x, z, x.new_full((len(x),), self.free_level, dtype=torch.float64))

    def apart(self, x: Tensor, z: Tensor, context: Tensor, sigma: Tensor) -> Tensor:
        """Logits (B, n, V) of y as in generation, where the place of a y that is being found has a z of its own.

        In concat nothing sees a noisy place but itself, so this is `forward`. In fused, places that are looked back on
        have `context`, noisy versions of the tokens that were found, and the place of y has z.

        Args:
            x, z, sigma: as for `forward`, sigma (B,).
            context: noisy targets (B, n, target_dim) of the places that are looked back on.
        """
        if not self.is_fused:
            return self(x, z, sigma)
        place = torch.arange(x.shape[1], device=x.device)
        with self.at(torch.cat([context, z], dim=1), sigma):
            before = self.embed(x)
            looked_at, asked = before + self.enter(context, sigma), before + self.enter(z, sigma)
            states = self.two_streams(looked_at, asked, place, place, place[:, None] > place)
        return self.head(self.with_evidence(states, z, sigma))

    def denoised(self, readout: Tensor) -> Tensor:
        """The mean target (B, n, target_dim): probabilities times the table."""
        return readout.float().softmax(dim=-1) @ self.targets

    def noisy(self, y: Tensor, draw: NoiseDraw) -> tuple[Tensor, Tensor]:
        """z (B, n, target_dim) for tokens y (B, n), and its levels (B,) or (B, n).

        Where it is dropped z = 0, and the level is the one at which a block is asked without noise.
        """
        sigma, dropped = (part if part.ndim == 1 else part[:, : y.shape[1]] for part in (draw.sigma, draw.dropped))
        noise = draw.noise[:, : y.shape[1]]
        z = self.targets[y.clamp(min=0)] + precondition.per_sample(sigma, noise) * noise
        z = z.masked_fill(dropped.view(*dropped.shape, *[1] * (z.ndim - dropped.ndim)), 0.0)
        return z, sigma.masked_fill(dropped, self.free_level)

    def loss(self, x: Tensor, y: Tensor, draw: NoiseDraw) -> Tensor:
        """Mean cross-entropy of a sequence's tokens, (B,) float32 in nats; 0 where there is none.

        Args:
            x: the tokens before each y (B, n), n <= seq_len, the first of them BEGIN.
            y: the tokens (B, n); PAD where there is none, after the others.
            draw: noise.
        """
        z, sigma = self.noisy(y, draw)
        states = self.states(x, z, sigma)
        losses = token_losses(states, y, self.head, self.vocabulary.size)
        if self.config.weight == "edm":
            losses = losses * precondition.per_sample(precondition.edm_weight(sigma, self.sigma_data), losses)
        return mean_loss(losses, y)

    @classmethod
    def decoding_options(cls, config: Any, num_sampling_steps: Any = None, **options: Any) -> dict[str, Any]:
        """Those given; `families.causal_decoding` takes the others from the config."""
        if num_sampling_steps is not None:
            options.setdefault("decoding", "chain")
        return options

    @classmethod
    def decode(cls, blocks: Sequence[Block], x: Tensor, plan: SamplingPlan, **options: Any) -> Tensor:
        """Token ids (B, n + max_new_tokens) that go on after x (B, n); see `families.causal_decoding.generate`."""
        from diffusionblocks.families.causal_decoding import generate

        return generate(blocks, x, plan, **options)

    @classmethod
    def output(cls, decoded: Tensor, labels: Tensor | None) -> GenerateDecoderOnlyOutput:
        """Token ids as the sequences that transformers' generation gives; labels are refused."""
        if labels is not None:
            raise InputError("labels", tuple(labels.shape), "none: a loss needs a noise level", "use block.loss")
        return GenerateDecoderOnlyOutput(sequences=cast(Any, decoded))


def input_embeddings(folder: Path) -> Tensor:
    """The embeddings of the tokens (K, d) of a model saved in a folder, read without building it.

    Raises:
        InputError: no safetensors there, or none with embeddings of one of the classes.
    """
    names = ("model.embed_tokens.weight", "gpt_neox.embed_in.weight")
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in set(names) & set(file.keys()):
                return file.get_tensor(name).float()
    raise InputError("targets", str(folder), f"random, or a folder with a model that has {' or '.join(names)}")
