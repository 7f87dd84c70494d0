"""Records come back as they were, or not at all."""

import contextlib
import json
import math

import pytest

from t5core import errors, records, storage
from t5core.config.base import StrictModel
from t5core.metrics.json_numbers import AnyState


class Measured(StrictModel):
    step: int
    by_step: dict[int, str]
    figures: AnyState


MEASURED = Measured(step=4, by_step={9: "nine", 10: "ten", 2: "two"}, figures={"loss": math.inf, "rate": 0.1})


def test_a_record_comes_back_and_none_is_none(tmp_path):
    uri = str(tmp_path / "measured.json")
    assert records.read(uri, Measured) is None
    records.write(uri, MEASURED)
    assert records.read(uri, Measured) == MEASURED


def test_no_byte_of_a_record_changes_unnoticed(tmp_path):
    file = tmp_path / "measured.json"
    records.write(str(file), MEASURED)
    written = file.read_bytes()
    for place in range(len(written)):
        for bit in (1, 16):
            file.write_bytes(written[:place] + bytes([written[place] ^ bit]) + written[place + 1 :])
            with contextlib.suppress(errors.IntegrityError):
                assert records.read(str(file), Measured) == MEASURED, file.read_text()  # white space between the values


def test_a_changed_figure_is_told_with_the_remedy(tmp_path):
    file = tmp_path / "measured.json"
    records.write(str(file), MEASURED)
    file.write_text(file.read_text().replace('"step": 4', '"step": 5'))
    with pytest.raises(errors.IntegrityError, match=r"measured.json is not a Measured as it was written; delete it"):
        records.read(str(file), Measured)
    with pytest.raises(errors.IntegrityError, match=r"measured.json is lost; bring it back"):
        records.read(str(file), Measured, otherwise="is lost; bring it back")


def test_what_was_written_without_a_digest_passes(tmp_path):
    uri = str(tmp_path / "measured.json")
    storage.write_json(uri, json.loads('{"step": 4, "by_step": {}, "figures": {"loss": "NaN"}}'))
    found = records.read(uri, Measured)
    assert found is not None
    assert math.isnan(found.figures["loss"])
