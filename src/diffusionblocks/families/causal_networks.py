"""What autoregressive blocks are made of and beside: the decoders of `transformers`, and next-token training of them.

`PlainCausalLm` and `CausalLmEnsemble` are the controls.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GPTNeoXForCausalLM, LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from diffusionblocks.backbones import TRANSFORMERS
from diffusionblocks.errors import InputError
from diffusionblocks.families.token_loss import token_losses
from diffusionblocks.marks import PAD

CLASSES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPTNeoXForCausalLM)


@dataclass(frozen=True)
class Vocabulary:
    """What a network's rows are.

    Attributes:
        begin: the row that stands for the beginning.
        size: number of tokens that can come next. Where the beginning is the last row it is never one of them.
    """

    begin: int
    size: int

    @classmethod
    def of(cls, network: Any) -> "Vocabulary":
        """Of a network's config.

        Raises:
            InputError: no token of its own for the beginning.
        """
        begin, rows = network.bos_token_id, network.vocab_size
        if begin is None or not 0 <= begin < rows:
            raise InputError("bos_token_id", begin, f"a row in 0..{rows - 1} for the beginning", "set it in the config")
        return cls(begin, begin if begin == rows - 1 else rows)

    def ids(self, x: Tensor) -> Tensor:
        """Ids of rows for tokens x: padding, which nothing sees, and the beginning have that of the beginning."""
        return torch.where(x < 0, self.begin, x)


class PlainCausalLm(nn.Module):
    """A control: next-token training of a whole network, through the same trainer.

    Args:
        backbone: the network.
        index: with its seed the key of its randomness; members of an ensemble count from 0.
        name: its folder's name.
    """

    framework = TRANSFORMERS

    def __init__(self, backbone: PreTrainedModel, index: int = 0, name: str = "network"):
        super().__init__()
        self.backbone, self.index, self.name = backbone, index, name
        self.vocabulary = Vocabulary.of(backbone.config)
        self.seq_len: int = cast(Any, backbone.config).max_position_embeddings

    @property
    def layers(self) -> nn.ModuleList:
        return self.backbone.base_model.layers  # type: ignore[return-value]

    def draw(self, batch_size: int, generator: torch.Generator) -> None:
        """No noise."""

    def loss(self, x: Tensor, y: Tensor, draw: None = None) -> Tensor:
        """Mean cross-entropy of a sequence's tokens, (B,) float32 in nats; arguments as for a block."""
        return mean_loss(token_losses(self.free(x), y, self.head, self.vocabulary.size), y)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, n, V) of the token after each of x (B, n)."""
        return self.head(self.free(x))

    def free(self, x: Tensor) -> Tensor:
        """Last hidden states (B, n, d) after each of x (B, n)."""
        return self.backbone.base_model(inputs_embeds=self.embed(x), use_cache=False).last_hidden_state

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings (B, n, d) of tokens x (B, n)."""
        return self.backbone.get_input_embeddings()(self.vocabulary.ids(x))  # type: ignore[operator]

    def head(self, states: Tensor) -> Tensor:
        """Logits (..., V) of states (..., d)."""
        return self.backbone.get_output_embeddings()(states)[..., : self.vocabulary.size]  # type: ignore[operator]

    @contextlib.contextmanager
    def reading(self, places: Tensor, memory: Any) -> Iterator[None]:
        """Inside, the backbone reads places (B, k) that follow those in a memory of keys and values."""
        yield

    @contextlib.contextmanager
    def unmodulated(self) -> Iterator[None]:
        """As for a block; there is nothing to leave out."""
        yield

    def enable_checkpointing(self) -> None:
        """Recompute each layer's activations in the backward pass (non-reentrant)."""
        self.framework.enable_checkpointing(self.backbone, None)


class CausalLmEnsemble(nn.Module):
    """A control: plain networks trained apart, whose log-probabilities are averaged."""

    def __init__(self, members: Sequence[PlainCausalLm]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities (B, n, V): the members' mean, normalised."""
        return average([member(x) for member in self.members])


def mean_loss(losses: Tensor, y: Tensor) -> Tensor:
    """Mean (B,) of losses (B, n) over the tokens y (B, n) that are not PAD; 0 where there is none."""
    real = y != PAD
    return (losses * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def average(logits: Sequence[Tensor]) -> Tensor:
    """The mean of log-probabilities, normalised: the answer of several networks (..., V), float32."""
    return torch.stack([each.float().log_softmax(dim=-1) for each in logits]).mean(dim=0).log_softmax(dim=-1)


def attention_masks(network: Any, visible: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Any:
    """Additive float masks (B, 1, q, k) for a network's attention: one, or one for each type of layer by name.

    Boolean ones are taken for numbers by some kinds of attention, without an error.

    Args:
        network: config of the network.
        visible: (B, q, k) bool, which keys each query sees.
        queries, keys: positions (B, q) and (B, k).
        dtype: of the embeddings.
    """
    least = torch.finfo(dtype).min

    def additive(seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, least)[:, None]

    kinds = set(getattr(network, "layer_types", None) or ())
    if not kinds:
        return additive(visible)
    masks = {"full_attention": additive(visible)}
    if "sliding_attention" in kinds:
        near = queries[:, :, None] - keys[:, None, :] < network.sliding_window
        masks["sliding_attention"] = additive(visible & near)
    return masks
