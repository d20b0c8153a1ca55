"""millpond under a real PyTorch on a GPU: contents, streams, graphs, limits.

    python python/tests/gpu/test_torch.py

Needs the installed package and PyTorch with CUDA. Says "passed" after each check, and stops at the
first that fails.
"""

import random

import torch

import millpond
import millpond.torch

GIB = 1 << 30
millpond.torch.enable(limit="8GiB")


def check(function):
    function()
    torch.cuda.synchronize()
    print(f"passed  {function.__name__}", flush=True)


@check
def tensors_come_from_millpond():
    x = torch.ones(1 << 20, device="cuda")
    assert millpond.stats()["live_bytes"] >= 4 << 20
    assert float(x.sum()) == 1 << 20
    before = millpond.stats()["live_blocks"]
    del x
    assert millpond.stats()["live_blocks"] == before - 1


@check
def contents_survive_random_churn():
    random.seed(1)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live = []
    for number in range(4000):
        if live and random.random() < 0.5:
            tensor, value = live.pop(random.randrange(len(live)))
            assert bool((tensor == value).all())
        else:
            stream = random.choice(streams)
            size = int(2 ** random.uniform(4, 24))
            with torch.cuda.stream(stream):
                tensor = torch.full((size,), number % 251, dtype=torch.uint8, device="cuda")
            torch.cuda.current_stream().wait_stream(stream)
            tensor.record_stream(torch.cuda.current_stream())
            live.append((tensor, number % 251))
        if len(live) > 60:
            live.pop(0)
    for tensor, value in live:
        assert bool((tensor == value).all())


@check
def record_stream_keeps_memory_from_others():
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    x = torch.full((1 << 22,), 7, dtype=torch.int32, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        y = x + 1
    x.record_stream(side)
    address = x.data_ptr()
    del x
    z = torch.zeros(1 << 22, dtype=torch.int32, device="cuda")
    assert z.data_ptr() != address or side.query()
    torch.cuda.current_stream().wait_stream(side)
    assert bool((y == 8).all())


@check
def a_graph_replays_over_its_own_memory():
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8))
    model = model.cuda()
    given = torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(given)
    for _ in range(20):
        given.copy_(torch.randn(64, 512, device="cuda"))
        # Eager work in between must not get the graph's memory.
        noise = [torch.full((1 << 20,), 3.0, device="cuda") for _ in range(8)]
        graph.replay()
        torch.testing.assert_close(result, model(given))
        assert all(float(n[0]) == 3.0 for n in noise)
        del noise
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved = millpond.stats()["reserved_bytes"]
    del result
    graph.reset()
    del graph
    # cuBLAS got its workspace in the capture, and PyTorch keeps it until it is told not to.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    left = millpond.stats()
    assert left["reserved_bytes"] < reserved, (reserved, left)


@check
def two_graphs_share_a_pool():
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(first):
        y = (x * 2) + 1
    with torch.cuda.graph(second, pool=first.pool()):
        z = (y * 2) + 1
    first.replay()
    second.replay()
    assert bool((z == 7).all())


@check
def no_memory_is_told_and_survived():
    hoard = []
    try:
        while True:
            hoard.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert "limit of 8.0 GiB" in str(error), error
    assert 6 <= len(hoard) <= 8, len(hoard)
    hoard.clear()
    again = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
    del again


@check
def no_memory_in_a_capture_is_told():
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("nothing was raised")
    torch.cuda.synchronize()
    assert float(torch.ones(8, device="cuda").sum()) == 8


@check
def empty_cache_gives_memory_back():
    x = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    del x
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    y = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] >= 2 * GIB - (64 << 20)
    del y
    torch.cuda.empty_cache()
    assert abs(free - torch.cuda.mem_get_info()[0]) < 64 << 20


@check
def a_fraction_limits():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total)
    try:
        torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("nothing was raised")


print(millpond.stats())
