//! `millpond bench`: what one allocation and free costs.

use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::bench::{self, BenchError, Case, Clock, Pattern, Row, Target, table};
use crate::device::DeviceName;

/// Time pairs of allocation and free, in patterns that are the same for every allocator.
///
/// Each row has a pool of its own, through the library's Rust interface. On `sim` only the pool's
/// own time counts, not the emulated driver's; on `host` and `cuda:N` driver calls are in it.
#[derive(Debug, Args)]
#[command(after_long_help = KEYS)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[arg(value_enum, default_value_t)]
    pattern: PatternArg,

    /// Recordings, for `replay` and `all`: each is played twice with one pool, without bytes or
    /// work on the streams, and the first and the second time reported apart.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// The device to measure on.
    #[arg(long, value_name = "sim|host|cuda:N", default_value = "sim")]
    device: DeviceName,

    /// Pairs of one pass and thread [default: 20,000, or 100,000 where 1000 blocks churn]. With few,
    /// percentiles say little.
    #[arg(long, value_name = "N")]
    pairs: Option<NonZeroUsize>,

    /// Leave out rows with more live blocks than this; 10 million take some GB of this machine's
    /// memory.
    #[arg(long, value_name = "N")]
    most_live: Option<u64>,

    /// Print one JSON object a line, one for each row, in place of the table.
    #[arg(long)]
    json: bool,
}

/// What there is to measure.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum PatternArg {
    /// Allocate and free one size on one stream: 512 B, 64 KiB, 1 MiB, 64 MiB.
    Pair,
    /// Replace a random one of the live blocks: 1000 of 2^9..2^24 bytes, 200 of 2^20..2^28.
    Churn,
    /// The same on 1, 2, 4, 8, 16 threads, each with a stream and 100 blocks of 2^9..2^22 bytes.
    Threads,
    /// The same with 1000 to 10 million live blocks of 2^9..2^13 bytes.
    Scale,
    /// The recordings named.
    Replay,
    /// All of it.
    #[default]
    All,
}

impl PatternArg {
    fn patterns(self) -> &'static [Pattern] {
        match self {
            PatternArg::Pair => &[Pattern::Pair],
            PatternArg::Churn => &[Pattern::Churn],
            PatternArg::Threads => &[Pattern::Threads],
            PatternArg::Scale => &[Pattern::Scale],
            PatternArg::Replay => &[],
            PatternArg::All => &[
                Pattern::Pair,
                Pattern::Churn,
                Pattern::Threads,
                Pattern::Scale,
            ],
        }
    }

    fn replays(self) -> bool {
        matches!(self, PatternArg::Replay | PatternArg::All)
    }
}

const KEYS: &str = "\
Examples:
  millpond bench
      Everything but recordings, without a GPU.
  millpond bench replay --device cuda:0 traces/*.csv.gz
      What recorded jobs cost on the first GPU, driver calls included.
  millpond bench churn --json
      One JSON object for each row.

Keys of a JSON object (every key is always there; null where it does not apply):
  pattern                 pair, churn, threads, scale or replay
  device                  as it was named
  trace, repetition       of a recording: its name; 1, then 2
  threads, streams        in use
  live                    live blocks, of all threads; of a recording, the most
  size_min, size_max      bytes
  pairs                   of each thread in a pass; of a recording, its allocations
  ns_per_pair             from the first thread's begin to the last one's end, over `pairs`; of a
                          recording, the whole time over its allocations
  ns_per_op               of a recording: the whole time over allocations, frees, uses, records
                          and waits
  p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns
                          of one pair (a free and an allocation in churn, threads and scale); of a
                          recording, of one operation
  pairs_per_second        of all threads together
  driver_calls_per_pair, driver_ns_per_pair
                          on sim: in all passes, by the table of costs; not in the times above
  peak_live_bytes, peak_reserved_bytes
                          of all passes; of a recording, of the repetition
  failed_allocations      of a recording
  clock_ns                what one reading of the clock costs here

Clock: the processor's time stamp counter where it is steady, else the monotonic clock. Means are
the median of up to 49 passes with no clock inside. Percentiles are from as many further passes
where each pair is timed by itself; one reading is subtracted from each.

Exit code: 0 if every row was measured, 1 if one could not be or an allocation failed, 2 if the
arguments are wrong.";

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    if args.pattern == PatternArg::Replay && args.traces.is_empty() {
        return refuse("replay needs recordings: name at least one, such as traces/*.csv.gz");
    }
    if !args.pattern.replays() && !args.traces.is_empty() {
        return refuse("recordings are for replay and all");
    }
    let target = match Target::open(args.device) {
        Ok(target) => target,
        Err(error) => {
            complain(args.device, error);
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report {
        json: args.json,
        rows: Vec::new(),
        complete: true,
    };
    let clock = Clock::new();
    let most_live = args.most_live.unwrap_or(u64::MAX);
    for &pattern in args.pattern.patterns() {
        for case in Case::all(pattern, args.pairs) {
            if case.all_live() > most_live {
                continue;
            }
            let measured = bench::measure(&case, &target, &clock).map(|row| vec![row]);
            if !report.add(
                format_args!("{} of {} live blocks", pattern.as_str(), case.all_live()),
                measured,
            ) {
                return ExitCode::FAILURE;
            }
        }
    }
    for path in &args.traces {
        let rows = match millpond_trace::read_path(path) {
            Ok(trace) => bench::replay(trace, &target, &clock),
            Err(error) => Err(BenchError::Replay(error.into())),
        };
        if !report.add(path.display(), rows) {
            return ExitCode::FAILURE;
        }
    }
    report.end(&clock)
}

/// What is printed.
struct Report {
    json: bool,
    /// For the table.
    rows: Vec<Row>,
    /// Everything could be measured.
    complete: bool,
}

impl Report {
    /// Gives whether somebody still reads it.
    fn add(&mut self, what: impl Display, rows: Result<Vec<Row>, BenchError>) -> bool {
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                self.complete = false;
                complain(what, error);
                return true;
            }
        };
        let failed: u64 = rows.iter().map(Row::failed_allocations).sum();
        if failed > 0 {
            self.complete = false;
            complain(what, format_args!("{failed} allocations failed"));
        }
        if !self.json {
            self.rows.extend(rows);
            return true;
        }
        let mut out = io::stdout().lock();
        let mut print = |row| serde_json::to_writer(&mut out, row).is_ok() && writeln!(out).is_ok();
        rows.iter().all(&mut print)
    }

    fn end(self, clock: &Clock) -> ExitCode {
        if !self.rows.is_empty() {
            let written = writeln!(
                io::stdout().lock(),
                "{}\nTimes in ns. Reading the clock costs {:.1} ns: not in the means, subtracted \
                 from the percentiles.",
                table(&self.rows),
                clock.cost_ns()
            );
            if written.is_err() {
                return ExitCode::FAILURE;
            }
        }
        if self.complete {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn refuse(message: &str) -> ExitCode {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "error: {message}");
    ExitCode::from(2)
}

fn complain(what: impl Display, error: impl Display) {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "error: {what}: {error}");
}
