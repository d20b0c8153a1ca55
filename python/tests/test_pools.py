"""Pools as CUDA defines them, on the host device."""

import gc

import pytest

import millpond
from millpond.pools import AccessFlags, Budget, Device, PoolAttribute, Reaper

MIB = 1 << 20


@pytest.fixture
def device():
    device = Device.host(256 * MIB)
    yield device
    gc.collect()
    assert device.reap(wait=True) == 0


def test_attributes_are_read_back_or_refused(device):
    pool = device.create_pool(limit=64 * MIB)
    for policy in list(PoolAttribute)[:3]:
        assert pool.get_attribute(policy) == 1
        pool.set_attribute(policy, 0)
        assert pool.get_attribute(policy) == 0
    assert pool.get_attribute(PoolAttribute.MAX_POOL_SIZE) == 64 * MIB
    assert pool.get_attribute(PoolAttribute.LOCATION_TYPE) == 1
    block = pool.alloc(8192)
    assert pool.get_attribute(PoolAttribute.USED_MEM_CURRENT) == 8192
    pool.free(block)
    pool.set_attribute(PoolAttribute.USED_MEM_HIGH, 0)
    assert pool.get_attribute(PoolAttribute.USED_MEM_HIGH) == 0
    for attribute, value in [
        (PoolAttribute.USED_MEM_HIGH, 1),
        (PoolAttribute.RESERVED_MEM_CURRENT, 0),
        (PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC, 2),
        (14, 0),
    ]:
        with pytest.raises(millpond.MillpondError) as caught:
            pool.set_attribute(attribute, value)
        assert caught.value.status == 1


def test_the_current_pool_and_the_default_one(device):
    default, own = device.default_pool(), device.create_pool()
    assert device.current_pool() == default and own != default
    device.set_current_pool(own)
    block = device.alloc(MIB)
    told = device.pointer(block + 7)
    assert (told["pool_id"], told["offset"], told["block"]) == (own.id, 7, block)
    own.destroy()
    assert device.current_pool() == default
    # The block stays, and is freed through the device.
    device.free(block)
    with pytest.raises(millpond.MillpondError) as caught:
        device.pointer(block)
    assert caught.value.status == 3
    with pytest.raises(millpond.MillpondError, match="cannot be destroyed"):
        default.destroy()
    device.free(device.alloc(MIB))


def test_trims_and_thresholds(device):
    pool = device.create_pool()
    kept, freed = pool.alloc(8 * MIB), pool.alloc(16 * MIB)
    pool.free(freed)
    device.synchronize_stream()
    report = pool.trim_to(0)
    assert (report["released_bytes"], report["in_live_blocks"]) == (16 * MIB, 8 * MIB)
    pool.set_attribute(PoolAttribute.RELEASE_THRESHOLD, 0)
    pool.free(kept)
    device.synchronize_stream()
    assert pool.get_attribute(PoolAttribute.RESERVED_MEM_CURRENT) == 0


def test_tenants_share_a_budget(device):
    machine = Budget(64 * MIB)
    tenant = Budget(32 * MIB, parent=machine)
    first, second = device.create_pool(budget=tenant), device.create_pool(budget=machine)
    block = first.alloc(32 * MIB)
    with pytest.raises(millpond.OutOfMemoryError, match="budget"):
        first.alloc(MIB)
    other = second.alloc(32 * MIB)
    assert machine.usage()["used_current"] == 64 * MIB
    assert (tenant.usage()["pools"], machine.usage()["pools"]) == (1, 2)
    first.free(block)
    second.free(other)


def test_access(device):
    pool = device.create_pool()
    assert pool.get_access(0) == AccessFlags.READ_WRITE
    assert pool.get_access(1) == AccessFlags.NONE
    with pytest.raises(millpond.MillpondError) as caught:
        pool.set_access(AccessFlags.READ, 1)
    assert caught.value.status == 4
    with pytest.raises(millpond.MillpondError) as caught:
        pool.set_access(AccessFlags.NONE, 0)
    assert caught.value.status == 1


def test_a_thread_reaps(device):
    reaper = Reaper()
    pool = device.create_pool()
    block = pool.alloc(MIB)
    pool.destroy()
    device.free(block)
    del reaper
