//! What the system says of the machine, and of what this process may use of it.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::{Limits, MachineFacts};

/// Variables that change what the driver does, or whether it is there at all.
const VARIABLES: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "NVIDIA_VISIBLE_DEVICES",
];

/// Asks the system.
pub(super) fn machine() -> MachineFacts {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/version").unwrap_or_default();
    MachineFacts {
        memory_bytes: kilobytes(&memory, "MemTotal:"),
        available_bytes: kilobytes(&memory, "MemAvailable:"),
        numa_nodes: line_of("/sys/devices/system/node/online"),
        limits: Limits {
            address_space_bytes: getrlimit(Resource::As).current,
            locked_memory_bytes: getrlimit(Resource::Memlock).current,
            open_files: getrlimit(Resource::Nofile).current,
            max_map_count: line_of("/proc/sys/vm/max_map_count").and_then(|line| line.parse().ok()),
        },
        rdma_cards: names_in("/sys/class/infiniband"),
        nvidia_peermem: Path::new("/sys/module/nvidia_peermem").exists(),
        imex_channels: names_in("/dev/nvidia-caps-imex-channels").len(),
        wsl: kernel.to_ascii_lowercase().contains("microsoft"),
        environment: VARIABLES
            .into_iter()
            .filter_map(|name| {
                let value = env::var_os(name)?.to_string_lossy().into_owned();
                Some((name.to_owned(), value))
            })
            .collect::<BTreeMap<_, _>>(),
    }
}

/// What the kernel's NVIDIA module says of itself, if it is loaded.
pub(super) fn kernel_module() -> Option<String> {
    let line = line_of("/proc/driver/nvidia/version")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(words.join(" "))
}

/// A file's first line.
fn line_of(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The names in a directory, sorted; none if it cannot be read.
fn names_in(path: &str) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// Bytes, of a field that the kernel gives in units of 1024.
fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_memory_are_read_in_bytes() {
        let text = "MemTotal:        2048 kB\nMemAvailable:    1 kB\nMemHuge: many kB\n";
        assert_eq!(kilobytes(text, "MemTotal:"), Some(2 << 20));
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(1024));
        assert_eq!(kilobytes(text, "MemHuge:"), None);
        assert_eq!(kilobytes(text, "SwapTotal:"), None);
    }
}
