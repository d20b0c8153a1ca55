//! `millpond doctor`: what this machine has, and what a pool will do with it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use crate::device::DeviceName;
use crate::doctor::{Report, gather, render};

/// Say what this machine has, and what a pool will do with it.
///
/// Looks at the driver, every GPU and the host device: memory, granularity, mapping, handle types,
/// RDMA, peers, limits. What a device offers is tried, with the smallest handle. Measures for about
/// a second each what the mapping calls cost. Says in words what is missing and how to get it.
/// Works without a GPU too.
#[derive(Debug, Args)]
#[command(after_long_help = KEYS)]
pub(crate) struct DoctorArgs {
    /// Look at this device alone: `host` or `cuda:N` [default: at all].
    #[arg(long, value_name = "host|cuda:N")]
    device: Option<DeviceName>,

    /// Print one JSON object in place of the text.
    #[arg(long)]
    json: bool,
}

const KEYS: &str = "\
Keys of the JSON object (every key is always there; null: not found, not known, or no limit; sizes
are in bytes, times in nanoseconds):
  millpond     the version
  driver       library, cuda_version, kernel_module, missing_functions [names],
               problem (why it cannot be used)
  machine      memory_bytes, available_bytes, numa_nodes, limits {address_space_bytes,
               locked_memory_bytes, open_files, max_map_count}, rdma_cards [names],
               nvidia_peermem, imex_channels, wsl, environment {the variables that are set}
  devices      a list of: device, name, memory_bytes, free_bytes, granularity_bytes, mapping,
               handle_types {posix_fd, fabric}, rdma, host_numa (each of these four {offered,
               works, problem}),
               gpu (null on the host device: compute_capability, pci, multiprocessors, mig, mps,
               integrated, driver_pools, dma_buf, numa_node, peers [{device, access}]),
               probe {sizes [{bytes, create_ns, map_ns, set_access_ns, unmap_ns, release_ns,
               allocate_ns, free_ns, problem}], record_event_ns, query_event_ns, problem},
               pool [what a pool does there, in words]
  unusable     a list of devices that cannot be opened or asked: device, problem
  missing      a list of what is missing and how to get it, in words

Exit code: 0, also where there is no GPU; 1 if the device of --device cannot be used; 2 if the
arguments are wrong.";

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    if args.device == Some(DeviceName::Sim) {
        let message =
            "error: sim is the same on every machine; name host or cuda:N, such as cuda:0";
        // If nobody can be told, the exit code still tells.
        let _ = writeln!(io::stderr().lock(), "{message}");
        return ExitCode::from(2);
    }
    let report = gather(args.device);
    let mut code = if print(&report, args.json) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    if args.device.is_some() {
        for unusable in &report.unusable {
            let (device, problem) = (&unusable.device, &unusable.problem);
            let _ = writeln!(io::stderr().lock(), "error: {device}: {problem}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Gives whether somebody still reads it.
fn print(report: &Report, json: bool) -> bool {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report).is_ok() && writeln!(out).is_ok()
    } else {
        out.write_all(render(report).as_bytes()).is_ok()
    }
}
