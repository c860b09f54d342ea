"""Folders as comparisons and runs of image generation leave them, with made-up numbers."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from report_folders import foresee as foresee_any
from report_folders import row

from diffusionblocks.report import run_parts

FEATURES = {"name": "classifier (ResNet, F=64, trained on 55000 images)", "sha256": "0123abcd" * 8, "num_features": 64}
KINDS = ("weights", "gradients", "optimizer", "activations", "other")
CONFIG = {
    **{"family": "dit", "recipe": "dit-fashion", "preset": "default", "method": "blocks", "seed": 0, "fold": 0},
    **{"trunk": 0.0, "budget": "layer-evaluations", "num_blocks": 3, "dataset": "fashion-mnist", "batch_size": 128},
    **{"num_layers": 6, "hidden_size": 64, "p_mean": -1.2, "p_std": 1.2, "sigma_min": 0.002, "sigma_max": 80.0},
    **{"cut": "equal-mass", "gamma": 0.05, "num_sampling_steps": 20, "spacing": "karras"},
}
PLAN = ", ".join(f"{0.01 * 2**k:.4g} (block {k // 5})" for k in reversed(range(13))) + ", then 0"
LEVELS = (0.01, 0.05, 0.2, 0.8, 3.0, 12.0)


def foresee(monkeypatch) -> None:
    """Predict known numbers of memory without reading the settings as those of a network."""
    foresee_any(monkeypatch)
    monkeypatch.setattr(run_parts, "load_config", lambda run_dir: None)


def fid_row(method: str, seed: int, fid: float, **changes) -> dict:
    """A row of a comparison of generators; blocks take a third of the FLOPs of a step."""
    metrics = {"fid": fid, "fid_se": 0.11, "kid": fid / 1000, "precision": 0.7, "recall": 0.4, "denoising_error": 0.3}
    flops = 1e6 if method in ("end-to-end", "checkpointing") else 0.35e6
    own = {"num_blocks": 3, "fold": 0, "updates": 1000, "variant": "", "metrics": metrics}
    own |= {"flops_per_step": flops, "flops_per_image": 20 * flops, "images_per_second": 5e7 / flops}
    return row(method, seed, 0.0) | own | changes


def fid_rows(method: str, fids: tuple[float, ...], **changes) -> list[dict]:
    return [fid_row(method, seed, fid, **changes) for seed, fid in enumerate(fids)]


ROWS = [
    *fid_rows("end-to-end", (20.1, 21.4, 20.7)),
    *fid_rows("shallow", (31.0, 30.2, 29.4)),
    *fid_rows("shallow", (23.9, 24.6, 25.6), updates=3000),
    *fid_rows("blocks", (22.3, 24.0, 22.8)),
    *fid_rows("blocks+trunk", (21.9, 24.8, 25.5)),
    *fid_rows("end-to-end", (15.2, 16.0, 15.1), variant="guidance 2"),
    *fid_rows("blocks", (16.4, 17.1, 17.3), variant="guidance 2"),
    *fid_rows("blocks", (28.4, 27.0, 29.3), variant="cut uniform-log"),
    fid_row("checkpointing", 0, 0.0, metrics={"largest_loss_difference": 0.0}),
]


def comparison(folder: Path, rows: list[dict] = ROWS, **changes) -> Path:
    """A compare.json."""
    content = {
        **{"recipe": "dit-fashion", "metric": "fid", "command": "dblocks compare dit-fashion", "commit": "abc123"},
        **{"hardware": {"cores": 2}, "versions": {"torch": "2"}, "split": "test", "features": FEATURES, "costs": {}},
        "sampling": {"sampler": "dpmpp-2m", "num_sampling_steps": 20, "samples": 1000, "seeds": 3},
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(content | changes))
    return folder


def run(folder: Path, fid: float, method: str = "blocks", guidances: tuple[str, ...] = ("",), **changes) -> Path:
    """A run folder with its evaluation and a grid of noise for every guidance ("" is 1, or "guidance-2")."""
    config = CONFIG | {"method": method} | changes
    units = [f"block-{k}" for k in range(config["num_blocks"])] if method == "blocks" else ["network"]
    for number, unit in enumerate(units):
        (folder / unit).mkdir(parents=True)
        lines = [{"update": n, "loss": 1 / (number + n)} for n in (1, 2, 3, 4, 5)]
        (folder / unit / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        total = dict.fromkeys(KINDS, 2_000_000 + number) | {"peak_total": 9_000_000}
        (folder / unit / "memory.json").write_text(json.dumps({"total": total}))
    (folder / "config.json").write_text(json.dumps(config))
    blocks = [min(k, len(units) - 1) for k in (2, 2, 1, 1, 0, 0)]
    curve = [{"sigma": s, "block": k, "error": fid / 100 + 1 / (1 + s)} for s, k in zip(LEVELS, blocks, strict=True)]
    result = {
        **{"fid": fid, "fid_se": 0.11, "kid": fid / 1000, "precision": 0.7, "recall": 0.4, "samples": 1000},
        "sampling": [{"seed": k, "fid": fid + k - 1, "kid": 0.01, "precision": 0.7, "recall": 0.4} for k in range(3)],
        **{"guidance": 1.0, "sampler": "dpmpp-2m", "num_sampling_steps": 20, "plan": PLAN},
        **{"features": FEATURES, "denoising": curve, "denoising_error": 0.3, "flops_per_step": 1e6},
        **{"split": "test", "images": 10000, "method": method, "updates": dict.fromkeys(units, 1000)},
    }
    (folder / "eval-test.json").write_text(json.dumps(result))
    for number, guidance in enumerate(guidances):
        pixels = np.random.default_rng(number).integers(0, 256, (280, 280), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"eval-test{'-' * bool(guidance)}{guidance}.png")
    return folder


def with_runs(folder: Path) -> Path:
    """The comparison with the run folders of its first two seeds."""
    for seed in (0, 1):
        own = {"seed": seed}
        both = ("", "guidance-2")
        run(folder / f"runs/end-to-end-seed{seed}", (20.1, 21.4)[seed], "end-to-end", both, **own)
        run(folder / f"runs/shallow-N-seed{seed}", (31.0, 30.2)[seed], "shallow", **own)
        run(folder / f"runs/shallow-BN-seed{seed}", (23.9, 24.6)[seed], "shallow", **own)
        run(folder / f"runs/blocks-cut-seed{seed}", (28.4, 27.0)[seed], cut="uniform-log", **own)
        run(folder / f"runs/blocks-default-seed{seed}", (22.3, 24.0)[seed], "blocks", both, **own)
        run(folder / f"runs/blocks+trunk-seed{seed}", (21.9, 24.8)[seed], trunk=0.75, **own)
    return comparison(folder)
