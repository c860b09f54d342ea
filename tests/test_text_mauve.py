"""MAUVE of equal, disjoint and shifted sets, and the hidden states that it is taken from."""

import sys

import pytest
import torch
from judge_folders import CONTEXT, write_judge

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.judge import load_judge
from diffusionblocks.evaluation.text_mauve import HiddenFeatures, mauve_over_seeds, mauve_score
from diffusionblocks.randomness import keyed_generator

TEXTS = ["the rabbit", "a", "or not, é", "that is " * 5]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def judge(request, tmp_path_factory):
    return load_judge(str(write_judge(tmp_path_factory.mktemp("judge") / "tiny", request.param)))


def normal(*key: int | str, n: int = 100, f: int = 4) -> torch.Tensor:
    return torch.randn(n, f, generator=keyed_generator(*key))


@torch.no_grad()
def test_hidden_states_are_those_of_each_text_alone(judge):
    last, mean = HiddenFeatures(judge)(TEXTS, batch_size=3), HiddenFeatures(judge, "mean")(TEXTS, batch_size=2)
    assert last.shape == mean.shape == (4, 32)
    for k, text in enumerate(TEXTS):
        ids = torch.tensor([judge.tokenizer(text)["input_ids"][:CONTEXT]])
        states = judge.network(ids, output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(last[k], states[-1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mean[k], states.mean(dim=0), rtol=1e-4, atol=1e-4)


def test_features_say_what_they_are(judge):
    features = HiddenFeatures(judge, "mean")
    assert features.describe() == {"name": "tiny", "weights": judge.weights, "pooling": "mean"}
    assert features([]).shape == (0, 32)
    with pytest.raises(InputError, match=r"texts\[1\]='': expected a text of at least one token"):
        features(["a", ""])
    with pytest.raises(InputError, match="pooling='max'"):
        HiddenFeatures(judge, "max")  # type: ignore[arg-type]


class TestMauve:
    @pytest.fixture(autouse=True)
    def _needs_mauve(self):
        pytest.importorskip("mauve")

    def test_equal_sets_are_at_one_and_disjoint_ones_near_nought(self):
        p = normal(0, "p")
        assert mauve_score(p, p.clone()) == pytest.approx(1, abs=1e-6)
        assert mauve_score(normal(0, "near") + 20, normal(0, "far") * torch.tensor([1, 1, 1, -1]) - 20) < 0.02

    def test_samples_of_one_distribution_are_nearer_than_shifted_ones(self):
        p, q = normal(1, "p", n=200) + 3, normal(1, "q", n=200) + 3
        shift = torch.tensor([2.0, 0.0, 0.0, 0.0])
        same, shifted = (mauve_over_seeds(p, q + k * shift)["mean"] for k in (0, 1))
        assert same > 0.8 > shifted

    def test_a_seed_gives_the_same_value_and_seeds_spread(self):
        p, q = normal(2, "p") + 3, normal(2, "q") + 3.5
        before = torch.random.get_rng_state()
        first, again = (mauve_over_seeds(p, q, seeds=(0, 1, 2)) for _ in range(2))
        assert torch.equal(before, torch.random.get_rng_state())
        assert first == again
        assert first["values"][1] == mauve_score(p, q, seed=1)
        assert len(set(first["values"])) > 1
        assert first["sd"] == pytest.approx(torch.tensor(first["values"], dtype=torch.float64).std().item())
        assert mauve_over_seeds(p, q, seeds=(0,))["sd"] is None

    def test_scaling_and_buckets_are_handed_on(self):
        p, q = normal(3, "p") + 3, normal(3, "q") + 3.5
        assert mauve_score(p, q, scaling=1) > mauve_score(p, q, scaling=5) > mauve_score(p, q, scaling=20)
        assert mauve_score(p, q, num_buckets=2) > mauve_score(p, q, num_buckets=50)
        assert mauve_score(p, q) == mauve_score(p, q, num_buckets=10)

    @pytest.mark.parametrize("options", [{"num_buckets": 1}, {"num_buckets": 101}, {"scaling": 0}])
    def test_settings_out_of_range_are_refused(self, options):
        with pytest.raises(InputError, match=next(iter(options))):
            mauve_score(normal(4), normal(4), **options)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        (torch.zeros(19, 4), torch.zeros(20, 4), "p_features=19: expected at least 20 texts"),
        (torch.zeros(20, 4), torch.zeros(20, 5), "4 features a text"),
        (torch.zeros(20, 4), torch.full((20, 4), torch.nan), "q_features='not finite'"),
        (torch.zeros(20), torch.zeros(20, 4), r"floats of shape \(N, F\)"),
    ],
)
def test_features_that_cannot_be_compared_are_refused(p, q, message):
    with pytest.raises(InputError, match=message):
        mauve_score(p, q)


def test_seeds_and_the_package_are_needed(monkeypatch):
    with pytest.raises(InputError, match="seeds"):
        mauve_over_seeds(normal(5), normal(5), seeds=())
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(InputError, match=r"pip install 'diffusionblocks\[text-metrics\]'"):
        mauve_score(normal(5), normal(5))
