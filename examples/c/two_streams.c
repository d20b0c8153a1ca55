/*
 * Memory that passes between two streams, in stream order: allocate, fill, hand over, free, and
 * what is said when there is no memory.
 *
 *     cc two_streams.c $(pkg-config --cflags --libs millpond) -o two_streams
 *     ./two_streams          on this machine's memory
 *     ./two_streams cuda     on the first GPU
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

enum { MIB = 1 << 20 };

int main(int argc, char **argv) {
    int on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
    millpond_device *device = NULL;
    if (on_gpu) {
        CHECK(millpond_device_open_cuda(0, &device));
    } else {
        CHECK(millpond_device_open_host((uint64_t)256 * MIB, &device));
    }
    millpond_device_info info = {.size = sizeof info};
    CHECK(millpond_device_get_info(device, &info));
    printf("device: %s, %" PRIu64 " MiB\n", info.name, info.total_memory_bytes / MIB);

    millpond_pool_options options = {.size = sizeof options,
                                     .limit_bytes = (uint64_t)64 * MIB,
                                     .streams_declared = 1};
    millpond_pool *pool = NULL;
    CHECK(millpond_pool_create(device, &options, &pool));

    void *producer = NULL;
    void *consumer = NULL;
    void *ready = NULL;
    CHECK(millpond_stream_create(device, &producer));
    CHECK(millpond_stream_create(device, &consumer));
    CHECK(millpond_event_create(device, &ready));

    /* The producer fills a block; the consumer copies it once that is done. */
    const uint64_t size = 4 * MIB;
    void *made = NULL;
    void *copy = NULL;
    CHECK(millpond_pool_alloc(pool, size, producer, &made));
    CHECK(millpond_stream_fill(device, producer, made, size, 0x0123456789abcdef));
    CHECK(millpond_pool_record_event(pool, ready, producer));
    CHECK(millpond_pool_wait_event(pool, consumer, ready));
    CHECK(millpond_pool_alloc_aligned(pool, size, 4096, consumer, &copy));
    CHECK(millpond_stream_copy(device, consumer, copy, made, size));
    /* The block is used on a second stream, so its memory waits for both. */
    CHECK(millpond_pool_use(pool, made, consumer));
    CHECK(millpond_pool_free(pool, made));

    CHECK(millpond_pool_synchronize_stream(pool, consumer));
    if (!on_gpu) {
        uint64_t word = 0;
        CHECK(millpond_host_read(device, &word, (char *)copy + size - 8, sizeof word));
        printf("the copy ends with %016" PRIx64 "\n", word);
    }

    /* A block that was freed cannot be freed again. */
    if (millpond_pool_free(pool, made) != MILLPOND_NOT_A_BLOCK) {
        return 1;
    }
    printf("refused: %s\n", millpond_last_error());

    /* More than the limit is refused with an account of where the memory is. */
    void *huge = NULL;
    if (millpond_pool_alloc(pool, (uint64_t)100 * MIB, producer, &huge) != MILLPOND_OUT_OF_MEMORY) {
        return 1;
    }
    printf("refused: %s\n", millpond_last_error());

    CHECK(millpond_pool_free(pool, copy));
    CHECK(millpond_pool_synchronize(pool));
    uint64_t released = 0;
    CHECK(millpond_pool_trim(pool, 0, &released));
    millpond_statistics now = {.size = sizeof now};
    CHECK(millpond_pool_get_statistics(pool, &now));
    printf("released %" PRIu64 " MiB; %" PRIu64 " bytes reserved, %" PRIu64 " blocks live\n",
           released / MIB, now.reserved_bytes, now.live_blocks);

    CHECK(millpond_pool_stream_destroyed(pool, producer));
    CHECK(millpond_pool_stream_destroyed(pool, consumer));
    CHECK(millpond_stream_destroy(device, producer));
    CHECK(millpond_stream_destroy(device, consumer));
    millpond_pool_forget_event(pool, ready);
    CHECK(millpond_event_destroy(device, ready));
    millpond_pool_destroy(pool);
    millpond_device_close(device);
    return 0;
}
