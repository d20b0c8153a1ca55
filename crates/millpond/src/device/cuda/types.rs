//! The driver's types, as its C header declares them, for the calls in [`table`](super::table).
//!
//! Invariants: every structure has the size, the alignment and the field offsets of the C one, and
//! every constant its value; a test holds them against declarations generated from the header.
//! Opaque handles are integers of pointer size here: nothing in this program ever looks behind one.

use std::ffi::c_void;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the driver's handles and addresses are 64 bits wide");

/// `CUresult`; zero is success.
pub(super) type CUresult = u32;
/// `CUdevice`: an ordinal.
pub(super) type CUdevice = i32;
/// `CUdeviceptr`: an address.
pub(super) type CUdeviceptr = u64;
/// `CUcontext`.
pub(super) type CUcontext = usize;
/// `CUmodule`.
pub(super) type CUmodule = usize;
/// `CUfunction`.
pub(super) type CUfunction = usize;
/// `CUstream`.
pub(super) type CUstream = usize;
/// `CUevent`.
pub(super) type CUevent = usize;
/// `CUmemGenericAllocationHandle`.
pub(super) type CUmemGenericAllocationHandle = u64;
/// `CUhostFn`.
pub(super) type CUhostFn = unsafe extern "C" fn(user_data: *mut c_void);

/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: CUresult = 0;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemLocation {
    pub(super) kind: u32,
    pub(super) id: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`.
pub(super) const LOCATION_HOST: u32 = 2;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
pub(super) const LOCATION_HOST_NUMA: u32 = 3;

/// `CUmemAllocationProp.allocFlags`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemAllocationFlags {
    pub(super) compression_type: u8,
    pub(super) gpu_direct_rdma_capable: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemAllocationProp {
    pub(super) kind: u32,
    pub(super) requested_handle_types: u32,
    pub(super) location: CUmemLocation,
    pub(super) win32_handle_meta_data: *mut c_void,
    pub(super) alloc_flags: CUmemAllocationFlags,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_NONE`.
pub(super) const HANDLE_TYPE_NONE: u32 = 0;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const HANDLE_TYPE_POSIX_FD: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(super) const HANDLE_TYPE_FABRIC: u32 = 8;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const GRANULARITY_MINIMUM: u32 = 0;

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemAccessDesc {
    pub(super) location: CUmemLocation,
    pub(super) flags: u32,
}

/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
pub(super) const ACCESS_NONE: u32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
pub(super) const ACCESS_READ: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const ACCESS_READ_WRITE: u32 = 3;

/// `CUmemFabricHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CUmemFabricHandle {
    pub(super) data: [u8; 64],
}

/// `CU_STREAM_DEFAULT`, as a flag of `cuStreamCreate`.
pub(super) const STREAM_DEFAULT: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`.
pub(super) const HOST_ALLOC_PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`.
pub(super) const HOST_ALLOC_DEVICE_MAP: u32 = 2;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: a null stream handle is the legacy stream.
pub(super) const PROC_ADDRESS_LEGACY_STREAM: u64 = 1;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(super) const ATTRIBUTE_MULTIPROCESSORS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(super) const ATTRIBUTE_MAPPING: i32 = 102;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
pub(super) const ATTRIBUTE_POSIX_FD: i32 = 103;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub(super) const ATTRIBUTE_RDMA_WITH_MAPPING: i32 = 110;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
pub(super) const ATTRIBUTE_FABRIC: i32 = 128;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(super) const ATTRIBUTE_HOST_NUMA_MAPPING: i32 = 141;
/// `CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`; drivers before CUDA 13 do not
/// know it.
pub(super) const ATTRIBUTE_HOST_MAPPING: i32 = 145;

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use cudarc::driver::sys;

    use super::*;
    use crate::device::Status;

    macro_rules! same_layout {
        ($ours:ty, $theirs:ty) => {
            assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
            assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($ours));
        };
        ($ours:ty, $theirs:ty, $($our_field:ident = $their_field:ident),+) => {
            same_layout!($ours, $theirs);
            $(assert_eq!(
                offset_of!($ours, $our_field),
                offset_of!($theirs, $their_field),
                concat!(stringify!($ours), ".", stringify!($our_field)),
            );)+
        };
    }

    #[test]
    fn structures_have_the_layout_of_the_header() {
        same_layout!(CUmemLocation, sys::CUmemLocation, kind = type_, id = id);
        same_layout!(
            CUmemAllocationProp,
            sys::CUmemAllocationProp,
            kind = type_,
            requested_handle_types = requestedHandleTypes,
            location = location,
            win32_handle_meta_data = win32HandleMetaData,
            alloc_flags = allocFlags
        );
        same_layout!(
            CUmemAllocationFlags,
            sys::CUmemAllocationProp_st__bindgen_ty_1,
            compression_type = compressionType,
            gpu_direct_rdma_capable = gpuDirectRDMACapable,
            usage = usage,
            reserved = reserved
        );
        same_layout!(
            CUmemAccessDesc,
            sys::CUmemAccessDesc,
            location = location,
            flags = flags
        );
        same_layout!(CUmemFabricHandle, sys::CUmemFabricHandle, data = data);
    }

    #[test]
    fn scalars_and_handles_have_the_size_of_the_header() {
        same_layout!(CUresult, sys::CUresult);
        same_layout!(CUdevice, sys::CUdevice);
        same_layout!(CUdeviceptr, sys::CUdeviceptr);
        same_layout!(CUcontext, sys::CUcontext);
        same_layout!(CUmodule, sys::CUmodule);
        same_layout!(CUfunction, sys::CUfunction);
        same_layout!(CUstream, sys::CUstream);
        same_layout!(CUevent, sys::CUevent);
        same_layout!(CUhostFn, sys::CUhostFn);
        same_layout!(
            CUmemGenericAllocationHandle,
            sys::CUmemGenericAllocationHandle
        );
    }

    #[test]
    fn constants_have_the_value_of_the_header() {
        use sys::CUdevice_attribute_enum as attribute;
        use sys::CUmemAccess_flags_enum as access;
        use sys::CUmemAllocationHandleType_enum as handle_type;
        use sys::CUmemLocationType_enum as location;

        for (ours, theirs) in [
            (
                LOCATION_DEVICE,
                location::CU_MEM_LOCATION_TYPE_DEVICE as u32,
            ),
            (LOCATION_HOST, location::CU_MEM_LOCATION_TYPE_HOST as u32),
            (
                LOCATION_HOST_NUMA,
                location::CU_MEM_LOCATION_TYPE_HOST_NUMA as u32,
            ),
            (
                ALLOCATION_PINNED,
                sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
            ),
            (HANDLE_TYPE_NONE, handle_type::CU_MEM_HANDLE_TYPE_NONE.0),
            (
                HANDLE_TYPE_POSIX_FD,
                handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
            ),
            (HANDLE_TYPE_FABRIC, handle_type::CU_MEM_HANDLE_TYPE_FABRIC.0),
            (
                GRANULARITY_MINIMUM,
                sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32,
            ),
            (ACCESS_NONE, access::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32),
            (ACCESS_READ, access::CU_MEM_ACCESS_FLAGS_PROT_READ as u32),
            (
                ACCESS_READ_WRITE,
                access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32,
            ),
            (
                STREAM_DEFAULT,
                sys::CUstream_flags_enum::CU_STREAM_DEFAULT as u32,
            ),
            (
                STREAM_NON_BLOCKING,
                sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32,
            ),
            (
                EVENT_DISABLE_TIMING,
                sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32,
            ),
            (HOST_ALLOC_PORTABLE, sys::CU_MEMHOSTALLOC_PORTABLE),
            (HOST_ALLOC_DEVICE_MAP, sys::CU_MEMHOSTALLOC_DEVICEMAP),
            (
                u32::try_from(PROC_ADDRESS_LEGACY_STREAM).unwrap(),
                sys::CUdriverProcAddress_flags_enum::CU_GET_PROC_ADDRESS_LEGACY_STREAM as u32,
            ),
        ] {
            assert_eq!(ours, theirs);
        }
        for (ours, theirs) in [
            (
                ATTRIBUTE_MULTIPROCESSORS,
                attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            ),
            (
                ATTRIBUTE_MAPPING,
                attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            ),
            (
                ATTRIBUTE_POSIX_FD,
                attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            ),
            (
                ATTRIBUTE_RDMA_WITH_MAPPING,
                attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
            ),
            (
                ATTRIBUTE_FABRIC,
                attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
            ),
            (
                ATTRIBUTE_HOST_NUMA_MAPPING,
                attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            ),
        ] {
            assert_eq!(ours, theirs as i32);
        }
    }

    #[test]
    fn result_codes_have_the_value_of_the_header() {
        use sys::cudaError_enum as code;
        for (ours, theirs) in [
            (Status::INVALID_VALUE, code::CUDA_ERROR_INVALID_VALUE),
            (Status::OUT_OF_MEMORY, code::CUDA_ERROR_OUT_OF_MEMORY),
            (Status::NOT_INITIALIZED, code::CUDA_ERROR_NOT_INITIALIZED),
            (Status::DEINITIALIZED, code::CUDA_ERROR_DEINITIALIZED),
            (Status::STUB_LIBRARY, code::CUDA_ERROR_STUB_LIBRARY),
            (Status::NO_DEVICE, code::CUDA_ERROR_NO_DEVICE),
            (Status::INVALID_DEVICE, code::CUDA_ERROR_INVALID_DEVICE),
            (Status::INVALID_CONTEXT, code::CUDA_ERROR_INVALID_CONTEXT),
            (Status::OPERATING_SYSTEM, code::CUDA_ERROR_OPERATING_SYSTEM),
            (Status::INVALID_HANDLE, code::CUDA_ERROR_INVALID_HANDLE),
            (Status::NOT_FOUND, code::CUDA_ERROR_NOT_FOUND),
            (Status::NOT_READY, code::CUDA_ERROR_NOT_READY),
            (Status::ILLEGAL_ADDRESS, code::CUDA_ERROR_ILLEGAL_ADDRESS),
            (Status::LAUNCH_FAILED, code::CUDA_ERROR_LAUNCH_FAILED),
            (Status::NOT_PERMITTED, code::CUDA_ERROR_NOT_PERMITTED),
            (Status::NOT_SUPPORTED, code::CUDA_ERROR_NOT_SUPPORTED),
            (
                Status::CAPTURE_UNSUPPORTED,
                code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            ),
            (Status::UNKNOWN, code::CUDA_ERROR_UNKNOWN),
        ] {
            assert_eq!(ours.0, theirs as u32);
        }
        assert_eq!(SUCCESS, code::CUDA_SUCCESS as u32);
    }
}
