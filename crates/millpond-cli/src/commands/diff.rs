//! `millpond diff`: what grew from one recording to another.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::diff::{Change, Diff};
use crate::report::Grouping;
use crate::size::ByteSize;

/// Say what grew from one recording or snapshot to another.
///
/// Compares what is live at the end of each (for a snapshot, when it was taken) and at the peak of
/// each: by call site where both have call stacks, by size class, by stream, by single sizes. The
/// first line names the largest growth.
#[derive(Debug, Args)]
#[command(after_long_help = KEYS)]
pub(crate) struct DiffArgs {
    /// The earlier recording.
    before: PathBuf,

    /// The later one.
    after: PathBuf,

    /// Rows of each table.
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,

    /// Print one JSON object in place of the text, with all groups.
    #[arg(long)]
    json: bool,
}

const KEYS: &str = "\
Keys of the JSON object (sizes in bytes): headline; before, after {name, live_at_end, peak_live,
peak_reserved (of the recording allocator; null where the recording does not say)}; end, peak: the
groups that changed, the one that grew most first {by (size_class, call_site, stream, size), what,
before, after {blocks, bytes}, grew}

Exit code: 0 if both could be read, whether anything grew or not; 1 if not.";

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> ExitCode {
    let read = |path: &Path| {
        millpond_trace::read_path(path)
            .map_err(|error| complain(path, error))
            .ok()
    };
    let (Some(before), Some(after)) = (read(&args.before), read(&args.after)) else {
        return ExitCode::FAILURE;
    };
    let diff = Diff::new(&before, &after);
    let mut out = io::stdout().lock();
    let told = if args.json {
        object(&diff).and_then(|object| writeln!(out, "{object}"))
    } else {
        tell(&diff, args.rows, &mut out)
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn object(diff: &Diff) -> io::Result<serde_json::Value> {
    let mut object = serde_json::to_value(diff)?;
    object["headline"] = diff.headline().into();
    Ok(object)
}

fn tell(diff: &Diff, rows: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}\n", diff.headline())?;
    let mut sides = plain(&[
        "",
        "live at the end",
        "peak live",
        "peak reserved, as recorded",
    ]);
    for side in [&diff.before, &diff.after] {
        let reserved = side.peak_reserved;
        sides.add_row([
            side.name.clone(),
            ByteSize(side.live_at_end).to_string(),
            ByteSize(side.peak_live).to_string(),
            reserved.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
        ]);
    }
    align(&mut sides, 1);
    writeln!(out, "{sides}")?;
    for (when, changes) in [("At the end", &diff.end), ("At the peak", &diff.peak)] {
        for by in [
            Grouping::CallSite,
            Grouping::SizeClass,
            Grouping::Stream,
            Grouping::Size,
        ] {
            let of: Vec<&Change> = changes.iter().filter(|change| change.by == by).collect();
            if of.is_empty() {
                continue;
            }
            writeln!(out, "\n{when}, by {}", by.title())?;
            let mut table = plain(&["", "grew", "before", "blocks", "after", "blocks"]);
            for change in of.iter().take(rows) {
                table.add_row(row(change));
            }
            align(&mut table, 1);
            writeln!(out, "{table}")?;
            if of.len() > rows {
                writeln!(out, " and {} more", of.len() - rows)?;
            }
        }
    }
    Ok(())
}

fn row(change: &Change) -> [String; 6] {
    let sign = if change.grew < 0 { '-' } else { '+' };
    let grew = change.grew.unsigned_abs().min(u128::from(u64::MAX)) as u64;
    [
        change.what.clone(),
        format!("{sign}{}", ByteSize(grew)),
        ByteSize(change.before.bytes).to_string(),
        change.before.blocks.to_string(),
        ByteSize(change.after.bytes).to_string(),
        change.after.blocks.to_string(),
    ]
}

fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    table
}

/// Columns from this one on are numbers.
fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut() {
        if column.index >= from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn complain(path: &Path, error: impl Display) {
    // If nobody can be told, the exit code still tells.
    let _ = writeln!(io::stderr().lock(), "error: {}: {error}", path.display());
}
