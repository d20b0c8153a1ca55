//! What this machine has, and what a pool will do with it.
//!
//! - [`mod@gather`]: opens the devices and asks them; [`machine`]: what the system says;
//!   [`probe`]: what the calls cost.
//! - [`advice`]: what all that means, in words, by rules over the facts alone.
//! - [`mod@render`]: the report for people. Serialised, it is the JSON object of `--json`.
//!
//! # Invariants
//!
//! - Every key is in every report; what is not known, or was not found, is null.
//! - Sizes are in bytes, times in nanoseconds.
//! - Nothing that is gathered is changed: what is created on a device is given back.

mod advice;
mod gather;
mod machine;
mod probe;
mod render;
#[cfg(test)]
mod samples;

use std::collections::BTreeMap;

use serde::Serialize;

pub(crate) use gather::gather;
pub(crate) use render::render;

/// All that is found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The version of millpond.
    pub(crate) millpond: String,
    pub(crate) driver: DriverFacts,
    pub(crate) machine: MachineFacts,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) unusable: Vec<Unusable>,
    /// What is missing and how to get it, in words.
    pub(crate) missing: Vec<String>,
}

/// The NVIDIA driver.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct DriverFacts {
    /// The name under which its library was found.
    pub(crate) library: Option<String>,
    /// The CUDA version that it is for.
    pub(crate) cuda_version: Option<String>,
    /// What the kernel's module says of itself.
    pub(crate) kernel_module: Option<String>,
    /// Functions that millpond can use and this driver does not have.
    pub(crate) missing_functions: Vec<String>,
    /// Why it cannot be used.
    pub(crate) problem: Option<String>,
}

/// The machine, and what this process may use of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct MachineFacts {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) available_bytes: Option<u64>,
    /// The NUMA nodes that are there, as the kernel lists them.
    pub(crate) numa_nodes: Option<String>,
    pub(crate) limits: Limits,
    /// Network cards that can reach memory by themselves.
    pub(crate) rdma_cards: Vec<String>,
    /// Whether the kernel's module `nvidia_peermem` is loaded.
    pub(crate) nvidia_peermem: bool,
    /// Channels through which fabric handles may go.
    pub(crate) imex_channels: usize,
    /// Whether this is the Windows Subsystem for Linux.
    pub(crate) wsl: bool,
    /// Variables that change what the driver does, those that are set.
    pub(crate) environment: BTreeMap<String, String>,
}

/// Limits of this process. `None`: there is no limit, or it is not known.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Limits {
    /// `ulimit -v`.
    pub(crate) address_space_bytes: Option<u64>,
    /// `ulimit -l`.
    pub(crate) locked_memory_bytes: Option<u64>,
    /// `ulimit -n`.
    pub(crate) open_files: Option<u64>,
    /// `vm.max_map_count`.
    pub(crate) max_map_count: Option<u64>,
}

/// A device that can be used.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct DeviceFacts {
    /// As the command line names it.
    pub(crate) device: String,
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Every handle is a multiple of it.
    pub(crate) granularity_bytes: u64,
    /// Whether memory can be mapped.
    pub(crate) mapping: bool,
    pub(crate) handle_types: HandleTypes,
    /// Memory that network cards can reach.
    pub(crate) rdma: Ability,
    /// Host memory of a chosen NUMA node.
    pub(crate) host_numa: Ability,
    /// What only a GPU has.
    pub(crate) gpu: Option<GpuFacts>,
    pub(crate) probe: Probe,
    /// What a pool does on this device, in words.
    pub(crate) pool: Vec<String>,
}

/// Ways to hand a handle to another process.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct HandleTypes {
    pub(crate) posix_fd: Ability,
    pub(crate) fabric: Ability,
}

/// Something that a device may be able to do.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Ability {
    /// Whether the device says that it can.
    pub(crate) offered: bool,
    /// Whether it was tried, and done.
    pub(crate) works: bool,
    /// Why it was tried in vain.
    pub(crate) problem: Option<String>,
}

/// What only a GPU has.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct GpuFacts {
    pub(crate) compute_capability: String,
    /// Its address on the bus.
    pub(crate) pci: String,
    pub(crate) multiprocessors: u32,
    /// Whether it is one instance of a GPU that was cut up.
    pub(crate) mig: bool,
    /// Whether it is used through the Multi-Process Service.
    pub(crate) mps: bool,
    /// Whether it shares the machine's memory.
    pub(crate) integrated: bool,
    /// Whether the driver has stream-ordered pools of its own for it.
    pub(crate) driver_pools: bool,
    /// Whether network cards can reach its memory without `nvidia_peermem`.
    pub(crate) dma_buf: bool,
    /// The NUMA node that is nearest to it.
    pub(crate) numa_node: Option<u32>,
    pub(crate) peers: Vec<Peer>,
}

/// Another GPU, and whether its memory can be reached.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Peer {
    pub(crate) device: String,
    pub(crate) access: bool,
}

/// What calls cost: medians over rounds on an idle device.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Probe {
    pub(crate) sizes: Vec<SizeCosts>,
    pub(crate) record_event_ns: Option<u64>,
    pub(crate) query_event_ns: Option<u64>,
    /// Why events could not be measured.
    pub(crate) problem: Option<String>,
}

/// What calls cost for handles and allocations of one size. `None`: not measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct SizeCosts {
    pub(crate) bytes: u64,
    pub(crate) create_ns: Option<u64>,
    pub(crate) map_ns: Option<u64>,
    pub(crate) set_access_ns: Option<u64>,
    pub(crate) unmap_ns: Option<u64>,
    pub(crate) release_ns: Option<u64>,
    /// A plain allocation, and giving it back.
    pub(crate) allocate_ns: Option<u64>,
    pub(crate) free_ns: Option<u64>,
    /// Why something was not measured.
    pub(crate) problem: Option<String>,
}

/// A device that could not be opened or asked.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Unusable {
    pub(crate) device: String,
    pub(crate) problem: String,
}
