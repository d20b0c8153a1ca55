// A driver's library without a device: two devices, work done at once, memory of the host.
//
// It serves to test what surrounds the driver: loading, contexts, failures, forks. What it leaves
// out is chosen when it is compiled:
//   STUB            every call answers "stub library", as the toolkit's stub does
//   NOT_A_DRIVER    no function at all
//   OLD             a driver for CUDA 9.0
//   NO_DEVICE       a driver that finds no device
//   NO_LAUNCH       a required function is missing
//   PROC_ADDRESS    has cuGetProcAddress_v2, and exports the other functions under other names
//   STREAM_ID       has cuStreamGetId
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    INVALID_VALUE = 1,
    STUB_LIBRARY = 34,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
};

typedef uint64_t Address;
typedef void (*HostFunction)(void *);

#ifdef NOT_A_DRIVER
int fake_nothing(void) { return 0; }
#else

#ifdef PROC_ADDRESS
#define API(name) fake_exported_##name
#else
#define API(name) name
#endif

static int failure;
static long calls;
static int held;
static int retained[2];
static int modules;
static int host_allocations;
static __thread void *stack[16];
static __thread int depth;

// Controls for the tests.
void fake_fail(int code) { failure = code; }
void fake_hold(int on) { held = on; }
long fake_calls(void) { return calls; }
int fake_retained(int device) { return retained[device]; }
int fake_modules(void) { return modules; }
int fake_host_allocations(void) { return host_allocations; }
void *fake_current(void) { return depth ? stack[depth - 1] : NULL; }
void *fake_primary(int device) { return (void *)(uintptr_t)(0x1000 + device); }
void fake_set_current(void *context) {
    depth = 0;
    stack[depth++] = context;
}
int fake_fork(int (*child)(void *), void *argument) {
    pid_t pid = fork();
    if (pid == 0) {
        _exit(child(argument));
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

#ifdef STUB
#define ENTER()                                                                                    \
    do {                                                                                           \
        calls++;                                                                                   \
        return STUB_LIBRARY;                                                                       \
    } while (0)
#else
#define ENTER()                                                                                    \
    do {                                                                                           \
        calls++;                                                                                   \
        if (failure) {                                                                             \
            return failure;                                                                        \
        }                                                                                          \
    } while (0)
#endif
#define ENTER_CONTEXT()                                                                            \
    ENTER();                                                                                       \
    if (!depth) {                                                                                  \
        return INVALID_CONTEXT;                                                                    \
    }

int cuDriverGetVersion(int *version) {
    ENTER();
#ifdef OLD
    *version = 9000;
#else
    *version = 12040;
#endif
    return 0;
}

int API(cuInit)(unsigned flags) {
    ENTER();
#ifdef NO_DEVICE
    return 100;
#endif
    return flags ? INVALID_VALUE : 0;
}

int API(cuGetErrorName)(int code, const char **text) {
    if (code != INVALID_VALUE) {
        return INVALID_VALUE;
    }
    *text = "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
int API(cuGetErrorString)(int code, const char **text) {
    if (code != INVALID_VALUE) {
        return INVALID_VALUE;
    }
    *text = "invalid argument";
    return 0;
}

int API(cuDeviceGetCount)(int *count) {
    ENTER();
    *count = 2;
    return 0;
}
int API(cuDeviceGet)(int *device, int ordinal) {
    ENTER();
    *device = ordinal;
    return ordinal < 2 ? 0 : INVALID_DEVICE;
}
int API(cuDeviceGetName)(char *name, int length, int device) {
    ENTER();
    snprintf(name, length, "Fake %d", device);
    return 0;
}
int API(cuDeviceTotalMem_v2)(size_t *bytes, int device) {
    ENTER();
    (void)device;
    *bytes = 1 << 30;
    return 0;
}
int API(cuDeviceGetAttribute)(int *value, int attribute, int device) {
    ENTER();
    (void)device;
    *value = attribute == 16 ? 4 : 1;
    return attribute > 140 ? INVALID_VALUE : 0;
}
int API(cuDeviceCanAccessPeer)(int *can, int device, int peer) {
    ENTER();
    *can = device != peer;
    return 0;
}
int API(cuDevicePrimaryCtxRetain)(void **context, int device) {
    ENTER();
    retained[device]++;
    *context = fake_primary(device);
    return 0;
}
int API(cuDevicePrimaryCtxRelease)(int device) {
    ENTER();
    retained[device]--;
    return 0;
}
int API(cuDevicePrimaryCtxGetState)(int device, unsigned *flags, int *active) {
    ENTER();
    *flags = 0;
    *active = retained[device] > 0;
    return 0;
}

int API(cuCtxGetCurrent)(void **context) {
    // Like the real one, this works after a kernel failed.
    calls++;
    if (failure == 4) {
        return failure;
    }
    *context = fake_current();
    return 0;
}
int API(cuCtxPushCurrent_v2)(void *context) {
    calls++;
    stack[depth++] = context;
    return 0;
}
int API(cuCtxPopCurrent_v2)(void **context) {
    calls++;
    if (!depth) {
        return INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return 0;
}
int API(cuCtxGetDevice)(int *device) {
    ENTER_CONTEXT();
    *device = (uintptr_t)fake_current() & 1;
    return 0;
}
int API(cuCtxSynchronize)(void) {
    ENTER_CONTEXT();
    return 0;
}

int API(cuMemGetInfo_v2)(size_t *free, size_t *total) {
    ENTER_CONTEXT();
    *free = 1 << 20;
    *total = 1 << 30;
    return 0;
}
int API(cuMemAlloc_v2)(Address *address, size_t size) {
    ENTER_CONTEXT();
    if (!size || size > (1 << 30)) {
        return size ? 2 : INVALID_VALUE;
    }
    *address = (Address)(uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    return 0;
}
int API(cuMemFree_v2)(Address address) {
    ENTER_CONTEXT();
    free((void *)(uintptr_t)address);
    return 0;
}
int API(cuMemHostAlloc)(void **memory, size_t size, unsigned flags) {
    ENTER_CONTEXT();
    host_allocations++;
    *memory = malloc(size);
    return flags == 3 ? 0 : INVALID_VALUE;
}
int API(cuMemHostGetDevicePointer_v2)(Address *address, void *memory, unsigned flags) {
    ENTER_CONTEXT();
    *address = (Address)(uintptr_t)memory;
    return flags ? INVALID_VALUE : 0;
}
int API(cuMemFreeHost)(void *memory) {
    ENTER_CONTEXT();
    host_allocations--;
    free(memory);
    return 0;
}
int API(cuMemcpyDtoDAsync_v2)(Address to, Address from, size_t size, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return 0;
}

int API(cuStreamCreate)(void **stream, unsigned flags) {
    ENTER_CONTEXT();
    *stream = (void *)(uintptr_t)(0x7000 + flags);
    return 0;
}
int API(cuStreamDestroy_v2)(void *stream) {
    ENTER_CONTEXT();
    return (uintptr_t)stream < 0x7000 ? INVALID_HANDLE : 0;
}
int API(cuStreamSynchronize)(void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return 0;
}
int API(cuStreamWaitEvent)(void *stream, void *event, unsigned flags) {
    ENTER_CONTEXT();
    (void)stream;
    (void)event;
    return flags ? INVALID_VALUE : 0;
}
int API(cuStreamGetFlags)(void *stream, unsigned *flags) {
    ENTER_CONTEXT();
    *flags = (uintptr_t)stream < 0x7000 ? 0 : (uintptr_t)stream - 0x7000;
    return 0;
}
#ifdef STREAM_ID
int API(cuStreamGetId)(void *stream, unsigned long long *id) {
    ENTER_CONTEXT();
    *id = 100 + (uintptr_t)stream;
    return 0;
}
#endif

// An event is two ints: whether it was recorded, and what a query answers then.
int API(cuEventCreate)(int **event, unsigned flags) {
    ENTER_CONTEXT();
    *event = calloc(2, sizeof(int));
    return flags == 2 ? 0 : INVALID_VALUE;
}
int API(cuEventDestroy_v2)(int *event) {
    ENTER_CONTEXT();
    free(event);
    return 0;
}
int API(cuEventRecord)(int *event, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    event[0] = 1;
    event[1] = held ? 600 : 0;
    return 0;
}
int API(cuEventQuery)(int *event) {
    ENTER_CONTEXT();
    return event[0] ? event[1] : 0;
}
int API(cuEventSynchronize)(int *event) {
    ENTER_CONTEXT();
    event[1] = 0;
    return 0;
}

int API(cuModuleLoadData)(void **module, const char *text) {
    ENTER_CONTEXT();
    modules++;
    *module = (void *)text;
    return strstr(text, ".version") ? 0 : 218;
}
int API(cuModuleUnload)(void *module) {
    ENTER_CONTEXT();
    (void)module;
    modules--;
    return 0;
}
int API(cuModuleGetFunction)(void **function, void *module, const char *name) {
    ENTER_CONTEXT();
    *function = strstr(module, name);
    return *function ? 0 : NOT_FOUND;
}

#ifndef NO_LAUNCH
// What kernels.ptx does, byte by byte.
struct Split {
    uint64_t start, head, pattern, body, pairs, word, end, tail;
};
static uint64_t turned(uint64_t word, uint64_t bytes) {
    unsigned turn = bytes % 8 * 8;
    return turn ? word << turn | word >> (64 - turn) : word;
}
static void compare(uint64_t at, uint64_t length, uint64_t word, uint64_t turn, uint64_t *slot) {
    for (uint64_t i = 0; i < length; i++) {
        uint8_t found = *(uint8_t *)(uintptr_t)(at + i);
        uint8_t expected = word >> (i % 8 * 8);
        if (found != expected) {
            uint64_t difference = (uint64_t)(found ^ expected) << (i % 8 * 8);
            slot[0] += 1;
            slot[1] = turned(word ^ difference, turn);
        }
    }
}
int API(cuLaunchKernel)(const char *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        void *stream, void **parameters, void **extra) {
    ENTER_CONTEXT();
    (void)stream;
    if (!grid_x || grid_y != 1 || grid_z != 1 || block_x < 16 || block_y != 1 || block_z != 1 ||
        shared || extra) {
        return INVALID_VALUE;
    }
    struct Split s = *(struct Split *)parameters[0];
    if (!strncmp(function, "millpond_fill", 13)) {
        for (uint64_t i = 0; i < s.head; i++) {
            ((uint8_t *)(uintptr_t)s.start)[i] = s.pattern >> (i % 8 * 8);
        }
        for (uint64_t i = 0; i < s.pairs * 2; i++) {
            ((uint64_t *)(uintptr_t)s.body)[i] = s.word;
        }
        for (uint64_t i = 0; i < s.tail; i++) {
            ((uint8_t *)(uintptr_t)s.end)[i] = s.word >> (i % 8 * 8);
        }
    } else {
        uint64_t *slot = *(uint64_t **)parameters[1];
        compare(s.start, s.head, s.pattern, 0, slot);
        compare(s.body, s.pairs * 16, s.word, s.head, slot);
        compare(s.end, s.tail, s.word, s.head, slot);
    }
    return 0;
}
#endif

struct Call {
    HostFunction function;
    void *data;
};
static void *run(void *call) {
    ((struct Call *)call)->function(((struct Call *)call)->data);
    return NULL;
}
int API(cuLaunchHostFunc)(void *stream, HostFunction function, void *data) {
    ENTER_CONTEXT();
    (void)stream;
    if (held) {
        return 0;
    }
    struct Call call = {function, data};
    pthread_t thread;
    pthread_create(&thread, NULL, run, &call);
    pthread_join(thread, NULL);
    return 0;
}

#ifdef PROC_ADDRESS
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    static const char *suffixes[] = {"_v2", ""};
    char exported[128];
    calls++;
    *function = NULL;
    *status = 1;
    if (flags != 1 || version > 12040) {
        return NOT_FOUND;
    }
    for (int i = 0; i < 2 && !*function; i++) {
        snprintf(exported, sizeof exported, "fake_exported_%s%s", name, suffixes[i]);
        Dl_info self;
        dladdr((void *)cuGetProcAddress_v2, &self);
        void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        *function = dlsym(library, exported);
        dlclose(library);
    }
    *status = *function ? 0 : 1;
    return *function ? 0 : NOT_FOUND;
}
#endif
#endif
