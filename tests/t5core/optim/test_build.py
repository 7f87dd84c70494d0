import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.config.train_schema import OptimizerConfig
from t5core.optim.adafactor import Adafactor
from t5core.optim.build import build_optimizer

PARAMS = {"encoder": {"kernel": jnp.ones((2, 2))}, "decoder": {"kernel": jnp.ones((2, 2))}}
GRADS = {"encoder": {"kernel": jnp.full((2, 2), 2.0)}, "decoder": {"kernel": jnp.full((2, 2), 2.0)}}
AXES = {"encoder": {"kernel": ("embed", "mlp")}, "decoder": {"kernel": ("embed", "mlp")}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    pattern: str
    name: str = "adafactor"
    arguments: dict = dataclasses.field(default_factory=dict)


def one_step(optimizer):
    params, _ = optimizer.apply_gradient(GRADS, PARAMS, optimizer.init(PARAMS), step=0, learning_rate=0.5)
    return params


def test_adafactor_takes_its_arguments():
    optimizer = build_optimizer(OptimizerConfig(arguments={"beta1": 0.9, "weight_decay_rate": 0.01}))
    assert isinstance(optimizer, Adafactor)
    assert optimizer.config.beta1 == 0.9
    assert optimizer.config.weight_decay_rate == 0.01


def test_other_names_are_looked_up_in_optax():
    np.testing.assert_allclose(one_step(build_optimizer(OptimizerConfig(name="sgd")))["encoder"]["kernel"], 0.0)


def test_frozen_patterns_and_clipping_apply_to_a_single_optimizer():
    optimizer = build_optimizer(OptimizerConfig(name="sgd"), frozen=["encoder/.*"], clip_global_norm=1.0)
    params = one_step(optimizer)
    np.testing.assert_array_equal(params["encoder"]["kernel"], 1.0)
    np.testing.assert_allclose(params["decoder"]["kernel"], 0.75)


def test_groups_have_optimizers_of_their_own():
    groups = [Group(pattern="encoder/.*", name="sgd"), Group(pattern="decoder/.*", name="sign_sgd")]
    params = one_step(build_optimizer(OptimizerConfig(), groups=groups))
    np.testing.assert_allclose(params["encoder"]["kernel"], 0.0)
    np.testing.assert_allclose(params["decoder"]["kernel"], 0.5)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (
            OptimizerConfig(name="adamw"),
            {"groups": [Group(pattern="encoder/.*")]},
            "optimizer 'adamw' with arguments {} has no effect beside groups; make it a group, or remove the groups",
        ),
        (
            OptimizerConfig(arguments={"global_norm_clip_threshold": 1.0}),
            {"clip_global_norm": 2.0},
            "clip_global_norm=2.0 and global_norm_clip_threshold=1.0 both clip the gradient; remove one",
        ),
        (OptimizerConfig(), {"clip_global_norm": 0.0}, "clip_global_norm=0.0 clips everything away; give a number "),
        (
            OptimizerConfig(),
            {"frozen": ["encodr/kernel"]},
            "optimizer pattern 'encodr/kernel' matches no parameter; ",
        ),
    ],
)
def test_settings_without_effect_are_refused_when_it_is_built(config, options, message):
    with pytest.raises(errors.ConfigError) as raised:
        build_optimizer(config, AXES, **options)
    assert str(raised.value).startswith(message)
