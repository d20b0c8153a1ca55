/*
 * millpond: a GPU memory pool in stream order.
 *
 * Every function may be called from any thread. Unless it says otherwise, a function returns a
 * status: MILLPOND_OK (0), or why it failed, with the full story in millpond_last_error(). A call
 * that fails changes nothing that the caller can see. All sizes and addresses are in bytes.
 *
 * Streams and events are raw handles: CUstream or cudaStream_t, CUevent or cudaEvent_t. A null
 * stream is the legacy default stream.
 */

#ifndef MILLPOND_H
#define MILLPOND_H

/* Made by cbindgen from crates/millpond-capi; see tests/header.rs there. Do not edit. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * Whether memory whose uses are ordered before a request by events is used again: 0 or 1. The
 * attributes have the numbers of `CUmemPool_attribute`.
 */
#define MILLPOND_POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES 1

/**
 * Whether memory whose uses turn out to be completed is used again: 0 or 1.
 */
#define MILLPOND_POOL_REUSE_ALLOW_OPPORTUNISTIC 2

/**
 * Whether the pool may insert a wait to use memory again: 0 or 1.
 */
#define MILLPOND_POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES 3

/**
 * Bytes above which memory is given back at synchronisations; at first UINT64_MAX: never.
 */
#define MILLPOND_POOL_RELEASE_THRESHOLD 4

/**
 * Bytes of the device that the pool has. Read only.
 */
#define MILLPOND_POOL_RESERVED_MEM_CURRENT 5

/**
 * The most it had; only 0 can be set, which begins the mark again at the current value.
 */
#define MILLPOND_POOL_RESERVED_MEM_HIGH 6

/**
 * Bytes in blocks that are not freed, as they were asked for. Read only.
 */
#define MILLPOND_POOL_USED_MEM_CURRENT 7

/**
 * The most there were; only 0 can be set, which begins the mark again at the current value.
 */
#define MILLPOND_POOL_USED_MEM_HIGH 8

/**
 * 1: pinned. Read only.
 */
#define MILLPOND_POOL_ALLOCATION_TYPE 9

/**
 * 0 none, 1 POSIX descriptors, 8 fabric handles. Read only.
 */
#define MILLPOND_POOL_EXPORT_HANDLE_TYPES 10

/**
 * The ordinal of the pool's device, or the number of its NUMA node. Read only.
 */
#define MILLPOND_POOL_LOCATION_ID 11

/**
 * A `MILLPOND_LOCATION_...`. Read only.
 */
#define MILLPOND_POOL_LOCATION_TYPE 12

/**
 * The most bytes that the pool takes; 0: no limit. Read only: see `millpond_pool_set_limit`.
 */
#define MILLPOND_POOL_MAX_POOL_SIZE 13

/**
 * The memory of a device; the numbers are those of `CUmemLocationType`.
 */
#define MILLPOND_LOCATION_DEVICE 1

/**
 * The host's memory, wherever that is; the id is not looked at.
 */
#define MILLPOND_LOCATION_HOST 2

/**
 * The memory of a NUMA node of the host.
 */
#define MILLPOND_LOCATION_HOST_NUMA 3

/**
 * No access; the numbers are those of `CUmemAccess_flags`.
 */
#define MILLPOND_ACCESS_NONE 0

/**
 * Reading.
 */
#define MILLPOND_ACCESS_READ 1

/**
 * Reading and writing.
 */
#define MILLPOND_ACCESS_READ_WRITE 3

/**
 * The device is a GPU, used through the NVIDIA driver.
 */
#define MILLPOND_DEVICE_CUDA 1

/**
 * The device is made of this machine's memory.
 */
#define MILLPOND_DEVICE_HOST 2

/**
 * Bytes of `name` in `millpond_device_info`, its terminating zero included.
 */
#define MILLPOND_DEVICE_NAME_SIZE 256

/**
 * The address lies in a live block.
 */
#define MILLPOND_POINTER_LIVE 1

/**
 * The address lies in a live block in the memory of a graph.
 */
#define MILLPOND_POINTER_GRAPH 2

/**
 * How a call ended. `millpond_last_error()` has the full story of the one that failed last.
 */
typedef enum {
    /**
     * It succeeded.
     */
    MILLPOND_OK = 0,
    /**
     * An argument breaks a rule of the call: a null pointer, an alignment that is no power of two.
     */
    MILLPOND_INVALID_ARGUMENT = 1,
    /**
     * There is no memory for the request, after everything was tried; nothing has changed, and a
     * smaller request may succeed. The message says where the memory is.
     */
    MILLPOND_OUT_OF_MEMORY = 2,
    /**
     * The address is not the start of a live block of this pool: it was freed before, lies inside
     * a block, or is somebody else's.
     */
    MILLPOND_NOT_A_BLOCK = 3,
    /**
     * There is no such device, or no driver for it.
     */
    MILLPOND_NO_DEVICE = 4,
    /**
     * The device cannot do this.
     */
    MILLPOND_NOT_SUPPORTED = 5,
    /**
     * The device refused a call. Later calls may succeed.
     */
    MILLPOND_DEVICE_FAILED = 6,
    /**
     * The device is lost for this process: a kernel has failed, or the driver is gone. Every
     * later call fails as well.
     */
    MILLPOND_DEVICE_LOST = 7,
    /**
     * The call comes too late: what it would set is in use already.
     */
    MILLPOND_TOO_LATE = 8,
    /**
     * A bug in millpond. The process can go on; please report the message.
     */
    MILLPOND_INTERNAL = 9,
} millpond_status;

/**
 * The most bytes that several pools may take together. Pools get it through
 * `millpond_pool_options.budget`. May be used from any thread.
 */
typedef struct millpond_budget millpond_budget;

/**
 * A device whose memory pools hand out. May be used from any thread.
 */
typedef struct millpond_device millpond_device;

/**
 * A pool of one device's memory. May be used from any thread.
 */
typedef struct millpond_pool millpond_pool;

/**
 * A thread that gives back the memory of pools that were destroyed.
 */
typedef struct millpond_reaper millpond_reaper;

/**
 * What a trim gave back, and where the rest is: all in bytes. `reserved_bytes` is the sum of the
 * six that come after it.
 */
typedef struct {
    /**
     * Set by the caller: `sizeof(millpond_trim_report)`.
     */
    size_t size;
    /**
     * Given back to the device.
     */
    uint64_t released_bytes;
    /**
     * What the pool still has.
     */
    uint64_t reserved_bytes;
    /**
     * Stays because live blocks stand in it.
     */
    uint64_t in_live_blocks;
    /**
     * Stays because it is in one handle with live blocks.
     */
    uint64_t beside_live_blocks;
    /**
     * Stays because its last use is not known to be completed.
     */
    uint64_t pending;
    /**
     * Could have gone, and stays so that no less is reserved than was to be kept.
     */
    uint64_t kept_as_asked;
    /**
     * Stays because it is the memory of graphs.
     */
    uint64_t in_graphs;
    /**
     * On its way in another call, or withheld because the device refused to take it back.
     */
    uint64_t withheld;
} millpond_trim_report;

/**
 * What somebody may do with a pool's memory.
 */
typedef struct {
    /**
     * A `MILLPOND_LOCATION_...`: whose access.
     */
    uint32_t location_type;
    /**
     * The ordinal of the device, or the number of the NUMA node.
     */
    uint32_t location_id;
    /**
     * A `MILLPOND_ACCESS_...`.
     */
    uint32_t protection;
} millpond_access;

/**
 * What the pools under a budget have: all in bytes, but for their number.
 */
typedef struct {
    /**
     * Set by the caller: `sizeof(millpond_budget_usage)`.
     */
    size_t size;
    /**
     * The most that they may have together.
     */
    uint64_t limit_bytes;
    /**
     * What they have of their devices.
     */
    uint64_t reserved_current;
    /**
     * The most they had together.
     */
    uint64_t reserved_high;
    /**
     * What is in their live blocks, as it was asked for.
     */
    uint64_t used_current;
    /**
     * Pools under the budget, and under those below it.
     */
    uint64_t pools;
} millpond_budget_usage;

/**
 * What a device is and can do.
 */
typedef struct {
    /**
     * Set by the caller: `sizeof(millpond_device_info)`.
     */
    size_t size;
    /**
     * Bytes of memory that the device has.
     */
    uint64_t total_memory_bytes;
    /**
     * Bytes of the smallest piece of memory that it hands out.
     */
    uint64_t granularity_bytes;
    /**
     * `MILLPOND_DEVICE_CUDA` or `MILLPOND_DEVICE_HOST`.
     */
    uint32_t kind;
    /**
     * The CUDA ordinal; 0 for the host device.
     */
    uint32_t ordinal;
    /**
     * 1 if physical memory can be mapped; 0 if the pool must fall back to plain allocations.
     */
    uint32_t mapping;
    /**
     * Unused, 0.
     */
    uint32_t reserved;
    /**
     * The device's name, for people; cut if it is longer.
     */
    char name[MILLPOND_DEVICE_NAME_SIZE];
} millpond_device_info;

/**
 * How a pool is to be. Set `size`, and leave what is not needed zero.
 */
typedef struct {
    /**
     * `sizeof(millpond_pool_options)`. Fields beyond it are taken as zero.
     */
    size_t size;
    /**
     * Bytes that the pool may take from the device at most; 0: all that the device has.
     */
    uint64_t limit_bytes;
    /**
     * Not 0: promises that every stream is announced to `millpond_pool_stream_destroyed` before
     * it is destroyed, or is never destroyed. The pool then does not ask the driver at each call
     * which stream a handle stands for, which saves some 60 ns.
     */
    uint32_t streams_declared;
    /**
     * Unused, 0.
     */
    uint32_t reserved;
    /**
     * A `MILLPOND_LOCATION_...`: where the memory is to lie; 0: in the device's own.
     */
    uint32_t location_type;
    /**
     * The ordinal of the device (its own), or the number of the NUMA node.
     */
    uint32_t location_id;
    /**
     * How the memory can be handed to other processes: 0 not at all, 1 as POSIX descriptors, 8 as
     * fabric handles.
     */
    uint32_t handle_types;
    /**
     * Unused, 0.
     */
    uint32_t reserved_2;
    /**
     * A budget that the pool shares with others, besides its own limit; null: none.
     */
    const millpond_budget *budget;
} millpond_pool_options;

/**
 * What a pool holds. All values are taken at one moment and agree with each other:
 * `reserved_bytes = live_rounded_bytes + free_bytes + in_transit_bytes`.
 */
typedef struct {
    /**
     * Set by the caller: `sizeof(millpond_statistics)`. Later versions may have more fields; only
     * as many bytes as this says are written.
     */
    size_t size;
    /**
     * Live blocks.
     */
    uint64_t live_blocks;
    /**
     * Bytes asked for and not freed.
     */
    uint64_t live_bytes;
    /**
     * Bytes that the live blocks take, rounding included.
     */
    uint64_t live_rounded_bytes;
    /**
     * The highest `live_bytes` since the pool was made, or since the peaks were reset.
     */
    uint64_t peak_live_bytes;
    /**
     * Bytes of device memory that the pool has, mapped or not.
     */
    uint64_t reserved_bytes;
    /**
     * The highest `reserved_bytes` since the pool was made, or since the peaks were reset.
     */
    uint64_t peak_reserved_bytes;
    /**
     * Bytes free in the pool: for somebody at once, or after a wait, or after mapping.
     */
    uint64_t free_bytes;
    /**
     * Of the free bytes: freed by the host, but not known to be done with by the device.
     */
    uint64_t pending_bytes;
    /**
     * Of the free bytes: in physical handles that are mapped nowhere.
     */
    uint64_t unmapped_bytes;
    /**
     * Bytes on their way: being created, mapped, or withheld after a failed unmapping.
     */
    uint64_t in_transit_bytes;
    /**
     * The most bytes that the pool takes from the device; UINT64_MAX: all that the device has.
     */
    uint64_t limit_bytes;
    /**
     * Physical handles that exist.
     */
    uint64_t handles;
    /**
     * Bytes of address space reserved.
     */
    uint64_t address_space_bytes;
    /**
     * Waits that the pool inserted into streams.
     */
    uint64_t waits_inserted;
    /**
     * Events that the pool recorded.
     */
    uint64_t events_recorded;
    /**
     * Events that the pool queried.
     */
    uint64_t event_queries;
} millpond_statistics;

/**
 * What an address belongs to.
 */
typedef struct {
    /**
     * Set by the caller: `sizeof(millpond_pointer_info)`.
     */
    size_t size;
    /**
     * The number of the pool: see `millpond_pool_get_id`.
     */
    uint64_t pool_id;
    /**
     * Where the block starts.
     */
    void *block;
    /**
     * Bytes that were asked for the block.
     */
    uint64_t block_bytes;
    /**
     * Bytes from the block's start to the address.
     */
    uint64_t offset;
    /**
     * The stream that owns the block.
     */
    void *stream;
    /**
     * The handle (`CUmemGenericAllocationHandle`) that the address lies in; 0 for plain memory.
     */
    uint64_t handle;
    /**
     * Bytes from the handle's start to the address.
     */
    uint64_t handle_offset;
    /**
     * Bytes of the handle.
     */
    uint64_t handle_bytes;
    /**
     * The ordinal of the pool's device.
     */
    uint32_t device;
    /**
     * A `MILLPOND_POINTER_...`.
     */
    uint32_t state;
    /**
     * A `MILLPOND_LOCATION_...`: where the memory lies.
     */
    uint32_t location_type;
    /**
     * The ordinal of the device, or the number of the NUMA node, where it lies.
     */
    uint32_t location_id;
} millpond_pointer_info;

/**
 * How the pools behind PyTorch's pair are to be. Set `size`, and leave what is not needed zero:
 * then the environment decides.
 */
typedef struct {
    /**
     * `sizeof(millpond_torch_options)`. Fields beyond it are taken as zero.
     */
    size_t size;
    /**
     * Which devices: "cuda", or "host:BYTES" for tests without a GPU. Null: `MILLPOND_DEVICE`,
     * and without that "cuda".
     */
    const char *device;
    /**
     * Bytes that each device's pools may take at most. 0: `MILLPOND_LIMIT`, and without that all
     * that the device has.
     */
    uint64_t limit_bytes;
} millpond_torch_options;

/**
 * PyTorch's number of a graph's memory pool (`c10::cuda::MempoolId_t`).
 */
typedef struct {
    /**
     * First of the pair.
     */
    uint64_t first;
    /**
     * Second of the pair.
     */
    uint64_t second;
} millpond_torch_pool_id;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The value of an attribute of a pool: a `MILLPOND_POOL_...`. Looks at no block.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such attribute).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `value` is null, or a number can be written there.
 */
millpond_status millpond_pool_get_attribute(const millpond_pool *pool,
                                            uint32_t attribute,
                                            uint64_t *value);

/**
 * Sets an attribute of a pool: the reuse policies (0 or 1), the release threshold (bytes), and the
 * two high marks (0 alone, which begins them again at the current value).
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such attribute, one that can only be read,
 * another value).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_set_attribute(const millpond_pool *pool,
                                            uint32_t attribute,
                                            uint64_t value);

/**
 * Gives memory back to the device that nothing uses, until no more than `min_bytes_to_keep` bytes
 * are reserved, or nothing can be given back without going below that. `report`, if not null, says
 * what went, and where the rest is; `report->size` must be set to `sizeof(millpond_trim_report)`.
 *
 * Waits for nothing: memory whose last use is not seen to be completed stays.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, a report without a size),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST` (nothing was given back).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `report` is null, or points to a struct of `report->size` bytes.
 */
millpond_status millpond_pool_trim_to(const millpond_pool *pool,
                                      uint64_t min_bytes_to_keep,
                                      millpond_trim_report *report);

/**
 * Says what others may do with a pool's memory: all of it, what is allocated already and what will
 * be. Those who are not named keep what they have; `MILLPOND_ACCESS_NONE` takes it away again.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, somebody named twice, the pool's own place
 * without full access), `MILLPOND_NO_DEVICE` (a device that cannot reach the memory),
 * `MILLPOND_NOT_SUPPORTED`, `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `accesses` is null, or points to `count` of them.
 */
millpond_status millpond_pool_set_access(const millpond_pool *pool,
                                         const millpond_access *accesses,
                                         size_t count);

/**
 * What somebody may do with a pool's memory: a `MILLPOND_ACCESS_...`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such type of location).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `protection` is null, or a number can be written there.
 */
millpond_status millpond_pool_get_access(const millpond_pool *pool,
                                         uint32_t location_type,
                                         uint32_t location_id,
                                         uint32_t *protection);

/**
 * Makes a budget of so many bytes: within `parent`, so that what its pools take counts in both, or
 * by itself if `parent` is null.
 *
 * To be destroyed with `millpond_budget_destroy`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null result).
 *
 * The caller sees to this:
 *
 * `parent` is null or a live budget; `budget` is null, or a pointer can be written there.
 */
millpond_status millpond_budget_create(const millpond_budget *parent,
                                       uint64_t limit_bytes,
                                       millpond_budget **budget);

/**
 * Lets go of a budget. Pools and budgets under it keep it. Null does nothing.
 *
 * The caller sees to this:
 *
 * `budget` is null, or was made by `millpond_budget_create` and not destroyed yet.
 */
void millpond_budget_destroy(millpond_budget *budget);

/**
 * Changes the most bytes that the pools under a budget may take together. What they have beyond
 * it stays until it is freed and trimmed.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null budget).
 *
 * The caller sees to this:
 *
 * `budget` is null or a live budget.
 */
millpond_status millpond_budget_set_limit(const millpond_budget *budget, uint64_t limit_bytes);

/**
 * What the pools under a budget have. `usage->size` must be set to
 * `sizeof(millpond_budget_usage)`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
 *
 * The caller sees to this:
 *
 * `budget` is null or a live budget; `usage` is null, or points to a struct of `usage->size` bytes.
 */
millpond_status millpond_budget_get_usage(const millpond_budget *budget,
                                          millpond_budget_usage *usage);

/**
 * Opens the CUDA device with this ordinal (0 is the first), in its primary context, which the
 * CUDA runtime uses too. Needs an NVIDIA driver, but no CUDA toolkit.
 *
 * To be closed with `millpond_device_close`.
 *
 * Errors: `MILLPOND_NO_DEVICE` (no driver, or no device of this ordinal), `MILLPOND_DEVICE_LOST`,
 * `MILLPOND_INVALID_ARGUMENT` (`device` is null).
 *
 * The caller sees to this:
 *
 * `device` is null, or a pointer can be written there.
 */
millpond_status millpond_device_open_cuda(uint32_t ordinal, millpond_device **device);

/**
 * Opens a device made of this machine's memory, so that everything works as on a GPU, on any
 * Linux machine. Streams are threads that really fill and copy.
 *
 * `memory_bytes` is how much memory the device has; 0 gives half of what the machine could give
 * now. Pages are taken when they are first written.
 *
 * To be closed with `millpond_device_close`.
 *
 * Errors: `MILLPOND_NO_DEVICE` (the system gives no memory file), `MILLPOND_INVALID_ARGUMENT`
 * (`device` is null).
 *
 * The caller sees to this:
 *
 * `device` is null, or a pointer can be written there.
 */
millpond_status millpond_device_open_host(uint64_t memory_bytes, millpond_device **device);

/**
 * Closes a device. Pools made on it keep what they need of it and stay usable. Null does nothing.
 *
 * The caller sees to this:
 *
 * `device` is null, or was opened by this library and not closed yet; nobody uses it any more.
 */
void millpond_device_close(millpond_device *device);

/**
 * What the device is and can do. `info->size` must be set to `sizeof(millpond_device_info)`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `info` is null, or points to a struct of `info->size` bytes.
 */
millpond_status millpond_device_get_info(const millpond_device *device, millpond_device_info *info);

/**
 * Bytes that the device has free now, for all processes, and in all.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; the others are null, or numbers can be written there.
 */
millpond_status millpond_device_memory(const millpond_device *device,
                                       uint64_t *free_bytes,
                                       uint64_t *total_bytes);

/**
 * Reads `size` bytes of the host device's memory at `from` into `to`, at once: it does not wait
 * for streams. For the host device alone.
 *
 * Errors: `MILLPOND_NOT_SUPPORTED` (another device), `MILLPOND_INVALID_ARGUMENT` (a null pointer,
 * or memory that the device may not read).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `to` is null, or `size` bytes can be written there.
 */
millpond_status millpond_host_read(const millpond_device *device,
                                   void *to,
                                   const void *from,
                                   uint64_t size);

/**
 * Writes `size` bytes from `from` to the host device's memory at `to`, at once: it does not wait
 * for streams. For the host device alone.
 *
 * Errors: `MILLPOND_NOT_SUPPORTED` (another device), `MILLPOND_INVALID_ARGUMENT` (a null pointer,
 * or memory that the device may not write).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `from` is null, or `size` bytes can be read there.
 */
millpond_status millpond_host_write(const millpond_device *device,
                                    void *to,
                                    const void *from,
                                    uint64_t size);

/**
 * Makes a pool on a device. It takes no memory until something is allocated. `options` may be
 * null: then all is as with zeros.
 *
 * To be destroyed with `millpond_pool_destroy`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device or result, options without a size, a limit
 * of less than one piece of the device's memory, 2 MiB).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `options` is null, or points to a struct of `options->size` bytes, with
 * a budget that is null or live;
 * `pool` is null, or a pointer can be written there.
 */
millpond_status millpond_pool_create(const millpond_device *device,
                                     const millpond_pool_options *options,
                                     millpond_pool **pool);

/**
 * Destroys a pool (`cuMemPoolDestroy`). Waits for nothing: what the device may still use goes back
 * later, by the next call of another pool of the device, by `millpond_device_reap`, or by a thread
 * (`millpond_reaper_start`). Blocks that were not freed stay as they are, can be used, and are freed
 * with `millpond_device_free`; the memory stays until they are. Null does nothing. A device's
 * default pool cannot be destroyed.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a default pool; the pointer stays good).
 *
 * The caller sees to this:
 *
 * `pool` is null, or was made by `millpond_pool_create` and not destroyed yet; nobody uses this
 * pointer any more.
 */
millpond_status millpond_pool_destroy(millpond_pool *pool);

/**
 * Allocates `size` bytes, aligned to 256, for use on `stream`.
 *
 * The memory may be used by whatever the stream is given from now on; by other streams once they
 * are ordered after that, and once `millpond_pool_use` says so. Its content is undefined. Zero
 * bytes give a block of its own address, of which nothing may be touched.
 *
 * `stream` is the stream's raw handle: a `CUstream` or `cudaStream_t`, null for the legacy stream.
 *
 * Errors: `MILLPOND_OUT_OF_MEMORY`, `MILLPOND_INVALID_ARGUMENT` (a null pool or result),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device; `result` is null, or a
 * pointer can be written there.
 */
millpond_status millpond_pool_alloc(const millpond_pool *pool,
                                    uint64_t size,
                                    void *stream,
                                    void **result);

/**
 * Allocates as `millpond_pool_alloc`, aligned to `alignment` bytes: a power of two. Less than 256
 * gives 256.
 *
 * Errors: as `millpond_pool_alloc`; `MILLPOND_INVALID_ARGUMENT` if the alignment is no power of
 * two.
 *
 * The caller sees to this:
 *
 * As `millpond_pool_alloc`.
 */
millpond_status millpond_pool_alloc_aligned(const millpond_pool *pool,
                                            uint64_t size,
                                            uint64_t alignment,
                                            void *stream,
                                            void **result);

/**
 * Frees the block that starts at `block`, in the order of the streams that used it; waits for
 * nothing. Null does nothing.
 *
 * Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_free(const millpond_pool *pool, void *block);

/**
 * Says that the block that starts at `block` is used on a further stream from now on, until it is
 * freed. Whether that stream's work comes after the allocation is the caller's business; the pool
 * sees to it that nobody gets the memory before the stream is done with it.
 *
 * Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device.
 */
millpond_status millpond_pool_use(const millpond_pool *pool, void *block, void *stream);

/**
 * Says that `stream` was given all that it is ever to do with the block: its use ends with what is
 * queued on it now, and what it is given later holds the memory no longer. The block stays live.
 *
 * Safe if no work that touches the block is queued on `stream` after this call, unless
 * `millpond_pool_use` declares a new use before.
 *
 * Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool, or the stream does not
 * use the block), `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device.
 */
millpond_status millpond_pool_use_ended(const millpond_pool *pool, void *block, void *stream);

/**
 * Says that the use on `stream` ended where the event was last recorded with
 * `millpond_pool_record_event`.
 *
 * Safe if all work of `stream` that touches the block was queued before that record began, and the
 * event was recorded on `stream`, or on a stream that was made to wait for that work before.
 *
 * Errors: as `millpond_pool_use_ended`; `MILLPOND_INVALID_ARGUMENT` also if the event was not
 * recorded through the pool.
 *
 * The caller sees to this:
 *
 * As `millpond_pool_use_ended`.
 */
millpond_status millpond_pool_use_ends_at(const millpond_pool *pool,
                                          void *block,
                                          void *stream,
                                          void *event);

/**
 * Hands the block over to another stream: the stream it was allocated for, or last handed over to,
 * is done with it, and `stream` owns it from now on. The same as `millpond_pool_use` the new owner
 * and `millpond_pool_use_ended` on the old one.
 *
 * Errors: as `millpond_pool_use`.
 *
 * The caller sees to this:
 *
 * As `millpond_pool_use_ended`.
 */
millpond_status millpond_pool_hand_over(const millpond_pool *pool, void *block, void *stream);

/**
 * Records an event on a stream, as `cuEventRecord` does, and remembers what it stands for, so
 * that memory can be used again at once across streams that the caller has ordered.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such event or stream),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `event` and `stream` are of its device.
 */
millpond_status millpond_pool_record_event(const millpond_pool *pool, void *event, void *stream);

/**
 * Lets a stream wait for an event, as `cuStreamWaitEvent` does. If it was recorded through the
 * pool, the pool knows from then on that the stream comes after it.
 *
 * Errors: as `millpond_pool_record_event`.
 *
 * The caller sees to this:
 *
 * As `millpond_pool_record_event`.
 */
millpond_status millpond_pool_wait_event(const millpond_pool *pool, void *stream, void *event);

/**
 * Forgets an event: it is about to be destroyed, or recorded without telling the pool.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_forget_event(const millpond_pool *pool, void *event);

/**
 * Waits until all work queued on a stream is done; the pool then knows that it is.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such stream), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device.
 */
millpond_status millpond_pool_synchronize_stream(const millpond_pool *pool, void *stream);

/**
 * Waits until the whole device has nothing left to do. Everything freed so far is then free for
 * all streams.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_synchronize(const millpond_pool *pool);

/**
 * Says that a stream is about to be destroyed; to be called before it is. What was freed on it is
 * not lost: others can use it once the stream's work is done.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device, not destroyed yet.
 */
millpond_status millpond_pool_stream_destroyed(const millpond_pool *pool, void *stream);

/**
 * Forbids the pool to let this stream wait: no wait is ever inserted into it, until
 * `millpond_pool_may_wait` takes that back or the stream is destroyed. For streams whose later work
 * others wait for in ways that the pool knows nothing of: on words in memory, or inside
 * collectives; an inserted wait could close a circle with these.
 *
 * A request on such a stream gets new memory where another would wait. If there is none, it still
 * waits on the host for memory to be completed, as the last thing before it fails.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `stream` is a stream of its device.
 */
millpond_status millpond_pool_never_wait(const millpond_pool *pool, void *stream);

/**
 * Takes `millpond_pool_never_wait` back.
 *
 * Errors: as `millpond_pool_never_wait`.
 *
 * The caller sees to this:
 *
 * As `millpond_pool_never_wait`.
 */
millpond_status millpond_pool_may_wait(const millpond_pool *pool, void *stream);

/**
 * What the pool holds. `statistics->size` must be set to `sizeof(millpond_statistics)`. Looks at
 * every free range: not for every allocation.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `statistics` is null, or points to a struct of
 * `statistics->size` bytes.
 */
millpond_status millpond_pool_get_statistics(const millpond_pool *pool,
                                             millpond_statistics *statistics);

/**
 * Begins the high watermarks (`peak_*`) again at the current values.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_reset_peaks(const millpond_pool *pool);

/**
 * Gives memory back to the device that nothing uses, until the pool has at most `keep_bytes`.
 * `released_bytes`, if not null, gets the bytes given back.
 *
 * Waits for nothing: memory whose last use is not seen to be completed stays. Synchronise first
 * (`millpond_pool_synchronize`) to give back all that is free.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `released_bytes` is null, or a number can be written there.
 */
millpond_status millpond_pool_trim(const millpond_pool *pool,
                                   uint64_t keep_bytes,
                                   uint64_t *released_bytes);

/**
 * Changes the most bytes that the pool takes from the device; UINT64_MAX: all that it has. What
 * the pool has beyond it stays until it is freed and trimmed; until then the pool does not grow.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool.
 */
millpond_status millpond_pool_set_limit(const millpond_pool *pool, uint64_t limit_bytes);

/**
 * The default pool of a location (`MILLPOND_LOCATION_...` and its id), as device `device` uses it:
 * made when it is first asked for, without a limit. It cannot be destroyed; what is given is let go
 * with `millpond_pool_release`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such type of location),
 * `MILLPOND_NO_DEVICE` (another device's ordinal), `MILLPOND_NOT_SUPPORTED` (the device cannot use
 * memory there).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `pool` is null, or a pointer can be written there.
 */
millpond_status millpond_device_get_default_pool(const millpond_device *device,
                                                 uint32_t location_type,
                                                 uint32_t location_id,
                                                 millpond_pool **pool);

/**
 * The current pool of a location: the one that was set last, or the default pool if none was, or
 * if that one was destroyed. What is given is let go with `millpond_pool_release`.
 *
 * Errors: as `millpond_device_get_default_pool`.
 *
 * The caller sees to this:
 *
 * As `millpond_device_get_default_pool`.
 */
millpond_status millpond_device_get_pool(const millpond_device *device,
                                         uint32_t location_type,
                                         uint32_t location_id,
                                         millpond_pool **pool);

/**
 * Makes a pool the current one of its location: `millpond_device_alloc` takes from it from then on.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, a pool of another device, one that was
 * destroyed).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `pool` is null or a live pool.
 */
millpond_status millpond_device_set_pool(const millpond_device *device, const millpond_pool *pool);

/**
 * Allocates from the device's current pool, as `millpond_pool_alloc` does (`cudaMallocAsync`).
 *
 * Errors: as `millpond_pool_alloc`; `MILLPOND_INVALID_ARGUMENT` also if the device does not know
 * the stream.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of it; `result` is null, or a pointer can be
 * written there.
 */
millpond_status millpond_device_alloc(const millpond_device *device,
                                      uint64_t size,
                                      void *stream,
                                      void **result);

/**
 * Frees the block that starts at `block`, in whichever pool of the device, destroyed ones included
 * (`cudaFreeAsync`), in the order of the streams that used it. Null does nothing.
 *
 * Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null device).
 *
 * The caller sees to this:
 *
 * `device` is null or open.
 */
millpond_status millpond_device_free(const millpond_device *device, void *block);

/**
 * What an address belongs to, in whichever pool of the device: any address inside a live block
 * will do. `info->size` must be set to `sizeof(millpond_pointer_info)`.
 *
 * Errors: `MILLPOND_NOT_A_BLOCK` (no live block is there: it was freed, or it is no pool's),
 * `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `info` is null, or points to a struct of `info->size` bytes.
 */
millpond_status millpond_device_get_pointer_info(const millpond_device *device,
                                                 const void *at,
                                                 millpond_pointer_info *info);

/**
 * A number that no other pool of the process ever has.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer).
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `id` is null, or a number can be written there.
 */
millpond_status millpond_pool_get_id(const millpond_pool *pool, uint64_t *id);

/**
 * Lets go of a pool without destroying it: of one that was asked for as a default or current pool.
 * The last one to let go of any other pool ends it: its blocks that were not freed go with it, as
 * soon as the device is done with them. Null does nothing.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; nobody uses this pointer any more.
 */
void millpond_pool_release(millpond_pool *pool);

/**
 * Waits until all work queued on a stream of the device is done, and tells all pools of the device:
 * what they have above their release thresholds goes back.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, no such stream), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of it.
 */
millpond_status millpond_device_synchronize_stream(const millpond_device *device, void *stream);

/**
 * Waits until an event has happened; the pool then knows that what it stands for is done, if it
 * was recorded with `millpond_pool_record_event`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such event), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `pool` is null or a live pool; `event` is of its device.
 */
millpond_status millpond_pool_synchronize_event(const millpond_pool *pool, void *event);

/**
 * Gives back what pools of the device that were destroyed have left, as far as the device is done
 * with it; if `wait` is not 0, after waiting for the device. `left`, if not null, gets how many
 * such pools still have memory. (The next call of another pool that calls the device does the
 * same, without waiting.)
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `left` is null, or a number can be written there.
 */
millpond_status millpond_device_reap(const millpond_device *device, uint32_t wait, uint64_t *left);

/**
 * Starts a thread that gives back the memory of pools that were destroyed, on all devices, as soon
 * as the device is done with it. To be ended with `millpond_reaper_stop`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null result), `MILLPOND_DEVICE_FAILED` (the system gives
 * no thread).
 *
 * The caller sees to this:
 *
 * `reaper` is null, or a pointer can be written there.
 */
millpond_status millpond_reaper_start(millpond_reaper **reaper);

/**
 * Ends the thread. Null does nothing.
 *
 * The caller sees to this:
 *
 * `reaper` is null, or was given by `millpond_reaper_start` and not stopped yet.
 */
void millpond_reaper_stop(millpond_reaper *reaper);

/**
 * The message of the last call that failed on this thread: what was asked, what was there, and
 * what to do. An empty string if none has failed.
 *
 * Never null. Valid until the next millpond call on this thread fails; copy it to keep it.
 */
const char *millpond_last_error(void);

/**
 * The status of the last call that failed on this thread: for functions that have no other way to
 * tell, such as PyTorch's pair. `MILLPOND_OK` if none has failed.
 */
millpond_status millpond_last_status(void);

/**
 * A few words for a status, such as "out of memory". Never null; valid for ever. A number that is
 * no status gives "unknown status".
 */
const char *millpond_status_text(int status);

/**
 * The library's version, such as "0.1.0". Never null; valid for ever.
 */
const char *millpond_version(void);

/**
 * Creates a stream (a `CUstream` on a CUDA device) without implicit order with the legacy stream.
 *
 * To be destroyed with `millpond_stream_destroy`, after the pools were told
 * (`millpond_pool_stream_destroyed`).
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `result` is null, or a pointer can be written there.
 */
millpond_status millpond_stream_create(const millpond_device *device, void **result);

/**
 * Destroys a stream that `millpond_stream_create` made. Does not wait: what was queued still runs.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, or no such stream),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of its, not destroyed before.
 */
millpond_status millpond_stream_destroy(const millpond_device *device, void *stream);

/**
 * Waits until all work queued on a stream is done.
 *
 * A pool learns nothing from this: `millpond_pool_synchronize_stream` does the same, and tells it.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, or no such stream),
 * `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST` (among them: earlier work has failed).
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of its.
 */
millpond_status millpond_stream_synchronize(const millpond_device *device, void *stream);

/**
 * Queues on a stream: fill `size` bytes at `to` with the 8 bytes of `pattern` (little-endian),
 * repeated from the range's first byte.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, no such stream), `MILLPOND_DEVICE_FAILED`,
 * `MILLPOND_DEVICE_LOST`. That the memory may not be touched shows when the stream is
 * synchronised.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of its, which may write there.
 */
millpond_status millpond_stream_fill(const millpond_device *device,
                                     void *stream,
                                     void *to,
                                     uint64_t size,
                                     uint64_t pattern);

/**
 * Queues on a stream: copy `size` bytes between two ranges of the device that do not overlap.
 *
 * Errors: as `millpond_stream_fill`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `stream` is a stream of its, which may read and write there.
 */
millpond_status millpond_stream_copy(const millpond_device *device,
                                     void *stream,
                                     void *to,
                                     const void *from,
                                     uint64_t size);

/**
 * Creates an event (a `CUevent` on a CUDA device), without timing. To be destroyed with
 * `millpond_event_destroy`.
 *
 * Errors: as `millpond_stream_create`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `result` is null, or a pointer can be written there.
 */
millpond_status millpond_event_create(const millpond_device *device, void **result);

/**
 * Destroys an event that `millpond_event_create` made. Does not wait. Pools that recorded it are
 * to be told first (`millpond_pool_forget_event`).
 *
 * Errors: as `millpond_stream_destroy`.
 *
 * The caller sees to this:
 *
 * `device` is null or open; `event` is an event of its, not destroyed before.
 */
millpond_status millpond_event_destroy(const millpond_device *device, void *event);

/**
 * Says how the pools behind PyTorch's pair are to be, before the first of them is made. A later
 * call replaces an earlier one.
 *
 * Errors: `MILLPOND_TOO_LATE` (a pool exists), `MILLPOND_INVALID_ARGUMENT` (no size; a device or
 * an environment variable that cannot be understood).
 *
 * The caller sees to this:
 *
 * `options` is null, or points to a struct of `options->size` bytes, whose `device` is null or
 * text that ends with a zero.
 */
millpond_status millpond_torch_configure(const millpond_torch_options *options);

/**
 * PyTorch's allocation function: `size` bytes on CUDA device number `device`, for `stream`,
 * aligned to 256.
 *
 * Null if there is no memory or the device failed, with the reason in `millpond_last_error()`;
 * null as well for a size of zero, which is no failure. PyTorch takes a null pointer for memory:
 * give it `millpond_torch_alloc_or_throw`, or the shim of the Python package.
 *
 * The caller sees to this:
 *
 * `stream` is a stream of that device.
 */
void *millpond_torch_alloc(ptrdiff_t size, int device, void *stream);

/**
 * As `millpond_torch_alloc`, but where that gives null for want of memory this throws PyTorch's
 * own C++ error (`c10::Error`, a `RuntimeError` in Python), whose text begins with "CUDA out of
 * memory.". Where PyTorch is not loaded in this process it gives null.
 *
 * This is for PyTorch where no C++ compiler is there to build the package's shim, which throws
 * `torch.OutOfMemoryError`.
 *
 * The caller sees to this:
 *
 * As `millpond_torch_alloc`; the caller is C++, or else PyTorch is not loaded.
 */
void *millpond_torch_alloc_or_throw(ptrdiff_t size, int device, void *stream);

/**
 * PyTorch's free function. The block is free in the order of the stream that it was allocated
 * for and of all that were recorded for it. Null does nothing. `size`, `device` and `stream` are
 * those of the allocation.
 *
 * A block that is not one of the device's pools is reported on standard error, and in
 * `millpond_last_error()`.
 *
 * The caller sees to this:
 *
 * Nobody gives the block's memory any further work.
 */
void millpond_torch_free(void *block, ptrdiff_t size, int device, void *stream);

/**
 * PyTorch's `record_stream` hook: the block is used on `stream` as well, until it is freed. A
 * block that is not of these pools (one that was imported, say) is none of their business.
 *
 * The caller sees to this:
 *
 * `stream` is a stream of the block's device.
 */
void millpond_torch_record_stream(void *block, void *stream);

/**
 * PyTorch's `empty_cache` hook: waits for each device's work, and gives back all memory that
 * nothing uses. While a stream is being captured it waits for nothing, and gives back what is
 * known to be unused.
 */
void millpond_torch_empty_cache(void);

/**
 * PyTorch's memory fraction hook: the device's pools may take this part of its memory at most,
 * from 0 to 1; no more than the limit that was configured.
 */
void millpond_torch_memory_fraction(double fraction, int device);

/**
 * PyTorch's hook at the beginning of a capture: allocations on streams for which `filter` says
 * yes come from the graph pool `pool` until `millpond_torch_end_allocate_to_pool`. `filter` is a
 * `std::function<bool(cudaStream_t)>` of libstdc++, passed by value as C++ does, by reference.
 *
 * The caller sees to this:
 *
 * `filter` is null, or points to such a function, which stays callable until the end hook.
 */
void millpond_torch_begin_allocate_to_pool(int device,
                                           millpond_torch_pool_id pool,
                                           const void *filter);

/**
 * PyTorch's hook at the end of a capture.
 */
void millpond_torch_end_allocate_to_pool(int device, millpond_torch_pool_id pool);

/**
 * PyTorch's hook when a graph is gone: once for each beginning. The graph pool's memory goes back
 * when its last graph and its last block are gone.
 */
void millpond_torch_release_pool(int device, millpond_torch_pool_id pool);

/**
 * What the pools of CUDA device number `device` hold together, graph pools included (whose peaks
 * are added, though they need not have been reached together). All zero if nothing was allocated
 * there yet. `statistics->size` must be set to `sizeof(millpond_statistics)`.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no size, or a device that cannot be).
 *
 * The caller sees to this:
 *
 * `statistics` is null, or points to a struct of `statistics->size` bytes.
 */
millpond_status millpond_torch_get_statistics(int device, millpond_statistics *statistics);

/**
 * Begins the high watermarks of the device's pools again at the current values.
 *
 * Errors: `MILLPOND_INVALID_ARGUMENT` (a device that cannot be).
 */
millpond_status millpond_torch_reset_peaks(int device);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MILLPOND_H */
