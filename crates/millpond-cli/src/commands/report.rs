//! `millpond report`: where a job's memory is, as one page.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::replay::{PolicyChoice, ReplayError};
use crate::report::{Report, write_page};
use crate::size::ByteSize;

/// Show where a job's memory is: one HTML page that opens in any browser, offline.
///
/// Replays the recordings at full size on an emulated device of 141 GB that costs nothing, and
/// shows memory over time, the address space at any moment, what the peak is made of, free memory in
/// pieces, driver calls, the largest blocks, suspected leaks, and streams that hold memory. What would
/// help most is said in words, on the page and on standard output.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Recordings: PyTorch snapshots, event lists, ordered lists or RMM logs, plain or gzip.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Whose rules to replay with, several with commas between them: each gets a run of its own.
    #[arg(
        long,
        value_name = "POLICY,...",
        value_delimiter = ',',
        default_value = "millpond"
    )]
    policy: Vec<PolicyChoice>,

    /// The most memory that an allocator may take in a replay: does the job fit?
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,

    /// The page to write.
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,

    /// Print what is found as one JSON object for each recording, in place of the text.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  millpond report traces/gnn_sampled.csv.gz -o gnn.html
      Everything about one job.
  millpond report --policy millpond,caching,expandable traces/gnn_sampled.csv.gz
      The same job with three allocators, side by side.
  millpond report --limit 4500MiB --policy caching,millpond traces/gnn_sampled.csv.gz
      Does it fit, and why not?
  millpond report traces/*.ordered.csv.gz
      Several jobs on one page.

Keys of a JSON object: name, format, steps, blocks, peak_live_bytes, peak_pending_bytes,
  findings [{what, advice, bytes}], growing [{what, bytes, kept_blocks, kept_bytes, ...}],
  streams [{name, peak_live, peak_held, ...}],
  runs [{policy, failed_allocations, peak_reserved_bytes, driver_calls, driver_ms}]

Exit code: 0 if the page was written, 1 if not, 2 if the arguments are wrong.";

/// Runs the command.
pub(crate) fn run(args: &ReportArgs) -> ExitCode {
    let mut reports = Vec::new();
    for path in &args.traces {
        match look_at(path, args) {
            Ok(report) => reports.push(report),
            Err(error) => {
                complain(path, error);
                return ExitCode::FAILURE;
            }
        }
    }
    let written = File::create(&args.output).and_then(|file| {
        let mut to = BufWriter::new(file);
        write_page(&mut reports, &mut to)
    });
    if let Err(error) = written {
        complain(&args.output, format_args!("cannot be written: {error}"));
        return ExitCode::FAILURE;
    }
    let told = reports.iter().try_for_each(|report| {
        let mut out = io::stdout().lock();
        if args.json {
            writeln!(out, "{}", object(report))
        } else {
            tell(report, &mut out)
        }
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn look_at(path: &Path, args: &ReportArgs) -> Result<Report, ReplayError> {
    let trace = millpond_trace::read_path(path)?;
    Report::new(&trace, &args.policy, args.limit.map(|size| size.0))
}

fn tell(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for finding in &report.findings {
        writeln!(out, "{}: {}.", report.name, finding.what)?;
        writeln!(out, "    {}", finding.advice)?;
    }
    for run in &report.runs {
        writeln!(
            out,
            "{}: {} live at most, {} reserved with {}, {} driver calls, {} failed",
            report.name,
            ByteSize(run.peak_live),
            ByteSize(run.peak_reserved),
            run.policy,
            run.driver_calls,
            run.failed_allocations,
        )?;
    }
    Ok(())
}

fn object(report: &Report) -> serde_json::Value {
    let runs: Vec<_> = report
        .runs
        .iter()
        .map(|run| {
            serde_json::json!({
                "policy": run.policy,
                "failed_allocations": run.failed_allocations,
                "peak_reserved_bytes": run.peak_reserved,
                "driver_calls": run.driver_calls,
                "driver_ms": run.driver_ms,
            })
        })
        .collect();
    serde_json::json!({
        "name": report.name,
        "format": report.format,
        "steps": report.steps,
        "blocks": report.blocks,
        "peak_live_bytes": report.peak_live,
        "peak_pending_bytes": report.peak_pending,
        "findings": report.findings,
        "growing": report.growing,
        "streams": report.streams,
        "runs": runs,
    })
}

fn complain(what: &Path, error: impl Display) {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "error: {}: {error}", what.display());
}
