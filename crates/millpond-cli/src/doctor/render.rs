//! The report for people.

use std::fmt::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::{Ability, DeviceFacts, DriverFacts, GpuFacts, MachineFacts, Probe, Report};
use crate::size::ByteSize;

/// The report as text, ending with a new line.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_report(&mut text, report);
    text
}

fn write_report(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "millpond {}", report.millpond)?;
    write_driver(out, &report.driver)?;
    write_machine(out, &report.machine)?;
    for device in &report.devices {
        write_device(out, device)?;
    }
    for unusable in &report.unusable {
        writeln!(out, "\n{}: cannot be used", unusable.device)?;
        field(out, "why", &unusable.problem)?;
    }
    writeln!(out, "\nMissing")?;
    if report.missing.is_empty() {
        writeln!(out, "  nothing")?;
    }
    list(out, &report.missing)
}

fn field(out: &mut String, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(out, "  {name:<14}{value}")
}

fn list(out: &mut String, items: &[String]) -> fmt::Result {
    for item in items {
        writeln!(out, "  - {item}")?;
    }
    Ok(())
}

fn write_driver(out: &mut String, driver: &DriverFacts) -> fmt::Result {
    writeln!(out, "\nNVIDIA driver")?;
    let library = match (&driver.library, &driver.cuda_version) {
        (Some(library), Some(version)) => format!("{library}, for CUDA {version}"),
        _ => "cannot be used (see below)".to_owned(),
    };
    field(out, "library", library)?;
    let module = driver.kernel_module.as_deref().unwrap_or("not loaded");
    field(out, "kernel module", module)?;
    if driver.library.is_some() {
        let missing = match &driver.missing_functions[..] {
            [] => "all that millpond can use".to_owned(),
            names => format!("without {}", names.join(", ")),
        };
        field(out, "functions", missing)?;
    }
    Ok(())
}

fn write_machine(out: &mut String, machine: &MachineFacts) -> fmt::Result {
    let unknown = || "unknown".to_owned();
    let size = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| ByteSize(bytes).to_string());
    let limit = |bytes: Option<u64>| bytes.map(|bytes| ByteSize(bytes).to_string());
    let no_limit = || "no limit".to_owned();
    let limits = &machine.limits;
    writeln!(out, "\nThis machine")?;
    let (memory, available) = (size(machine.memory_bytes), size(machine.available_bytes));
    field(out, "memory", format!("{memory}, {available} available"))?;
    let nodes = machine.numa_nodes.as_deref().unwrap_or("unknown");
    field(out, "NUMA nodes", nodes)?;
    field(
        out,
        "limits",
        format!(
            "address space (ulimit -v): {}; locked memory (ulimit -l): {}; open files (ulimit \
             -n): {}; vm.max_map_count: {}",
            limit(limits.address_space_bytes).unwrap_or_else(no_limit),
            limit(limits.locked_memory_bytes).unwrap_or_else(no_limit),
            limits
                .open_files
                .map_or_else(no_limit, |files| files.to_string()),
            limits
                .max_map_count
                .map_or_else(unknown, |count| count.to_string()),
        ),
    )?;
    if !machine.rdma_cards.is_empty() {
        let peermem = if machine.nvidia_peermem { "" } else { "not " };
        let cards = machine.rdma_cards.join(", ");
        let value = format!("{cards}; nvidia_peermem is {peermem}loaded");
        field(out, "RDMA cards", value)?;
    }
    if machine.imex_channels > 0 {
        field(out, "IMEX channels", machine.imex_channels)?;
    }
    if machine.wsl {
        field(out, "system", "Windows Subsystem for Linux")?;
    }
    for (name, value) in &machine.environment {
        field(out, "variable", format!("{name}={value}"))?;
    }
    Ok(())
}

fn write_device(out: &mut String, device: &DeviceFacts) -> fmt::Result {
    writeln!(out, "\n{}: {}", device.device, device.name)?;
    let (memory, free) = (ByteSize(device.memory_bytes), ByteSize(device.free_bytes));
    field(out, "memory", format!("{memory}, {free} free"))?;
    field(out, "granularity", ByteSize(device.granularity_bytes))?;
    field(out, "mapping", yes_or_no(device.mapping))?;
    let (fd, fabric) = (&device.handle_types.posix_fd, &device.handle_types.fabric);
    let handle_types = format!("file descriptor: {}; fabric: {}", able(fd), able(fabric));
    field(out, "handle types", handle_types)?;
    field(out, "RDMA", able(&device.rdma))?;
    field(out, "host NUMA", able(&device.host_numa))?;
    if let Some(gpu) = &device.gpu {
        write_gpu(out, gpu)?;
    }
    writeln!(out, "  Cost of each call in us, medians, device idle:")?;
    write_probe(out, &device.probe)?;
    writeln!(out, "  What a pool does here:")?;
    for line in &device.pool {
        writeln!(out, "    - {line}")?;
    }
    Ok(())
}

fn write_gpu(out: &mut String, gpu: &GpuFacts) -> fmt::Result {
    let node = gpu
        .numa_node
        .map_or_else(String::new, |node| format!(", near NUMA node {node}"));
    let chip = format!(
        "compute capability {}, {} multiprocessors, at {}{node}",
        gpu.compute_capability, gpu.multiprocessors, gpu.pci
    );
    field(out, "chip", chip)?;
    field(out, "driver's pools", yes_or_no(gpu.driver_pools))?;
    field(out, "DMA-BUF", yes_or_no(gpu.dma_buf))?;
    let shared = format!("{}; MPS: {}", yes_or_no(gpu.mig), yes_or_no(gpu.mps));
    field(out, "MIG instance", shared)?;
    let peers: Vec<String> = gpu
        .peers
        .iter()
        .map(|peer| format!("{}: {}", peer.device, yes_or_no(peer.access)))
        .collect();
    let peers = if peers.is_empty() {
        "none".to_owned()
    } else {
        peers.join("; ")
    };
    field(out, "peers", peers)
}

fn write_probe(out: &mut String, probe: &Probe) -> fmt::Result {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "    size",
        "create",
        "map",
        "set access",
        "unmap",
        "release",
        "plain alloc",
        "plain free",
    ]);
    for costs in &probe.sizes {
        let times = [
            costs.create_ns,
            costs.map_ns,
            costs.set_access_ns,
            costs.unmap_ns,
            costs.release_ns,
            costs.allocate_ns,
            costs.free_ns,
        ];
        let mut row = vec![format!("    {}", ByteSize(costs.bytes))];
        row.extend(times.map(microseconds));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    let (record, query) = (probe.record_event_ns, probe.query_event_ns);
    let (record, query) = (microseconds(record), microseconds(query));
    writeln!(out, "     event: record {record}, query {query}")
}

fn microseconds(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or_else(
        || "-".to_owned(),
        |nanoseconds| format!("{:.1}", nanoseconds as f64 / 1000.0),
    )
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn able(ability: &Ability) -> &'static str {
    match (ability.offered, ability.works) {
        (_, true) => "yes",
        (true, false) => "offered, but does not work (see below)",
        (false, false) => "no",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unusable;
    use super::super::advice::advise;
    use super::super::samples::{gpu_machine, no_gpu};
    use super::*;

    fn rendered(mut report: Report) -> String {
        advise(&mut report);
        render(&report)
    }

    #[test]
    fn a_gpu_is_shown_with_all_that_it_can_do() {
        let text = rendered(gpu_machine());
        for line in [
            "millpond 1.2.3",
            "  library       libcuda.so.1, for CUDA 13.0",
            "  functions     all that millpond can use",
            "  memory        16.0 GiB, 8.0 GiB available",
            "cuda:0: the device cuda:0",
            "  memory        139.8 GiB, 69.9 GiB free",
            "  granularity   2.0 MiB",
            "  mapping       yes",
            "  handle types  file descriptor: yes; fabric: no",
            "  chip          compute capability 9.0, 132 multiprocessors, at 0000:1b:00.0, near \
             NUMA node 0",
            "  MIG instance  no; MPS: no",
            "  peers         cuda:1: yes",
            "     event: record 0.5, query 0.4",
            "Missing",
            "  nothing",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        let costs = [
            "256.0 MiB",
            "17.0",
            "1.0",
            "48.5",
            "26.0",
            "150.0",
            "35.0",
            "45.0",
        ];
        let row = text.lines().find(|line| line.contains(costs[0])).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words.join(" "), costs.join(" "));
    }

    #[test]
    fn what_is_not_there_is_shown_with_why() {
        let mut report = no_gpu();
        report.unusable.push(Unusable {
            device: "cuda:3".to_owned(),
            problem: "no such device; choose another".to_owned(),
        });
        let device = &mut report.devices[0];
        device.handle_types.fabric = Ability {
            offered: true,
            works: false,
            problem: Some("not permitted".to_owned()),
        };
        device.probe.sizes[0].create_ns = None;
        report.machine.wsl = true;
        report.machine.imex_channels = 2;
        report.machine.rdma_cards = vec!["mlx5_0".to_owned()];
        let variable = ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), "/tmp/mps".to_owned());
        report.machine.environment.extend([variable]);
        let text = rendered(report);
        for part in [
            "  library       cannot be used (see below)",
            "  kernel module not loaded",
            "fabric: offered, but does not work (see below)",
            "cuda:3: cannot be used\n  why           no such device; choose another",
            "  - a GPU: cuInit failed: not found; install the NVIDIA driver",
            "  - host, fabric handles: not permitted",
            "  variable      CUDA_MPS_PIPE_DIRECTORY=/tmp/mps",
            "  RDMA cards    mlx5_0; nvidia_peermem is not loaded",
            "  IMEX channels 2",
            "Windows Subsystem for Linux",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let row = text
            .lines()
            .find(|line| line.contains("  2.0 MiB  "))
            .unwrap();
        assert_eq!(row.split_whitespace().nth(2), Some("-"), "{row}");
        assert!(!text.contains("functions"), "{text}");
    }
}
