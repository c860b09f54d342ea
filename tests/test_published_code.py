"""The defects of the published code, as `benchmarks/published_code.py` shows them, against what theory says of each."""

import ast
import importlib.util
import math
import sys
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "published_code.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("published_code", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_code"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)
    del sys.modules["published_code"]


def test_script_is_independent_of_the_library():
    tree = ast.parse(SCRIPT.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("diffusionblocks") for name in imported)


def test_every_defect_is_demonstrated_and_the_sets_are_what_they_say(script):
    names = [field.name for field in fields(script.Defects)]
    assert all(callable(getattr(script, f"demonstrate_{name}")) for name in names)
    assert not any(asdict(script.Defects.none()).values())
    assert [name for name, on in asdict(script.Defects.published()).items() if not on] == ["printed_euler_sign"]


def test_edges_are_those_of_the_law(script):
    assert script.quantile_sigmas(3) == pytest.approx([80, 0.505, 0.18, 0.002], rel=3e-3)
    assert script.quantile_sigmas(4) == pytest.approx([80, 0.677, 0.301, 0.134, 0.002], rel=3e-3)


def test_weight_broadcast_gives_the_product_of_means(script):
    losses, sigmas = [1.0, 2.0, 3.0, 6.0], [8.0, 1.0, 0.5, 0.1]
    weights = [1 / 0.25 + 1 / sigma**2 for sigma in sigmas]
    found = script.demonstrate_weight_broadcast()
    assert found["published_loss"] == pytest.approx(sum(losses) / 4 * sum(weights) / 4, rel=1e-5)
    assert found["published_product_of_means"] == pytest.approx(found["published_loss"], rel=1e-5)
    assert found["cured_loss"] == pytest.approx(sum(a * b for a, b in zip(losses, weights, strict=True)) / 4, rel=1e-5)


def test_remainder_layers_are_dropped_or_kept(script):
    assert script.demonstrate_drop_remainder_layers() == {"published_layers": 9, "cured_layers": 10}
    assert script.Defects.none().layer_counts(10) == [4, 3, 3]
    assert script.Defects.none().layer_counts(6) == script.Defects.published().layer_counts(6) == [2, 2, 2]


def test_float_routing_never_runs_block_1_in_4_steps(script):
    found = script.demonstrate_route_by_float()
    assert [found[f"published_steps_of_block_{block}"] for block in range(3)] == [2, 0, 2]
    assert [found[f"cured_steps_of_block_{block}"] for block in range(3)] == [1, 1, 2]


@pytest.mark.parametrize("steps", [4, 5, 8, 13, 50])
def test_plan_runs_every_block_in_order_and_inside_its_range(script, steps):
    blocks, edges = script.Defects.none().plan(steps), script.quantile_sigmas(3)
    assert blocks == sorted(blocks)
    assert set(blocks) == {0, 1, 2}
    for sigma, block in zip(script.quantile_sigmas(steps - 1), blocks, strict=True):
        assert edges[block + 1] * (1 - 1e-9) <= sigma <= edges[block] * (1 + 1e-9)


def test_vote_loses_the_drawn_block_as_often_as_the_overlap_says(script):
    law, edges = NormalDist(-1.2, 1.2), script.quantile_sigmas(3)
    high, low = math.log(edges[1]), math.log(edges[2])
    margin = 0.05 * (high - low)
    share = 1 - (law.cdf(high) - law.cdf(low)) / (law.cdf(high + margin) - law.cdf(low - margin))
    found = script.demonstrate_route_by_vote()
    assert found["published_batch_1"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 8192))
    assert found["published_batch_128"] == found["cured_batch_1"] == found["cured_batch_128"] == 0


def test_raw_targets_are_longer_by_the_root_of_the_width(script):
    found = script.demonstrate_raw_targets_in_sampling()
    assert found["published_training"] == found["cured_training"] == pytest.approx(1, rel=1e-5)
    assert found["published_sampling"] == pytest.approx(8, rel=4 / math.sqrt(2 * 640))
    assert found["cured_sampling"] == pytest.approx(1, rel=1e-5)


def test_frozen_targets_are_centred_and_of_equal_norm(script):
    net = script.BlockViT(script.Defects.none())
    assert not net.table.requires_grad
    assert net.targets(raw=False).mean(0).abs().max() < 1e-6
    assert net.targets(raw=False).norm(dim=1) == pytest.approx(torch.ones(10), rel=1e-5)


def test_a_step_of_one_block_changes_another_only_through_shared_parts(script):
    found = script.demonstrate_shared_parts()
    assert found["published_change"] > 0.01
    assert found["cured_change"] == 0


def test_step_buffer_ties_a_checkpoint_to_its_number_of_steps(script):
    assert script.demonstrate_step_buffer() == {"published_loads": 0, "cured_loads": 1}


def test_last_validation_batch_is_dropped_or_kept(script):
    found = script.demonstrate_drop_last_validation_batch()
    assert found == {"published_images": 360 // 128 * 128, "cured_images": 360}


def test_published_noise_embedding_is_nearly_constant(script):
    step = math.log(80 / 0.002) / 31
    squares = {
        "published": [2 - 2 * math.cos(step / 4 * 10 ** (-i / 8)) for i in range(32)],
        "cured": [2 - 2 * math.cos(1000 / 31 * 10 ** (-i / 8)) for i in range(32)],
    }
    found = script.demonstrate_constant_noise_embedding()
    for kind, values in squares.items():
        theory = math.sqrt(sum(values) / 32)
        assert found[f"{kind}_largest"] == pytest.approx(theory, rel=1e-3)
        assert found[f"{kind}_smallest"] == pytest.approx(theory, rel=1e-3)
    assert found["published_largest"] < 0.03
    assert found["cured_smallest"] > 0.5


def test_silu_bounds_the_gate_and_halves_its_slope(script):
    found = script.demonstrate_gate_silu()
    assert found["published_lowest"] == pytest.approx(-0.278465, abs=1e-5)  # minus W(1/e), at x = -1.2785
    assert found["published_slope"] == pytest.approx(0.5, abs=1e-4)
    assert found["cured_lowest"] == -8
    assert found["cured_slope"] == pytest.approx(1, abs=1e-4)


def test_z_in_the_place_of_cls_reaches_the_head_past_the_layers(script):
    found = script.demonstrate_cls_replaced()
    assert (found["published_tokens"], found["cured_tokens"]) == (17, 18)
    assert found["published_change"] > 0.1
    assert found["cured_change"] == 0


def test_printed_sign_makes_noise_grow(script):
    edges = script.quantile_sigmas(3)
    growth = math.prod(2 - after / before for before, after in pairwise(edges))
    found = script.demonstrate_printed_euler_sign()
    assert found["published_noise"] == pytest.approx(80 * growth)
    assert found["published_noise"] > 80
    assert found["cured_noise"] == pytest.approx(0.002)


@pytest.mark.parametrize("kind", ["published", "none"])
def test_tiny_training_run_is_finite_and_repeats(script, kind):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(140, 1, 8, 8, generator=generator), torch.arange(140) % 10
    defects = getattr(script.Defects, kind)()
    (net, record), (_, again) = (script.train(x, y, (defects, 6, True), seed=0, epochs=2) for _ in range(2))
    assert record == again
    assert record["updates"] == 10
    assert math.isfinite(record["final_loss"])
    assert all(p.isfinite().all() for p in net.parameters())
    figures = script.evaluate(x, y, net, defects, draws=1)
    assert figures["images"] == (128 if kind == "published" else 140)
    assert 0 <= figures["chain"] <= 1
