/*
 * Pools as CUDA defines them: the default and the current pool, attributes, trims that tell, two
 * tenants under one budget, what an address belongs to, and a pool that is destroyed while its
 * memory is in use.
 *
 *     cc pools.c $(pkg-config --cflags --libs millpond) -o pools
 *     ./pools          on this machine's memory
 *     ./pools cuda     on the first GPU
 */
#include <millpond.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the library's own account of what failed. */
static void check(millpond_status status, const char *what) {
    if (status != MILLPOND_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, millpond_status_text((int)status),
                millpond_last_error());
        exit(1);
    }
}

#define CHECK(call) check((call), #call)

static void ensure(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

#define ENSURE(condition) ensure((condition), #condition)

static const uint64_t MIB = 1 << 20;

static uint64_t attribute(const millpond_pool *pool, uint32_t which) {
    uint64_t value = 0;
    CHECK(millpond_pool_get_attribute(pool, which, &value));
    return value;
}

static uint64_t id(const millpond_pool *pool) {
    uint64_t value = 0;
    CHECK(millpond_pool_get_id(pool, &value));
    return value;
}

int main(int argc, char **argv) {
    int on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
    millpond_device *device = NULL;
    if (on_gpu) {
        CHECK(millpond_device_open_cuda(0, &device));
    } else {
        CHECK(millpond_device_open_host(256 * MIB, &device));
    }
    void *stream = NULL;
    CHECK(millpond_stream_create(device, &stream));

    /* A pool of its own becomes the current one: plain allocations come from it. */
    millpond_pool *pool = NULL;
    millpond_pool *current = NULL;
    CHECK(millpond_pool_create(device, NULL, &pool));
    CHECK(millpond_device_set_pool(device, pool));
    CHECK(millpond_device_get_pool(device, MILLPOND_LOCATION_DEVICE, 0, &current));
    ENSURE(id(current) == id(pool));
    millpond_pool_release(current);

    void *block = NULL;
    CHECK(millpond_device_alloc(device, 8 * MIB, stream, &block));
    ENSURE(attribute(pool, MILLPOND_POOL_USED_MEM_CURRENT) == 8 * MIB);

    /* Any address inside leads back to it. */
    millpond_pointer_info info = {.size = sizeof info};
    CHECK(millpond_device_get_pointer_info(device, (char *)block + 1000, &info));
    ENSURE(info.block == block && info.offset == 1000 && info.pool_id == id(pool));
    ENSURE(info.stream == stream && info.location_type == MILLPOND_LOCATION_DEVICE);

    /* Read-only attributes say so; marks are reset with 0 alone. */
    ENSURE(millpond_pool_set_attribute(pool, MILLPOND_POOL_USED_MEM_CURRENT, 0) ==
           MILLPOND_INVALID_ARGUMENT);
    ENSURE(millpond_pool_set_attribute(pool, MILLPOND_POOL_USED_MEM_HIGH, 1) ==
           MILLPOND_INVALID_ARGUMENT);
    CHECK(millpond_pool_set_attribute(pool, MILLPOND_POOL_USED_MEM_HIGH, 0));

    /* What a trim leaves is accounted for. */
    millpond_trim_report report = {.size = sizeof report};
    CHECK(millpond_pool_trim_to(pool, 0, &report));
    ENSURE(report.in_live_blocks == 8 * MIB);
    printf("%" PRIu64 " MiB stay, of which %" PRIu64 " MiB in live blocks\n",
           report.reserved_bytes / MIB, report.in_live_blocks / MIB);

    /* Destroyed while in use: nobody waits, the block stays good, and goes when it is freed. */
    CHECK(millpond_stream_fill(device, stream, block, 8 * MIB, 7));
    CHECK(millpond_pool_destroy(pool));
    CHECK(millpond_stream_fill(device, stream, block, 8 * MIB, 8));
    CHECK(millpond_device_free(device, block));
    ENSURE(millpond_device_free(device, block) == MILLPOND_NOT_A_BLOCK);
    uint64_t left = 1;
    CHECK(millpond_device_reap(device, 1, &left));
    ENSURE(left == 0);

    /* The default pool is the current one again, and stays. */
    millpond_pool *standard = NULL;
    CHECK(millpond_device_get_default_pool(device, MILLPOND_LOCATION_DEVICE, 0, &standard));
    CHECK(millpond_device_get_pool(device, MILLPOND_LOCATION_DEVICE, 0, &current));
    ENSURE(id(current) == id(standard));
    millpond_pool_release(current);
    ENSURE(millpond_pool_destroy(standard) == MILLPOND_INVALID_ARGUMENT);
    ENSURE(strstr(millpond_last_error(), "cannot be destroyed") != NULL);

    /* With a threshold of 0 every synchronisation gives back what is free. */
    CHECK(millpond_pool_set_attribute(standard, MILLPOND_POOL_RELEASE_THRESHOLD, 0));
    CHECK(millpond_device_alloc(device, 4 * MIB, stream, &block));
    CHECK(millpond_device_free(device, block));
    CHECK(millpond_device_synchronize_stream(device, stream));
    ENSURE(attribute(standard, MILLPOND_POOL_RESERVED_MEM_CURRENT) == 0);
    millpond_pool_release(standard);

    /* Two tenants under one budget. */
    millpond_budget *budget = NULL;
    CHECK(millpond_budget_create(NULL, 64 * MIB, &budget));
    millpond_pool_options options = {.size = sizeof options, .budget = budget};
    millpond_pool *tenants[2];
    void *blocks[2];
    for (int n = 0; n < 2; n++) {
        CHECK(millpond_pool_create(device, &options, &tenants[n]));
    }
    CHECK(millpond_pool_alloc(tenants[0], 40 * MIB, stream, &blocks[0]));
    ENSURE(millpond_pool_alloc(tenants[1], 40 * MIB, stream, &blocks[1]) ==
           MILLPOND_OUT_OF_MEMORY);
    printf("%s\n", millpond_last_error());
    CHECK(millpond_pool_free(tenants[0], blocks[0]));
    CHECK(millpond_device_synchronize_stream(device, stream));
    /* What the first has freed serves the second. */
    CHECK(millpond_pool_alloc(tenants[1], 40 * MIB, stream, &blocks[1]));
    millpond_budget_usage usage = {.size = sizeof usage};
    CHECK(millpond_budget_get_usage(budget, &usage));
    ENSURE(usage.pools == 2 && usage.used_current == 40 * MIB);
    ENSURE(usage.reserved_high <= 64 * MIB);
    CHECK(millpond_pool_free(tenants[1], blocks[1]));
    for (int n = 0; n < 2; n++) {
        CHECK(millpond_pool_destroy(tenants[n]));
    }
    millpond_budget_destroy(budget);

    /* Access for a device that is not there is an error at once. */
    CHECK(millpond_pool_create(device, NULL, &pool));
    millpond_access access = {MILLPOND_LOCATION_DEVICE, 99, MILLPOND_ACCESS_READ_WRITE};
    ENSURE(millpond_pool_set_access(pool, &access, 1) == MILLPOND_NO_DEVICE);
    uint32_t protection = 99;
    CHECK(millpond_pool_get_access(pool, MILLPOND_LOCATION_DEVICE, 0, &protection));
    ENSURE(protection == MILLPOND_ACCESS_READ_WRITE);
    millpond_pool_release(pool);

    CHECK(millpond_device_reap(device, 1, &left));
    ENSURE(left == 0);
    CHECK(millpond_stream_destroy(device, stream));
    millpond_device_close(device);
    printf("done\n");
    return 0;
}
