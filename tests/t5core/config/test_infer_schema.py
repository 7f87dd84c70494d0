"""Settings of a batch prediction that contradict each other, or could not take effect, are one line."""

import pytest

from t5core import errors
from t5core.config import load
from t5core.config.infer_schema import InferConfig


def config(**settings):
    source = {"files": ["a.jsonl"], **settings.pop("source", {})}
    return load.validate({"checkpoint": "runs/x", "source": source, **settings}, InferConfig, origin="test")


def refused(**settings):
    with pytest.raises(errors.ConfigError) as refusal:
        config(**settings)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": {"builtin": "python_docs"}}, "the source names files and builtin; name one of"),
        ({"source": {"files": []}}, "the source names nothing; name one of files, builtin and task"),
        ({"source": {"module": "m"}}, "module='m' has no effect on a source without a SeqIO task; remove it"),
        ({"source": {"files": [], "task": "t"}}, "the SeqIO task 't' needs the module that registers it; set module"),
        (
            {"source": {"files": [], "task": "t", "module": "m", "inputs": "{x}"}},
            "inputs='{x}' has no effect on a SeqIO task, which has its own features; remove it",
        ),
        ({"source": {"targets": "{t}"}}, "source.targets='{t}' has no effect on predictions"),
        ({"source": {"inputs": None}}, "source.inputs is missing, and there is nothing to predict from"),
        ({"mode": "score"}, "source.targets is missing, and there is nothing to score"),
        (
            {"mode": "score", "source": {"targets": "{t}"}, "decode": {"strategy": "beam"}},
            "decode has no effect on scores; set mode: predict, or remove it",
        ),
        ({"decode": {"temperature": 0.5}}, "temperature=0.5 has no effect on greedy decoding; set strategy: sample"),
        ({"decode": {"seed": 3}}, "seed=3 has no effect on greedy decoding; set strategy: sample"),
        ({"decode": {"num_decodes": 2}}, "num_decodes=2 asks for different predictions, and greedy decoding gives one"),
        (
            {"decode": {"strategy": "sample", "temperature": 0.0, "num_decodes": 2}},
            "and temperature=0 gives one",
        ),
        (
            {"decode": {"strategy": "beam", "num_decodes": 5}},
            "num_decodes=5 are more than the beams; set beam_size=5",
        ),
        ({"decode": {"max_examples": 5}}, "unknown key 'decode.max_examples' (value 5)"),
        ({"vocabulary": {}}, "needs its .model file; set path, or kind: bytes"),
        ({"vocabulary": {"kind": "bytes", "path": "x"}}, "path='x' has no effect on bytes"),
        ({"feature_lengths": {"inputs": 3}}, "feature_lengths: has no 'targets'; add it, in tokens"),
        ({"feature_lengths": {"input": 3, "targets": 3}}, "unknown feature 'input'; did you mean 'inputs'?"),
        ({"max_bad_rows": -1}, "max_bad_rows=-1 is not valid"),
        ({"run": {"name": "a/b"}}, "'a/b' cannot name a folder"),
    ],
)
def test_a_contradiction_is_one_line(settings, message):
    assert message in refused(**settings)


def test_what_makes_sense_is_taken():
    assert config().run.name == "infer"
    assert config(decode={"strategy": "beam", "num_decodes": 4}).decode.beam_size == 4
    assert config(decode={"strategy": "sample", "seed": 7, "num_decodes": 3}).decode.seed == 7
    assert config(mode="score", source={"inputs": None, "targets": "{t}"}).source.inputs is None
    task = {"files": [], "task": "t", "module": "m", "split": "test"}
    assert config(mode="score", source=task).source.split == "test"
