// Calls the pair and its hooks the way PyTorch does: bare addresses in std::functions, a pair by
// value, a std::function moved into a call. Runs on the host device (MILLPOND_DEVICE).
#include <millpond.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

using stream_t = void*;
using pool_id = std::pair<std::uint64_t, std::uint64_t>;
using filter_t = std::function<bool(stream_t)>;

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            std::fprintf(stderr, "%d: %s does not hold; last error: %s\n", __LINE__,    \
                         #condition, millpond_last_error());                            \
            std::exit(1);                                                               \
        }                                                                               \
    } while (false)

static millpond_statistics statistics() {
    millpond_statistics now{};
    now.size = sizeof now;
    REQUIRE(millpond_torch_get_statistics(0, &now) == MILLPOND_OK);
    return now;
}

template <class Signature, class Function>
static std::function<Signature> function(Function* exported) {
    const auto address = reinterpret_cast<std::uintptr_t>(exported);
    return reinterpret_cast<Signature*>(address);
}

int main() {
    // As the binding makes them: from numbers.
    auto alloc = function<void*(std::size_t, int, stream_t)>(&millpond_torch_alloc);
    auto free_block = function<void(void*, std::size_t, int, stream_t)>(&millpond_torch_free);
    auto begin = function<void(int, pool_id, filter_t)>(&millpond_torch_begin_allocate_to_pool);
    auto end = function<void(int, pool_id)>(&millpond_torch_end_allocate_to_pool);
    auto release = function<void(int, pool_id)>(&millpond_torch_release_pool);

    // Statistics of a device that nothing was allocated on are zero, and make nothing.
    REQUIRE(statistics().reserved_bytes == 0);
    REQUIRE(alloc(0, 0, nullptr) == nullptr);

    void* block = alloc(1 << 20, 0, nullptr);
    REQUIRE(block != nullptr);
    REQUIRE(statistics().live_bytes == 1 << 20);
    millpond_torch_record_stream(block, reinterpret_cast<stream_t>(std::uintptr_t{0x10}));
    int elsewhere = 0;
    millpond_torch_record_stream(&elsewhere, nullptr);
    free_block(block, 1 << 20, 0, nullptr);
    free_block(nullptr, 0, 0, nullptr);
    REQUIRE(statistics().live_blocks == 0);

    // It is too late to configure.
    millpond_torch_options options{};
    options.size = sizeof options;
    REQUIRE(millpond_torch_configure(&options) == MILLPOND_TOO_LATE);

    // A capture's memory is its own: a filter with state, in a pool with a large number.
    const stream_t captured = reinterpret_cast<stream_t>(std::uintptr_t{0x7000});
    const pool_id id{0xfedcba9876543210u, 7};
    std::string name(100, 'x');
    int calls = 0;
    filter_t filter = [&calls, name, captured](stream_t stream) {
        ++calls;
        return name.size() == 100 && stream == captured;
    };
    begin(0, id, std::move(filter));
    void* inside = alloc(3 << 20, 0, captured);
    void* outside = alloc(3 << 20, 0, nullptr);
    REQUIRE(inside != nullptr && outside != nullptr);
    // Asked for each request, and for whatever else would touch a stream.
    REQUIRE(calls >= 2);
    free_block(inside, 3 << 20, 0, captured);
    void* again = alloc(3 << 20, 0, captured);
    REQUIRE(again == inside);
    end(0, id);
    free_block(again, 3 << 20, 0, captured);
    // The graph lives, so its memory is not given to others.
    void* eager = alloc(3 << 20, 0, captured);
    REQUIRE(eager != inside);
    free_block(eager, 3 << 20, 0, captured);
    free_block(outside, 3 << 20, 0, nullptr);
    millpond_torch_empty_cache();
    REQUIRE(statistics().reserved_bytes > 0);
    release(0, id);
    REQUIRE(statistics().reserved_bytes == 0);

    // No memory: null, and a reason.
    REQUIRE(alloc(std::size_t{1} << 40, 0, nullptr) == nullptr);
    REQUIRE(std::strstr(millpond_last_error(), "out of memory") != nullptr);
    // Without PyTorch there is nothing to throw.
    REQUIRE(millpond_torch_alloc_or_throw(std::ptrdiff_t{1} << 40, 0, nullptr) == nullptr);
    REQUIRE(alloc(1, 64, nullptr) == nullptr);
    REQUIRE(alloc(1, -1, nullptr) == nullptr);

    millpond_torch_memory_fraction(0.25, 0);
    REQUIRE(statistics().limit_bytes == (64u << 20) / 4);
    REQUIRE(alloc(20 << 20, 0, nullptr) == nullptr);
    std::printf("PyTorch's pair works\n");
    return 0;
}
