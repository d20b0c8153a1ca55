//! Prints what a recording holds: `cargo run --release --example facts -- FILE...`

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use millpond_trace::read_path;

fn main() -> ExitCode {
    let mut failed = false;
    for file in std::env::args().skip(1) {
        let begin = Instant::now();
        match read_path(Path::new(&file)) {
            Ok(trace) => {
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                println!(
                    "{}: {}, {} steps, {} blocks, {} events, {} streams, peak live {:.1} MiB, \
                     recorded reserved {:.1} MiB, read in {} ms",
                    trace.name,
                    trace.format,
                    trace.steps.len(),
                    trace.block_count,
                    trace.event_count,
                    trace.streams.len(),
                    mib(trace.peak_live_bytes()),
                    mib(trace.recorded_peak_reserved_bytes().unwrap_or(0)),
                    begin.elapsed().as_millis(),
                );
                for note in &trace.notes {
                    println!("  {note}");
                }
            }
            Err(error) => {
                eprintln!("{file}: {error}");
                failed = true;
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
