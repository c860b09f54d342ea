"""What the tests of autoregressive language models share: tiny networks of every class, moved off their start."""

from typing import Any, cast

import torch
from masked_models import moved
from torch import Tensor
from transformers import GPTNeoXConfig, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from diffusionblocks import BlockwiseModel, convert
from diffusionblocks.families.causal_lm import CausalLmBlock, PlainCausalLm
from diffusionblocks.marks import before
from diffusionblocks.randomness import keyed_generator, seeded

VOCAB = 20
"""Tokens of the tiny networks; the row for the beginning is the one after them."""

KINDS = ["llama", "qwen2", "qwen3", "gpt-neox"]


def network_config(kind: str = "llama", layers: int | str = 4, seq_len: int = 16, **settings: Any) -> PreTrainedConfig:
    """`layers` may say of each whether its attention is full or sliding, over 4 tokens: "fssf" (of Qwen)."""
    kinds = "f" * layers if isinstance(layers, int) else layers
    shape = {
        "vocab_size": VOCAB + 1,
        "bos_token_id": VOCAB,
        "eos_token_id": None,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": 4,
        "max_position_embeddings": seq_len,
        "initializer_range": 0.2,
    }
    grouped = {**shape, "num_key_value_heads": 2, "tie_word_embeddings": False}
    if "s" in kinds:
        grouped |= {"use_sliding_window": True, "sliding_window": 4}
        grouped["layer_types"] = ["full_attention" if one == "f" else "sliding_attention" for one in kinds]
    if kind == "llama":
        return LlamaConfig(**{**grouped, **settings})
    if kind == "qwen2":
        return Qwen2Config(**{**grouped, **settings})
    if kind == "qwen3":
        return Qwen3Config(**{**grouped, "head_dim": 8, **settings})
    return GPTNeoXConfig(**{**shape, "rotary_pct": 0.5, "tie_word_embeddings": False, **settings})


def moved_model(config: PreTrainedConfig | None = None, num_blocks: int = 2, **settings: Any) -> BlockwiseModel:
    return moved(convert(config or network_config(), num_blocks, **settings))


def network(config: PreTrainedConfig) -> Any:
    """One of the classes; every weight is away from where it starts."""
    with seeded("cpu", 0, "network"):
        return moved(CausalLmBlock.class_of(config)(config))


def plain_network(config: PreTrainedConfig | None = None, index: int = 0) -> PlainCausalLm:
    config = config or network_config()
    with seeded("cpu", index, "plain network"):
        found = PlainCausalLm(cast(Any, CausalLmBlock.class_of(config))(config), index, f"network-{index}")
        with torch.no_grad():
            for parameter in found.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return found.eval()


def texts(count: int, n: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (count, n), generator=keyed_generator(seed, "causal texts"))


def pairs(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What is before each token, and the tokens, where there is no padding."""
    return before(tokens, torch.ones_like(tokens, dtype=torch.bool))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=keyed_generator(seed, "normal"))
