"""However a run is cut, interrupted and compiled, it ends in the bits of a straight one."""

import random

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from t5core import build
from tests.t5core import small_runs

KINDS = {
    "float32, dropout, micro-batches": {"model": {"dropout_rate": 0.3}, "num_microbatches": 2},
    "bfloat16, z-loss, scanned layers": {
        "model": {"dtype": "bfloat16", "scan_layers": True, "num_encoder_layers": 2},
        "loss": {"z_loss": 0.01},
    },
}
CUTS = {"straight": 7, "in two": 4, "in seven": 1}


@pytest.fixture
def hits():
    """Counts programs that were taken from the cache on disk."""
    found = []
    jax.monitoring.register_event_listener(listener := lambda event, **_: found.append(event))
    yield lambda: found.count("/jax/compilation_cache/cache_hits")
    jax.monitoring.unregister_event_listener(listener)


def anew(inputs):
    """Trains with a trainer of its own, as a process that has just been started does."""
    compilation_cache.reset_cache()
    jax.clear_caches()
    trainer = build._trainer.__wrapped__(inputs.model_dump_json())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_runs, "shared_trainer", lambda _: trainer)
        with small_runs.settings_put_back():
            build.use_compilation_cache(inputs.run.config)
            return small_runs.train(inputs)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_run_ends_in_the_same_bits_however_it_was_cut_and_interrupted(tmp_path, hits, kind):
    def run(name, **settings):
        config = small_runs.config(tmp_path, run={"name": name.replace(" ", "-")}, **{**KINDS[kind], **settings})
        return small_runs.inputs(config)

    digests = {name: small_runs.train(run(name, segment_steps=steps)) for name, steps in CUTS.items()}
    luck = random.Random(kind)
    for number, moment in enumerate(luck.sample(range(1, 7), 3)):
        inputs = run(f"interrupted {number}", segment_steps=luck.randint(1, 7))
        small_runs.interrupt(inputs, at=moment)
        digests[f"interrupted at {moment}"] = small_runs.train(inputs)
    last = run("cold")
    small_runs.interrupt(last, at=3)
    cold = type(last.run.config).model_validate(
        {**last.run.config.model_dump(), "cluster": {"compilation_cache": f"{tmp_path}/cold"}}
    )
    before = hits()
    digests["with a cold cache"] = anew(last.model_copy(update={"run": last.run.model_copy(update={"config": cold})}))
    assert hits() == before
    warm = small_runs.inputs(cold.model_copy(update={"run": cold.run.model_copy(update={"name": "warm"})}))
    digests["with a warm cache"] = anew(warm)
    assert hits() > before
    assert set(digests.values()) == {digests["straight"]}, digests
