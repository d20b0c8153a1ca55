//! `millpond convert`: a recording in another format.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use flate2::Compression;
use flate2::write::GzEncoder;
use millpond_trace::{Format, Trace};

/// Write a recording in another format.
///
/// What a format cannot carry is left out, and said in a line for each thing.
#[derive(Debug, Args)]
#[command(after_long_help = FORMATS)]
pub(crate) struct ConvertArgs {
    /// A PyTorch snapshot, an event list, an ordered list or an RMM log, plain or gzip.
    input: PathBuf,

    /// The file to write; gzip if its name ends in .gz.
    output: PathBuf,

    /// The format [default: by the ending of the output's name].
    #[arg(long, value_enum)]
    to: Option<FormatArg>,

    /// Do not say what was left out.
    #[arg(long)]
    quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FormatArg {
    /// Uses, events and the device's times; no addresses, no call stacks.
    Ordered,
    /// What PyTorch's caching allocator did, a line for each event.
    Events,
    /// A pickle that PyTorch's memory viewer opens.
    Snapshot,
    /// The log of RMM's logging adaptor.
    Rmm,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Format {
        match format {
            FormatArg::Ordered => Format::OrderedCsv,
            FormatArg::Events => Format::EventCsv,
            FormatArg::Snapshot => Format::PytorchSnapshot,
            FormatArg::Rmm => Format::RmmLog,
        }
    }
}

const FORMATS: &str = "\
Formats by the ending of the output's name, before a .gz:
  .ordered.csv     ordered list
  .rmm.csv, .log   RMM log
  .csv             event list
  .pickle, .pkl    PyTorch snapshot

Examples:
  millpond convert job.ordered.csv.gz job.pickle
      For PyTorch's memory viewer.
  millpond convert snapshot.pickle snapshot.csv.gz
      A line for each event.

Exit code: 0 if it was written, 1 if not, 2 if the format is not known.";

/// Runs the command.
pub(crate) fn run(args: &ConvertArgs) -> ExitCode {
    let Some(format) = args.to.map(Format::from).or_else(|| by_name(&args.output)) else {
        complain(
            &args.output,
            "its name says no format: end it in .ordered.csv, .csv, .rmm.csv or .pickle, with or \
             without .gz, or say --to",
        );
        return ExitCode::from(2);
    };
    let trace = match millpond_trace::read_path(&args.input) {
        Ok(trace) => trace,
        Err(error) => {
            complain(&args.input, error);
            return ExitCode::FAILURE;
        }
    };
    match write(&trace, format, &args.output) {
        Ok(lost) => {
            if !args.quiet {
                tell(&args.input, format, &lost);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&args.output, format_args!("cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn by_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let endings = [
        (".ordered.csv", Format::OrderedCsv),
        (".rmm.csv", Format::RmmLog),
        (".log", Format::RmmLog),
        (".csv", Format::EventCsv),
        (".pickle", Format::PytorchSnapshot),
        (".pkl", Format::PytorchSnapshot),
    ];
    let found = endings.iter().find(|(ending, _)| name.ends_with(ending));
    found.map(|&(_, format)| format)
}

fn write(trace: &Trace, format: Format, path: &Path) -> io::Result<Vec<String>> {
    let mut to = BufWriter::new(File::create(path)?);
    if path.extension().is_some_and(|ending| ending == "gz") {
        let mut packed = GzEncoder::new(&mut to, Compression::default());
        let lost = millpond_trace::write(trace, format, &mut packed)?;
        packed.finish()?.flush()?;
        return Ok(lost);
    }
    millpond_trace::write(trace, format, &mut to)
}

/// One line for each thing that was left out.
fn tell(input: &Path, format: Format, lost: &[String]) {
    for lost in lost {
        // If nobody can be told, the file is there all the same.
        let _ = writeln!(
            io::stderr().lock(),
            "note: {}: not in the {format}: {lost}",
            input.display()
        );
    }
}

fn complain(path: &Path, error: impl Display) {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "error: {}: {error}", path.display());
}
