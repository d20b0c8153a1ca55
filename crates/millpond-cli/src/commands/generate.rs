//! `millpond generate`: jobs that are in no file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use millpond_trace::{JobKind, Trace, write_ordered_csv};

/// Generate the recording of a job, to be replayed.
///
/// Writes an ordered CSV: what the job asks of its allocator, its events and waits, and when its
/// device came to each point, by a simple model of the device. The same kind and seed give the
/// same bytes, on every machine.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// The kind of job.
    #[arg(value_name = "KIND", value_enum)]
    kind: Kind,

    /// What is random in the job is drawn by this seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write to this file [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  millpond generate stage-chain --output stage_chain.ordered.csv
  millpond replay --device sim --waits time-first stage_chain.ordered.csv
      How much memory a pipeline needs whose streams never wait for memory.
  millpond generate varying-batches --seed 7 | gzip >varying_batches.ordered.csv.gz
      Another run of the same job; recordings may be compressed.

Exit code: 0 if it was written, 1 if not, 2 if the arguments are wrong.";

/// [`JobKind`], as people choose it.
#[derive(Clone, Copy, Debug)]
struct Kind(JobKind);

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Kind] {
        const KINDS: [Kind; JobKind::ALL.len()] = {
            let mut kinds = [Kind(JobKind::ALL[0]); JobKind::ALL.len()];
            let mut index = 0;
            while index < kinds.len() {
                kinds[index] = Kind(JobKind::ALL[index]);
                index += 1;
            }
            kinds
        };
        &KINDS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.about()))
    }
}

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> ExitCode {
    let trace = args.kind.0.generate(args.seed);
    let (written, to) = match &args.output {
        Some(path) => (write_to_file(&trace, path), path.display().to_string()),
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            let written = write_ordered_csv(&trace, &mut out);
            (written, "standard output".to_owned())
        }
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody can be told, the exit code still tells.
            let _ = writeln!(io::stderr().lock(), "error: {to}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_to_file(trace: &Trace, path: &PathBuf) -> io::Result<()> {
    write_ordered_csv(trace, &mut BufWriter::new(File::create(path)?))
}
