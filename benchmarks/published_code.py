"""What each defect of the published ViT code and text of DiffusionBlocks does, outside of the library.

"The paper" is Shing, Koyama, Akiba, "DiffusionBlocks", ICLR 2026, arXiv 2506.14202v4. This is an independent small
network in plain PyTorch (nothing of the published code, nothing of this library) in which each defect is a switch.

    python benchmarks/published_code.py demonstrate                 # exact numbers, seconds
    python benchmarks/published_code.py train --out FILE.json       # effect on accuracy, scikit-learn digits, minutes

Left out: guidance that depends on `self.training` (this classifier has no guidance) and the mixing of three random
number generators (it only makes results hard to repeat; here every draw comes from a seed of its own).
Unlike the recipe of Appendix B: 6 layers of width 64, batch 32, 540 updates in all, no dropout, no augmentation.
"""

import argparse
import functools
import itertools
import json
import math
import platform
import statistics
import subprocess
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

Numbers = dict[str, float]
SIGMA_MIN, SIGMA_MAX, SIGMA_DATA, CLASSES = 0.002, 80.0, 0.5, 10
LAW = statistics.NormalDist(-1.2, 1.2)  # of log sigma, section 3.3 of the paper after Karras et al. 2022
TOP, BOTTOM = LAW.cdf(math.log(SIGMA_MAX)), LAW.cdf(math.log(SIGMA_MIN))


@dataclass(frozen=True)
class Defects:
    """Which defects are present. The last one is in the paper's text, the others are in the published code."""

    weight_broadcast: bool = False  # loss (N,) times weight (N, 1)
    drop_remainder_layers: bool = False  # L // B layers in every block, the rest is never built
    route_by_float: bool = False  # the block of a step is looked up by comparing its sigma with the edges
    route_by_vote: bool = False  # a training batch goes to the block that most of its sigmas fall in
    raw_targets_in_sampling: bool = False  # targets are normalised in training, not in sampling
    shared_parts: bool = False  # embeddings, time embedder, norm, head and targets are stepped by every block
    step_buffer: bool = False  # a buffer of the number of steps is saved with the weights
    drop_last_validation_batch: bool = False
    constant_noise_embedding: bool = False  # timestep sinusoids of c_noise = ln(sigma) / 4
    gate_silu: bool = False  # AdaLN gates pass a SiLU
    cls_replaced: bool = False  # tokens [z, patches] in place of [CLS, patches, z]
    printed_euler_sign: bool = False  # Eq. 3-4 as printed

    @classmethod
    def none(cls) -> "Defects":
        """No defect."""
        return cls()

    @classmethod
    def published(cls) -> "Defects":
        """All defects of the published code, so with the right Euler sign."""
        return cls(**{field.name: field.name != "printed_euler_sign" for field in fields(cls)})


# These do not touch the trained weights: variants that differ in nothing else share one network.
AFTER_TRAINING = (
    "route_by_float",
    "raw_targets_in_sampling",
    "step_buffer",
    "drop_last_validation_batch",
    "printed_euler_sign",
)


@dataclass(frozen=True)
class Setup:
    """Sizes and budget. `weighted` off is plain cross-entropy (the EDM weight was derived for the L2 loss)."""

    layers: int = 6
    blocks: int = 3
    d: int = 64
    heads: int = 4
    patch: int = 2
    steps: int = 4
    gamma: float = 0.05
    epochs: int = 12
    batch: int = 32
    validation_batch: int = 128
    lr: float = 2e-3
    weighted: bool = True


def quantile_sigmas(count: int) -> list[float]:
    """`count + 1` levels, noisiest first, `1 / count` of the law's mass between neighbours (section 3.3)."""
    inner = [math.exp(LAW.inv_cdf(TOP - k * (TOP - BOTTOM) / count)) for k in range(1, count)]
    return [SIGMA_MAX, *inner, SIGMA_MIN]


def route(sigma: Tensor, blocks: int) -> Tensor:
    """Defect: compare float32 sigmas with float64 edges. A sigma ON an edge goes wherever rounding sends it."""
    inner = torch.tensor(quantile_sigmas(blocks)[1:-1], dtype=torch.float64)
    return (sigma.double().unsqueeze(-1) < inner).sum(-1)


def plan(setup: Setup, defects: Defects) -> list[int]:
    """Block of each step. Cure: integer arithmetic on the index of the step; its sigma is never consulted."""
    if defects.route_by_float:
        return route(torch.tensor(quantile_sigmas(setup.steps - 1)), setup.blocks).tolist()
    return [min(i * setup.blocks // (setup.steps - 1), setup.blocks - 1) for i in range(setup.steps)]


def layer_counts(setup: Setup, defects: Defects) -> list[int]:
    """Layers of each block; the first blocks take the remainder (defect: nobody does)."""
    each, rest = divmod(setup.layers, setup.blocks)
    return [each + (b < rest and not defects.drop_remainder_layers) for b in range(setup.blocks)]


def draw_sigma(block: int, count: int, setup: Setup, generator: torch.Generator) -> Tensor:
    """Sigmas of one block's range, widened by `(hi / lo) ** gamma` on both sides (Appendix C) but not past the ends."""
    hi, lo = quantile_sigmas(setup.blocks)[block : block + 2]
    widen = (hi / lo) ** setup.gamma
    low, high = (LAW.cdf(math.log(s)) for s in (max(lo / widen, SIGMA_MIN), min(hi * widen, SIGMA_MAX)))
    mass = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.exp(LAW.mean + LAW.stdev * torch.special.ndtri(mass)).float()


def training_block(drawn: int, sigma: Tensor, setup: Setup, defects: Defects) -> int:
    """Block that a training batch runs through: the drawn one (defect: the one most of its sigmas fall in)."""
    return int(torch.bincount(route(sigma, setup.blocks)).argmax()) if defects.route_by_vote else drawn


def weighted_mean(loss: Tensor, sigma: Tensor, defects: Defects) -> Tensor:
    """EDM weight times loss, per sample. Defect: (N,) * (N, 1) is (N, N), whose mean is mean(loss) * mean(weight)."""
    weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
    return (loss * (weight.unsqueeze(1) if defects.weight_broadcast else weight)).mean()


def euler(z: Tensor, denoised: Tensor, sigma: float, following: float, defects: Defects) -> Tensor:
    """One Euler step of the probability-flow ODE (defect: the opposite sign, as Eq. 3-4 print it)."""
    change = (following - sigma) / sigma * (z - denoised)
    return z - change if defects.printed_euler_sign else z + change


def noise_embedding(sigma: Tensor, d: int, defects: Defects) -> Tensor:
    """Sinusoids made for timesteps 0..1000. Defect: fed with c_noise in [-1.6, 1.1]; cure: log sigma scaled to fit."""
    t = torch.log(sigma) / 4
    if not defects.constant_noise_embedding:
        t = 1000 * (torch.log(sigma) - math.log(SIGMA_MIN)) / math.log(SIGMA_MAX / SIGMA_MIN)
    angle = t.unsqueeze(-1) * torch.exp(-math.log(10000) * torch.arange(d // 2) / (d // 2))
    return torch.cat([angle.cos(), angle.sin()], -1)


def gate(raw: Tensor, defects: Defects) -> Tensor:
    """AdaLN gate (defect: an extra SiLU, so that no gate is below -0.2785)."""
    return F.silu(raw) if defects.gate_silu else raw


def targets(table: Tensor, raw: bool) -> Tensor:
    """Label embeddings (Appendix B), of unit norm or as they are stored."""
    return table if raw else F.normalize(table, dim=-1)


class Layer(nn.Module):
    """Pre-norm transformer layer; the noise level sets its norms and gates (AdaLN, zero at the start)."""

    def __init__(self, setup: Setup, defects: Defects):
        super().__init__()
        d, self.heads, self.defects = setup.d, setup.heads, defects
        self.modulation = nn.Linear(d, 6 * d)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        n, t, d = h.shape
        x = F.layer_norm(h, (d,)) * (1 + scale1) + shift1
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        h = h + gate(gate1, self.defects) * self.out(mixed)
        return h + gate(gate2, self.defects) * self.mlp(F.layer_norm(h, (d,)) * (1 + scale2) + shift2)


class Parts(nn.Module):
    """What is not a layer: patch embedding, positions, [CLS], time embedder, norm and head."""

    def __init__(self, setup: Setup):
        super().__init__()
        self.patch = nn.Conv2d(1, setup.d, setup.patch, setup.patch)
        self.position = nn.Parameter(0.02 * torch.randn((8 // setup.patch) ** 2 + 2, setup.d))
        self.cls = nn.Parameter(0.02 * torch.randn(setup.d))
        self.time = nn.Sequential(nn.Linear(setup.d, setup.d), nn.SiLU(), nn.Linear(setup.d, setup.d), nn.SiLU())
        self.norm, self.head = nn.LayerNorm(setup.d), nn.Linear(setup.d, CLASSES)

    def tokens(self, images: Tensor, z: Tensor, defects: Defects) -> Tensor:
        """Tokens, the first of which is read out (Appendix B: [CLS]; defect: z in its place)."""
        patches, cls = self.patch(images).flatten(2).transpose(1, 2), self.cls.expand(len(z), 1, -1)
        joined = torch.cat([z.unsqueeze(1), patches] if defects.cls_replaced else [cls, patches, z.unsqueeze(1)], 1)
        return joined + self.position[: joined.shape[1]]


class Block(nn.Module):
    """Some layers and the parts they use: (image, noisy label embedding, sigma) to class logits."""

    def __init__(self, parts: Parts, count: int, setup: Setup, defects: Defects):
        super().__init__()
        self.parts, self.defects = parts, defects
        self.layers = nn.ModuleList(Layer(setup, defects) for _ in range(count))

    def forward(self, images: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        condition = self.parts.time(noise_embedding(sigma, z.shape[1], self.defects))
        c_in = torch.rsqrt(sigma**2 + SIGMA_DATA**2).unsqueeze(1)
        h = self.parts.tokens(images, c_in * z, self.defects)
        for layer in self.layers:
            h = layer(h, condition)
        return self.parts.head(self.parts.norm(h[:, 0]))


class BlockViT(nn.Module):
    """ViT cut in blocks (Appendix B). Cure for shared parts: each block its own, and one frozen table of targets."""

    sigmas: Tensor

    def __init__(self, setup: Setup, defects: Defects):
        super().__init__()
        self.setup, self.defects, shared = setup, defects, defects.shared_parts
        parts = [Parts(setup)] * setup.blocks if shared else [Parts(setup) for _ in range(setup.blocks)]
        counts = layer_counts(setup, defects)
        self.blocks = nn.ModuleList(Block(p, n, setup, defects) for p, n in zip(parts, counts, strict=True))
        table = torch.randn(CLASSES, setup.d)
        if not shared:  # rows of equal norm, whose mean is zero
            table = torch.linalg.qr(table.T)[0].T
            table = math.sqrt(setup.d) * F.normalize(table - table.mean(0), dim=-1)
        self.table = nn.Parameter(table, requires_grad=shared)
        levels = torch.tensor(quantile_sigmas(setup.steps - 1))
        self.register_buffer("sigmas", levels, persistent=defects.step_buffer)


def block_loss(model: BlockViT, x: Tensor, y: Tensor, drawn: int, generator: torch.Generator) -> tuple[Tensor, bool]:
    """Loss of one batch for one drawn block, and whether another block was run in its place."""
    setup, defects = model.setup, model.defects
    sigma = draw_sigma(drawn, len(x), setup, generator)
    block = training_block(drawn, sigma, setup, defects)
    noise = torch.randn(len(x), setup.d, generator=generator)
    z = targets(model.table, raw=False)[y] + sigma.unsqueeze(1) * noise
    loss = F.cross_entropy(model.blocks[block](x, z, sigma), y, reduction="none")
    return (weighted_mean(loss, sigma, defects) if setup.weighted else loss.mean()), block != drawn


def train(x: Tensor, y: Tensor, setup: Setup, defects: Defects, seed: int) -> tuple[BlockViT, Numbers]:
    """One block a batch, drawn uniformly; AdamW skips whatever has no gradient, so the other blocks stand still.

    `setup.epochs` passes over the data in all, so each block gets 1 / B of them: equal samples with end-to-end.
    """
    torch.manual_seed(seed)
    model, generator = BlockViT(setup, defects), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    total, done, misrouted, loss = setup.epochs * math.ceil(len(x) / setup.batch), 0, 0, torch.empty(())
    for _ in range(setup.epochs):
        for rows in torch.randperm(len(x), generator=generator).split(setup.batch):
            decay = 0.55 + 0.45 * math.cos(math.pi * done / total)  # to a tenth, as in Appendix B
            optimizer.param_groups[0]["lr"] = setup.lr * decay * min(1, 20 * (done + 1) / total)
            drawn = int(torch.randint(setup.blocks, (), generator=generator))
            loss, other = block_loss(model, x[rows], y[rows], drawn, generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            done, misrouted = done + 1, misrouted + other
    return model, {"final_loss": loss.item(), "misrouted_batches": misrouted, "updates": done}


def kept_batches(count: int, batch: int, defects: Defects) -> list[slice]:
    """Batches of the validation set (defect: a last batch that is not full is dropped)."""
    last = count - count % batch if defects.drop_last_validation_batch else count
    return [slice(i, min(i + batch, last)) for i in range(0, last, batch)]


@torch.no_grad()
def evaluate(model: BlockViT, x: Tensor, y: Tensor, defects: Defects, draws: int = 4) -> Numbers:
    """Accuracy of the chain from noise (Eq. 3, sign as in `defects`) and of its first step, block 0, alone."""
    setup, levels, blocks = model.setup, model.sigmas.tolist(), plan(model.setup, defects)
    used, generator = targets(model.table, defects.raw_targets_in_sampling), torch.Generator().manual_seed(1)
    chain, first, seen = 0, 0, 0
    for rows in kept_batches(len(x), setup.validation_batch, defects) * draws:
        z, right = SIGMA_MAX * torch.randn(len(x[rows]), setup.d, generator=generator), []
        for sigma, following, block in zip(levels, [*levels[1:], 0.0], blocks, strict=True):
            logits = model.blocks[block](x[rows], z, torch.full((len(z),), sigma))
            right.append(int((logits.argmax(-1) == y[rows]).sum()))
            z = euler(z, logits.softmax(-1) @ used, sigma, following, defects)
        first, chain, seen = first + right[0], chain + right[-1], seen + len(z)
    return {"chain": chain / seen, "block_0": first / seen, "images": seen // draws}


def both(name: str) -> dict[str, Defects]:
    """One defect, present and cured."""
    return {"published": Defects(**{name: True}), "cured": Defects()}


def demonstrate_weight_broadcast() -> Numbers:
    """`published` equals `product_of_means`; `cured` is the mean of the products."""
    loss, sigma = torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.tensor([8.0, 1.0, 0.5, 0.1])
    result = {name: weighted_mean(loss, sigma, defects).item() for name, defects in both("weight_broadcast").items()}
    return result | {"product_of_means": (loss.mean() * weighted_mean(torch.ones(4), sigma, Defects())).item()}


def demonstrate_drop_remainder_layers() -> Numbers:
    """Layers kept of L = 10 with B = 3."""
    return {
        name: sum(layer_counts(Setup(layers=10), defects)) for name, defects in both("drop_remainder_layers").items()
    }


def demonstrate_route_by_float() -> Numbers:
    """Steps that each of 3 blocks runs of 4, whose sigmas are the edges themselves (section 3.3)."""
    plans = {name: plan(Setup(), defects) for name, defects in both("route_by_float").items()}
    return {f"{name}_block_{b}": blocks.count(b) for name, blocks in plans.items() for b in range(3)}


def demonstrate_route_by_vote() -> Numbers:
    """Share of block 1's batches that another block runs, for batches of 1 and of 128 (overlap 0.05, Appendix C)."""
    result = {}
    for (name, defects), (batch, count) in itertools.product(both("route_by_vote").items(), ((1, 4000), (128, 200))):
        sigmas = draw_sigma(1, batch * count, Setup(), torch.Generator().manual_seed(0)).split(batch)
        result[f"{name}_batch_{batch}"] = sum(training_block(1, s, Setup(), defects) != 1 for s in sigmas) / count
    return result


def demonstrate_raw_targets_in_sampling() -> Numbers:
    """Root-mean-square norm of the targets in training and in sampling, for a standard normal table of width 64."""
    table = torch.randn(CLASSES, 64, generator=torch.Generator().manual_seed(0))
    unit, raw = (targets(table, raw).square().sum(-1).mean().sqrt().item() for raw in (False, True))
    return {"training": unit, "published_sampling": raw, "cured_sampling": unit}


@torch.no_grad()
def demonstrate_shared_parts() -> Numbers:
    """Largest change of block 1's logits by one step of block 0, and the share of trained weights that are common."""
    x, y, result = torch.linspace(0, 1, 8 * 64).view(8, 1, 8, 8), torch.arange(8), {}
    for name, defects in both("shared_parts").items():
        torch.manual_seed(0)
        model = BlockViT(Setup(), defects)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer, probe = torch.optim.AdamW(trained, lr=1e-3), (x, torch.zeros(8, 64), torch.full((8,), 0.3))
        before = model.blocks[1](*probe)
        with torch.enable_grad():
            block_loss(model, x, y, 0, torch.Generator().manual_seed(0))[0].backward()
        optimizer.step()
        result[f"{name}_change"] = (model.blocks[1](*probe) - before).abs().max().item()
        uses = [{id(p) for p in block.parameters()} for block in model.blocks]
        common = set.intersection(*uses) | {id(model.table)}
        result[f"{name}_share"] = sum(p.numel() for p in trained if id(p) in common) / sum(p.numel() for p in trained)
    return result


def demonstrate_step_buffer() -> Numbers:
    """Whether (1 or 0) weights saved for 4 steps load into the same network set to 8 steps."""
    result = {}
    for name, defects in both("step_buffer").items():
        four, eight = (BlockViT(Setup(steps=steps), defects) for steps in (4, 8))
        try:
            eight.load_state_dict(four.state_dict())
            result[f"{name}_loads"] = 1
        except RuntimeError:
            result[f"{name}_loads"] = 0
    return result


def demonstrate_drop_last_validation_batch() -> Numbers:
    """Images evaluated of 360 held out, in batches of 128."""
    kept = {name: kept_batches(360, 128, defects) for name, defects in both("drop_last_validation_batch").items()}
    return {name: sum(rows.stop - rows.start for rows in slices) for name, slices in kept.items()}


def demonstrate_constant_noise_embedding() -> Numbers:
    """Distance of neighbours among 32 levels even in log sigma, relative to the norm: largest and smallest.

    Also the share of the 64 features that move by less than 0.05 over the whole range of sigma.
    """
    sigma, result = torch.logspace(math.log10(SIGMA_MIN), math.log10(SIGMA_MAX), 32), {}
    for name, defects in both("constant_noise_embedding").items():
        e = noise_embedding(sigma, 64, defects)
        apart = (e[1:] - e[:-1]).norm(dim=-1) / e[:-1].norm(dim=-1)
        result |= {f"{name}_largest": apart.max().item(), f"{name}_smallest": apart.min().item()}
        result[f"{name}_constant_features"] = (e.amax(0) - e.amin(0) < 0.05).float().mean().item()
    return result


def demonstrate_gate_silu() -> Numbers:
    """Lowest gate for raw values in [-8, 8], and the slope at zero, where the gates start."""
    result, raw, small = {}, torch.linspace(-8, 8, 16001), torch.tensor([-1e-3, 1e-3])
    for name, defects in both("gate_silu").items():
        low, high = gate(small, defects).tolist()
        result |= {f"{name}_lowest": gate(raw, defects).min().item(), f"{name}_slope": (high - low) / 2e-3}
    return result


@torch.no_grad()
def demonstrate_cls_replaced() -> Numbers:
    """Tokens, and how far the logits of a fresh network (gates zero, layers the identity) move when z changes.

    In the place of [CLS], z reaches the head by the residual path, the image unseen; beside [CLS] it needs attention.
    """
    result, generator = {}, torch.Generator().manual_seed(0)
    x, z = torch.rand(8, 1, 8, 8, generator=generator), torch.randn(2, 8, 64, generator=generator)
    for name, defects in both("cls_replaced").items():
        torch.manual_seed(0)
        block = Block(Parts(Setup()), 2, Setup(), defects)
        one, other = (block(x, each, torch.full((8,), 0.3)) for each in z)
        result[f"{name}_tokens"] = block.parts.tokens(x, z[0], defects).shape[1]
        result[f"{name}_change"] = (one - other).abs().max().item()
    return result


def demonstrate_printed_euler_sign() -> Numbers:
    """Noise left of sigma_max at sigma_min, after 3 Euler steps with a perfect denoiser (Eq. 3-4)."""
    result, clean = {}, torch.ones(1, dtype=torch.float64)
    for name, defects in both("printed_euler_sign").items():
        z = clean + SIGMA_MAX
        for sigma, following in itertools.pairwise(quantile_sigmas(3)):
            z = euler(z, clean, sigma, following, defects)
        result[f"{name}_noise"] = (z - clean).item()
    return result


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits, a fixed split: 1437 to train, 360 held out."""
    x, y = load_digits(return_X_y=True)
    split = train_test_split(x / 8 - 1, y, test_size=360, random_state=0, stratify=y)
    x, held_x, y, held_y = (torch.as_tensor(part) for part in split)
    return x.float().view(-1, 1, 8, 8), y, held_x.float().view(-1, 1, 8, 8), held_y


def variants(setup: Setup) -> dict[str, tuple[Setup, Defects]]:
    """Rows of the table. Layers are dropped only where 3 does not divide their number: two rows have 8."""
    published, eight = Defects.published(), replace(setup, layers=8)
    rows = {"published": (setup, published), "none": (setup, Defects.none())}
    rows["none, unweighted"] = (replace(setup, weighted=False), Defects.none())
    for field in fields(Defects):
        if field.name not in ("drop_remainder_layers", "printed_euler_sign"):
            rows[f"without {field.name}"] = (setup, replace(published, **{field.name: False}))
    rows["8 layers, published"] = (eight, published)
    rows["8 layers, without drop_remainder_layers"] = (eight, replace(published, drop_remainder_layers=False))
    return rows | {"published with printed_euler_sign": (setup, replace(published, printed_euler_sign=True))}


def run_seed(setup: Setup, seed: int, data: tuple[Tensor, Tensor, Tensor, Tensor]) -> dict[str, Numbers]:
    """All rows for one seed; rows that differ only after training share a network."""
    fit = functools.cache(lambda chosen, defects: train(*data[:2], chosen, defects, seed))
    result = {}
    for name, (chosen, defects) in variants(setup).items():
        if defects.drop_remainder_layers:
            chosen = replace(chosen, layers=sum(layer_counts(chosen, defects)))
        model, record = fit(chosen, replace(defects, **dict.fromkeys(AFTER_TRAINING, False)))
        result[name] = evaluate(model, *data[2:], defects) | record
        print(f"seed {seed}  {name:<42} chain {result[name]['chain']:.3f}", flush=True)
    return result


def summarise(runs: list[dict[str, Numbers]]) -> dict[str, Numbers]:
    """Of every row: mean and standard deviation over seeds, and the same of its difference from `published`."""
    table = {}
    for name in runs[0]:
        base, table[name] = "8 layers, published" if "8 layers" in name else "published", {}
        columns = {key: [run[name][key] for run in runs] for key in ("chain", "block_0")}
        columns["gain"] = [run[name]["chain"] - run[base]["chain"] for run in runs]
        for key, values in columns.items():
            table[name][key] = statistics.fmean(values)
            table[name][f"{key}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return table


def git(*arguments: str) -> str:
    """What git says of this checkout, or nothing."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()


def run_training(setup: Setup, seeds: int, out: Path | None) -> None:
    """Train all rows, print the table, write the record."""
    data = digits()
    runs = [run_seed(setup, seed, data) for seed in range(seeds)]
    table = summarise(runs)
    print(f"\n{'accuracy, mean (sd)':<42}{'chain':>15}{'block 0 alone':>15}{'chain - published':>19}")
    for name, row in table.items():
        cells = [f"{row[k]:{s}.3f} ({row[k + '_sd']:.3f})" for k, s in (("chain", ""), ("block_0", ""), ("gain", "+"))]
        print(f"{name:<42}{cells[0]:>15}{cells[1]:>15}{cells[2]:>19}")
    if out:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "sklearn": sklearn.__version__}
        record = {
            "table": table,
            "seeds": list(range(seeds)),
            "setup": asdict(setup),
            "versions": versions,
            "runs": runs,
        }
        record |= {"commit": git("rev-parse", "-q", "--verify", "HEAD") or None, "dirty": bool(git("status", "-s"))}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="What the defects of the published code do.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demonstrate", help="exact numbers for each defect")
    training = commands.add_parser("train", help="accuracy with all, none, and all but one of the defects")
    training.add_argument("--epochs", type=int, default=Setup.epochs)
    training.add_argument("--seeds", type=int, default=3)
    training.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "train":
        return run_training(Setup(epochs=arguments.epochs), arguments.seeds, arguments.out)
    for field in fields(Defects):
        for key, value in globals()[f"demonstrate_{field.name}"]().items():
            print(f"{field.name:<28}{key:<30}{value:>12.6g}")


if __name__ == "__main__":
    main()
