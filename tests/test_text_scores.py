"""Scores over seeds: means and spreads, what held-out text gives at the samples' size, few and empty samples."""

import json
import statistics

import pytest
from judge_folders import write_judge
from test_text_quality import random_texts

from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.judge import generative_perplexity, load_judge
from diffusionblocks.evaluation.text_mauve import HiddenFeatures
from diffusionblocks.evaluation.text_quality import distinct_n, ngram_divergence
from diffusionblocks.evaluation.text_scores import DISTINCT, DIVERGENCES, ENTROPIES, REPEATED, score_texts

SAMPLES = [random_texts(seed, "samples", count=30, length=40) for seed in range(3)]
HELD_OUT = random_texts(0, "held out", count=4, length=3000)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return load_judge(str(write_judge(tmp_path_factory.mktemp("judge") / "tiny")))


def test_all_metrics_of_all_seeds_go_to_json():
    scores = score_texts(SAMPLES, HELD_OUT)
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert set(scores) == {"samples", "empty", "length", "compared_characters", "metrics", "notes"}
    assert (scores["samples"], scores["empty"], scores["notes"]) == ([30] * 3, [0] * 3, [])
    assert scores["length"] == {"mean": 40, "sd": 0, "values": [40] * 3, "held_out": 40}
    assert scores["compared_characters"] == 1200
    assert len(scores["metrics"]) == len(DIVERGENCES) + len(DISTINCT) + len(ENTROPIES) + len(REPEATED)
    for name, metric in scores["metrics"].items():
        assert set(metric) == {"mean", "sd", "values", "floor" if name.startswith("divergence") else "held_out"}
        assert metric["mean"] == pytest.approx(statistics.mean(metric["values"]))
        assert metric["sd"] == pytest.approx(statistics.stdev(metric["values"]))
    distinct = scores["metrics"]["distinct_words_2"]
    assert distinct["values"] == [distinct_n(texts, 2) for texts in SAMPLES]


def test_samples_of_the_held_out_distribution_are_at_the_floor_and_others_above():
    metrics = score_texts(SAMPLES, HELD_OUT)["metrics"]
    others = [[text.replace("a", "b") for text in texts] for texts in SAMPLES]
    worse = score_texts(others, HELD_OUT)["metrics"]
    for n in (1, 2, 3, 4):
        same, apart = metrics[f"divergence_characters_{n}"], worse[f"divergence_characters_{n}"]
        assert same["mean"] == pytest.approx(same["floor"], rel=0.6)
        assert apart["mean"] > 2 * same["mean"]
        assert apart["floor"] == same["floor"] > 0
    assert worse["entropy_characters"]["mean"] < worse["entropy_characters"]["held_out"]


def test_held_out_text_is_compared_at_the_size_of_the_samples():
    """Against all of the held-out text the divergence would be smaller: it has more n-grams."""
    metric = score_texts(SAMPLES, HELD_OUT)["metrics"]["divergence_characters_4"]
    assert metric["mean"] > 1.2 * statistics.mean(ngram_divergence(texts, HELD_OUT, 4) for texts in SAMPLES)


def test_little_held_out_text_cuts_the_samples_and_says_so():
    scores = score_texts(SAMPLES, [HELD_OUT[0][:800]])
    assert scores["compared_characters"] == 400
    assert "first 400 characters of each seed, of 1200 to 1200" in scores["notes"][0]
    assert scores["metrics"]["distinct_words_1"]["values"] == [distinct_n(texts[:10], 1) for texts in SAMPLES]


def test_short_held_out_texts_are_taken_whole():
    scores = score_texts(SAMPLES, ["abc d"] * 600)
    assert scores["length"]["held_out"] == 5
    assert scores["metrics"]["divergence_characters_2"]["floor"] == 0


def test_empty_samples_are_counted_and_left_out(judge):
    some = [["", *SAMPLES[0]], ["", *SAMPLES[1]], [*SAMPLES[2], "", ""]]
    scores, without = score_texts(some, HELD_OUT, judge), score_texts(SAMPLES, HELD_OUT, judge)
    assert (scores["samples"], scores["empty"]) == ([31, 31, 32], [1, 1, 2])
    assert scores["metrics"] == without["metrics"]
    assert scores["length"]["values"][2] == 40 * 30 / 32
    assert scores["notes"] == ["4 of 94 samples are empty; the metrics are of the others"]


@pytest.mark.parametrize("reference", [HELD_OUT, ["one text"]])
def test_nothing_but_empty_samples_has_no_values(judge, reference):
    scores = score_texts([["", ""]], reference, judge, HiddenFeatures(judge))
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    for metric in scores["metrics"].values():
        assert (metric["mean"], metric["sd"], metric["values"]) == (None, None, [None])
    assert scores["metrics"]["perplexity"]["held_out"] > 1
    assert any("2 of 2 samples are empty" in note for note in scores["notes"])
    assert any("0 texts on a side" in note for note in scores["notes"])


def test_a_seed_without_text_leaves_the_others_their_values():
    scores = score_texts([SAMPLES[0], [""], SAMPLES[2]], HELD_OUT)
    for metric in scores["metrics"].values():
        assert metric["values"][1] is None
        assert metric["mean"] == pytest.approx(statistics.mean(metric["values"][::2]))


def test_the_judge_s_numbers_are_those_of_each_seed(judge):
    scores = score_texts(SAMPLES, HELD_OUT, judge)
    each = [generative_perplexity(judge, texts) for texts in SAMPLES]
    for name in ("perplexity", "bits_per_character"):
        metric = scores["metrics"][name]
        assert metric["values"] == [row[name] for row in each]
        assert metric["held_out"] == pytest.approx(metric["mean"], rel=0.1)
    assert scores["judge"] == {
        **judge.describe(),
        "texts": [30] * 3,
        "tokens": [row["tokens"] for row in each],
        "empty": [0] * 3,
        "windows": [row["windows"] for row in each],
        "first_token": True,
    }


def test_mauve_tells_the_samples_from_others(judge):
    pytest.importorskip("mauve")
    features = HiddenFeatures(judge, "mean")
    scores = score_texts(SAMPLES[:2], HELD_OUT, features=features)
    far = score_texts([["zzzz " * 8] * 30, ["yy zz" * 8] * 30], HELD_OUT, features=features)["metrics"]["mauve"]
    near = scores["metrics"]["mauve"]
    assert far["mean"] < 0.1 < near["mean"] <= 1
    assert set(near) == {"mean", "sd", "values", "kmeans_sd", "held_out"}
    assert scores["features"] == {**features.describe(), "scaling": 5.0}
    assert scores["notes"] == ["mauve: 30 texts on a side; below 1000 only large differences say something"]
    assert scores == score_texts(SAMPLES[:2], HELD_OUT, features=features)


def test_few_samples_have_no_mauve(judge):
    scores = score_texts([SAMPLES[0][:19]] * 2, HELD_OUT, features=HiddenFeatures(judge))
    assert scores["metrics"]["mauve"]["mean"] is None
    assert scores["notes"] == ["mauve: not measured, 19 texts on a side and at least 20 are needed"]


def test_one_seed_has_no_spread():
    scores = score_texts(SAMPLES[:1], HELD_OUT)
    assert scores["notes"] == ["one sampling seed: no spread"]
    assert {metric["sd"] for metric in scores["metrics"].values()} == {None}


@pytest.mark.parametrize(
    ("samples", "reference", "message"),
    [
        ([], HELD_OUT, "samples of at least one seed"),
        ([["a"], []], HELD_OUT, r"samples_by_seed\[1\]"),
        (["a text"], HELD_OUT, r"samples_by_seed\[0\]"),
        (SAMPLES, [""], "not all empty"),
        (SAMPLES, "a text", "reference='a text': expected a list of texts"),
        (SAMPLES, [HELD_OUT[0][:79]], "two samples' length"),
    ],
)
def test_what_cannot_be_scored_is_refused(samples, reference, message):
    with pytest.raises(InputError, match=message):
        score_texts(samples, reference)
