"""The pictures of the pages, drawn from the library's own functions when the site is built."""

import json
from pathlib import Path

import numpy as np
import torch
from drawing import BLOCKS, INK, Picture, log_axis
from matplotlib.figure import Figure
from settings import configs
from small_run import losses_of_a_small_run

from diffusionblocks import precondition
from diffusionblocks.block import edges_of, plan_of
from diffusionblocks.conditioning import LeanFeatures
from diffusionblocks.partition import noise_intervals, split_layers, training_interval
from diffusionblocks.sampling import SamplingPlan, initial_state, trajectory
from diffusionblocks.targets import component_std, simplex_table
from diffusionblocks.training.schedule import learning_rate

ROOT = Path(__file__).parents[2]


def law_with_cuts() -> Figure:
    """Density of log sigma for both presets, coloured by block."""
    drawn = Figure(figsize=(5.2, 3.2))
    for axes, (name, config) in zip(
        drawn.subplots(2, 1, sharex=True, gridspec_kw={"hspace": 0.4}), configs().items(), strict=True
    ):
        law, edges = config.law(), edges_of(config)
        sigma = np.geomspace(law.sigma_min, law.sigma_max, 800)
        density = np.gradient(law.cdf(torch.from_numpy(sigma)).numpy(), np.log(sigma))
        axes.plot(sigma, density, color=INK, linewidth=0.9)
        for block in range(config.num_blocks):
            inside = (sigma <= edges[block]) & (sigma >= edges[block + 1])
            axes.fill_between(sigma[inside], density[inside], color=BLOCKS[block], linewidth=0, label=f"block {block}")
        for edge in edges[1:-1]:
            axes.axvline(edge, color=INK, linewidth=0.6, linestyle=":")
            axes.annotate(f"{edge:.3g}", (edge, density.max()), ha="center", va="bottom", fontsize=7)
        axes.set_ylim(0, density.max() * 1.15)
        axes.set_ylabel("density of log σ")
        axes.set_title(name, loc="left")
        log_axis(axes)
    drawn.axes[0].legend(loc="upper right", fontsize=7)
    drawn.axes[1].set_xlabel("σ")
    return drawn


def layer_split() -> Figure:
    """Ten layers in four blocks, and the noise each block trains on with its overlap."""
    drawn = Figure(figsize=(5.2, 2.4))
    top, bottom = drawn.subplots(2, 1, gridspec_kw={"height_ratios": [1, 2.2], "hspace": 0.75})
    config = configs(4)["default"].model_copy(update={"gamma": 0.1})
    for block, part in enumerate(split_layers(10, 4)):
        for layer in part:
            top.barh(0, 0.9, left=layer - 0.45, height=0.8, color=BLOCKS[block])
            top.text(layer, -0.75, str(layer), ha="center", va="center")
        interval = noise_intervals(edges_of(config))[block]
        wide = training_interval(config.law(), interval, config.gamma)
        bottom.barh(block, wide.hi - wide.lo, left=wide.lo, height=0.6, color=BLOCKS[block], alpha=0.35, linewidth=0)
        width = interval.hi - interval.lo
        bottom.barh(block, width, left=interval.lo, height=0.6, color=BLOCKS[block], linewidth=0)
    top.set_ylim(-1.1, 0.6)
    top.set_title("layers", loc="left")
    top.axis("off")
    bottom.set_yticks(range(4), [f"block {k}" for k in range(4)])
    bottom.invert_yaxis()
    bottom.set_title("noise levels", loc="left")
    bottom.set_xlabel("σ")
    log_axis(bottom)
    return drawn


def conditioning_features() -> Figure:
    """The eight features of the lean conditioning over the noise range."""
    config = configs()["default"]
    law = config.law()
    sigma = torch.logspace(np.log10(law.sigma_min), np.log10(law.sigma_max), 800, dtype=torch.float64)
    values = LeanFeatures(law, config.conditioning_features)(sigma).numpy()
    half = values.shape[1] // 2
    drawn = Figure(figsize=(5.2, 2.0))
    for axes, part, title in zip(drawn.subplots(1, 2, sharey=True), (0, half), ("sines", "cosines"), strict=True):
        for k in range(half):
            axes.plot(sigma, values[:, part + k], color=BLOCKS[k % len(BLOCKS)])
        axes.set_title(title, loc="left")
        axes.set_xlabel("σ")
        log_axis(axes)
    return drawn


def preconditioning() -> Figure:
    """Scalings and weight over sigma for the scale of ten classes' targets."""
    scale = component_std(simplex_table(10))
    sigma = torch.logspace(-2.7, 1.9, 400, dtype=torch.float64)
    drawn = Figure(figsize=(5.2, 2.2))
    left, right = drawn.subplots(1, 2, gridspec_kw={"wspace": 0.3})
    for k, scaling in enumerate((precondition.c_skip, precondition.c_out, precondition.c_in)):
        left.plot(sigma, scaling(sigma, scale), color=BLOCKS[k], label=scaling.__name__)
    left.legend(fontsize=7)
    left.set_title("scalings", loc="left")
    right.plot(sigma, precondition.edm_weight(sigma, scale), color=BLOCKS[3])
    right.set_yscale("log")
    right.set_yticks([1e1, 1e3, 1e5], ["10", "1,000", "100,000"])
    right.minorticks_off()
    right.set_title("EDM weight", loc="left")
    for axes in (left, right):
        axes.set_xlabel("σ")
        log_axis(axes)
    return drawn


def training_run() -> Figure:
    """The schedule, and the losses of a real run of three small blocks on the digits."""
    rows, config = losses_of_a_small_run()
    drawn = Figure(figsize=(5.2, 2.2))
    left, right = drawn.subplots(1, 2, gridspec_kw={"wspace": 0.3})
    updates = range(config.updates or 0)
    left.plot(updates, [learning_rate(u, len(updates), config) for u in updates], color=INK)
    left.set_title("learning rate", loc="left")
    for block in sorted({row["block"] for row in rows}):
        own = [row for row in rows if row["block"] == block]
        x, y = [row["update"] for row in own], [row["loss"] for row in own]
        right.plot(x, y, color=BLOCKS[block], label=f"block {block}")
    right.set_title("loss, nats", loc="left")
    right.legend(fontsize=7)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xlabel("updates of the block itself")
    return drawn


def sampler_trajectory() -> Figure:
    """Paths of Euler's chain among three targets in the plane, for the exact denoiser of equally likely classes."""
    config, table = configs()["default"], simplex_table(3).double()
    plan = SamplingPlan.build(config.law(), edges_of(config), 60, "log")

    def denoise(z: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return (z @ table.T / sigma[:, None] ** 2).softmax(dim=1) @ table

    start = initial_state((12, 2), plan, "noise", torch.Generator().manual_seed(3)).double()
    drawn = Figure(figsize=(5.2, 3.4))
    axes = drawn.subplots()
    points, blocks = [start], []
    for step, z, _ in trajectory([denoise] * config.num_blocks, start, plan):
        points.append(z)
        blocks.append(step.block)
    path = torch.stack(points).numpy()
    for k, block in enumerate(blocks):
        axes.plot(path[k : k + 2, :, 0], path[k : k + 2, :, 1], color=BLOCKS[block], linewidth=1.0)
    axes.plot(path[0, :, 0], path[0, :, 1], "o", color=INK, markersize=2.5, label="start")
    targets = table.numpy()
    axes.plot(targets[:, 0], targets[:, 1], "*", color=INK, markersize=9, label="targets")
    for block in range(config.num_blocks):
        axes.plot([], [], color=BLOCKS[block], label=f"block {block}")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    ticks = [-100, -10, -1, 0, 1, 10, 100]
    for axis, set_ticks in (("x", axes.set_xticks), ("y", axes.set_yticks)):
        getattr(axes, f"set_{axis}scale")("symlog", linthresh=1.0)
        set_ticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("first coordinate of z")
    axes.set_ylabel("second coordinate of z")
    return drawn


def plan_steps() -> Figure:
    """Where the stored plans and longer ones place their steps."""
    presets = configs()
    rows = {f"{name}, stored": plan_of(config) for name, config in presets.items()}
    for spacing in ("karras", "log", "mass"):
        config = presets["default"].model_copy(update={"spacing": spacing})
        rows[f"default, 12 steps, {spacing}"] = plan_of(config, 12)
    drawn = Figure(figsize=(5.2, 2.0))
    axes = drawn.subplots()
    for row, plan in enumerate(rows.values()):
        for step in plan.steps:
            axes.plot(step.sigma, row, "o", color=BLOCKS[step.block], markersize=4.5)
    for block in range(3):
        axes.plot([], [], "o", color=BLOCKS[block], label=f"block {block}", markersize=4.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.invert_xaxis()
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=3)
    axes.set_xlabel("σ of the step (the chain runs to the right)")
    log_axis(axes, (110, 0.01))
    return drawn


def label_leak() -> Figure:
    """How often the noisy target alone names the class."""
    sigma = np.geomspace(0.05, 10, 60)
    drawn = Figure(figsize=(5.2, 2.2))
    axes = drawn.subplots()
    for k, num_classes in enumerate((10, 100, 1000)):
        table, generator = simplex_table(num_classes), torch.Generator().manual_seed(0)
        labels = torch.randint(0, num_classes, (2000,), generator=generator)
        noise = torch.randn(2000, num_classes - 1, generator=generator)
        right = [float(((table[labels] + s * noise) @ table.T).argmax(1).eq(labels).double().mean()) for s in sigma]
        axes.plot(sigma, right, color=BLOCKS[k], label=f"{num_classes} classes")
    for (name, config), style in zip(configs().items(), ("-", ":"), strict=True):
        for edge in edges_of(config)[1:-1]:
            axes.axvline(edge, color=INK, linewidth=0.7, linestyle=style)
        axes.plot([], [], color=INK, linewidth=0.7, linestyle=style, label=f"edges, {name}, B = 3")
    axes.set_ylabel("classes named right")
    axes.set_xlabel("σ")
    axes.legend(fontsize=7)
    log_axis(axes, (0.05, 10))
    return drawn


def memory_bars() -> Figure:
    """The ratio of memory to 1/B by kind, from the committed measurement."""
    result = json.loads((ROOT / "benchmarks/results/vit-digits/layer_memory.json").read_text(encoding="utf-8"))
    kinds = ("weights", "gradients", "optimizer", "activations", "peak_total")
    drawn = Figure(figsize=(5.2, 2.0))
    axes = drawn.subplots()
    for k, (part, label) in enumerate((("total", "everything"), ("layers", "layers with conditioning"))):
        for row, kind in enumerate(kinds):
            ratio = result["ratio_times_B"][part].get(kind)
            if ratio is not None:
                at = row + 0.36 * k
                axes.barh(at, ratio, height=0.34, color=BLOCKS[k], label=None if row else label, linewidth=0)
                axes.text(ratio + 0.01, at, f"{ratio:.3f}", va="center", fontsize=7)
    axes.axvline(1, color=INK, linewidth=0.7, linestyle=":")
    axes.set_yticks([row + 0.18 for row in range(len(kinds))], [kind.replace("_", " ") for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlabel("B times a block / end to end")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
    return drawn


PICTURES = {
    "law": Picture(
        law_with_cuts,
        "The law of both presets, cut into three blocks of equal mass. Dotted: the inner edges.",
    ),
    "split": Picture(
        layer_split,
        "Ten layers in four blocks. Dark: the core interval of a block. Light: the overlap, here with gamma = 0.1.",
    ),
    "features": Picture(conditioning_features, "The features of the noise level that the norms' shifts are made of."),
    "preconditioning": Picture(
        preconditioning, "The scalings and the EDM weight at the measured sigma_data of ten simplex targets."
    ),
    "training": Picture(
        training_run,
        "Left: the schedule, by a block's own updates. Right: three one-layer blocks of width 32 trained on "
        "scikit-learn's digits while this page was built.",
    ),
    "trajectory": Picture(
        sampler_trajectory,
        "Euler's chain from noise to one of three targets under the exact denoiser. The axes are linear up to 1 and "
        "logarithmic beyond. The colour is the block that takes the step.",
    ),
    "plan": Picture(plan_steps, "Steps of the stored plans, and of plans with more steps than blocks."),
    "leak": Picture(
        label_leak,
        "How often the target nearest to z is the right one, without a look at the image. Vertical lines: inner edges "
        "of the blocks.",
    ),
    "memory": Picture(
        memory_bars,
        "Bytes of a block's update times B over those of the whole network's, measured on the digits recipe. At 1 a "
        "block takes exactly 1/B.",
    ),
}
