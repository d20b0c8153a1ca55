//! The driver functions that millpond calls, and the table that holds them.
//!
//! Invariants: each entry names the CUDA version in which the form declared here appeared, so that
//! a newer driver gives this form and no later one; required entries are there in every table;
//! optional ones may be missing, and what needs them then answers "not supported".

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use super::types::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUhostFn, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUresult, CUstream,
};

/// A function as it is asked for.
pub(super) struct Wanted {
    /// Its name for `cuGetProcAddress`, without a version's suffix.
    pub(super) name: &'static str,
    /// The CUDA version (1000 × major + 10 × minor) in which this form of it appeared.
    pub(super) version: c_int,
    /// The names the library exports for this form, best first.
    pub(super) symbols: &'static [&'static str],
}

macro_rules! functions {
    (
        required { $($field:ident = $name:literal, $version:literal, [$($symbol:literal),+]:
            fn($($argument:ident: $kind:ty),* $(,)?);)* }
        optional { $($optional_field:ident = $optional_name:literal, $optional_version:literal,
            [$($optional_symbol:literal),+]:
            fn($($optional_argument:ident: $optional_kind:ty),* $(,)?);)* }
    ) => {
        /// The functions, ready to be called.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument: $kind),*) -> CUresult,)*
            $(pub(super) $optional_field:
                Option<unsafe extern "C" fn($($optional_argument: $optional_kind),*) -> CUresult>,)*
        }

        impl Functions {
            /// Fills the table. Gives the names of the optional functions that are not there as
            /// well; fails with the first required one that is not.
            ///
            /// # Safety
            ///
            /// `find` gives the address of the function that it is asked for, in the form of the
            /// version it is asked for, or none; and the function stays there for good.
            pub(super) unsafe fn fill(
                find: impl Fn(&Wanted) -> Option<NonNull<c_void>>,
            ) -> Result<(Functions, Vec<&'static str>), &'static str> {
                let mut missing = Vec::new();
                let functions = Functions {
                    $($field: {
                        let wanted = Wanted {
                            name: $name,
                            version: $version,
                            symbols: &[$($symbol),+],
                        };
                        let address = find(&wanted).ok_or($name)?.as_ptr();
                        // SAFETY: by this function's contract, the address is that of the
                        // function of this name and version, whose C declaration this is.
                        unsafe {
                            transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument: $kind),*) -> CUresult,
                            >(address)
                        }
                    },)*
                    $($optional_field: {
                        let wanted = Wanted {
                            name: $optional_name,
                            version: $optional_version,
                            symbols: &[$($optional_symbol),+],
                        };
                        let address = find(&wanted);
                        if address.is_none() {
                            missing.push($optional_name);
                        }
                        // SAFETY: as above; a missing function stays missing.
                        address.map(|address| unsafe {
                            transmute::<
                                *mut c_void,
                                unsafe extern "C" fn(
                                    $($optional_argument: $optional_kind),*
                                ) -> CUresult,
                            >(address.as_ptr())
                        })
                    },)*
                };
                Ok((functions, missing))
            }
        }
    };
}

functions! {
    required {
        init = "cuInit", 2000, ["cuInit"]: fn(flags: c_uint);

        device_get_count = "cuDeviceGetCount", 2000, ["cuDeviceGetCount"]:
            fn(count: *mut c_int);
        device_get = "cuDeviceGet", 2000, ["cuDeviceGet"]:
            fn(device: *mut CUdevice, ordinal: c_int);
        device_get_name = "cuDeviceGetName", 2000, ["cuDeviceGetName"]:
            fn(name: *mut c_char, len: c_int, device: CUdevice);
        device_total_mem = "cuDeviceTotalMem", 3020, ["cuDeviceTotalMem_v2"]:
            fn(bytes: *mut usize, device: CUdevice);
        device_get_attribute = "cuDeviceGetAttribute", 2000, ["cuDeviceGetAttribute"]:
            fn(value: *mut c_int, attribute: c_int, device: CUdevice);
        device_can_access_peer = "cuDeviceCanAccessPeer", 4000, ["cuDeviceCanAccessPeer"]:
            fn(can: *mut c_int, device: CUdevice, peer: CUdevice);
        device_primary_ctx_retain =
            "cuDevicePrimaryCtxRetain", 7000, ["cuDevicePrimaryCtxRetain"]:
            fn(context: *mut CUcontext, device: CUdevice);
        device_primary_ctx_release =
            "cuDevicePrimaryCtxRelease", 11000,
            ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"]:
            fn(device: CUdevice);
        device_primary_ctx_get_state =
            "cuDevicePrimaryCtxGetState", 7000, ["cuDevicePrimaryCtxGetState"]:
            fn(device: CUdevice, flags: *mut c_uint, active: *mut c_int);

        ctx_get_current = "cuCtxGetCurrent", 4000, ["cuCtxGetCurrent"]:
            fn(context: *mut CUcontext);
        ctx_push_current = "cuCtxPushCurrent", 4000, ["cuCtxPushCurrent_v2"]:
            fn(context: CUcontext);
        ctx_pop_current = "cuCtxPopCurrent", 4000, ["cuCtxPopCurrent_v2"]:
            fn(context: *mut CUcontext);
        ctx_get_device = "cuCtxGetDevice", 2000, ["cuCtxGetDevice"]:
            fn(device: *mut CUdevice);
        ctx_synchronize = "cuCtxSynchronize", 2000, ["cuCtxSynchronize"]: fn();

        mem_get_info = "cuMemGetInfo", 3020, ["cuMemGetInfo_v2"]:
            fn(free: *mut usize, total: *mut usize);
        mem_alloc = "cuMemAlloc", 3020, ["cuMemAlloc_v2"]:
            fn(address: *mut CUdeviceptr, size: usize);
        mem_free = "cuMemFree", 3020, ["cuMemFree_v2"]: fn(address: CUdeviceptr);
        mem_host_alloc = "cuMemHostAlloc", 2020, ["cuMemHostAlloc"]:
            fn(memory: *mut *mut c_void, size: usize, flags: c_uint);
        mem_host_get_device_pointer =
            "cuMemHostGetDevicePointer", 3020, ["cuMemHostGetDevicePointer_v2"]:
            fn(address: *mut CUdeviceptr, memory: *mut c_void, flags: c_uint);
        mem_free_host = "cuMemFreeHost", 2000, ["cuMemFreeHost"]: fn(memory: *mut c_void);
        memcpy_dtod_async = "cuMemcpyDtoDAsync", 3020, ["cuMemcpyDtoDAsync_v2"]:
            fn(destination: CUdeviceptr, source: CUdeviceptr, size: usize, stream: CUstream);

        stream_create = "cuStreamCreate", 2000, ["cuStreamCreate"]:
            fn(stream: *mut CUstream, flags: c_uint);
        stream_destroy = "cuStreamDestroy", 4000, ["cuStreamDestroy_v2"]:
            fn(stream: CUstream);
        stream_synchronize = "cuStreamSynchronize", 2000, ["cuStreamSynchronize"]:
            fn(stream: CUstream);
        stream_wait_event = "cuStreamWaitEvent", 3020, ["cuStreamWaitEvent"]:
            fn(stream: CUstream, event: CUevent, flags: c_uint);

        event_create = "cuEventCreate", 2000, ["cuEventCreate"]:
            fn(event: *mut CUevent, flags: c_uint);
        event_destroy = "cuEventDestroy", 4000, ["cuEventDestroy_v2"]: fn(event: CUevent);
        event_record = "cuEventRecord", 2000, ["cuEventRecord"]:
            fn(event: CUevent, stream: CUstream);
        event_query = "cuEventQuery", 2000, ["cuEventQuery"]: fn(event: CUevent);
        event_synchronize = "cuEventSynchronize", 2000, ["cuEventSynchronize"]:
            fn(event: CUevent);

        module_load_data = "cuModuleLoadData", 2000, ["cuModuleLoadData"]:
            fn(module: *mut CUmodule, image: *const c_void);
        module_unload = "cuModuleUnload", 2000, ["cuModuleUnload"]: fn(module: CUmodule);
        module_get_function = "cuModuleGetFunction", 2000, ["cuModuleGetFunction"]:
            fn(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        launch_kernel = "cuLaunchKernel", 4000, ["cuLaunchKernel"]:
            fn(
                function: CUfunction,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared_memory: c_uint,
                stream: CUstream,
                parameters: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
        launch_host_func = "cuLaunchHostFunc", 10000, ["cuLaunchHostFunc"]:
            fn(stream: CUstream, function: CUhostFn, user_data: *mut c_void);
    }
    optional {
        get_error_name = "cuGetErrorName", 6000, ["cuGetErrorName"]:
            fn(code: CUresult, text: *mut *const c_char);
        get_error_string = "cuGetErrorString", 6000, ["cuGetErrorString"]:
            fn(code: CUresult, text: *mut *const c_char);

        mem_address_reserve = "cuMemAddressReserve", 10020, ["cuMemAddressReserve"]:
            fn(
                address: *mut CUdeviceptr,
                size: usize,
                alignment: usize,
                hint: CUdeviceptr,
                flags: u64,
            );
        mem_address_free = "cuMemAddressFree", 10020, ["cuMemAddressFree"]:
            fn(address: CUdeviceptr, size: usize);
        mem_create = "cuMemCreate", 10020, ["cuMemCreate"]:
            fn(
                handle: *mut CUmemGenericAllocationHandle,
                size: usize,
                properties: *const CUmemAllocationProp,
                flags: u64,
            );
        mem_release = "cuMemRelease", 10020, ["cuMemRelease"]:
            fn(handle: CUmemGenericAllocationHandle);
        mem_map = "cuMemMap", 10020, ["cuMemMap"]:
            fn(
                address: CUdeviceptr,
                size: usize,
                offset: usize,
                handle: CUmemGenericAllocationHandle,
                flags: u64,
            );
        mem_set_access = "cuMemSetAccess", 10020, ["cuMemSetAccess"]:
            fn(
                address: CUdeviceptr,
                size: usize,
                descriptors: *const CUmemAccessDesc,
                count: usize,
            );
        mem_unmap = "cuMemUnmap", 10020, ["cuMemUnmap"]:
            fn(address: CUdeviceptr, size: usize);
        mem_get_allocation_granularity =
            "cuMemGetAllocationGranularity", 10020, ["cuMemGetAllocationGranularity"]:
            fn(bytes: *mut usize, properties: *const CUmemAllocationProp, option: c_uint);
        mem_get_allocation_properties =
            "cuMemGetAllocationPropertiesFromHandle", 10020,
            ["cuMemGetAllocationPropertiesFromHandle"]:
            fn(properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        mem_export =
            "cuMemExportToShareableHandle", 10020, ["cuMemExportToShareableHandle"]:
            fn(
                shareable: *mut c_void,
                handle: CUmemGenericAllocationHandle,
                kind: c_uint,
                flags: u64,
            );
        mem_import =
            "cuMemImportFromShareableHandle", 10020, ["cuMemImportFromShareableHandle"]:
            fn(
                handle: *mut CUmemGenericAllocationHandle,
                shareable: *mut c_void,
                kind: c_uint,
            );

        stream_wait_value64 =
            "cuStreamWaitValue64", 11070, ["cuStreamWaitValue64_v2", "cuStreamWaitValue64"]:
            fn(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
        thread_exchange_stream_capture_mode =
            "cuThreadExchangeStreamCaptureMode", 10010, ["cuThreadExchangeStreamCaptureMode"]:
            fn(mode: *mut c_int);
        stream_get_flags = "cuStreamGetFlags", 7000, ["cuStreamGetFlags"]:
            fn(stream: CUstream, flags: *mut c_uint);
        stream_get_id = "cuStreamGetId", 12000, ["cuStreamGetId"]:
            fn(stream: CUstream, id: *mut u64);
    }
}
