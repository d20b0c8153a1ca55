// millpond for C++17: owners for what the C library hands out, and a memory resource in the shape
// that CCCL and RMM use. Needs nothing but millpond.h.
//
// Failures are exceptions: millpond::out_of_memory (a std::bad_alloc) and millpond::error, both
// with the library's own account of what was asked, what was there, and what to do.
#ifndef MILLPOND_HPP
#define MILLPOND_HPP

#include <millpond.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace millpond {

// A call that failed, other than for want of memory.
class error : public std::runtime_error {
  public:
    error(millpond_status status, const std::string& message)
        : std::runtime_error(message), status_(status) {}
    millpond_status status() const noexcept { return status_; }

  private:
    millpond_status status_;
};

// There is no memory for a request; what() says where the memory is.
class out_of_memory : public std::bad_alloc {
  public:
    explicit out_of_memory(const std::string& message)
        : message_(std::make_shared<const std::string>(message)) {}
    const char* what() const noexcept override { return message_->c_str(); }

  private:
    // Shared, so that copying the exception cannot throw.
    std::shared_ptr<const std::string> message_;
};

// Throws what a status stands for, unless it is MILLPOND_OK.
inline void check(millpond_status status) {
    if (status == MILLPOND_OUT_OF_MEMORY) {
        throw out_of_memory(millpond_last_error());
    }
    if (status != MILLPOND_OK) {
        throw error(status, millpond_last_error());
    }
}

// A stream, by its raw handle. Made of a CUstream, a cudaStream_t, a void*, or anything with a
// member get() that gives one, such as cuda::stream_ref.
class stream_ref {
  public:
    stream_ref(void* raw) noexcept : raw_(raw) {}
    template <class Stream, class = decltype(static_cast<void*>(std::declval<const Stream&>().get()))>
    stream_ref(const Stream& stream) noexcept : raw_(static_cast<void*>(stream.get())) {}
    void* get() const noexcept { return raw_; }

  private:
    void* raw_;
};

// A device. Pools made on it outlive it.
class device {
  public:
    static device cuda(std::uint32_t ordinal) {
        millpond_device* raw = nullptr;
        check(millpond_device_open_cuda(ordinal, &raw));
        return device(raw);
    }
    // `bytes` of this machine's memory; 0: half of what it could give.
    static device host(std::uint64_t bytes) {
        millpond_device* raw = nullptr;
        check(millpond_device_open_host(bytes, &raw));
        return device(raw);
    }
    millpond_device* get() const noexcept { return raw_.get(); }
    millpond_device_info info() const {
        millpond_device_info info{};
        info.size = sizeof info;
        check(millpond_device_get_info(raw_.get(), &info));
        return info;
    }

  private:
    struct close {
        void operator()(millpond_device* raw) const noexcept { millpond_device_close(raw); }
    };
    explicit device(millpond_device* raw) noexcept : raw_(raw) {}
    std::unique_ptr<millpond_device, close> raw_;
};

class pool;

// A block of memory, freed in the order of the streams that used it when it goes out of scope.
class block {
  public:
    block() noexcept = default;
    block(block&& other) noexcept
        : pool_(std::move(other.pool_)),
          address_(std::exchange(other.address_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    block& operator=(block&& other) noexcept {
        if (this != &other) {
            reset();
            pool_ = std::move(other.pool_);
            address_ = std::exchange(other.address_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~block() { reset(); }

    void* data() const noexcept { return address_; }
    std::size_t size() const noexcept { return size_; }
    explicit operator bool() const noexcept { return address_ != nullptr; }

    // Says that the block is used on a further stream, until it is freed.
    void use_on(stream_ref stream) const {
        check(millpond_pool_use(pool_.get(), address_, stream.get()));
    }
    // Says that the stream was given all that it is ever to do with the block.
    void use_ended(stream_ref stream) const {
        check(millpond_pool_use_ended(pool_.get(), address_, stream.get()));
    }
    // Says that the stream's use ended where pool::record_event last recorded the event.
    void use_ends_at(stream_ref stream, void* event) const {
        check(millpond_pool_use_ends_at(pool_.get(), address_, stream.get(), event));
    }
    // Hands the block over: its owner is done with it, and this stream owns it from now on.
    void hand_over(stream_ref stream) const {
        check(millpond_pool_hand_over(pool_.get(), address_, stream.get()));
    }
    // Frees the block now. Waits for nothing.
    void reset() noexcept {
        if (address_ != nullptr) {
            // Only a block that is not one can fail to be freed, and this one is.
            (void)millpond_pool_free(pool_.get(), std::exchange(address_, nullptr));
            pool_.reset();
            size_ = 0;
        }
    }

  private:
    friend class pool;
    block(std::shared_ptr<millpond_pool> pool, void* address, std::size_t size) noexcept
        : pool_(std::move(pool)), address_(address), size_(size) {}
    std::shared_ptr<millpond_pool> pool_;
    void* address_ = nullptr;
    std::size_t size_ = 0;
};

// A pool. Copies are the same pool; it goes with the last of them and of its blocks.
class pool {
  public:
    struct options {
        // Bytes that the pool may take from the device at most; 0: all that the device has.
        std::uint64_t limit_bytes = 0;
        // Promises that every stream is told to stream_destroyed() before it is destroyed.
        bool streams_declared = false;
    };

    explicit pool(const device& on) : pool(on, options{}) {}
    pool(const device& on, const options& wanted) {
        millpond_pool_options raw_options{};
        raw_options.size = sizeof raw_options;
        raw_options.limit_bytes = wanted.limit_bytes;
        raw_options.streams_declared = wanted.streams_declared ? 1 : 0;
        millpond_pool* raw = nullptr;
        check(millpond_pool_create(on.get(), &raw_options, &raw));
        raw_ = std::shared_ptr<millpond_pool>(raw, &millpond_pool_destroy);
    }

    // A block for use on `stream`; `alignment` is a power of two, at least 256 is given.
    block allocate(std::size_t size, stream_ref stream, std::size_t alignment = 256) const {
        void* address = nullptr;
        check(millpond_pool_alloc_aligned(raw_.get(), size, alignment, stream.get(), &address));
        return block(raw_, address, size);
    }

    void record_event(void* event, stream_ref stream) const {
        check(millpond_pool_record_event(raw_.get(), event, stream.get()));
    }
    void wait_event(stream_ref stream, void* event) const {
        check(millpond_pool_wait_event(raw_.get(), stream.get(), event));
    }
    void forget_event(void* event) const { check(millpond_pool_forget_event(raw_.get(), event)); }
    void synchronize(stream_ref stream) const {
        check(millpond_pool_synchronize_stream(raw_.get(), stream.get()));
    }
    void synchronize() const { check(millpond_pool_synchronize(raw_.get())); }
    void stream_destroyed(stream_ref stream) const {
        check(millpond_pool_stream_destroyed(raw_.get(), stream.get()));
    }
    // No wait is ever inserted into the stream, until may_wait() takes that back.
    void never_wait(stream_ref stream) const {
        check(millpond_pool_never_wait(raw_.get(), stream.get()));
    }
    void may_wait(stream_ref stream) const {
        check(millpond_pool_may_wait(raw_.get(), stream.get()));
    }
    // Gives back what nothing uses until at most `keep` bytes stay; gives the bytes released.
    std::uint64_t trim(std::uint64_t keep = 0) const {
        std::uint64_t released = 0;
        check(millpond_pool_trim(raw_.get(), keep, &released));
        return released;
    }
    void set_limit(std::uint64_t bytes) const { check(millpond_pool_set_limit(raw_.get(), bytes)); }
    void reset_peaks() const { check(millpond_pool_reset_peaks(raw_.get())); }
    millpond_statistics statistics() const {
        millpond_statistics filled{};
        filled.size = sizeof filled;
        check(millpond_pool_get_statistics(raw_.get(), &filled));
        return filled;
    }
    millpond_pool* get() const noexcept { return raw_.get(); }
    bool operator==(const pool& other) const noexcept { return raw_ == other.raw_; }
    bool operator!=(const pool& other) const noexcept { return raw_ != other.raw_; }

  private:
    std::shared_ptr<millpond_pool> raw_;
};

// A pool as a memory resource: allocate and deallocate take the stream first, as CCCL's resources
// do (and the pair without a stream waits for the memory to be usable by everybody).
//
// deallocate's stream says where the memory was used last: if it is not the one it was allocated
// for, the memory waits for both.
class memory_resource {
  public:
    explicit memory_resource(pool from) : pool_(std::move(from)) {}

    void* allocate(stream_ref stream, std::size_t bytes,
                   std::size_t alignment = alignof(std::max_align_t)) {
        void* address = nullptr;
        check(millpond_pool_alloc_aligned(pool_.get(), bytes, alignment, stream.get(), &address));
        return address;
    }
    void deallocate(stream_ref stream, void* address, std::size_t /* bytes */,
                    std::size_t /* alignment */ = alignof(std::max_align_t)) noexcept {
        if (address == nullptr) {
            return;
        }
        // Neither can fail for an address that allocate() gave.
        (void)millpond_pool_use(pool_.get(), address, stream.get());
        (void)millpond_pool_free(pool_.get(), address);
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        void* address = allocate(stream_ref(nullptr), bytes, alignment);
        pool_.synchronize(stream_ref(nullptr));
        return address;
    }
    void deallocate_sync(void* address, std::size_t bytes,
                         std::size_t alignment = alignof(std::max_align_t)) noexcept {
        // Whoever frees without a stream says that all use is over.
        deallocate(stream_ref(nullptr), address, bytes, alignment);
    }

    const pool& source() const noexcept { return pool_; }
    bool operator==(const memory_resource& other) const noexcept { return pool_ == other.pool_; }
    bool operator!=(const memory_resource& other) const noexcept { return pool_ != other.pool_; }

  private:
    pool pool_;
};

}  // namespace millpond

#endif  // MILLPOND_HPP
