"""Packing: nothing lost, nothing mixed up, rows nearly full."""

from __future__ import annotations

import numpy as np
import pytest

from t5core.data.converters import converter_for
from t5core.data.packing import Packer
from tests.t5core.data.making import examples, padded

LENGTHS = {"inputs": 12, "targets": 8}
# Nothing at all, one example, and many short and full ones.
CASES = [examples(count, seed=count, longest=LENGTHS) for count in (0, 1, 3, 60, 150)]
CONVERTERS = [
    converter_for("encoder_decoder", LENGTHS),
    converter_for("decoder_only", LENGTHS),
    converter_for("decoder_only", {"targets": 8}),
]


def _pack(cases, converter, *, open_rows=4, block=7):
    packer = Packer(converter, open_rows=open_rows)
    stored = converter.from_task({f: padded([e[f] for e in cases], n) for f, n in LENGTHS.items()})
    blocks = [
        packer.add({name: rows[i : i + block] for name, rows in stored.items()}) for i in range(0, len(cases), block)
    ]
    blocks.append(packer.finish())
    return {name: np.concatenate([part[name] for part in blocks]) for name in blocks[-1]}, stored


def _segments(rows, converter):
    """Returns every packed example as the values of its stored features."""
    found = []
    for index in range(len(next(iter(rows.values())))):
        count = max(rows[f"{group}_segment_ids"][index].max() for group in converter.groups)
        for segment in range(1, count + 1):
            found.append(
                tuple(
                    tuple(rows[name][index][rows[f"{group}_segment_ids"][index] == segment].tolist())
                    for group, names in converter.members.items()
                    for name in names
                )
            )
    return found


def _unpacked(stored, converter):
    lengths = {
        group: [np.flatnonzero(row)[-1] + 1 for row in stored[names[0]]] for group, names in converter.members.items()
    }
    return [
        tuple(
            tuple(stored[name][index][: lengths[group][index]].tolist())
            for group, names in converter.members.items()
            for name in names
        )
        for index in range(len(next(iter(stored.values()))))
    ]


@pytest.mark.parametrize("converter", CONVERTERS, ids=["encoder_decoder", "prefix_lm", "lm"])
@pytest.mark.parametrize("cases", CASES, ids=len)
def test_every_example_lies_whole_in_exactly_one_row(converter, cases):
    rows, stored = _pack(cases, converter)
    assert sorted(_segments(rows, converter)) == sorted(_unpacked(stored, converter))


@pytest.mark.parametrize("cases", CASES, ids=len)
def test_padding_is_at_the_end_and_segments_lie_in_order(cases):
    rows, _ = _pack(cases, CONVERTERS[0])
    for group, tokens in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
        ids = rows[f"{group}_segment_ids"]
        assert ((ids > 0) == (rows[tokens] > 0)).all()
        for row in ids:
            filled = row[row > 0]
            assert (row[: len(filled)] == filled).all()
            assert np.isin(np.diff(filled), (0, 1)).all()
            assert filled[:1].tolist() in ([], [1])


@pytest.mark.parametrize("block", [2, 30, 1000])
@pytest.mark.parametrize("cases", CASES, ids=len)
def test_rows_do_not_depend_on_the_blocks_in_which_examples_come(cases, block):
    one, _ = _pack(cases, CONVERTERS[0], block=block)
    other, _ = _pack(cases, CONVERTERS[0], block=1)
    assert all((one[name] == other[name]).all() for name in one)


def test_an_example_stays_near_its_place():
    rng = np.random.default_rng(0)
    cases = [{"inputs": [1] * rng.integers(1, 13), "targets": [i + 1]} for i in range(400)]
    rows, _ = _pack(cases, CONVERTERS[0], open_rows=8)
    order = rows["decoder_target_tokens"][rows["decoder_target_tokens"] > 0]
    assert np.abs(order - 1 - np.arange(400)).max() < 8 * 12


def test_rows_are_nearly_full():
    rng = np.random.default_rng(0)
    converter = converter_for("encoder_decoder", {"inputs": 128, "targets": 128})
    packer = Packer(converter)
    columns = np.arange(128)[None]
    tokens = {
        name: np.where(columns < rng.integers(3, 50, 3000)[:, None], 9, 0)
        for name in ("encoder_input_tokens", "decoder_target_tokens")
    }
    blocks = [packer.add(tokens), packer.finish()]
    filled = np.concatenate([block["encoder_input_tokens"] for block in blocks]) > 0
    assert filled.mean() > 0.85


def test_the_report_counts_what_was_written():
    from t5core.data.manifest import FeatureSpec, SplitRecord

    packer = Packer(CONVERTERS[0], open_rows=4)
    stored = CONVERTERS[0].from_task({"inputs": padded([[5] * 6] * 3, 12), "targets": padded([[5] * 4] * 3, 8)})
    rows = [packer.add(stored), packer.finish()]
    height = sum(len(part["encoder_input_tokens"]) for part in rows)
    spec = FeatureSpec(dtype="uint16", length=12)
    record = SplitRecord(
        rows=height, features={"x": spec}, tokens={"encoder_input_tokens": 18, "decoder_target_tokens": 12}
    )
    report = packer.report(record)
    assert (report.examples, report.rows, report.open_rows) == (3, 2, 4)
    assert report.efficiency == {"encoder_input_tokens": 0.75, "decoder_target_tokens": 0.75}
