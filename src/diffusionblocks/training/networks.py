"""The networks of a run: its blocks, its trunk, or those of a control, built from its settings."""

from typing import Any

from torch import nn
from transformers import LlamaConfig, ModernBertConfig, ViTConfig

from diffusionblocks.block import Block
from diffusionblocks.config import BlockwiseConfig
from diffusionblocks.conversion import build_block, with_measured_scale
from diffusionblocks.errors import InputError
from diffusionblocks.families import block_class_of
from diffusionblocks.randomness import seeded
from diffusionblocks.run_config import AnyRun, CausalLmRun, DitRun, ImageRun, MaskedLmRun, RecurrentLmRun, TextRun
from diffusionblocks.training.data import DataFacts


def backbone_config(config: AnyRun, depth: int, facts: DataFacts | None = None) -> Any:
    """The config of a run's network with the given number of layers.

    Args:
        config: the run's settings.
        depth: number of layers.
        facts: what is known of the data; None before they are read (to plan memory).

    Raises:
        InputError: a number of classes that neither settings nor facts say.
    """
    if isinstance(config, MaskedLmRun):
        return _bidirectional_config(config, depth, facts)
    if isinstance(config, CausalLmRun):
        return _causal_config(config, depth, facts)
    names = _class_names(config, facts)
    if isinstance(config, DitRun):
        return {
            "_class_name": "DiTTransformer2DModel",
            "num_attention_heads": config.num_heads,
            "attention_head_dim": config.hidden_size // config.num_heads,
            "in_channels": config.num_channels,
            "num_layers": depth,
            "dropout": config.dropout,
            "sample_size": config.image_size,
            "patch_size": config.patch_size,
            "num_embeds_ada_norm": len(names),
        }
    return ViTConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size or 4 * config.hidden_size,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=0.0,
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_channels=config.num_channels,
        id2label=dict(enumerate(names)),
        label2id={name: k for k, name in enumerate(names)},
    )


def _vocab_size(config: TextRun, facts: DataFacts | None) -> int:
    vocab_size = config.vocab_size if facts is None else facts.vocab_size
    if vocab_size is None:
        raise InputError("vocab_size", None, "a number, where the data are not read", "set vocab_size")
    return vocab_size


def _causal_config(config: CausalLmRun, depth: int, facts: DataFacts | None) -> LlamaConfig:
    """One more token than the tokenizer has: the beginning."""
    vocab_size = _vocab_size(config, facts)
    return LlamaConfig(
        vocab_size=vocab_size + 1,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size or round(config.hidden_size * 8 / 3),
        num_hidden_layers=depth,
        num_attention_heads=config.num_heads,
        max_position_embeddings=config.seq_len,
        initializer_range=config.init_std or 0.8 * config.hidden_size**-0.5,
        tie_word_embeddings=config.tie_embeddings,
        attention_dropout=config.dropout,
        bos_token_id=vocab_size,
        eos_token_id=None,
        pad_token_id=None,
    )


def _bidirectional_config(config: MaskedLmRun, depth: int, facts: DataFacts | None) -> ModernBertConfig:
    """One more token than the tokenizer has: the mask."""
    vocab_size = _vocab_size(config, facts)
    kinds = ["sliding_attention" if layer % config.global_every else "full_attention" for layer in range(depth)]
    rotary = {"rope_type": "default", "rope_theta": 10_000.0}
    return ModernBertConfig(
        vocab_size=vocab_size + 1,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size or round(config.hidden_size * 8 / 3),
        num_hidden_layers=depth,
        num_attention_heads=config.num_heads,
        max_position_embeddings=config.seq_len,
        initializer_range=config.init_std or 0.8 * config.hidden_size**-0.5,
        layer_types=kinds,
        local_attention=config.local_window,
        rope_parameters={"full_attention": rotary, "sliding_attention": dict(rotary)},
        mlp_dropout=config.dropout,
        attention_dropout=0.0,
        pad_token_id=None,
        eos_token_id=None,
        bos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
    )


def _class_names(config: ImageRun, facts: DataFacts | None) -> tuple[str, ...]:
    if facts is not None:
        return facts.classes
    if config.num_classes is None:
        raise InputError("num_classes", None, "a number, where the data are not read", "set num_classes")
    return tuple(str(k) for k in range(config.num_classes))


def blockwise_of(config: AnyRun, facts: DataFacts | None = None) -> BlockwiseConfig:
    """The blockwise config of a run, with the scale of its targets measured where it is not given.

    A trunk, and a control that is a denoiser itself, is one block over the whole range of noise levels.
    """
    blockwise = config.blockwise()
    if isinstance(config, DitRun):
        # Without the data, to plan memory, any numbers will do.
        known = facts or DataFacts((), (0.0,) * config.num_channels, (1.0,) * config.num_channels)
        blockwise = blockwise.model_copy(update={"data_mean": known.mean, "data_std": known.std})
    blockwise = with_measured_scale(blockwise, backbone_config(config, config.num_layers, facts))
    if config.method == "blocks":
        return blockwise
    return blockwise.model_copy(update={"num_blocks": 1, "layer_split": None})


def build_units(config: AnyRun, facts: DataFacts | None = None, only: int | None = None) -> list[nn.Module]:
    """What a run trains, freshly initialised: its blocks (or the one asked for), its trunk, or a control's networks.

    Raises:
        InputError: a block that is not there, or asked of a control.
    """
    if config.method != "blocks" and only is not None:
        raise InputError("block", only, f"no block: the method {config.method} has none")
    if only is not None and not 0 <= only < config.num_blocks:
        raise InputError("block", only, f"a block from 0 to {config.num_blocks - 1}")
    if config.method == "blocks":
        base, blockwise = backbone_config(config, config.num_layers, facts), blockwise_of(config, facts)
        which = range(config.num_blocks) if only is None else [only]
        return [build_block(base, blockwise, index, config.seed) for index in which]
    base, block_class = backbone_config(config, config.depth(), facts), block_class_of(config.family)
    if config.method == "trunk" or block_class.plain is None:
        whole = blockwise_of(config, facts)
        if config.method == "shallow-ensemble":
            return [_member(build_block(base, whole, 0, config.seed, key=k), k) for k in range(config.num_blocks)]
        return [build_block(base, whole, 0, config.seed)]
    of_ensemble, units = config.method == "shallow-ensemble", []
    for index in range(config.num_blocks if of_ensemble else 1):
        with seeded("cpu", config.seed, "backbone", index):
            backbone = block_class.framework.build(block_class.class_of(base), base)
        units.append(control(config, backbone, index, f"member-{index}" if of_ensemble else "network"))
    return units


def _member(network: Block, number: int) -> Block:
    """One of several networks that have the whole range of noise levels each: its number keys its randomness."""
    network.index, network.name = number, f"member-{number}"
    return network


def control(config: AnyRun, backbone: Any, index: int = 0, name: str = "network") -> nn.Module:
    """What a run trains that has no blocks, around a network: the plain one, or a recurrent one as a loop."""
    if not isinstance(config, RecurrentLmRun) or config.method == "unlooped":
        plain: Any = block_class_of(config.family).plain
        return plain(backbone, index, name)
    from diffusionblocks.families.recurrent_networks import LoopedLm

    return LoopedLm(
        backbone,
        index,
        name,
        prelude=config.prelude,
        coda=config.coda,
        num_recurrences=config.num_recurrences,
        with_gradient=None if config.method == "full-bptt" else config.bptt_steps,
    )
