//! The operating system's part: address ranges, files of memory, and the bytes behind addresses.
//!
//! Everything here is a thin, typed layer over one or two system calls. Which ranges are in use,
//! and by whom, is [`AddressSpace`](super::space::AddressSpace)'s business; the unsafe functions
//! say what they need of it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// What a file of memory is, beyond the descriptors that name it: device and inode number.
pub(super) type FileIdentity = (u64, u64);

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Takes `size` bytes of address space at a multiple of `alignment`, without memory or access.
///
/// Both are multiples of the page size; `alignment` is a power of two.
pub(super) fn reserve(size: u64, alignment: u64) -> io::Result<u64> {
    // The kernel aligns to pages only: take more than needed, then cut both ends off.
    let wide = size
        .checked_add(alignment)
        .and_then(|wide| usize::try_from(wide).ok())
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: with a null address the kernel chooses a range that nobody uses.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), wide, ProtFlags::empty(), flags) }?;
    let start = start.expose_provenance() as u64;
    let base = start.next_multiple_of(alignment);
    let end = start + wide as u64;
    for (from, to) in [(start, base), (base + size, end)] {
        if from < to {
            // SAFETY: the part lies in the range just made, which nobody else knows of.
            unsafe { give_back(from, to - from) }?;
        }
    }
    Ok(base)
}

/// Gives address space back, with whatever is mapped there.
///
/// # Safety
///
/// The range was given by [`reserve`], and nobody touches it any more.
pub(super) unsafe fn give_back(base: u64, size: u64) -> io::Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { rustix::mm::munmap(pointer(base), size as usize) }?;
    Ok(())
}

/// Puts `size` bytes of a file, from `offset`, under `address`.
///
/// # Safety
///
/// The range lies in one given by [`reserve`], and nobody touches it now. The file is `size`
/// bytes long beyond `offset` and stays so while it is mapped.
pub(super) unsafe fn place(
    address: u64,
    size: u64,
    file: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller vouches that the range is its own to replace.
    unsafe {
        rustix::mm::mmap(
            pointer(address),
            size as usize,
            protection,
            flags,
            file,
            offset,
        )
    }?;
    Ok(())
}

/// Makes a range what [`reserve`] gave: address space without memory or access.
///
/// # Safety
///
/// The range lies in one given by [`reserve`], and nobody touches it now.
pub(super) unsafe fn take_away(address: u64, size: u64) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller vouches that the range is its own to replace.
    unsafe {
        rustix::mm::mmap_anonymous(pointer(address), size as usize, ProtFlags::empty(), flags)
    }?;
    Ok(())
}

/// Sets the page tables up for writing a range: far cheaper at once than by a fault a page.
///
/// # Safety
///
/// The range is placed, begins at a page, and stays placed during the call.
pub(super) unsafe fn prepare(address: u64, size: u64) {
    let advice = rustix::mm::Advice::LinuxPopulateWrite;
    // Where the kernel does not know the advice (before 5.14), faults do the same.
    // SAFETY: the caller vouches for the range; the advice changes no bytes.
    let _ = unsafe { rustix::mm::madvise(pointer(address), size as usize, advice) };
}

/// Reads the bytes at `address`.
///
/// # Safety
///
/// The range is placed, and stays so during the call. That others may write it meanwhile (streams
/// without an order between them, other processes) is the point of an emulated device: the memory
/// is never seen as a reference, only moved byte by byte, and any bytes will do as the result.
pub(super) unsafe fn load(address: u64, bytes: &mut [u8]) {
    let source = pointer(address).cast::<u8>();
    // SAFETY: the caller vouches for the source; the destination is a Rust slice, which placed
    // ranges never overlap.
    unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
}

/// Writes the bytes at `address`.
///
/// # Safety
///
/// As for [`load`].
pub(super) unsafe fn store(address: u64, bytes: &[u8]) {
    let destination = pointer(address).cast::<u8>();
    // SAFETY: the caller vouches for the destination; the source is a Rust slice, which placed
    // ranges never overlap.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), destination, bytes.len()) };
}

/// Creates a file of memory of `size` bytes, which takes memory only where it is written.
///
/// Its size is sealed: nobody who is given the file can cut it off under a mapping.
pub(super) fn memory_file(size: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("millpond-host", flags)?;
    rustix::fs::ftruncate(&file, size)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Gives the memory of a part of a file back to the system.
pub(super) fn discard(file: &OwnedFd, offset: u64, size: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset, size)?;
    Ok(())
}

/// Bytes of memory that a file takes now.
pub(super) fn memory_taken(file: &OwnedFd) -> io::Result<u64> {
    let blocks = rustix::fs::fstat(file)?.st_blocks;
    Ok(u64::try_from(blocks).unwrap_or(0) * 512)
}

/// Which file a descriptor names.
pub(super) fn identity(file: &OwnedFd) -> io::Result<FileIdentity> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_dev, status.st_ino))
}

/// Whether a descriptor from elsewhere can stand for `size` bytes of memory; if not, why.
///
/// Touching a file beyond its end kills the process, so its size must be right and sealed.
pub(super) fn check_foreign(file: &OwnedFd, size: u64) -> Result<FileIdentity, String> {
    let status =
        rustix::fs::fstat(file).map_err(|error| format!("it cannot be examined: {error}"))?;
    let seals = rustix::fs::fcntl_get_seals(file.as_fd())
        .map_err(|_| "it is not memory (a memfd), but something else".to_owned())?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(
            "its size is not sealed (F_SEAL_SHRINK): its owner could cut it off".to_owned(),
        );
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err("it is sealed against writing".to_owned());
    }
    let mode =
        rustix::fs::fcntl_getfl(file).map_err(|error| format!("it cannot be examined: {error}"))?;
    if mode & OFlags::RWMODE != OFlags::RDWR {
        return Err("it is not open for reading and writing".to_owned());
    }
    if u64::try_from(status.st_size) != Ok(size) {
        return Err(format!("it is {} bytes long, not {size}", status.st_size));
    }
    Ok((status.st_dev, status.st_ino))
}
