"""Metrics on texts, by name or by the path of a user's own function.

A metric is a function `(targets, predictions) -> {name: value}` over all examples at once, as in SeqIO. Those here give
percentages: 0 is worst, 100 best.
"""

from __future__ import annotations

import collections
import inspect
import re
import string
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import editdistance

from t5core import errors, named

MetricFunction = Callable[..., Mapping[str, float]]

_CHRF_ORDER, _CHRF_BETA = 6, 2.0


def sequence_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the share of predictions that equal their target, white space at the ends aside."""
    return {"sequence_accuracy": _mean(float(t.strip() == p.strip()) for t, p in _pairs(targets, predictions))}


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the share of predictions that equal their target once both are normalised.

    Source: SQuAD's evaluation: case, punctuation, articles and the amount of white space do not count.
    """
    return {"exact_match": _mean(float(_words(t) == _words(p)) for t, p in _pairs(targets, predictions))}


def token_f1(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the mean F1 of the words that prediction and target share, both normalised as for `exact_match`."""
    return {"token_f1": _mean(_f1(_shared(_words(t), _words(p))) for t, p in _pairs(targets, predictions))}


def edit_similarity(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the mean of 1 - (edits between the two) / (length of the longer one), in characters."""

    def similarity(target: str, prediction: str) -> float:
        longest = max(len(target), len(prediction))
        return 1.0 - editdistance.eval(target, prediction) / longest if longest else 1.0

    return {"edit_similarity": _mean(similarity(t, p) for t, p in _pairs(targets, predictions))}


def rouge_l(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the mean F1 of the longest common subsequence of words.

    Source: ROUGE-L (Lin, 2004) for sentences, lower case, letters and digits only, without stemming.
    """

    def words(text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())

    def score(target: list[str], prediction: list[str]) -> float:
        return _f1((_longest_common_subsequence(target, prediction), len(target), len(prediction)))

    return {"rouge_l": _mean(score(words(t), words(p)) for t, p in _pairs(targets, predictions))}


def chrf(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns chrF over the corpus: F2 of the character n-grams up to 6, white space left out.

    Source: Popović (2015). Orders that neither side has do not count.
    """
    totals = [[0, 0, 0] for _ in range(_CHRF_ORDER)]
    for target, prediction in _pairs(targets, predictions):
        sides = ["".join(text.split()) for text in (target, prediction)]
        for order, total in enumerate(totals, start=1):
            for place, count in enumerate(_shared(*(_ngrams(side, order) for side in sides))):
                total[place] += count
    scores = [_f1((shared, wanted, found), beta=_CHRF_BETA) for shared, wanted, found in totals if wanted or found]
    return {"chrf": _mean(scores or [1.0] * bool(targets))}


METRICS: dict[str, MetricFunction] = {
    function.__name__: function
    for function in (chrf, edit_similarity, exact_match, rouge_l, sequence_accuracy, token_f1)
}


def metric_function(name: str) -> MetricFunction:
    """Returns the metric called `name`, or the function at the dotted path `name`.

    Raises:
      ConfigError: there is no such metric or function, or its arguments are not (targets, predictions).
    """
    if name in METRICS:
        return METRICS[name]
    if "." not in name:
        raise errors.ConfigError(f"{errors.unknown_name('metric', name, METRICS)}; or give module.function")
    function = named.given(name, told=f"metric {name!r}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(f"metric {name!r} cannot be used: {error}; give module.function") from error
    arguments = [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    if arguments != ["targets", "predictions"]:
        raise errors.ConfigError(
            f"metric {name!r} takes ({', '.join(arguments)}); make it a function of (targets, predictions)"
        )
    return function


def compute(names: Sequence[str], *, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the values of several metrics together.

    Raises:
      ConfigError: a metric is unknown, or two give a value of the same name.
    """
    values: dict[str, float] = {}
    for name in names:
        merge(values, metric_function(name)(targets, predictions), metric=name)
    return values


def merge(values: dict[str, float], more: Mapping[str, float], *, metric: str) -> None:
    """Adds the values of one metric to `values`.

    Raises:
      ConfigError: there is a value of that name already.
    """
    for key, value in more.items():
        if key in values:
            raise errors.ConfigError(f"metric {metric!r} gives {key!r}, and so does another metric; remove one")
        values[key] = float(value)


def _pairs(targets: Sequence[str], predictions: Sequence[str]) -> list[tuple[str, str]]:
    assert len(targets) == len(predictions), f"{len(targets)} targets, {len(predictions)} predictions"
    return list(zip(targets, predictions, strict=True))


def _mean(shares: Iterable[float]) -> float:
    values = list(shares)
    return 100.0 * sum(values) / len(values) if values else 0.0


def _words(text: str) -> list[str]:
    plain = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _ngrams(text: str, order: int) -> list[str]:
    return [text[begin : begin + order] for begin in range(len(text) - order + 1)]


def _shared(target: Sequence[Hashable], prediction: Sequence[Hashable]) -> tuple[int, int, int]:
    """Returns how many elements the two share, counting repeats, and how many each has."""
    common = collections.Counter(target) & collections.Counter(prediction)
    return sum(common.values()), len(target), len(prediction)


def _f1(counts: tuple[int, int, int], *, beta: float = 1.0) -> float:
    """Returns the F score of (shared, in the target, in the prediction); two empty sides agree."""
    shared, wanted, found = counts
    if not wanted and not found:
        return 1.0
    if not shared:
        return 0.0
    precision, recall = shared / found, shared / wanted
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def _longest_common_subsequence(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Returns its length, row by row of the usual table."""
    above = [0] * (len(other) + 1)
    for element in one:
        row = [0]
        for place, candidate in enumerate(other):
            row.append(above[place] + 1 if element == candidate else max(row[place], above[place + 1]))
        above = row
    return above[-1]
