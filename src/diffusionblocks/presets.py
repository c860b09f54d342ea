"""What the paper sets differently from the defaults of each family's config: the preset "paper"."""

from typing import Any

PAPER: dict[str, dict[str, Any]] = {
    "vit": {
        "p_mean": -1.2,
        "p_std": 1.2,
        "gamma": 0.05,
        "conditioning": "adaln",
        "targets": "random",
        "sigma_data": 0.5,
        "weight": "edm",
        "readout": "preconditioned",
        "z_dropout": 0.0,
        "num_sampling_steps": 4,
        "start": "noise",
        "decoding": "chain",
    },
    "dit": {"gamma": 0.05, "label_dropout": 0.1, "num_sampling_steps": 50, "sampler": "euler", "guidance": 2.0},
    "masked-lm": {"schedule": "linear", "gamma": 0.05, "conditioning": "adaln", "weight": "nelbo"},
    "causal-lm": {
        "p_mean": -1.2,
        "p_std": 1.2,
        "gamma": 0.1,
        "conditioning": "adaln",
        "context": "concat",
        "noise_per": "token",
        "sigma_data": 0.5,
        "weight": "edm",
        "z_dropout": 0.0,
        "start": "noise",
        "decoding": "chain",
        "bridge": "soft",
    },
    "recurrent-lm": {
        "p_mean": -1.2,
        "p_std": 1.2,
        "sigma_min": 0.002,
        "sigma_max": 80.0,
        "conditioning": "adaln",
        "sigma_data": 0.5,
        "weight": "edm",
        "z_dropout": 0.0,
        "state_scale": "unit",
        "evidence": False,
        "num_sampling_steps": 32,
        "start": "noise",
        "decoding": "chain",
        "bridge": "soft",
    },
}
"""The paper's settings (Sections 3.3 and 4, Appendices B-D), as far as the blocks stay independent of each other."""
