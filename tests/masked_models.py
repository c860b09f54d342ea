"""What the tests of masked language models share: tiny networks, and a Markov chain whose posterior is known."""

import functools

import torch
from torch import Tensor
from transformers import ModernBertConfig

from diffusionblocks import BlockwiseModel, convert
from diffusionblocks.families.masked_lm import MASK
from diffusionblocks.randomness import seeded

VOCAB = 11
"""Tokens of the tiny networks; the mask is the one after them."""


def network_config(layers: int | str = 3, seq_len: int = 16, window: int = 4, vocab: int = VOCAB) -> ModernBertConfig:
    """`layers` may say of each whether its attention is full or sliding: "fss"."""
    layers = "f" * layers if isinstance(layers, int) else layers
    kinds = ["full_attention" if kind == "f" else "sliding_attention" for kind in layers]
    rotary = {"rope_type": "default", "rope_theta": 10_000.0}
    return ModernBertConfig(
        vocab_size=vocab + 1,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=len(kinds),
        num_attention_heads=2,
        max_position_embeddings=seq_len,
        layer_types=kinds,
        local_attention=window,
        rope_parameters={"full_attention": rotary, "sliding_attention": dict(rotary)},
        initializer_range=0.2,
        mlp_dropout=0.0,
        pad_token_id=None,
        eos_token_id=None,
        bos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
    )


def moved(model: BlockwiseModel) -> BlockwiseModel:
    """Every weight a little off its initialisation, the zeros of the conditioning too; in evaluation mode."""
    with torch.no_grad(), seeded("cpu", 1, "moved"):
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def moved_model(num_blocks: int = 3, layers: int | str = 3, **settings) -> BlockwiseModel:
    return moved(convert(network_config(layers), num_blocks, **{"num_sampling_steps": 8, **settings}))


class Chain:
    """A stationary Markov chain over a few symbols, of n steps; all in float64.

    Attributes:
        first: distribution of each symbol on its own (V,).
        step: of the next one given this one (V, V).
    """

    def __init__(self, n: int, symbols: int = 3, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.n, self.symbols = n, symbols
        self.step = (torch.randn(symbols, symbols, generator=generator, dtype=torch.float64)).softmax(dim=1)
        self.first = torch.linalg.matrix_power(self.step, 200)[0]

    @functools.cached_property
    def texts(self) -> Tensor:
        """All of them (V^n, n)."""
        return torch.cartesian_prod(*[torch.arange(self.symbols)] * self.n)

    def log_probability(self, y: Tensor) -> Tensor:
        """Of texts (B, n), in nats (B,)."""
        return self.first.log()[y[:, 0]] + self.step.log()[y[:, :-1], y[:, 1:]].sum(dim=1)

    @property
    def entropy(self) -> float:
        """Of a text, in nats."""
        rows = -(self.step * self.step.log()).sum(dim=1)
        return float(-(self.first * self.first.log()).sum() + (self.n - 1) * (self.first * rows).sum())

    def draw(self, count: int, seed: int) -> Tensor:
        """Texts (count, n)."""
        generator = torch.Generator().manual_seed(seed)
        symbols = [torch.multinomial(self.first, count, replacement=True, generator=generator)]
        for _ in range(self.n - 1):
            symbols.append(torch.multinomial(self.step[symbols[-1]], 1, generator=generator)[:, 0])
        return torch.stack(symbols, dim=1)

    def posterior(self, x: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        """log p(symbol at each place | the places of z (B, n) that are not MASK), (B, n, V), forward and backward."""
        seen = torch.nn.functional.one_hot(z.clamp(min=0), self.symbols).double()
        seen = torch.where((z == MASK)[..., None], 1.0, seen)
        before, after = [self.first * seen[:, 0]], [torch.ones_like(seen[:, 0])]
        for k in range(1, self.n):
            before.append((before[-1] @ self.step) * seen[:, k])
            after.append((after[-1] * seen[:, self.n - k]) @ self.step.T)
        joint = torch.stack(before, dim=1) * torch.stack(after[::-1], dim=1)
        return (joint / joint.sum(dim=-1, keepdim=True)).clamp(min=1e-300).log()
