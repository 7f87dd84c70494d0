"""The pools that the preflight knows are those on which tasks run."""

from t5core.preflight import pools
from tasks import profiles


def test_every_pool_of_the_tasks_has_its_devices():
    assert set(pools.POOLS) == set(profiles.POOLS)
    for name, devices in pools.POOLS.items():
        container = profiles.pool_template(name).pod_spec.containers[0]
        limits = container.resources.limits
        accelerators = {key: int(count) for key, count in limits.items() if key.endswith((".com/tpu", ".com/gpu"))}
        assert devices.count == sum(accelerators.values()) or not accelerators
        if not accelerators:
            assert devices.memory_bytes == int(limits["memory"].removesuffix("Gi")) * pools.GIB


def test_this_machine_has_devices_and_memory():
    here = pools.this_machine()
    assert here.count >= 1
    assert here.memory_bytes > 1 << 28
