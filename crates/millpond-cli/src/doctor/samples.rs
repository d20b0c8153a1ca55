//! Reports made up for tests.

use super::{
    Ability, DeviceFacts, DriverFacts, GpuFacts, HandleTypes, Limits, MachineFacts, Peer, Probe,
    Report, SizeCosts,
};

const MIB: u64 = 1 << 20;

fn able(offered: bool) -> Ability {
    Ability {
        offered,
        works: offered,
        problem: None,
    }
}

fn report(driver: DriverFacts, device: DeviceFacts) -> Report {
    Report {
        millpond: "1.2.3".to_owned(),
        driver,
        machine: MachineFacts {
            memory_bytes: Some(16 << 30),
            available_bytes: Some(8 << 30),
            numa_nodes: Some("0-1".to_owned()),
            limits: Limits {
                max_map_count: Some(65_530),
                open_files: Some(1024),
                ..Limits::default()
            },
            ..MachineFacts::default()
        },
        devices: vec![device],
        unusable: Vec::new(),
        missing: Vec::new(),
    }
}

fn device(name: &str, memory: u64) -> DeviceFacts {
    DeviceFacts {
        device: name.to_owned(),
        name: format!("the device {name}"),
        memory_bytes: memory,
        free_bytes: memory / 2,
        granularity_bytes: 2 * MIB,
        mapping: true,
        handle_types: HandleTypes {
            posix_fd: able(true),
            fabric: able(false),
        },
        rdma: able(false),
        host_numa: able(false),
        gpu: None,
        probe: Probe {
            sizes: [2 * MIB, 32 * MIB, 256 * MIB].map(sizes).to_vec(),
            record_event_ns: Some(540),
            query_event_ns: Some(440),
            problem: None,
        },
        pool: Vec::new(),
    }
}

fn sizes(bytes: u64) -> SizeCosts {
    SizeCosts {
        bytes,
        create_ns: Some(17_000),
        map_ns: Some(1_000),
        set_access_ns: Some(48_500),
        unmap_ns: Some(26_000),
        release_ns: Some(150_000),
        allocate_ns: Some(35_000),
        free_ns: Some(45_000),
        problem: None,
    }
}

/// A machine without driver.
pub(super) fn no_gpu() -> Report {
    let driver = DriverFacts {
        problem: Some("cuInit failed: not found; install the NVIDIA driver".to_owned()),
        ..DriverFacts::default()
    };
    report(driver, device("host", 4 << 30))
}

/// A machine with one GPU that lacks nothing, and knows of another.
pub(super) fn gpu_machine() -> Report {
    let driver = DriverFacts {
        library: Some("libcuda.so.1".to_owned()),
        cuda_version: Some("13.0".to_owned()),
        kernel_module: Some("NVRM version: 580".to_owned()),
        ..DriverFacts::default()
    };
    let mut gpu = device("cuda:0", 150_121_545_728);
    gpu.rdma = able(true);
    gpu.host_numa = able(true);
    gpu.gpu = Some(GpuFacts {
        compute_capability: "9.0".to_owned(),
        pci: "0000:1b:00.0".to_owned(),
        multiprocessors: 132,
        mig: false,
        mps: false,
        integrated: false,
        driver_pools: true,
        dma_buf: true,
        numa_node: Some(0),
        peers: vec![Peer {
            device: "cuda:1".to_owned(),
            access: true,
        }],
    });
    report(driver, gpu)
}
