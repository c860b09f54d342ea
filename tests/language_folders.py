"""Folders as comparisons and runs of masked language models leave them, with made-up numbers."""

import json
from pathlib import Path

from report_folders import row

from diffusionblocks.recipes import resolve

KINDS = ("weights", "gradients", "optimizer", "activations", "other")
EXAMPLES = ["\nO, <b>that</b> I & thee\n\twere \"one\"!\n</pre><script>alert('x')</script>", "Second  text", "Third"]
SAMPLING = {"sampler": "counts", "num_sampling_steps": 32, "temperature": 0.9, "samples": 200, "seeds": [4, 5, 6]}
TEXT = {
    **{"samples": [200, 200, 200], "empty": [0, 1, 0], "compared_characters": 12345},
    "length": {"mean": 64.0, "sd": 0.5, "values": [63.5, 64.0, 64.5], "held_out": 64.0},
    "metrics": {
        "divergence_characters_4": {"mean": 0.21234, "sd": 0.00123, "values": [0.211, 0.212, 0.214], "floor": 0.1789},
        "distinct_words_2": {"mean": 0.87654, "sd": 0.01, "values": [0.87, 0.88, 0.88], "held_out": 0.8123},
        "entropy_characters": {"mean": 4.5678, "sd": None, "values": [4.5678], "held_out": 4.6},
        "repetition_words_4": {"mean": None, "sd": None, "values": [None], "held_out": 0.0123},
        "perplexity": {"mean": 456.789, "sd": 3.21, "values": [456.789], "held_out": 123.45},
    },
    "judge": {"name": "judge-135M", "weights": "sha256 0123"},
    "notes": ["1 of 600 samples are empty; the metrics are of the others"],
}
HEADER = {
    "metric": "bits_per_character",
    "likelihood": {"draws": 12, "seed": 3, "tokenizer": "characters", "characters": 54321},
    "sampling": SAMPLING,
    "text_reference": {"floor": 0.1789, "of": {"ngram_divergence": "divergence_characters_4"}},
}
BITS = {
    ("end-to-end", 1000): (2.801, 2.805, 2.799),
    ("shallow", 1000): (2.951, 2.958, 2.949),
    ("shallow", 3000): (2.851, 2.862, 2.848),
    ("shallow-ensemble", 1000): (2.921, 2.925, 2.931),
    ("blocks", 1000): (2.872, 2.879, 2.861),
    ("blocks+trunk", 1000): (2.812, 2.797, 2.803),
}


def bits_row(method: str, seed: int, bits: float, **changes) -> dict:
    """A row of a comparison of language models."""
    metrics = {"bits_per_character": bits, "se": 0.0041, "bits_per_token": bits + 0.1, "ngram_divergence": bits / 10}
    metrics |= {"distinct_2": 0.8, "entropy": 4.5, "repetition": 0.01}
    if method.startswith("blocks"):
        metrics["block0_bits"] = 4.321
    own = {"num_blocks": 3, "fold": 0, "updates": 1000, "variant": "", "metrics": metrics}
    return row(method, seed, 0.0) | own | changes


ROWS = [
    bits_row(method, seed, bits, updates=updates)
    for (method, updates), scores in BITS.items()
    for seed, bits in enumerate(scores)
] + [
    bits_row("blocks", 0, 2.9, variant="cosine, equal t"),
    bits_row("checkpointing", 0, 0.0, metrics={"largest_loss_difference": 0.0}),
]


def comparison(folder: Path, rows: list[dict] = ROWS, **changes) -> Path:
    """A compare.json."""
    made = {"command": "dblocks compare mdm-shakespeare", "commit": "abc123"}
    made |= {"hardware": {"cores": 2}, "versions": {"torch": "2"}, "split": "test", "costs": {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps({"recipe": "mdm-shakespeare", **made, **HEADER, "rows": rows}))
    content = json.loads((folder / "compare.json").read_text()) | changes
    (folder / "compare.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def evaluation(bits: float, method: str, num_blocks: int, units: list[str], **changes) -> dict:
    """What `dblocks eval` stores: the blocks' shares are in the ratio 1 : 2 : ... and add up to the bits."""
    parts = sum(range(1, num_blocks + 1))
    blocks = [
        {"block": k, "masked": [1 - (k + 1) / num_blocks, 1 - k / num_blocks], "se": 0.001 * (k + 1)}
        | {"bits_per_character": bits * (num_blocks - k) / parts, "bits_per_masked_token": 4.5 - k}
        for k in range(num_blocks)
    ]
    levels = [
        {"block": min(int((1 - share) * num_blocks), num_blocks - 1), "masked": share}
        | {"bits_per_masked_token": bits * (0.5 + share)}
        for share in ((k + 0.5) / 12 + 1e-16 * num_blocks for k in range(12))
    ]
    result = {
        **{"bits_per_character": bits, "se": 0.0041, "bits_per_byte": bits - 0.01, "bits_per_token": bits + 0.1},
        **{"perplexity_per_token": 2 ** (bits + 0.1), "tokens": 55555, "characters": 54321, "bytes": 54400},
        **{"windows": 869, "draws": 12, "seed": 3, "blocks": blocks, "levels": levels, "tokenizer": "characters"},
        **{"plan": "1 (block 0), 0.75 (block 0), 0.5 (block 1), 0.25 (block 1), then 0", "sampling": SAMPLING},
        **{"memory_bytes": {"weights": 1000, "activations": 2000, "other": 3, "peak_total": 3003}, "text": TEXT},
        **{"examples": EXAMPLES, "split": "test", "method": method, "updates": dict.fromkeys(units, 1000)},
    }
    return {name: value for name, value in (result | changes).items() if value is not None}


def run(folder: Path, bits: float, method: str = "blocks", settings: dict | None = None, **changes) -> Path:
    """A run folder with its evaluation; changes are those of the evaluation, where None leaves something out."""
    config = resolve("mdm-shakespeare", flags={"method": method, **(settings or {})})
    kind = "member" if method == "shallow-ensemble" else "block"
    units = (
        [f"{kind}-{k}" for k in range(config.num_blocks)] if method in ("blocks", "shallow-ensemble") else ["network"]
    )
    for number, unit in enumerate(units):
        (folder / unit).mkdir(parents=True)
        lines = [{"update": n, "loss": 1 / (number + n)} for n in (1, 2, 3, 4, 5)]
        (folder / unit / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        total = dict.fromkeys(KINDS, 2_000_000 + number) | {"peak_total": 9_000_000}
        (folder / unit / "memory.json").write_text(json.dumps({"total": total}))
    (folder / "config.json").write_text(config.model_dump_json())
    num_blocks = config.num_blocks if method == "blocks" else 1
    (folder / "eval-test.json").write_text(json.dumps(evaluation(bits, method, num_blocks, units, **changes)))
    return folder


def with_runs(folder: Path) -> Path:
    """The comparison with the runs of its first seed; the shallow network at N is the ensemble's first member."""
    runs = folder / "runs"
    first = {key: scores[0] for key, scores in BITS.items()}
    run(runs / "end-to-end-seed0", first["end-to-end", 1000], "end-to-end")
    run(runs / "shallow-BN-seed0", first["shallow", 3000], "shallow")
    member = evaluation(first["shallow", 1000], "shallow", 1, ["network"], examples=["A member's"])
    run(
        runs / "shallow-ensemble-layer-evaluations-seed0",
        first["shallow-ensemble", 1000],
        "shallow-ensemble",
        **{"members": [member], "sampling": None, "text": None, "examples": None},
    )
    run(runs / "blocks-default-layer-evaluations-seed0", first["blocks", 1000])
    run(runs / "blocks+trunk-layer-evaluations-seed0", first["blocks+trunk", 1000], settings={"trunk": 0.75})
    return comparison(folder)
