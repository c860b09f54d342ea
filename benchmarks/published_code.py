"""What the defects of the published ViT code and text of DiffusionBlocks do: switches of a small independent network.

"The paper" is Shing, Koyama, Akiba, "DiffusionBlocks", ICLR 2026, arXiv 2506.14202v4. No code of it or of ours is used.

    python benchmarks/published_code.py demonstrate                 # exact numbers, seconds
    python benchmarks/published_code.py train --out FILE.json       # effect on accuracy, scikit-learn digits, minutes

Left out: guidance that depends on `self.training` (a classifier has none); three random number generators, mixed.
Unlike the recipe of Appendix B: 6 layers of width 64, batch 32, some hundred updates, no dropout, no augmentation.
"""

import argparse
import functools
import json
import math
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import sklearn
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

Numbers = dict[str, float]
SIGMA_MIN, SIGMA_MAX, SIGMA_DATA = 0.002, 80.0, 0.5
BLOCKS, CLASSES, WIDTH, HEADS, PATCH, OVERLAP, BATCH, RATE = 3, 10, 64, 4, 2, 0.05, 32, 4e-3
LAW = statistics.NormalDist(-1.2, 1.2)  # of log sigma, section 3.3 of the paper after Karras et al. 2022


def quantile_sigmas(count: int) -> list[float]:
    """`count + 1` levels, noisiest first, `1 / count` of the law's mass between neighbours (section 3.3)."""
    top, bottom = LAW.cdf(math.log(SIGMA_MAX)), LAW.cdf(math.log(SIGMA_MIN))
    inner = [math.exp(LAW.inv_cdf(top - k * (top - bottom) / count)) for k in range(1, count)]
    return [SIGMA_MAX, *inner, SIGMA_MIN]


def route(sigma: Tensor) -> Tensor:
    """Blocks by comparing float32 sigmas with float64 edges: a sigma ON an edge goes wherever rounding sends it."""
    inner = torch.tensor(quantile_sigmas(BLOCKS)[1:-1], dtype=torch.float64)
    return (sigma.double().unsqueeze(-1) < inner).sum(-1)


def draw_sigma(block: int, count: int, generator: torch.Generator) -> Tensor:
    """Sigmas of one block's range, widened by `(hi / lo) ** gamma` on both sides (Appendix C) but not past the ends."""
    hi, lo = quantile_sigmas(BLOCKS)[block : block + 2]
    widen = (hi / lo) ** OVERLAP
    low, high = (LAW.cdf(math.log(s)) for s in (max(lo / widen, SIGMA_MIN), min(hi * widen, SIGMA_MAX)))
    mass = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.exp(LAW.mean + LAW.stdev * torch.special.ndtri(mass)).float()


@dataclass(frozen=True)
class Defects:
    """Which defects are present (the last is of the paper's text, the others of the code), and what each changes."""

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

    def weighted_mean(self, loss: Tensor, sigma: Tensor) -> Tensor:
        """EDM weight times loss. Defect: (N,) * (N, 1) is (N, N), and its mean is mean(loss) * mean(weight)."""
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
        return (loss * (weight.unsqueeze(1) if self.weight_broadcast else weight)).mean()

    def layer_counts(self, layers: int) -> list[int]:
        """Layers of each block; the first blocks take the remainder (defect: nobody does)."""
        each, rest = divmod(layers, BLOCKS)
        return [each + (b < rest and not self.drop_remainder_layers) for b in range(BLOCKS)]

    def plan(self, steps: int) -> list[int]:
        """Block of each step. Cure: integer arithmetic on the index of the step; its sigma is never consulted."""
        if self.route_by_float:
            return route(torch.tensor(quantile_sigmas(steps - 1))).tolist()
        return [min(i * BLOCKS // (steps - 1), BLOCKS - 1) for i in range(steps)]

    def training_block(self, drawn: int, sigma: Tensor) -> int:
        """Block that a training batch runs through: the drawn one (defect: the one most of its sigmas fall in)."""
        return int(torch.bincount(route(sigma)).argmax()) if self.route_by_vote else drawn

    def kept_batches(self, count: int, batch: int) -> list[slice]:
        """Batches of the validation set (defect: a last batch that is not full is dropped)."""
        last = count - count % batch if self.drop_last_validation_batch else count
        return [slice(i, min(i + batch, last)) for i in range(0, last, batch)]

    def noise_embedding(self, sigma: Tensor) -> Tensor:
        """Sinusoids made for 0..1000 (defect: fed with c_noise in [-1.6, 1.1]; cure: log sigma scaled to 0..1000)."""
        whole, scale = math.log(SIGMA_MAX / SIGMA_MIN), torch.logspace(0, -4, WIDTH // 2 + 1)[:-1]
        time = torch.log(sigma) / 4 if self.constant_noise_embedding else 1000 * torch.log(sigma / SIGMA_MIN) / whole
        return torch.cat([(time.unsqueeze(-1) * scale).cos(), (time.unsqueeze(-1) * scale).sin()], -1)

    def gate(self, raw: Tensor) -> Tensor:
        """AdaLN gate (defect: an extra SiLU, so that no gate is below -0.2785)."""
        return F.silu(raw) if self.gate_silu else raw

    def euler(self, z: Tensor, denoised: Tensor, sigma: float, following: float) -> Tensor:
        """One Euler step of the probability-flow ODE (defect: the opposite sign, as Eq. 3-4 print it)."""
        change = (following - sigma) / sigma * (z - denoised)
        return z - change if self.printed_euler_sign else z + change


class Layer(nn.Module):
    """Pre-norm transformer layer; the noise level sets its norms and gates (AdaLN, zero at the start)."""

    def __init__(self, defects: Defects):
        super().__init__()
        self.defects, self.modulation = defects, nn.Linear(WIDTH, 6 * WIDTH, bias=False)
        nn.init.zeros_(self.modulation.weight)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        x = F.layer_norm(h, (WIDTH,)) * (1 + scale1) + shift1
        h = h + self.defects.gate(gate1) * self.attention(x, x, x, need_weights=False)[0]
        return h + self.defects.gate(gate2) * self.mlp(F.layer_norm(h, (WIDTH,)) * (1 + scale2) + shift2)


class Parts(nn.Module):
    """What is not a layer: patch embedding, positions (the first is [CLS]), time embedder, norm and head."""

    def __init__(self, defects: Defects):
        super().__init__()
        self.defects, self.patch = defects, nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(0.02 * torch.randn((8 // PATCH) ** 2 + 2, WIDTH))
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def tokens(self, images: Tensor, z: Tensor) -> Tensor:
        """Tokens, the first of which is read out (Appendix B: [CLS]; defect: z in its place)."""
        patches, z = self.patch(images).flatten(2).transpose(1, 2), z.unsqueeze(1)
        joined = torch.cat([z, patches] if self.defects.cls_replaced else [torch.zeros_like(z), patches, z], 1)
        return joined + self.position[: joined.shape[1]]

    def forward(self, layers: nn.ModuleList, images: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        h = self.tokens(images, z * torch.rsqrt(sigma**2 + SIGMA_DATA**2).unsqueeze(1))  # c_in alone: logits, not y
        condition = self.time(self.defects.noise_embedding(sigma))
        for layer in layers:
            h = layer(h, condition)
        return self.head(self.norm(h[:, 0]))


class BlockViT(nn.Module):
    """ViT cut in blocks (Appendix B). Cure for shared parts: each block its own, and one frozen table of targets."""

    def __init__(self, defects: Defects, layers: int = 6, steps: int = 4):
        super().__init__()
        self.defects, shared = defects, defects.shared_parts
        self.parts = nn.ModuleList([Parts(defects)] * BLOCKS if shared else [Parts(defects) for _ in range(BLOCKS)])
        self.layers = nn.ModuleList(nn.ModuleList(map(Layer, [defects] * n)) for n in defects.layer_counts(layers))
        table = torch.randn(CLASSES, WIDTH)
        if not shared:  # rows of equal norm, whose mean is zero
            table = torch.linalg.qr(table.T)[0].T
            table = math.sqrt(WIDTH) * F.normalize(table - table.mean(0), dim=-1)
        self.table = nn.Parameter(table, requires_grad=shared)
        self.register_buffer("sigmas", torch.tensor(quantile_sigmas(steps - 1)), persistent=defects.step_buffer)

    def targets(self, raw: bool) -> Tensor:
        """Label embeddings (Appendix B), as they are stored or of unit norm."""
        return self.table if raw else F.normalize(self.table, dim=-1)

    def forward(self, block: int, images: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
        return self.parts[block](self.layers[block], images, z, sigma)

    def loss(self, x: Tensor, y: Tensor, drawn: int, generator: torch.Generator, weighted: bool = True):
        """Loss of a batch (EDM's weight was made for L2: an option), and if another block ran than the drawn one."""
        sigma = draw_sigma(drawn, len(x), generator)
        block = self.defects.training_block(drawn, sigma)
        z = self.targets(raw=False)[y] + sigma.unsqueeze(1) * torch.randn(len(x), WIDTH, generator=generator)
        loss = F.cross_entropy(self(block, x, z, sigma), y, reduction="none")
        return self.defects.weighted_mean(loss, sigma) if weighted else loss.mean(), block != drawn


def train(x: Tensor, y: Tensor, variant: tuple[Defects, int, bool], seed: int, epochs: int) -> tuple[BlockViT, Numbers]:
    """One block a batch, drawn uniformly, in `epochs` passes over the data for all blocks together (equal samples)."""
    torch.manual_seed(seed)
    net = BlockViT(*variant[:2])
    optimizer = torch.optim.AdamW(net.parameters())  # skips what has no gradient: the other blocks stand still
    generator, total, misrouted, loss = torch.Generator().manual_seed(seed), epochs * -(-len(x) // BATCH), 0, 0.0
    order = (rows for _ in range(epochs) for rows in torch.randperm(len(x), generator=generator).split(BATCH))
    for done, rows in enumerate(order):
        decay = 0.55 + 0.45 * math.cos(math.pi * done / total)  # to a tenth, as in Appendix B
        optimizer.param_groups[0]["lr"] = RATE * decay * min(1, 20 * (done + 1) / total)
        drawn = int(torch.randint(BLOCKS, (), generator=generator))
        batch_loss, other = net.loss(x[rows], y[rows], drawn, generator, weighted=variant[2])
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()
        optimizer.step()
        loss, misrouted = batch_loss.item(), misrouted + other
    return net, {"final_loss": loss, "misrouted_batches": misrouted, "updates": total}


@torch.no_grad()
def evaluate(x: Tensor, y: Tensor, net: BlockViT, defects: Defects, draws: int = 3) -> Numbers:
    """Accuracy of the chain from noise (Eq. 3, sign as in `defects`) and of its first step, block 0, alone."""
    levels, used = net.get_buffer("sigmas").tolist(), net.targets(defects.raw_targets_in_sampling)
    generator, chain, first, seen = torch.Generator().manual_seed(1), 0, 0, 0
    for rows in defects.kept_batches(len(x), 128) * draws:
        z, right = SIGMA_MAX * torch.randn(len(x[rows]), WIDTH, generator=generator), []
        for sigma, following, block in zip(levels, [*levels[1:], 0.0], defects.plan(len(levels)), strict=True):
            logits = net(block, x[rows], z, torch.full((len(z),), sigma))
            right.append(int((logits.argmax(-1) == y[rows]).sum()))
            z = defects.euler(z, logits.softmax(-1) @ used, sigma, following)
        first, chain, seen = first + right[0], chain + right[-1], seen + len(z)
    return {"chain": chain / seen, "block_0": first / seen, "images": seen // draws}


def compared(measure: Callable[[Defects], Numbers]) -> Callable[[], Numbers]:
    """Run a measurement with its defect alone (`published_`) and without any (`cured_`), from the same seed."""

    def demonstrate() -> Numbers:
        result, name = {}, measure.__name__.removeprefix("demonstrate_")
        for kind, defects in (("published", Defects(**{name: True})), ("cured", Defects())):
            torch.manual_seed(0)
            result |= {f"{kind}_{key}": value for key, value in measure(defects).items()}
        return result

    return functools.update_wrapper(demonstrate, measure)


@compared
def demonstrate_weight_broadcast(defects: Defects) -> Numbers:
    """The weighted loss, and mean(loss) * mean(weight), which it should not be."""
    loss, sigma = torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.tensor([8.0, 1.0, 0.5, 0.1])
    product = loss.mean() * Defects().weighted_mean(torch.ones(4), sigma)
    return {"loss": defects.weighted_mean(loss, sigma).item(), "product_of_means": product.item()}


@compared
def demonstrate_drop_remainder_layers(defects: Defects) -> Numbers:
    """Layers kept of L = 10 with B = 3."""
    return {"layers": sum(defects.layer_counts(10))}


@compared
def demonstrate_route_by_float(defects: Defects) -> Numbers:
    """Steps that each of 3 blocks runs of 4, whose sigmas are the edges themselves (section 3.3)."""
    return {f"steps_of_block_{block}": defects.plan(4).count(block) for block in range(BLOCKS)}


@compared
def demonstrate_route_by_vote(defects: Defects) -> Numbers:
    """Share of block 1's batches that another block runs, for batches of 1 and of 128 (overlap 0.05, Appendix C)."""
    draws = draw_sigma(1, 64 * 128, torch.Generator().manual_seed(0))
    lost = {n: [float(defects.training_block(1, sigma) != 1) for sigma in draws.split(n)] for n in (1, 128)}
    return {f"batch_{n}": statistics.fmean(values) for n, values in lost.items()}


@compared
def demonstrate_raw_targets_in_sampling(defects: Defects) -> Numbers:
    """Root-mean-square norm of the targets in training and in sampling, for a standard normal table of width 64."""
    net = BlockViT(Defects(shared_parts=True))
    used = {"training": net.targets(False), "sampling": net.targets(defects.raw_targets_in_sampling)}
    return {name: table.square().sum(-1).mean().sqrt().item() for name, table in used.items()}


@compared
def demonstrate_shared_parts(defects: Defects) -> Numbers:
    """Largest change of the logits of block 1 that one training step of block 0 makes."""
    x, y, net = torch.linspace(0, 1, 8 * 64).view(8, 1, 8, 8), torch.arange(8), BlockViT(defects)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    probe = (1, x, torch.zeros(8, WIDTH), torch.full((8,), 0.3))
    before = net(*probe)
    net.loss(x, y, 0, torch.Generator().manual_seed(0))[0].backward()
    optimizer.step()
    return {"change": (net(*probe) - before).abs().max().item()}


@compared
def demonstrate_step_buffer(defects: Defects) -> Numbers:
    """Whether (1 or 0) weights saved for 4 steps load into the same network set to 8 steps."""
    try:
        BlockViT(defects, steps=8).load_state_dict(BlockViT(defects, steps=4).state_dict())
        return {"loads": 1}
    except RuntimeError:
        return {"loads": 0}


@compared
def demonstrate_drop_last_validation_batch(defects: Defects) -> Numbers:
    """Images evaluated of 360 held out, in batches of 128."""
    return {"images": sum(rows.stop - rows.start for rows in defects.kept_batches(360, 128))}


@compared
def demonstrate_constant_noise_embedding(defects: Defects) -> Numbers:
    """Largest and smallest distance, relative to the norm, of neighbours among 32 levels even in log sigma."""
    e = defects.noise_embedding(torch.logspace(math.log10(SIGMA_MIN), math.log10(SIGMA_MAX), 32))
    apart = (e[1:] - e[:-1]).norm(dim=-1) / e[:-1].norm(dim=-1)
    return {"largest": apart.max().item(), "smallest": apart.min().item()}


@compared
def demonstrate_gate_silu(defects: Defects) -> Numbers:
    """Lowest gate for raw values in [-8, 8], and the slope at zero, where the gates start."""
    low, high = defects.gate(torch.tensor([-1e-3, 1e-3])).tolist()
    return {"lowest": defects.gate(torch.linspace(-8, 8, 16001)).min().item(), "slope": (high - low) / 2e-3}


@compared
def demonstrate_cls_replaced(defects: Defects) -> Numbers:
    """Tokens, and how far z moves the logits of a fresh network: past its layers (gates at zero), the image unseen."""
    x, z, net = torch.rand(8, 1, 8, 8), torch.randn(2, 8, WIDTH), BlockViT(defects)
    one, other = (net(0, x, each, torch.full((8,), 0.3)) for each in z)
    return {"tokens": Parts(defects).tokens(x, z[0]).shape[1], "change": (one - other).abs().max().item()}


@compared
def demonstrate_printed_euler_sign(defects: Defects) -> Numbers:
    """Noise left of sigma_max at sigma_min, after 3 Euler steps with a perfect denoiser (Eq. 3-4)."""
    z = torch.tensor(SIGMA_MAX, dtype=torch.float64)
    for step in range(3):
        z = defects.euler(z, torch.zeros_like(z), *quantile_sigmas(3)[step : step + 2])
    return {"noise": z.item()}


def run_seed(seed: int, epochs: int) -> dict[str, Numbers]:
    """All rows of the table for one seed, on a fixed split of scikit-learn's digits: 1437 to train, 360 held out."""
    none, full, trained = Defects.none(), Defects.published(), {}
    rows = {"published": (full, 6, True), "none": (none, 6, True), "none, unweighted": (none, 6, False)}
    for name in (field.name for field in fields(Defects)[:-1]):  # 2 of 8 layers dropped are the 6 of `published`
        rows[f"without {name}"] = replace(full, **{name: False}), 8 if name == "drop_remainder_layers" else 6, True
    rows["published with printed_euler_sign"] = (replace(full, printed_euler_sign=True), 6, True)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = (torch.as_tensor(part)[order] for part in load_digits(return_X_y=True))
    x, result = x.float().view(-1, 1, 8, 8) / 8 - 1, {}
    for name, (defects, layers, weighted) in rows.items():
        # What does not touch the weights is left out, so that rows which differ in nothing else share one network.
        key = replace(defects, route_by_float=False, raw_targets_in_sampling=False, step_buffer=False)
        key = replace(key, drop_last_validation_batch=False, printed_euler_sign=False), layers, weighted
        if key not in trained:
            trained[key] = train(x[360:], y[360:], key, seed, epochs)
        result[name] = evaluate(x[:360], y[:360], trained[key][0], defects) | trained[key][1]
        print(f"seed {seed}  {name:<42} chain {result[name]['chain']:.3f}", flush=True)
    return result


def summarise(runs: list[dict[str, Numbers]]) -> dict[str, Numbers]:
    """Of every row: mean and standard deviation over seeds, and the same of its difference from `published`."""
    table = {}
    for name in runs[0]:
        columns = {key: [run[name][key] for run in runs] for key in ("chain", "block_0")}
        columns["gain"] = [run[name]["chain"] - run["published"]["chain"] for run in runs]
        table[name] = {key: statistics.fmean(values) for key, values in columns.items()}
        for key, values in columns.items():
            table[name][f"{key}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:<42}" + "".join(f"{table[name][k]:>10.3f} ({table[name][k + '_sd']:.3f})" for k in columns))
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="What the defects of the published code do.")
    parser.add_argument("command", choices=("demonstrate", "train"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the figures of `train`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "demonstrate":
        for name, value in ((f.name, v) for f in fields(Defects) for v in globals()[f"demonstrate_{f.name}"]().items()):
            print(f"{name:<28}{value[0]:<30}{value[1]:>12.6g}")
        return
    runs = [run_seed(seed, arguments.epochs) for seed in range(arguments.seeds)]
    print("accuracy, mean (standard deviation over seeds):  chain, block 0 alone, chain minus published")
    record = {"table": summarise(runs), "epochs": arguments.epochs, "seeds": [*range(arguments.seeds)], "runs": runs}
    record["versions"] = {m.__name__: m.__version__ for m in (torch, sklearn)} | {"python": platform.python_version()}
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "--quiet", "HEAD"]
    record["commit"] = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
