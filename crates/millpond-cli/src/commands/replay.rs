//! `millpond replay`: recordings of real jobs against the pool.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use millpond::device::CudaDevice;
use millpond::pool::{Setting, Waits};

use crate::device::DeviceName;
use crate::replay::{
    self, Outcome, PolicyChoice, PoolSettings, Prepared, Progress, Recorder, ReplayError, Scale,
    Settings, prepare,
};
use crate::size::ByteSize;

/// Replay recordings of real jobs against the pool.
///
/// Prints what the pool needed, and proves that no byte was ever shared: on the devices `host` and
/// `cuda:N`, every block is filled with a pattern of its own and verified by every stream that
/// used it; on `sim`, a checker that shares nothing with the pool watches every device call.
///
/// Recordings are PyTorch memory snapshots, event CSVs, ordered CSVs and RMM logs, each plain or
/// gzip, found by content.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// The recordings; each is replayed with a pool of its own.
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,

    /// The device to replay on: `host`, this machine's memory; `sim`, no bytes and virtual time,
    /// an H200 by its measured costs; `cuda:N`, a GPU (`cuda` is the first one).
    #[arg(long, value_name = "host|sim|cuda:N", default_value = "host")]
    device: DeviceName,

    /// Memory of the device, such as 141GB, 80G or 512MiB [default: 141GB on sim; on host half of
    /// what this machine has free, and without --scale 1GiB at most, for the sake of time]. A GPU
    /// has what it has; --limit bounds what the pool takes of it.
    #[arg(long, value_name = "SIZE")]
    device_size: Option<ByteSize>,

    /// Multiply the sizes of blocks of 1 MiB and more, down to 1 MiB at least; `auto` shrinks a
    /// recording that would not fit the device's free memory [default: 1 on sim, auto elsewhere].
    #[arg(long, value_name = "auto|F")]
    scale: Option<Scale>,

    /// What the pool may take from the device [default: everything].
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,

    /// How dear memory is against the driver's time: how large the pool's handles are, and how much
    /// it may have beyond what was ever live before it maps together what is free.
    #[arg(long, value_enum, default_value_t)]
    setting: SettingArg,

    /// What the pool does when nothing free may be used by the asking stream yet, but something
    /// could after a wait that it inserts there.
    #[arg(long, value_enum, default_value_t)]
    waits: WaitsArg,

    /// Whose rules decide where blocks go and what is kept: `millpond`, this pool; or, to compare
    /// with, `cuda-malloc`, `bump`, `buddy`, `slab`, `caching` and `expandable` (PyTorch's
    /// allocator without and with expandable segments). Several are replayed one after the other.
    #[arg(
        long,
        value_name = "A,B,...",
        value_delimiter = ',',
        default_value = "millpond"
    )]
    policy: Vec<PolicyChoice>,

    /// Play the recording N times with the same pool, each time when the device is done with the
    /// one before; one row, or JSON object, for each. What is reserved then counts from what the
    /// pool still holds.
    #[arg(long, value_name = "N")]
    repeat: Option<NonZeroU32>,

    /// Look for the smallest --limit, in steps of 2 MiB, at which no allocation fails: what of a
    /// GPU the job needs (`min limit`, in JSON `min_limit_bytes`). The other figures are those
    /// without a limit.
    #[arg(long, conflicts_with_all = ["limit", "repeat"])]
    min_limit: bool,

    /// Draw the address space over time into this file, as an SVG: mapped memory, and on it the
    /// blocks, from the first operation to the last. For one recording and one policy.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "min_limit")]
    draw: Option<PathBuf>,

    /// Hold the streams of the device `host` back at random, by this seed. On other devices it
    /// changes nothing.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Print one JSON object a line, one for each recording or repetition, in place of
    /// the table.
    #[arg(long)]
    json: bool,

    /// No progress bar and no notes; errors are still printed.
    #[arg(long)]
    quiet: bool,
}

/// [`Setting`], as people choose it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum SettingArg {
    /// Memory is plentiful: few large handles, and 3 % or 64 MiB more than was ever live.
    Plentiful,
    /// Half as many handles as balanced.
    Fast,
    /// Handles of 8 to 256 MiB, and 1 % or 8 MiB more than was ever live.
    #[default]
    Balanced,
    /// Twice as many handles as balanced.
    Tight,
}

impl From<SettingArg> for Setting {
    fn from(setting: SettingArg) -> Setting {
        match setting {
            SettingArg::Plentiful => Setting::Plentiful,
            SettingArg::Fast => Setting::Fast,
            SettingArg::Balanced => Setting::Balanced,
            SettingArg::Tight => Setting::Tight,
        }
    }
}

/// [`Waits`], as people choose them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum WaitsArg {
    /// The least memory: grow hardly beyond what was ever live, then insert a wait.
    MemoryFirst,
    /// Some memory for the sake of time: insert a wait only where it saves much.
    #[default]
    Balanced,
    /// No waits, as long as there is any memory to take: CUDA's own order.
    TimeFirst,
}

impl From<WaitsArg> for Waits {
    fn from(waits: WaitsArg) -> Waits {
        match waits {
            WaitsArg::MemoryFirst => Waits::MemoryFirst,
            WaitsArg::Balanced => Waits::Balanced,
            WaitsArg::TimeFirst => Waits::TimeFirst,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  millpond replay traces/gnn_sampled.csv.gz
      Fill and verify every block, in this machine's memory; shrunk if it does not fit.
  millpond replay --device sim traces/*.gz
      All recordings at full size, on a 141 GB device that costs nothing.
  millpond replay --device cuda:0 --json traces/*.gz
      The same on the first GPU: blocks are filled and verified by kernels on their own streams.
  millpond replay --device sim --limit 4500MiB --json traces/gnn_sampled.csv.gz
      Does the job fit in 4500 MiB? Exit code 0 if it does.
  millpond replay --device sim --min-limit traces/gnn_sampled.csv.gz
      In how much does it fit?
  millpond replay --device sim --repeat 5 traces/gnn_sampled.csv.gz
      What is left to do for the driver when the pool has seen the job before.
  millpond replay --device sim --setting tight traces/gnn_sampled.csv.gz
      How much memory smaller handles save, and what they cost in driver calls.
  millpond replay --device sim --waits memory-first traces/*.ordered.csv.gz
      What memory can be saved if streams may be held up, and by how much they are.
  millpond replay --device sim --policy millpond,caching,expandable traces/gnn_sampled.csv.gz
      What others would need for the same job, beside the pool.
  millpond replay --device sim --draw gnn.svg traces/gnn_sampled.csv.gz
      Where the blocks were, and which memory is mapped at several addresses.
  millpond replay --scale 1 traces/gnn_sampled.csv.gz
      The same at full size, in half of the free memory; this takes minutes.
  millpond replay --device-size 256MiB --seed 7 traces/offload_streams.ordered.csv.gz
      Small enough for any machine, with streams that overtake each other.

Time: `host ns/op` is the pool's own (on sim, that of the whole loop, device included), `driver
ns/op` that of the calls counted under `calls` (create, map, set access, unmap, release, and
those for plain memory), in ns and in all in ms: by the clock on host and cuda:N, by the table of
measured costs on sim. Taking the pool down is not counted, nor is waiting for the device.

Waits: `waits` are those that the pool inserted into streams (in JSON `waits_inserted`, beside
`events_recorded` and `event_queries`). `delay` (`final_delay_share`) is how much later the job's
device is done than in the same replay where inserted waits cost nothing, as a share of the time
in which the device was active. Only `sim` can tell, and only of ordered CSVs; elsewhere it is
`null` in JSON. A delay spreads along streams, through the job's own waits, and to the host where
it had nothing ahead of the device.

Smallest limit: the range between what is live and what was enough without a limit is halved. A
job that completes at one limit need not do so at every larger one, and on host and cuda:N two
replays may differ: what is said completed when it was tried, and 2 MiB less did not. It is `null`
where allocations fail even with the whole device.

Exit code: 0 if nothing failed and nothing was corrupt, 1 if something was or a recording could
not be replayed, 2 if the arguments are wrong.

Environment: MILLPOND_LOG=debug shows on standard error what the pool itself has to say.";

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    if args.draw.is_some() && (args.traces.len(), args.policy.len()) != (1, 1) {
        let message = "--draw takes one recording and one policy: a picture shows one replay";
        // If nobody can be told, the exit code still tells.
        let _ = writeln!(io::stderr().lock(), "error: {message}");
        return ExitCode::from(2);
    }
    // An open device's context lives on from one recording to the next.
    let _kept_open = match args.device {
        DeviceName::Cuda(_) if args.device_size.is_some() => {
            let message = "the memory of a GPU is what it is; --device-size is for host and sim, and \
                           --limit bounds what the pool takes";
            // If nobody can be told, the exit code still tells.
            let _ = writeln!(io::stderr().lock(), "error: {message}");
            return ExitCode::from(2);
        }
        DeviceName::Cuda(ordinal) => match CudaDevice::open(ordinal) {
            Ok(device) => Some(device),
            Err(error) => {
                let _ = writeln!(io::stderr().lock(), "error: {}: {error}", args.device);
                return ExitCode::FAILURE;
            }
        },
        DeviceName::Host | DeviceName::Sim => None,
    };
    let settings = Settings {
        device: args.device,
        device_size: args.device_size.map(|size| size.0),
        scale: args.scale,
        pool: PoolSettings {
            limit: args.limit.map(|size| size.0),
            setting: args.setting.into(),
            waits: args.waits.into(),
            policy: PolicyChoice::Millpond,
        },
        seed: args.seed,
        repeat: args.repeat,
        min_limit: args.min_limit,
    };
    let mut outcomes = Vec::new();
    let mut clean = true;
    for path in &args.traces {
        let prepared = match prepare_one(path, args, &settings) {
            Ok(prepared) => prepared,
            Err(error) => {
                clean = false;
                complain("error", path, error);
                continue;
            }
        };
        for &policy in &args.policy {
            match replay_one(&prepared, policy, args) {
                Ok(replayed) => {
                    for outcome in &replayed {
                        clean &= outcome.is_clean();
                        report_findings(path, outcome);
                        if args.json && !print_json(outcome) {
                            return ExitCode::FAILURE;
                        }
                    }
                    outcomes.extend(replayed);
                }
                Err(error) => {
                    clean = false;
                    complain("error", path, error);
                }
            }
        }
    }
    if !args.json && !outcomes.is_empty() {
        let written = writeln!(io::stdout().lock(), "{}", replay::table(&outcomes));
        if written.is_err() {
            return ExitCode::FAILURE;
        }
    }
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn prepare_one(
    path: &Path,
    args: &ReplayArgs,
    settings: &Settings,
) -> Result<Prepared, ReplayError> {
    let mut trace = millpond_trace::read_path(path)?;
    let notes = std::mem::take(&mut trace.notes);
    let prepared = prepare(trace, settings)?;
    if args.quiet {
        return Ok(prepared);
    }
    for note in notes {
        complain("note", path, note);
    }
    if let Some((scale, device_size)) = prepared.shrunk() {
        let size = ByteSize(device_size);
        let note = match args.device {
            DeviceName::Cuda(_) => format!("does not fit the {size} free on {}", args.device),
            DeviceName::Host | DeviceName::Sim => format!("does not fit a device of {size}"),
        };
        let note = format!("{note}: replayed at scale {scale}");
        complain("note", path, note);
    }
    Ok(prepared)
}

fn replay_one(
    prepared: &Prepared,
    policy: PolicyChoice,
    args: &ReplayArgs,
) -> Result<Vec<Outcome>, ReplayError> {
    let progress = if args.quiet {
        Progress::hidden()
    } else {
        Progress::new(prepared.name(), prepared.steps())
    };
    let Some(picture) = &args.draw else {
        return prepared.replay(policy, None, &progress);
    };
    let recorder = Arc::new(Recorder::default());
    let outcomes = prepared.replay(policy, Some(&recorder), &progress)?;
    let described = outcomes.first().map(Outcome::description);
    let drawn = recorder.draw(&described.unwrap_or_default());
    fs::write(picture, drawn).map_err(|error| ReplayError::Picture {
        path: picture.clone(),
        error,
    })?;
    Ok(outcomes)
}

fn report_findings(path: &Path, outcome: &Outcome) {
    let kinds = [
        ("failed", &outcome.failures),
        ("corrupt", &outcome.corruptions),
    ];
    for (kind, findings) in kinds {
        for message in findings.messages() {
            complain(kind, path, message);
        }
        if findings.more() > 0 {
            complain(kind, path, format!("and {} more", findings.more()));
        }
    }
}

/// One line on standard error, about one recording.
fn complain(kind: &str, path: &Path, message: impl Display) {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "{kind}: {}: {message}", path.display());
}

/// Gives whether somebody still reads it.
fn print_json(outcome: &Outcome) -> bool {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, outcome).is_ok() && writeln!(out).is_ok()
}
