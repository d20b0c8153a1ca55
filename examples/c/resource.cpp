// Blocks that free themselves, and a pool behind code that wants a memory resource.
//
//     c++ -std=c++17 resource.cpp $(pkg-config --cflags --libs millpond) -o resource
//     ./resource          on this machine's memory
//     ./resource cuda     on the first GPU
#include <millpond.hpp>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// A stream that is destroyed with its scope, and that its pool hears of.
class stream {
  public:
    stream(const millpond::device& on, millpond::pool from) : device_(on), pool_(std::move(from)) {
        millpond::check(millpond_stream_create(device_.get(), &raw_));
    }
    ~stream() {
        pool_.stream_destroyed(raw_);
        millpond_stream_destroy(device_.get(), raw_);
    }
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    void* get() const noexcept { return raw_; }

  private:
    const millpond::device& device_;
    millpond::pool pool_;
    void* raw_ = nullptr;
};

// Something that only knows the shape of a memory resource.
template <class Resource>
class scratch {
  public:
    scratch(Resource& from, millpond::stream_ref on, std::size_t bytes)
        : resource_(from), stream_(on), bytes_(bytes), address_(from.allocate(on, bytes, 512)) {}
    ~scratch() { resource_.deallocate(stream_, address_, bytes_, 512); }
    scratch(const scratch&) = delete;
    scratch& operator=(const scratch&) = delete;
    void* data() const { return address_; }

  private:
    Resource& resource_;
    millpond::stream_ref stream_;
    std::size_t bytes_;
    void* address_;
};

void run(const millpond::device& device) {
    millpond::pool::options wanted;
    wanted.limit_bytes = 64 * mib;
    wanted.streams_declared = true;
    const millpond::pool pool(device, wanted);
    const stream work(device, pool);

    // What one step frees, the next step uses, without a driver call or a wait.
    void* first = nullptr;
    for (int step = 0; step < 3; ++step) {
        const millpond::block activations = pool.allocate(8 * mib, work);
        millpond::check(millpond_stream_fill(device.get(), work.get(), activations.data(),
                                             activations.size(), 0x5555555555555555));
        if (step == 0) {
            first = activations.data();
        } else if (activations.data() != first) {
            throw millpond::error(MILLPOND_INTERNAL, "a step got other memory than the last one");
        }
    }
    std::printf("three steps, one piece of memory\n");

    millpond::memory_resource resource(pool);
    {
        const scratch<millpond::memory_resource> some(resource, work, mib);
        std::printf("scratch memory is aligned: %s\n",
                    reinterpret_cast<std::uintptr_t>(some.data()) % 512 == 0 ? "yes" : "no");
    }

    std::vector<millpond::block> hoard;
    try {
        for (;;) {
            hoard.push_back(pool.allocate(16 * mib, work));
        }
    } catch (const millpond::out_of_memory& failure) {
        std::printf("after %zu blocks: %s\n", hoard.size(), failure.what());
    }
    hoard.clear();
    pool.synchronize();
    pool.trim();
    std::printf("%llu bytes reserved in the end\n",
                static_cast<unsigned long long>(pool.statistics().reserved_bytes));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const bool on_gpu = argc > 1 && std::strcmp(argv[1], "cuda") == 0;
        run(on_gpu ? millpond::device::cuda(0) : millpond::device::host(256 * mib));
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
