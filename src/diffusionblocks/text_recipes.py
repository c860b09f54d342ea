"""Recipes of language models: as in `recipes`, one per row of a results table."""

from typing import Any


def mdm_pydoc() -> dict[str, Any]:
    """A 6-layer masked diffusion language model on Python's own documentation (nothing to download); minutes."""
    return {
        "family": "masked-lm",
        "data": "pydoc",
        "tokenizer": "bytes",
        "vocab_size": 256,
        "seq_len": 64,
        "updates": 1000,
        "batch_size": 32,
        "lr": 4e-3,
        "weight_decay": 0.0,
        "beta2": 0.99,
        "ema_decay": 0.99,
        "checkpoint_every": 500,
    }


def mdm_shakespeare() -> dict[str, Any]:
    """A 6-layer masked diffusion language model on the characters of Shakespeare's works (--data FILE)."""
    return {
        "family": "masked-lm",
        "data": "shakespeare.txt",
        "tokenizer": "characters",
        "vocab_size": 84,
        "seq_len": 64,
        "intermediate_size": 128,
        "updates": 1600,
        "batch_size": 32,
        "lr": 4e-3,
        "weight_decay": 0.0,
        "beta2": 0.99,
        "ema_decay": 0.99,
        "checkpoint_every": 1000,
    }


def mdm_text8() -> dict[str, Any]:
    """The paper's masked diffusion language model on text8 (Appendix D): 12 layers, d 768, B = 3; --data FILE.

    Dropout, the gated MLP's width and the average of weights are not stated; none, 8/3 d and 0.9999 are taken.
    """
    return {
        "family": "masked-lm",
        "preset": "paper",
        "data": "text8",
        "tokenizer": "text8",
        "vocab_size": 27,
        "split_by": "position",
        "seq_len": 256,
        "hidden_size": 768,
        "num_layers": 12,
        "num_heads": 12,
        "epochs": 100,
        "batch_size": 256,
        "lr": 3e-4,
        "lr_final": 3e-4,
        "warmup": 2000 / 137_329,
        "weight_decay": 0.03,
        "ema_decay": 0.9999,
    }


def ar_pydoc() -> dict[str, Any]:
    """A small autoregressive language model on Python's own documentation (built in), for a first try."""
    return {
        "family": "causal-lm",
        "data": "pydoc",
        "tokenizer": "bytes",
        "vocab_size": 256,
        "seq_len": 64,
        "updates": 800,
        "batch_size": 32,
        "lr": 8e-3,
        "weight_decay": 0.0,
        "beta2": 0.99,
        "ema_decay": 0.99,
        "checkpoint_every": 500,
    }


def ar_shakespeare() -> dict[str, Any]:
    """A 6-layer autoregressive language model on the characters of Shakespeare's works (--data FILE)."""
    return {
        "family": "causal-lm",
        "data": "shakespeare.txt",
        "tokenizer": "characters",
        "vocab_size": 84,
        "seq_len": 64,
        "intermediate_size": 128,
        "updates": 1200,
        "batch_size": 32,
        "lr": 8e-3,
        "weight_decay": 0.0,
        "beta2": 0.99,
        "ema_decay": 0.99,
        "checkpoint_every": 1000,
    }


def _llama2(seq_len: int) -> dict[str, Any]:
    """The paper's autoregressive network and its training (Appendix D): 12 layers, d 768, 32k tokens, B = 4."""
    return {
        "family": "causal-lm",
        "preset": "paper",
        "num_blocks": 4,
        "hidden_size": 768,
        "num_layers": 12,
        "num_heads": 12,
        "seq_len": seq_len,
        "tokenizer": "bpe",
        "vocab_size": 32_000,
        "epochs": 10,
        "batch_size": 256,
        "lr": 3e-4,
        "lr_final": 3e-4,
        "weight_decay": 0.1,
        "beta2": 0.95,
        "ema_decay": 0.9999,
        "init_std": 0.02,
    }


def ar_lm1b() -> dict[str, Any]:
    """The paper's autoregressive language model on LM1B (Appendix D): windows of 256 tokens.

    Warm-up is 2,500 updates of about 38,000. Weight decay, beta2, the average of weights and the MLP's width are not
    stated; the paper's tokenizer is Llama 2's (--tokenizer FOLDER), in its place a BPE of that size is made.
    """
    return {**_llama2(256), "data": "hub:dvruette/lm1b", "warmup": 0.066}


def ar_owt() -> dict[str, Any]:
    """The paper's autoregressive language model on OpenWebText (Appendix D): windows of 3,072 tokens.

    Warm-up is 2,500 updates of about 115,000. What is not stated is as in ar-lm1b.
    """
    return {**_llama2(3072), "data": "hub:Skylion007/openwebtext", "warmup": 0.022}


def _recurrent(updates: int) -> dict[str, Any]:
    """A small recurrent-depth network, 1 + 2 + 1 layers; as a loop, 8 passes and gradients through 4."""
    return {
        "family": "recurrent-lm",
        "num_layers": 4,
        "prelude": 1,
        "coda": 1,
        "num_recurrences": 8,
        "bptt_steps": 4,
        "seq_len": 64,
        "intermediate_size": 128,
        "updates": updates,
        "batch_size": 32,
        "lr": 8e-3,
        "weight_decay": 0.0,
        "beta2": 0.99,
        "ema_decay": 0.99,
        "checkpoint_every": 1000,
    }


def huginn_pydoc() -> dict[str, Any]:
    """A small recurrent-depth language model on Python's own documentation (built in), for a first try."""
    return {**_recurrent(800), "data": "pydoc", "tokenizer": "bytes", "vocab_size": 256}


def huginn_shakespeare() -> dict[str, Any]:
    """A small recurrent-depth language model on the characters of Shakespeare's works (--data FILE)."""
    return {**_recurrent(800), "data": "shakespeare.txt", "tokenizer": "characters", "vocab_size": 84}


def huginn_lm1b() -> dict[str, Any]:
    """The paper's recurrent-depth network on LM1B (Appendix D): 2 + 4 + 2 layers, d 512, 8 heads.

    The paper gives its loop, of 32 passes on average with gradients through the last 8, 5 epochs (--method end-to-end
    --epochs 5) and the denoiser 15. What is not stated is as in ar-lm1b.
    """
    return {
        **_llama2(256),
        "data": "hub:dvruette/lm1b",
        "family": "recurrent-lm",
        "num_blocks": 1,
        "hidden_size": 512,
        "num_layers": 8,
        "num_heads": 8,
        "prelude": 2,
        "coda": 2,
        "num_recurrences": 32,
        "bptt_steps": 8,
        "epochs": 15,
        "warmup": 0.044,
    }
