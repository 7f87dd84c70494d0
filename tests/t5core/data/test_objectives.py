"""Every objective in numpy against the SeqIO task that defines it, token for token."""

import json
import random

import numpy as np
import pytest

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import VocabularyRef
from t5core.data import worker
from t5core.data.objectives import Objective
from t5core.data.sources import TRAIN, TaskSource
from t5core.data.vocabulary import load_vocabulary

pytestmark = pytest.mark.xdist_group("seqio")

LENGTHS = {"inputs": 48, "targets": 64}
SEED = 77


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Texts from one token to several rows, some of them twice."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abc dé☃ fgh", k=draw.choice([1, 2, 3, 5, 20, 100, 400]))) + "x" for _ in range(250)]
    rows = [{"text": text, "note": str(number)} for number, text in enumerate([*texts, *texts[:50]])]
    file = tmp_path_factory.mktemp("text") / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def split(rows):
    return [tokens.tolist() for tokens in np.split(rows.values, np.cumsum(rows.sizes))[:-1]]


def in_numpy(config, reference, *, batch):
    source = TaskSource(config)
    objective = Objective(config, vocabulary=load_vocabulary(reference), lengths=LENGTHS)
    found = {side: [] for side in objective.sides}
    dropped, noted = {}, {}
    numbered = list(source.numbered(TRAIN))
    for begin in range(0, len(numbered), batch):
        numbers, documents = zip(*numbered[begin : begin + batch], strict=True)
        tokenised = objective.tokenise(documents, numbers=numbers)
        examples = objective.examples(tokenised, seed=SEED)
        for side in found:
            found[side] += split(examples.features[side])
        for total, more in ((dropped, tokenised.dropped.counts), (noted, examples.noted)):
            for reason, count in more.items():
                total[reason] = total.get(reason, 0) + count
    count = len(found["targets"])
    return [{side: rows[n] for side, rows in found.items()} for n in range(count)], dropped, noted


SUFFIX_OFTEN = [
    {"mode_token": "[R]", "noise_density": 0.15, "mean_noise_span_length": 3.0, "rate": 0.3},
    {"noise": "suffix", "noise_density": 0.4, "rate": 0.7},
]


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "span_corruption"},
        {"objective": "span_corruption", "noise_density": 0.5, "mean_noise_span_length": 1.0},
        {"objective": "prefix_lm"},
        {"objective": "lm"},
        {"objective": "ul2"},
        {"objective": "ul2", "denoisers": SUFFIX_OFTEN},
        {"objective": "supervised", "inputs": "q {{ {text} z", "targets": "{text}{note}"},
        {"objective": "prefix_lm", "filters": [{"min_tokens": 5}, {"max_tokens": 120}]},
        {
            "objective": "supervised",
            "inputs": "{note}",
            "targets": "{text}",
            "filters": [{"max_tokens": 99}, {"min_tokens": 2, "column": "inputs"}],
        },
    ],
    ids=lambda settings: "-".join(map(str, [settings["objective"], *list(settings)[1:]])),
)
def test_the_examples_are_those_of_seqio(file, settings):
    config = TaskConfig(name="t", files=[file], validation_fraction=0.1, **settings)
    extra_ids = 10 if "noise_density" in settings else 100
    size = 259 + extra_ids
    reference = VocabularyRef(uri="", kind="bytes", extra_ids=extra_ids, size=size, fingerprint="v")
    expected, counts = worker.call(f"{__package__}.seqio_probe:examples_of_task", config, reference, LENGTHS, SEED)
    found, dropped, noted = in_numpy(config, reference, batch=7)
    assert len(found) > 50
    assert found == expected
    assert (dropped, noted) == (counts.dropped, counts.noted)
    if "noise_density" in settings:
        assert noted


def test_batches_change_nothing(file):
    config = TaskConfig(name="t", files=[file], objective="ul2")
    reference = VocabularyRef(uri="", kind="bytes", extra_ids=100, size=359, fingerprint="v")
    assert in_numpy(config, reference, batch=1) == in_numpy(config, reference, batch=1000)


def test_a_filter_of_tokens_that_are_not_there_yet(file):
    config = TaskConfig(name="t", files=[file], objective="lm", filters=[{"min_tokens": 2, "column": "inputs"}])
    reference = VocabularyRef(uri="", kind="bytes", extra_ids=100, size=359, fingerprint="v")
    with pytest.raises(errors.ConfigError, match="counts the tokens of 'inputs', which objective 'lm' does not have"):
        Objective(config, vocabulary=load_vocabulary(reference), lengths=LENGTHS)
