import io
import itertools
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from t5core import errors
from t5core.data import worker
from t5core.data.noise import SpanCorruption
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary

pytestmark = pytest.mark.xdist_group("seqio")

PROBE = f"{__package__}.seqio_probe"
LENGTHS = {"inputs": 64, "targets": 64}
EXTRA_IDS = 100
VOCAB_SIZE = 259 + EXTRA_IDS  # of ByteVocabulary
FIRST_SENTINEL = VOCAB_SIZE - 1
EOS = 1


def text(length, start=0):
    """Returns tokens whose order can be told: 3, 4, ... 258, 3, ..."""
    return [3 + (start + n) % 256 for n in range(length)]


def preprocessed(kind, texts, **settings):
    settings = {"lengths": LENGTHS, **settings}
    return worker.call(f"{PROBE}:preprocessed", kind, texts, settings)


@pytest.fixture(scope="module")
def sentencepiece_with_sentinels(tmp_path_factory):
    """A model of 60 pieces and behind them 10 sentinels, as mT5's file has them."""
    model = io.BytesIO()
    words = [a + b for a in "bdgkmnst" for b in ("alo", "eru")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(f"{a} {b}{a[:2]} {a}{b[:3]} {b[::-1]}{a[1:]}" for a in words for b in words),
        model_writer=model,
        vocab_size=60,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    for index in reversed(range(10)):
        proto.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    file = tmp_path_factory.mktemp("vocabulary") / "brings.model"
    file.write_bytes(proto.SerializeToString())
    return str(file)


def is_sentinel(token):
    return token > FIRST_SENTINEL - EXTRA_IDS


def restored(inputs, targets):
    """Puts what the targets give back in place of each sentinel of the inputs."""
    hidden, current = {}, None
    for token in targets:
        if is_sentinel(token):
            current = hidden.setdefault(token, [])
        else:
            current.append(token)
    return [t for token in inputs for t in (hidden.pop(token) if is_sentinel(token) else [token])]


class TestSizes:
    """What span corruption does to lengths; no TensorFlow needed."""

    @pytest.mark.parametrize(
        ("inputs", "density", "mean", "tokens", "targets"),
        # T5's own random_spans_helper gives these, for the lengths of its papers.
        [
            (512, 0.15, 3.0, 568, 114),
            (1024, 0.15, 3.0, 1137, 229),
            (512, 0.5, 3.0, 766, 512),
            (512, 0.15, 8.0, 588, 100),
        ],
    )
    def test_chunk_lengths_are_t5_s(self, inputs, density, mean, tokens, targets):
        noise = SpanCorruption(noise_density=density, mean_span_length=mean, sentinels=1000)
        assert noise.chunk_length(inputs_length=inputs, targets_length=2000, task="t") == tokens
        assert noise.lengths(tokens)[1] == targets

    @given(
        st.integers(8, 400),
        st.floats(0.05, 0.9),
        st.floats(1.0, 10.0),
        st.sampled_from([1, 3, 100]),
        st.integers(2, 999),
    )
    def test_a_chunk_fills_the_inputs_and_no_shorter_text_exceeds_them(self, inputs, density, mean, sentinels, length):
        noise = SpanCorruption(noise_density=density, mean_span_length=mean, sentinels=sentinels)
        chunk = noise.chunk_length(inputs_length=inputs, targets_length=10**6, task="t")
        filled = noise.lengths(chunk)[0]
        # Where most is hidden, the tokens that are kept limit the spans, and a token more may take two places.
        assert filled == inputs if density < 0.5 else inputs - 2 <= filled <= inputs
        assert all(noise.lengths(n)[0] <= inputs for n in range(1, chunk))
        hidden, spans = noise.counts(length)
        assert 1 <= spans <= min(sentinels, hidden, length - hidden)

    def test_a_single_token_stays(self):
        assert SpanCorruption(noise_density=0.5, mean_span_length=1.0, sentinels=9).counts(1) == (0, 0)

    @pytest.mark.parametrize(
        ("inputs", "targets", "sentinels", "message"),
        [
            (
                512,
                100,
                100,
                "task 't': span corruption of inputs=512 writes targets of 114 tokens, but data.feature_lengths gives "
                "targets=100; make that 114 or shorten the inputs",
            ),
            (
                512,
                512,
                0,
                "task 't': span corruption needs sentinels, but the vocabulary has 0 extra ids; "
                "set data.vocabulary.extra_ids=100",
            ),
            (2, 9, 9, "task 't': feature length inputs=2 holds no corrupted text; make it 4 or more"),
        ],
    )
    def test_what_does_not_fit(self, inputs, targets, sentinels, message):
        noise = SpanCorruption(noise_density=0.15, mean_span_length=3.0, sentinels=sentinels)
        with pytest.raises(errors.ConfigError) as caught:
            noise.chunk_length(inputs_length=inputs, targets_length=targets, task="t")
        assert str(caught.value) == message


@pytest.fixture(scope="module")
def noise():
    return SpanCorruption(noise_density=0.15, mean_span_length=3.0, sentinels=EXTRA_IDS)


@pytest.fixture(scope="module")
def chunk(noise):
    return noise.chunk_length(inputs_length=64, targets_length=64, task="t")


@pytest.fixture(scope="module")
def every_length(chunk):
    """Texts of 1, 2, ... tokens and what becomes of them."""
    texts = [text(length, start=length) for length in range(1, chunk + 1)]
    return list(zip(texts, preprocessed("span_corruption", texts), strict=True))


class TestSpanCorruption:
    def test_density_and_spans_are_exact(self, noise, every_length):
        for original, (inputs, targets) in every_length:
            hidden, spans = noise.counts(len(original))
            assert sum(not is_sentinel(token) for token in targets[:-1]) == hidden
            assert sum(map(is_sentinel, inputs)) == spans
            assert len(targets) == hidden + max(spans, 1) + 1

    def test_a_full_chunk_fills_the_inputs(self, every_length):
        _, (inputs, _) = every_length[-1]
        assert len(inputs) == LENGTHS["inputs"]
        assert all(len(inputs) <= LENGTHS["inputs"] for _, (inputs, _) in every_length)

    def test_nothing_is_lost(self, every_length):
        for original, (inputs, targets) in every_length:
            assert inputs[-1] == targets[-1] == EOS
            assert restored(inputs[:-1], targets[:-1]) == original

    def test_sentinels_count_down_on_both_sides(self, every_length):
        for original, (inputs, targets) in every_length:
            expected = [FIRST_SENTINEL - n for n in range(sum(map(is_sentinel, targets)))]
            assert list(filter(is_sentinel, targets)) == expected
            assert list(filter(is_sentinel, inputs)) == (expected if len(original) > 1 else [])
            assert targets[0] == FIRST_SENTINEL

    def test_the_first_token_is_kept_and_the_last_is_hidden(self, every_length):
        for original, (inputs, _) in every_length[1:]:
            assert inputs[0] == original[0]
            assert is_sentinel(inputs[-2])

    def test_long_texts_are_cut_without_loss(self, chunk):
        lengths = [1000, 1, chunk, chunk + 1, 0, 2 * chunk]
        found = preprocessed("span_corruption", [text(length) for length in lengths])
        assert len(found) == sum(-(-length // chunk) for length in lengths)
        originals = [restored(inputs[:-1], targets[:-1]) for inputs, targets in found]
        assert list(itertools.chain(*originals)) == list(itertools.chain(*(text(length) for length in lengths)))

    def test_spans_are_capped_by_the_sentinels(self):
        (found,) = preprocessed("span_corruption", [text(60)], extra_ids=2, noise_density=0.5)
        inputs, targets = found
        assert [token for token in inputs if token > 258] == [260, 259]
        assert len(targets) == 30 + 2 + 1

    def test_sentinels_may_come_with_the_model_file(self, sentencepiece_with_sentinels):
        found = preprocessed(
            "span_corruption", [[3, 4, 5, 6] * 10], extra_ids=0, model=sentencepiece_with_sentinels, noise_density=0.3
        )
        highest = [token for token in found[0][0] if token >= 60]
        assert highest == [69, 68, 67, 66][: len(highest)]
        assert highest

    def test_every_position_is_hidden_about_equally_often(self):
        texts = [text(40) for _ in range(400)]
        found = preprocessed("span_corruption", texts, noise_density=0.25)
        often = [0] * 40
        for inputs, _ in found:
            kept = set(inputs)
            for place, token in enumerate(text(40)):
                often[place] += token not in kept
        assert often[0] == 0
        assert sum(often) == 400 * 10
        # T5's spans never begin at the first token and always end at the last one, so both ends are special.
        assert all(50 <= count <= 160 for count in often[3:-4])


TEXTS = [text(50, start=17 * n) for n in range(12)]


@pytest.fixture(scope="module")
def plain():
    return preprocessed("span_corruption", TEXTS)


class TestSeeding:
    def test_the_same_seed_gives_the_same_noise(self, plain):
        assert preprocessed("span_corruption", TEXTS) == plain

    def test_another_seed_gives_another_pass(self, plain):
        other = preprocessed("span_corruption", TEXTS, seed=1)
        assert all(one != two for one, two in zip(plain, other, strict=True))

    def test_shards_do_not_matter(self, plain):
        assert sorted(preprocessed("span_corruption", TEXTS, shards=3)) == sorted(plain)

    def test_without_numbers_the_order_does_not_matter(self):
        forwards = preprocessed("span_corruption", TEXTS, identity=False)
        backwards = preprocessed("span_corruption", TEXTS[::-1], identity=False)
        assert backwards[::-1] == forwards

    def test_equal_texts_are_masked_differently_when_they_have_numbers(self):
        found = preprocessed("span_corruption", [text(50)] * 8)
        assert len({tuple(inputs) for inputs, _ in found}) == 8

    def test_chunks_of_a_repetitive_text_are_masked_differently(self):
        found = preprocessed("span_corruption", [[7] * 1000])
        patterns = {tuple(map(is_sentinel, inputs)) for inputs, _ in found[:-1]}
        assert len(patterns) == len(found) - 1


class TestPrefixLm:
    def test_the_cut_fits_and_loses_nothing(self):
        texts = [text(length) for length in (1, 2, 3, 40, 100, 126, 127, 400)]
        found = preprocessed("prefix_lm", texts)
        assert all(len(inputs) <= 64 and len(targets) <= 64 for inputs, targets in found)
        assert all(inputs[-1] == targets[-1] == EOS for inputs, targets in found)
        assert list(itertools.chain(*(i[:-1] + t[:-1] for i, t in found))) == list(itertools.chain(*texts))
        assert all(len(targets) > 1 for _, targets in found)
        assert len(found[0][0]) == 1, "a single token is a target"

    def test_cuts_vary(self):
        cuts = {len(inputs) for inputs, _ in preprocessed("prefix_lm", [text(40)] * 200)}
        assert min(cuts) == 2
        assert max(cuts) == 40
        assert len(cuts) > 35


def test_full_lm_ends_each_text_once():
    texts = [text(length) for length in (1, 63, 64, 200)]
    found = preprocessed("full_lm", texts)
    assert all(inputs == [] and 1 <= len(targets) <= 64 for inputs, targets in found)
    joined = list(itertools.chain(*(targets for _, targets in found)))
    assert joined == list(itertools.chain(*([*original, EOS] for original in texts)))


def test_errors_of_preprocessors_come_back_as_they_are():
    with pytest.raises(errors.ConfigError, match=r"^task 'named': span corruption of inputs=64 writes targets of"):
        preprocessed("span_corruption", [text(9)], lengths={"inputs": 64, "targets": 5}, name="named")


class TestTemplate:
    ROWS = [{"title": "{braces} % \\n ☃", "body": "two\nlines", "year": 2001}]

    def filled(self, inputs, targets):
        return worker.call(f"{PROBE}:filled", self.ROWS, inputs, targets)

    def test_columns_are_put_in_as_they_are(self):
        (found,) = self.filled("{{{title}}} of {year}: {body}{title}", "{body}")
        assert found["inputs"] == "{{braces} % \\n ☃} of 2001: two\nlines{braces} % \\n ☃"
        assert found["targets"] == "two\nlines"

    def test_a_template_without_columns(self):
        (found,) = self.filled("always", "{title}")
        assert found == {"inputs": "always", "targets": "{braces} % \\n ☃"}


class TestSameIdsAsSeqio:
    """Our vocabularies without TensorFlow against SeqIO's."""

    TEXTS = [
        "balo deru",
        "Braces {}, a tab\t, a snowman ☃, 漢字, é as e\u0301, an emoji 🎉",
        "a line\u2028separator\nand <extra_id_0> here",
        "<extra_id_1> at the start, <extra_id_0>ly",
        "",
        "  spaces   inside  ",
    ]

    def check(self, vocabulary, found):
        assert found["size"] == vocabulary.vocab_size
        assert found["ids"] == found["in_tensorflow"] == [vocabulary.encode(text) for text in self.TEXTS]
        assert found["decoded"] == [vocabulary.decode(ids) for ids in found["ids"]]

    @pytest.mark.parametrize("extra_ids", [0, 10])
    def test_sentencepiece(self, sentencepiece_with_sentinels, tmp_path, extra_ids):
        file, model = sentencepiece_with_sentinels, Path(sentencepiece_with_sentinels).read_bytes()
        if extra_ids:
            proto = sentencepiece_model_pb2.ModelProto.FromString(model)
            del proto.pieces[60:]
            file, model = tmp_path / "bare.model", proto.SerializeToString()
            file.write_bytes(model)
        found = worker.call(f"{PROBE}:seqio_ids", str(file), extra_ids, self.TEXTS)
        self.check(SentencePieceVocabulary(model, extra_ids=extra_ids), found)

    def test_bytes(self):
        self.check(ByteVocabulary(extra_ids=125), worker.call(f"{PROBE}:seqio_ids", None, 125, self.TEXTS))
