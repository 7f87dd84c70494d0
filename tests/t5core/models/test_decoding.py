from __future__ import annotations

import jax
import numpy as np
import pytest

from t5core import errors
from t5core.models import decoding

EOS = 1


def test_two_keys_are_refused_and_either_is_taken():
    one, other = jax.random.key(1), jax.random.key(2)
    with pytest.raises(errors.ConfigError) as refused:
        decoding.single_rng(one, other)
    assert str(refused.value) == "rng and decoder_params['decode_rng'] are both given; give one of them"
    assert decoding.single_rng(one, None) is one
    assert decoding.single_rng(None, other) is other
    assert decoding.single_rng(None, None) is None


@pytest.mark.parametrize(
    ("ids", "text", "reached_eos"),
    [
        ([5, 6, 1, 0, 0], [5, 6], True),
        ([5, 0, 6, 1, 7], [5, 6], True),
        ([5, 6, 7], [5, 6, 7], False),
        ([1, 0], [], True),
        ([0, 0], [], False),
    ],
)
def test_a_decoded_row_is_cut_at_eos(ids, text, reached_eos):
    cut = decoding.cut_at_eos(np.asarray(ids, np.int32), eos_id=EOS)
    assert cut == decoding.CutDecode(ids=text, reached_eos=reached_eos)
    assert all(type(token) is int for token in cut.ids)
