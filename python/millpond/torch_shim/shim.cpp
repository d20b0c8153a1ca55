// Turns "no memory" into torch.OutOfMemoryError: a C++ exception of PyTorch's own type, which only
// C++ that was compiled against the installed PyTorch can throw.
//
// Needs PyTorch's headers and libc10, but neither CUDA's headers nor Python's. millpond's functions
// come as addresses, so that the shim is bound to no place where the library may lie.
#include <c10/util/Exception.h>

#include <sys/types.h>

#include <string>

namespace {

using alloc_function = void* (*)(ssize_t, int, void*);
using free_function = void (*)(void*, ssize_t, int, void*);
using text_function = const char* (*)();
using status_function = int (*)();

// MILLPOND_OUT_OF_MEMORY of millpond.h.
constexpr int out_of_memory = 2;

alloc_function alloc = nullptr;
free_function free_block = nullptr;
text_function last_error = nullptr;
status_function last_status = nullptr;

}  // namespace

extern "C" void millpond_shim_bind(alloc_function to_alloc, free_function to_free,
                                   text_function to_error, status_function to_status) {
    alloc = to_alloc;
    free_block = to_free;
    last_error = to_error;
    last_status = to_status;
}

extern "C" void* millpond_shim_alloc(ssize_t size, int device, void* stream) {
    void* block = alloc(size, device, stream);
    // Zero bytes are served by a null pointer, and that is no failure.
    if (__builtin_expect(block == nullptr && size != 0, 0)) {
        const std::string reason = last_error();
        const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
        if (last_status() == out_of_memory) {
            // The first words are those that programs look for.
            throw c10::OutOfMemoryError(here, "CUDA out of memory. millpond: " + reason);
        }
        throw c10::Error(here, "millpond: " + reason);
    }
    return block;
}

extern "C" void millpond_shim_free(void* block, ssize_t size, int device, void* stream) {
    free_block(block, size, device, stream);
}
