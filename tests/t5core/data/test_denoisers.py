"""UL2's mixture of denoisers: exact noise for each, mode tokens, rates, and no token lost."""

import collections

import pytest

from t5core import errors
from t5core.config.preprocessing_schema import UL2_DENOISERS, DenoiserConfig
from t5core.data import store
from t5core.data.noise import SpanCorruption, SuffixNoise, fitting_length, noise_of
from tests.t5core.data.task_runs import made, rows_of
from tests.t5core.data.test_preprocessors import (
    EOS,
    EXTRA_IDS,
    FIRST_SENTINEL,
    LENGTHS,
    is_sentinel,
    preprocessed,
    restored,
    sentencepiece_with_sentinels,
    text,
)

__all__ = ["sentencepiece_with_sentinels"]
pytestmark = pytest.mark.xdist_group("seqio")

# Each with a mode token of its own, a single character that no text here begins with.
MARKED = [d.model_copy(update={"mode_token": chr(ord("A") + n)}) for n, d in enumerate(UL2_DENOISERS)]
MARKS = {ord(d.mode_token) + 3: d for d in MARKED}
TEXTS = [[3] * 5 + text(length, start=7 * length) for length in (1, 2, 30, 61, 200, 700, 1500)]


def denoised(texts, denoisers=MARKED, **settings):
    return preprocessed("mixture_of_denoisers", texts, denoisers=list(denoisers), **settings)


@pytest.fixture(scope="module")
def examples():
    return denoised(TEXTS)


def original(inputs, targets):
    """Returns the tokens that an example with a mode token was made from."""
    if MARKS[inputs[0]].noise == "suffix":
        return inputs[1:-1] + targets[:-1]
    return restored(inputs[1:-1], targets[:-1])


def test_the_paper_s_denoisers():
    table = [(d.mode_token, d.noise, d.noise_density, d.mean_noise_span_length, d.rate) for d in UL2_DENOISERS]
    assert table == [
        ("[R]", "spans", 0.15, 3.0, 1.0),
        ("[R]", "spans", 0.15, 8.0, 1.0),
        ("[S]", "suffix", 0.25, None, 1.0),
        ("[X]", "spans", 0.5, 3.0, 1.0),
        ("[X]", "spans", 0.5, 8.0, 1.0),
        ("[X]", "spans", 0.15, 64.0, 1.0),
        ("[X]", "spans", 0.5, 64.0, 1.0),
    ]


def test_no_token_is_lost_and_the_order_stays(examples):
    joined = [token for inputs, targets in examples for token in original(inputs, targets)]
    assert joined == [token for whole in TEXTS for token in whole]
    assert all(inputs[-1] == targets[-1] == EOS for inputs, targets in examples)


def test_the_noise_of_each_is_exact(examples):
    for inputs, targets in examples:
        denoiser, size = MARKS[inputs[0]], len(original(inputs, targets))
        noise, spans = noise_of(denoiser, sentinels=EXTRA_IDS, task="t").counts(size)
        assert sum(not is_sentinel(token) for token in targets[:-1]) == noise
        found = [token for token in inputs if is_sentinel(token)]
        assert found == ([] if denoiser.noise == "suffix" else [FIRST_SENTINEL - n for n in range(spans)])


def test_pieces_are_as_long_as_fits(examples):
    assert all(len(inputs) <= LENGTHS["inputs"] and len(targets) <= LENGTHS["targets"] for inputs, targets in examples)
    lengths = {
        mark: fitting_length(
            noise_of(denoiser, sentinels=EXTRA_IDS, task="t"), inputs_length=LENGTHS["inputs"] - 1, targets_length=64
        )
        for mark, denoiser in MARKS.items()
    }
    begun, expected = 0, [len(whole) for whole in TEXTS]
    for inputs, targets in examples:
        size = len(original(inputs, targets))
        begun += size
        assert size == lengths[inputs[0]] or begun == expected[0]
        if begun == expected[0]:
            begun, expected = 0, expected[1:]


def test_rates_say_how_often_each_is_drawn():
    denoisers = [MARKED[0], MARKED[2].model_copy(update={"rate": 3.0})]
    found = collections.Counter(inputs[0] for inputs, _ in denoised([text(20, start=n) for n in range(600)], denoisers))
    share = found[ord("C") + 3] / found.total()
    assert found.total() == 600
    assert share == pytest.approx(0.75, abs=0.06)


def test_neither_shards_nor_another_reading_change_anything_but_the_seed_does(examples):
    assert sorted(denoised(TEXTS, shards=3)) == sorted(examples)
    other = denoised(TEXTS, seed=1)
    assert [inputs[0] for inputs, _ in other] != [inputs[0] for inputs, _ in examples]


def test_a_mode_token_is_spelt_by_the_vocabulary():
    denoiser = DenoiserConfig(mode_token="[S]", noise="suffix", noise_density=0.5)
    ((inputs, targets),) = denoised([[100, 101, 102, 103]], [denoiser])
    assert inputs == [*(byte + 3 for byte in b"[S]"), 100, 101, EOS]
    assert targets == [102, 103, EOS]
    ((inputs, _),) = denoised([[100, 101]], [denoiser.model_copy(update={"mode_token": ""})])
    assert inputs == [100, EOS]


def test_a_mode_token_that_cannot_be_spelt(sentencepiece_with_sentinels):
    denoiser = DenoiserConfig(mode_token="[☃]", noise="suffix", noise_density=0.5)
    with pytest.raises(errors.ConfigError, match=r"^task 'named': the vocabulary cannot spell mode_token='\[☃\]'; use"):
        denoised([text(9)], [denoiser], extra_ids=0, model=sentencepiece_with_sentinels, name="named")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"extra_ids": 0}, "task 'named': span corruption needs sentinels, but the vocabulary has 0 extra ids; set "),
        (
            {"lengths": {"inputs": 4, "targets": 64}},
            "task 'named': feature lengths inputs=4, targets=64 hold no text corrupted by denoiser '[R]' with "
            "noise_density=0.15, whose mode token takes 3; make them longer",
        ),
    ],
)
def test_what_cannot_work(settings, message):
    with pytest.raises(errors.ConfigError) as caught:
        denoised([text(9)], UL2_DENOISERS, name="named", **settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("length", range(1, 40))
def test_a_suffix_leaves_a_token_on_each_side(length):
    noise, _ = SuffixNoise(noise_density=0.25).counts(length)
    assert noise == (1 if length == 1 else min(max(1, round(length / 4)), length - 1))


def test_spans_are_capped_only_where_sentinels_run_out():
    noise = SpanCorruption(noise_density=0.5, mean_span_length=1.0, sentinels=4)
    assert [noise.is_capped(length) for length in (1, 2, 8, 9, 10, 30)] == [False, False, False, False, True, True]


def test_a_task_of_the_configuration_counts_capped_spans(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh\n" * 3 + "abcdefghijklmnopqrst\n" * 5)
    task = {"name": "t", "files": [f"{tmp_path}/a.txt"], "objective": "ul2", "validation_fraction": 0}
    spans = {"mode_token": "[X]", "noise_density": 0.5, "mean_noise_span_length": 2.0}
    settings = {"vocabulary": {"kind": "bytes", "extra_ids": 2}, "allow_missing_split": True}
    dataset = made(tmp_path, [{**task, "denoisers": [spans]}], **settings)
    assert all(row[:3].tolist() == [byte + 3 for byte in b"[X]"] for row in rows_of(dataset)["inputs"])
    assert store.read_manifest(dataset.uri).splits["train"].noted == {"spans capped by the number of sentinels": 5}
    default = made(tmp_path, [task], passes=3, **settings)
    assert default.reason.startswith("objective and passes changed since fingerprint")
