//! `millpond plan`: every offset known before the first kernel.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use millpond_plan::{Arena, Options, plan};

use crate::plan::{Failure, Reading, Report, draw, export, read};
use crate::size::ByteSize;

/// Plan the memory of buffers whose lifetimes are known, and say how good the plan is.
///
/// The input is a planning CSV (`id,lower,upper,size[,alignment,offset,hint,gaps]`; a buffer lives
/// from `lower` to before `upper`), an ONNX model, or a recording that `millpond replay` reads, of
/// which one iteration is planned; each plain or gzip, found by content.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// What to plan.
    #[arg(value_name = "INPUT")]
    input: PathBuf,

    /// Bytes that there are, such as 1048576 or 1MiB: it is an error if no plan is found that fits.
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,

    /// The most bytes that can be had in one piece: no buffer lies across a multiple of it.
    #[arg(long, value_name = "SIZE")]
    largest_block: Option<ByteSize>,

    /// Every offset is a multiple of this many bytes.
    #[arg(long, value_name = "N")]
    align: Option<ByteSize>,

    /// How long to look for better plans, such as 2s, 500ms or 1m; a plan that is proven optimal ends the search.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    time: Time,

    /// Threads to search on [default: those of this machine].
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,

    /// A number for a symbolic dimension of a model, by its name, or `input:axis` for one without; may
    /// be repeated.
    #[arg(long, value_name = "NAME=N")]
    dim: Vec<Dim>,

    /// Do not write results of a model's operators over their inputs.
    #[arg(long)]
    no_in_place: bool,

    /// The steps of a recording to plan, from A to before B, in place of the iteration that is found.
    #[arg(long, value_name = "A..B")]
    iteration: Option<Steps>,

    /// Print one JSON object in place of the text.
    #[arg(long)]
    json: bool,

    /// Write the plan to a file: .csv (the input with offsets), .json, .h (a C header) or .tflm
    /// (TFLite-Micro's OfflineMemoryAllocation metadata).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Draw the plan into this file, as an SVG: time across, address up.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  millpond plan model.onnx --dim batch=8 --svg plan.svg
      What the activations of a model take at least, and a picture of where they lie.
  millpond plan buffers.csv --capacity 1MiB --align 64 --out plan.h
      Offsets for a device with 1 MiB, as a C header.

Keys of the JSON object (sizes in bytes):
  input, format, buffers, lower_bound, peak, gap (share of the bound), proven_optimal, seconds,
  capacity, naive (in the order of birth), greedy_by_size, no_sharing (these three null beyond 20000
  buffers), peak_time, live_at_peak [{name, offset, bytes, lower, upper}]; of a model also nodes,
  weight_bytes, input_bytes, output_bytes; of a recording steps, first_step, last_step, repeats, held_bytes

Exit code: 0 if there is a plan, 1 if not, 2 if the arguments are wrong.";

/// A time that a person gave.
#[derive(Clone, Copy, Debug)]
struct Time(Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let wrong = || "no time; write 2s, 500ms or 1m".to_owned();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit.trim() {
            "ms" => number / 1000.0,
            "s" | "" => number,
            "m" | "min" => number * 60.0,
            _ => return Err(wrong()),
        };
        Duration::try_from_secs_f64(seconds)
            .map(Time)
            .map_err(|_| wrong())
    }
}

#[derive(Clone, Debug)]
struct Dim(String, u64);

impl FromStr for Dim {
    type Err = String;

    fn from_str(text: &str) -> Result<Dim, String> {
        let parsed = text
            .rsplit_once('=')
            .and_then(|(name, n)| Some(Dim(name.to_owned(), n.parse().ok()?)));
        parsed.ok_or_else(|| "write NAME=N, such as batch=8".to_owned())
    }
}

#[derive(Clone, Copy, Debug)]
struct Steps(usize, usize);

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Steps, String> {
        let parsed = text
            .split_once("..")
            .and_then(|(a, b)| Some(Steps(a.parse().ok()?, b.parse().ok()?)));
        parsed
            .filter(|s| s.0 < s.1)
            .ok_or_else(|| "write A..B with A below B".to_owned())
    }
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    match execute(args) {
        Ok(text) => match io::stdout().lock().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(failure) => {
            // If nobody can be told, the exit code still tells.
            let _ = writeln!(
                io::stderr().lock(),
                "error: {}: {failure}",
                args.input.display()
            );
            ExitCode::FAILURE
        }
    }
}

fn execute(args: &PlanArgs) -> Result<String, Failure> {
    let dims: BTreeMap<String, u64> = args.dim.iter().map(|d| (d.0.clone(), d.1)).collect();
    let mut input = read(
        &args.input,
        &Reading {
            dims,
            in_place: !args.no_in_place,
            iteration: args.iteration.map(|s| (s.0, s.1)),
            alignment: args.align.map(|a| a.0),
        },
    )?;
    input.problem.arenas = vec![Arena {
        capacity: args.capacity.map(|c| c.0),
        largest_block: args.largest_block.map(|b| b.0),
    }];
    let options = Options {
        time: Some(args.time.0),
        threads: args.threads,
        ..Options::default()
    };
    let plan = plan(&input.problem, &options)?;
    let name = args.input.file_name().unwrap_or_default().to_string_lossy();
    if let Some(path) = &args.out {
        export(path, &input, &plan)?;
    }
    if let Some(path) = &args.svg {
        draw(path, &name, &input, &plan).map_err(|error| Failure::picture(path, error))?;
    }
    let report = Report::new(
        &args.input.display().to_string(),
        &input,
        &plan,
        args.capacity.map(|c| c.0),
    )?;
    match args.json {
        // A report has nothing that JSON cannot say.
        true => Ok(serde_json::to_string(&report).unwrap_or_default() + "\n"),
        false => Ok(report.text()),
    }
}
