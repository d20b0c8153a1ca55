//! The page of `millpond report` in a real browser, where this machine has Chromium; elsewhere the
//! tests are shown as ignored.
//!
//! `MILLPOND_SCREENSHOTS=FOLDER` has pictures of the pages written there. `MILLPOND_REPORT_TRACES`
//! names further recordings, with `:` between them. Times are printed; they decide nothing.

#[path = "support/browser.rs"]
mod browser;
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use assert_cmd::Command;
use libtest_mimic::{Arguments, Failed, Trial};

use browser::{Browser, chromium};
use support::trace;

/// What a page may weigh, in bytes.
const PAGE_MAX: u64 = 8_000_000;

/// Moves the slider to 40 places; gives the milliseconds until each was drawn, in order.
const MOVE: &str = "(async () => {
  const slider = document.getElementById('slider'), times = [];
  for (let i = 1; i <= 40; i += 1) {
    const begun = performance.now();
    slider.value = i * 179 % 720;
    slider.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push(performance.now() - begun);
  }
  return times.sort((a, b) => a - b);
})()";

/// What is to be seen: the moment in words, all pixels of the map, and where the chart's cursor is.
const SEEN: &str = "(async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return [document.getElementById('moment').textContent,
    document.getElementById('map').toDataURL(), document.querySelector('.cursor').style.transform];
})()";

const PEAK: &str = "document.getElementById('to-peak').click()";
const BEGIN: &str = "(() => { const slider = document.getElementById('slider'); slider.value = 40;
  slider.dispatchEvent(new Event('input')); })()";
const BACKGROUND: &str = "getComputedStyle(document.body).backgroundColor";

/// A page: its name, the recordings, the policies.
struct Page {
    name: &'static str,
    traces: Vec<PathBuf>,
    policies: &'static str,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let program = chromium();
    let mut pages = vec![
        Page {
            name: "gnn_sampled",
            traces: vec![trace("gnn_sampled.csv.gz")],
            policies: "millpond,caching,expandable",
        },
        Page {
            name: "offload_streams",
            traces: vec![trace("offload_streams.ordered.csv.gz")],
            policies: "millpond",
        },
        Page {
            name: "several",
            traces: ["small_full_context.pickle.gz", "rmm_cupy_log.csv.gz"]
                .map(trace)
                .to_vec(),
            policies: "millpond",
        },
    ];
    if let Some(more) = std::env::var_os("MILLPOND_REPORT_TRACES") {
        pages.extend(std::env::split_paths(&more).map(|path| Page {
            name: "further",
            traces: vec![path],
            policies: "millpond",
        }));
    }
    let trials = pages.into_iter().map(|page| {
        let program = program.clone();
        let ignored = program.is_none();
        let run = move || match program {
            Some(program) => open(&program, &page),
            None => Err("no Chromium: install it, or name it by CHROMIUM".into()),
        };
        let name = match ignored {
            true => "page (no Chromium on this machine)",
            false => "page",
        };
        Trial::test(name, run).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn open(program: &Path, page: &Page) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("report.html");
    let mut report = Command::cargo_bin("millpond")?;
    report.args(["report", "--policy", page.policies, "-o"]);
    report.arg(&file).args(&page.traces).assert().success();
    let weight = std::fs::metadata(&file)?.len();
    assert!(weight < PAGE_MAX, "{weight} bytes");

    let mut browser = Browser::start(program);
    let drawn = browser.open(&file, "light");
    let picture = |browser: &mut Browser, scheme: &str| {
        if let Some(to) = std::env::var_os("MILLPOND_SCREENSHOTS") {
            let name = format!("{}_{scheme}.png", page.name);
            browser.picture(1150, &Path::new(&to).join(name));
        }
    };
    picture(&mut browser, "light");
    let times = browser.evaluate(MOVE);
    let times: Vec<f64> = times
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|t| t.as_f64())
        .collect();
    println!(
        "{}: {weight} bytes, drawn after {drawn} ms, slider {:.0} ms (median), {:.0} ms (longest)",
        page.name, times[20], times[39]
    );

    browser.evaluate(PEAK);
    let peak = browser.evaluate(SEEN);
    browser.evaluate(BEGIN);
    let begin = browser.evaluate(SEEN);
    for at in 0..3 {
        assert!(peak[at] != begin[at], "the slider changes nothing: {at}");
    }
    browser.evaluate(PEAK);
    let again = browser.evaluate(SEEN);
    // No pictures in the message.
    assert!(
        again == peak,
        "the same moment looks otherwise: {}",
        again[0]
    );

    let light = browser.evaluate(BACKGROUND);
    browser.scheme("dark");
    assert_ne!(browser.evaluate(BACKGROUND), light);
    assert!(browser.evaluate(SEEN)[1] != peak[1], "the map stays light");
    picture(&mut browser, "dark");

    // Every button can be pressed.
    let pressed = browser.evaluate(
        "[...document.querySelectorAll('button')].map((b) => b.isConnected && b.click()).length",
    );
    assert!(pressed.as_u64() > Some(0));
    browser.evaluate(SEEN);

    let (requests, complaints) = browser.requests_and_complaints();
    assert_eq!(requests, [format!("file://{}", file.display())]);
    assert_eq!(complaints, [""; 0]);
    Ok(())
}
