//! What this machine and this process can give: memory, address space, and separate mappings.
//!
//! The kernel limits how many mappings a process has (`vm.max_map_count`). One that has too many
//! can not even unmap any more, because unmapping the middle of a mapping makes three of it. So
//! the host devices of a process count theirs together, and stop before the kernel does; see
//! [`MappingCount`].
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::device::{Call, DeviceError, Status};

const MAX_MAP_COUNT: &str = "/proc/sys/vm/max_map_count";

/// Mappings that all host devices of the process have, at most.
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

/// One device's part of the process's mappings.
///
/// It counts an upper bound that unmapping never raises: one for each mapping, one for the gap
/// behind each run of adjacent mappings, one for each reservation. The kernel has fewer, since it
/// joins neighbours where it can.
#[derive(Debug)]
pub(super) struct MappingCount {
    /// `vm.max_map_count`.
    system_limit: u64,
    /// Of these, what the devices may use; the rest is for the program's own.
    limit: u64,
    used: u64,
}

impl MappingCount {
    pub(super) fn new() -> MappingCount {
        let system_limit = fs::read_to_string(MAX_MAP_COUNT)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(65_530);
        MappingCount {
            system_limit,
            limit: system_limit - (system_limit / 16).max(1024).min(system_limit / 2),
            used: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes room for so many mappings.
    pub(super) fn take(&mut self, call: Call, mappings: u64) -> Result<(), DeviceError> {
        let before = MAPPINGS.fetch_add(mappings, Ordering::Relaxed);
        if before + mappings > self.limit {
            MAPPINGS.fetch_sub(mappings, Ordering::Relaxed);
            let (limit, system_limit) = (self.limit, self.system_limit);
            return Err(DeviceError::new(
                call,
                Status::OUT_OF_MEMORY,
                format!(
                    "vm.max_map_count is {system_limit}, of which the host devices of this process \
                     may use {limit} and use {before}; use larger handles, unmap some, or raise it \
                     (sysctl -w vm.max_map_count={})",
                    system_limit.saturating_mul(4),
                ),
            ));
        }
        self.used += mappings;
        Ok(())
    }

    /// Gives room back.
    pub(super) fn give(&mut self, mappings: u64) {
        self.used -= mappings;
        MAPPINGS.fetch_sub(mappings, Ordering::Relaxed);
    }
}

impl Drop for MappingCount {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(self.used, Ordering::Relaxed);
    }
}

/// Bytes of memory that this process could take now, by the machine and its control groups.
pub(super) fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| kilobytes(&text, "MemAvailable:"));
    machine.into_iter().chain(control_group_memory()).min()
}

fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// The least that a control group around this process leaves (version 2, or version 1's `memory`).
fn control_group_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, files) = if controllers.is_empty() {
            (
                Path::new("/sys/fs/cgroup"),
                ["memory.max", "memory.current", "inactive_file"],
            )
        } else if controllers.split(',').any(|name| name == "memory") {
            let files = [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ];
            (Path::new("/sys/fs/cgroup/memory"), files)
        } else {
            continue;
        };
        // In a container the path may not be visible; its root then is the group itself.
        let group = root.join(path.trim_start_matches('/'));
        for directory in group
            .ancestors()
            .take_while(|directory| directory.starts_with(root))
        {
            let left = left_in_group(directory, files);
            least = least.into_iter().chain(left).min();
        }
    }
    least
}

fn left_in_group(directory: &Path, [limit, usage, reclaimable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(directory.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let cached = fs::read_to_string(directory.join("memory.stat"))
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix(reclaimable)?.trim().parse().ok())
        })
        .unwrap_or(0);
    Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(cached)))
}

/// An operating system's refusal in the words of a device call.
///
/// `size` is what was asked for, in bytes.
pub(super) fn refusal(call: Call, size: u64, error: &io::Error) -> DeviceError {
    let errno = Errno::from_io_error(error);
    let short = errno == Some(Errno::NOMEM) || error.kind() == io::ErrorKind::OutOfMemory;
    let (status, detail) = if short {
        let detail = match (getrlimit(Resource::As).current, address_space_in_use()) {
            (Some(limit), Some(used)) => format!(
                "{size} bytes of address space were asked for; `ulimit -v` allows this process \
                 {limit} bytes, and {used} are in use; raise it, or ask for less"
            ),
            (Some(limit), None) => format!(
                "{size} bytes of address space were asked for; `ulimit -v` allows this process \
                 {limit} bytes in all; raise it, or ask for less"
            ),
            (None, _) => format!(
                "the system has no address space, or no separate mapping (vm.max_map_count), left \
                 for {size} bytes; ask for less, or unmap some"
            ),
        };
        (Status::OUT_OF_MEMORY, detail)
    } else if errno == Some(Errno::MFILE) || errno == Some(Errno::NFILE) {
        let detail = format!(
            "{error}; memory that can be shared takes a file descriptor for each handle: raise \
             `ulimit -n`, or use larger handles"
        );
        (Status::OPERATING_SYSTEM, detail)
    } else {
        (
            Status::OPERATING_SYSTEM,
            format!("{size} bytes were asked for: {error}"),
        )
    };
    DeviceError::new(call, status, detail)
}

fn address_space_in_use() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fields_are_found_by_name() {
        let text = "MemTotal:       24000 kB\nMemAvailable:    1000 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(1_024_000));
        assert_eq!(kilobytes(text, "MemFree:"), None);
        assert_eq!(kilobytes("MemAvailable: much kB", "MemAvailable:"), None);
    }

    #[test]
    fn a_group_leaves_its_limit_less_its_use_but_for_what_is_cached() {
        let directory = std::env::temp_dir().join(format!("millpond-group-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let files = ["memory.max", "memory.current", "inactive_file"];
        fs::write(directory.join("memory.current"), "700\n").unwrap();
        fs::write(
            directory.join("memory.stat"),
            "anon 600\ninactive_file 100\n",
        )
        .unwrap();
        fs::write(directory.join("memory.max"), "max\n").unwrap();
        assert_eq!(left_in_group(&directory, files), None);
        fs::write(directory.join("memory.max"), "1000\n").unwrap();
        assert_eq!(left_in_group(&directory, files), Some(400));
        fs::remove_dir_all(&directory).unwrap();
    }
}
