//! What the facts mean: what a pool does on each device, what is missing, and how to get it.

use super::{Ability, DeviceFacts, Limits, MachineFacts, Report};
use crate::size::ByteSize;

/// The kernel's default of `vm.max_map_count`.
const USUAL_MAP_COUNT: u64 = 65_530;

/// Says both.
pub(super) fn advise(report: &mut Report) {
    for device in &mut report.devices {
        device.pool = pool(device, &report.machine);
        if device.gpu.is_some() && has_no_stream_identity(&report.driver.missing_functions) {
            device.pool.push(
                "the driver cannot tell a stream from an earlier one with the same handle: \
                 announce every stream to the pool before it is destroyed"
                    .to_owned(),
            );
        }
    }
    report.missing = missing(report);
}

fn has_no_stream_identity(missing_functions: &[String]) -> bool {
    missing_functions.iter().any(|name| name == "cuStreamGetId")
}

/// What a pool does on a device.
fn pool(device: &DeviceFacts, machine: &MachineFacts) -> Vec<String> {
    let mut says = vec![format!(
        "takes what is asked for, up to all of {} unless it is given a limit; {} are free now",
        ByteSize(device.memory_bytes),
        ByteSize(device.free_bytes)
    )];
    if device.mapping {
        says.push(
            "mapping: physical handles are put under address ranges, so that free memory in \
             pieces serves large requests"
                .to_owned(),
        );
        says.extend(price(device));
    } else {
        says.push(
            "no mapping: plain allocations of the device; pieces of different ones cannot be put \
             together, and one goes back only when all of it is free"
                .to_owned(),
        );
    }
    if device.mapping && is_short(&machine.limits, device.memory_bytes) {
        says.push(
            "address space is short: it is reserved in smaller ranges, down to what a request \
             needs"
                .to_owned(),
        );
    }
    if let Some(gpu) = &device.gpu {
        if gpu.mig {
            says.push("a MIG instance: the memory is this instance's alone".to_owned());
        }
        if gpu.mps {
            says.push(
                "the Multi-Process Service is in use: other processes take of the same memory, so \
                 give each pool a limit"
                    .to_owned(),
            );
        }
        if gpu.integrated {
            says.push(
                "an integrated GPU: its memory is the machine's, so give the pool a limit"
                    .to_owned(),
            );
        }
    }
    says
}

/// What growing and moving cost, by the largest handle that was measured.
fn price(device: &DeviceFacts) -> Option<String> {
    let costs = device.probe.sizes.iter().rev();
    let (bytes, create, map, move_away) = costs
        .filter_map(|costs| {
            let map = costs.map_ns? + costs.set_access_ns?;
            Some((costs.bytes, costs.create_ns? + map, map, costs.unmap_ns?))
        })
        .next()?;
    let microseconds = |nanoseconds: u64| nanoseconds.div_ceil(1000);
    Some(format!(
        "a new handle of {} costs the host {} us here, one moved from another address {} us; \
         memory that is mapped already is handed out without a call to the driver",
        ByteSize(bytes),
        microseconds(create),
        microseconds(map + move_away)
    ))
}

fn is_short(limits: &Limits, memory: u64) -> bool {
    // Twice: a pool uses more addresses than memory, to put memory together under new ones.
    limits
        .address_space_bytes
        .is_some_and(|limit| limit < memory.saturating_mul(2))
}

/// What is missing, and how to get it.
fn missing(report: &Report) -> Vec<String> {
    let mut says = Vec::new();
    let machine = &report.machine;
    if let Some(problem) = &report.driver.problem {
        says.push(format!("a GPU: {problem}"));
    }
    if !report.driver.missing_functions.is_empty() {
        says.push(format!(
            "functions of the driver: {}; install a newer driver",
            report.driver.missing_functions.join(", ")
        ));
    }
    for unusable in &report.unusable {
        if report.driver.problem.as_ref() != Some(&unusable.problem) {
            says.push(format!("{}: {}", unusable.device, unusable.problem));
        }
    }
    for device in &report.devices {
        let name = &device.device;
        if !device.mapping {
            says.push(format!("{name}, mapping: {}", way_to_mapping(machine)));
        }
        says.extend(missing_abilities(device, machine));
        for costs in &device.probe.sizes {
            if let Some(problem) = &costs.problem {
                let size = ByteSize(costs.bytes);
                says.push(format!("{name}, the measurement with {size}: {problem}"));
            }
        }
        if let Some(problem) = &device.probe.problem {
            says.push(format!("{name}, the measurement of events: {problem}"));
        }
    }
    let most = report.devices.iter().map(|device| device.memory_bytes);
    let limits = &machine.limits;
    if let Some(limit) = limits.address_space_bytes
        && is_short(limits, most.max().unwrap_or(0))
    {
        says.push(format!(
            "address space: this process may have {} (ulimit -v); run it under `ulimit -v \
             unlimited`",
            ByteSize(limit)
        ));
    }
    if let Some(count) = limits.max_map_count
        && count < USUAL_MAP_COUNT
    {
        says.push(format!(
            "mappings for the host device: vm.max_map_count is {count}; raise it (sysctl -w \
             vm.max_map_count={USUAL_MAP_COUNT})"
        ));
    }
    says
}

fn way_to_mapping(machine: &MachineFacts) -> &'static str {
    if machine.wsl {
        "the driver does not offer it under WSL; update the Windows driver, or use Linux itself"
    } else {
        "the driver does not offer it for this device, as is usual for virtual GPUs and some \
         integrated ones; use a whole GPU or a MIG instance of one, or a newer driver"
    }
}

fn missing_abilities(device: &DeviceFacts, machine: &MachineFacts) -> Vec<String> {
    let name = &device.device;
    let mut says = Vec::new();
    let mut tried = |what: &str, ability: &Ability, way: &str| {
        if let Some(problem) = &ability.problem {
            says.push(format!("{name}, {what}: {problem}{way}"));
        }
    };
    tried(
        "handles as file descriptors",
        &device.handle_types.posix_fd,
        "",
    );
    let way = if machine.imex_channels == 0 {
        "; there is no IMEX channel (/dev/nvidia-caps-imex-channels): only machines that share \
         memory over NVLink need one, with the nvidia-imex service and a channel for this user"
    } else {
        ""
    };
    tried("fabric handles", &device.handle_types.fabric, way);
    tried("memory for network cards", &device.rdma, "");
    tried("host memory by NUMA node", &device.host_numa, "");
    if let Some(gpu) = &device.gpu
        && device.rdma.works
        && !machine.rdma_cards.is_empty()
        && !machine.nvidia_peermem
        && !gpu.dma_buf
    {
        says.push(format!(
            "{name}, memory for network cards: the kernel has no way to it; load the module \
             nvidia_peermem, or install the driver with open kernel modules"
        ));
    }
    if device.gpu.is_some()
        && device.rdma.works
        && !machine.rdma_cards.is_empty()
        && let Some(limit) = machine.limits.locked_memory_bytes
        && limit < device.memory_bytes
    {
        says.push(format!(
            "{name}, memory for network cards: this process may lock {} (ulimit -l), and \
             registering buffers may need more; run it under `ulimit -l unlimited`",
            ByteSize(limit)
        ));
    }
    says
}

#[cfg(test)]
mod tests {
    use super::super::samples::{gpu_machine, no_gpu};
    use super::*;

    fn advised(mut report: Report) -> (Vec<String>, String) {
        advise(&mut report);
        (report.missing, report.devices[0].pool.join("\n"))
    }

    #[test]
    fn a_whole_gpu_lacks_nothing_and_maps() {
        let (missing, pool) = advised(gpu_machine());
        assert_eq!(missing, [""; 0]);
        assert!(pool.contains("up to all of 139.8 GiB"), "{pool}");
        assert!(pool.contains("mapping: physical handles"), "{pool}");
        let price = "a new handle of 256.0 MiB costs the host 67 us here, one moved from another \
                     address 76 us";
        assert!(pool.contains(price), "{pool}");
    }

    #[test]
    fn without_a_driver_the_way_to_one_is_said() {
        let (missing, pool) = advised(no_gpu());
        let [driver] = &missing[..] else {
            panic!("{missing:?}")
        };
        assert!(driver.contains("install the NVIDIA driver"), "{driver}");
        assert!(pool.contains("mapping: physical handles"), "{pool}");
    }

    #[test]
    fn without_mapping_plain_allocations_are_said_and_the_way_out() {
        let mut report = gpu_machine();
        report.devices[0].mapping = false;
        let (missing, pool) = advised(report.clone());
        assert!(pool.contains("no mapping: plain allocations"), "{pool}");
        assert!(missing[0].contains("virtual GPUs"), "{missing:?}");
        report.machine.wsl = true;
        let (missing, _) = advised(report);
        assert!(missing[0].contains("under WSL"), "{missing:?}");
    }

    #[test]
    fn what_an_old_driver_lacks_is_named_with_what_follows() {
        let mut report = gpu_machine();
        report.driver.missing_functions = vec!["cuStreamGetId".to_owned()];
        let (missing, pool) = advised(report);
        assert!(missing[0].contains("cuStreamGetId; install a newer driver"));
        assert!(pool.contains("announce every stream"), "{pool}");
    }

    #[test]
    fn short_limits_are_said_with_the_command_that_lifts_them() {
        let mut report = gpu_machine();
        report.machine.limits.address_space_bytes = Some(64 << 30);
        report.machine.limits.max_map_count = Some(1000);
        report.machine.limits.locked_memory_bytes = Some(64 << 10);
        let (missing, pool) = advised(report.clone());
        let all = missing.join("\n");
        assert!(pool.contains("smaller ranges"), "{pool}");
        assert!(all.contains("ulimit -v unlimited"), "{all}");
        assert!(all.contains("sysctl -w vm.max_map_count=65530"), "{all}");
        // Nobody needs locked memory where there is no network card.
        assert!(!all.contains("ulimit -l"), "{all}");
        report.machine.rdma_cards = vec!["mlx5_0".to_owned()];
        assert!(advised(report).0.join("\n").contains("ulimit -l unlimited"));
    }

    #[test]
    fn memory_that_no_card_can_reach_is_said() {
        let mut report = gpu_machine();
        report.machine.rdma_cards = vec!["mlx5_0".to_owned()];
        assert_eq!(advised(report.clone()).0, [""; 0]);
        if let Some(gpu) = &mut report.devices[0].gpu {
            gpu.dma_buf = false;
        }
        assert!(advised(report.clone()).0[0].contains("load the module nvidia_peermem"));
        report.machine.nvidia_peermem = true;
        assert_eq!(advised(report).0, [""; 0]);
    }

    #[test]
    fn shared_memory_and_failed_trials_are_said() {
        let mut report = gpu_machine();
        let device = &mut report.devices[0];
        device.handle_types.fabric = Ability {
            offered: true,
            works: false,
            problem: Some("cuMemCreate failed: not permitted (800)".to_owned()),
        };
        if let Some(gpu) = &mut device.gpu {
            (gpu.mig, gpu.mps, gpu.integrated) = (true, true, true);
        }
        device.probe.sizes[2].problem = Some("cuMemCreate failed: out of memory (2)".to_owned());
        let (missing, pool) = advised(report);
        assert!(missing[0].contains("not permitted (800); there is no IMEX channel"));
        assert!(missing[1].contains("cuda:0, the measurement with 256.0 MiB: cuMemCreate"));
        for word in ["a MIG instance", "Multi-Process Service", "integrated"] {
            assert!(pool.contains(word), "{pool}");
        }
    }
}
