"""Language models small enough to judge in a test, with tokenizers made on the spot."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diffusionblocks.randomness import seeded

CONTEXT = 16
BOS = "<s>"


def tiny_tokenizer(bos: bool) -> PreTrainedTokenizerFast:
    """One token a byte, and three pairs that were merged."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("a", "b"), ("e", "r")]
    kinds = [BOS, *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({kind: k for k, kind in enumerate(kinds)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": BOS} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def write_judge(folder: Path, kind: str = "llama", bos: bool = True) -> Path:
    """A network of random weights, large enough to tell tokens apart, and its tokenizer."""
    tokenizer = tiny_tokenizer(bos)
    # The vocabulary has room for BOS in either case.
    vocabulary = 260
    with seeded("cpu", 0, "judge", kind):
        if kind == "llama":
            config = LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=CONTEXT,
                initializer_range=0.3,
                bos_token_id=0,
                eos_token_id=0,
            )
            network: torch.nn.Module = LlamaForCausalLM(config)
        else:
            config = GPT2Config(
                vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.3,
                bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            network = GPT2LMHeadModel(config)
    network.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    """The same Llama as a GGUF file in float32, as llama.cpp's converter lays it out."""
    import gguf

    config = network.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    kinds = [kind for kind, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(kinds)
    writer.add_token_types([gguf.TokenType.CONTROL if kind == BOS else gguf.TokenType.NORMAL for kind in kinds])
    writer.add_token_merges(["t h", "a b", "e r"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in network.state_dict().items():
        if name.endswith("q_proj.weight"):
            tensor = paired(tensor, heads)
        elif name.endswith("k_proj.weight"):
            tensor = paired(tensor, groups)
        found = names.get_name(name, try_suffixes=(".weight",))
        assert found is not None, name
        writer.add_tensor(found, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head in llama.cpp's order: the two halves that rotary embeddings turn together, side by side."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape).contiguous()
