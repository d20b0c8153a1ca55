//! What would help, in words: the findings, and which of them come first.
//!
//! Each finding has the bytes that are at stake. What is surely wrong (a request that failed, a
//! leak) comes before what costs memory, and that before what only is worth knowing.

use serde::Serialize;

use super::Report;
use super::growth::Growing;
use super::holds::StreamRow;
use super::peak::share;
use super::run::Run;
use crate::size::ByteSize;

/// Findings on a page.
const SHOWN: usize = 3;

/// Something that is worth a word.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    /// What is so.
    pub(crate) what: String,
    /// What would help.
    pub(crate) advice: String,
    pub(crate) bytes: u64,
}

/// A rise over less time than this says nothing about an hour, in nanoseconds.
const PACE: u64 = 1_000_000_000;

/// How much a finding presses; the first one most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Wrong,
    Costly,
    Known,
}

/// The three that would help most.
pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(failure(report));
    found.extend(report.growing.first().map(|first| leak(report, first)));
    found.extend(report.streams.first().and_then(|row| hold(report, row)));
    // Of two that say the same, the one about the policies that were asked for.
    found.extend(policy(report).or_else(|| recorded(report)));
    found.extend(spike(report));
    found.extend(pending(report));
    found.extend(late_calls(report));
    found.extend(biggest(report));
    found.sort_by_key(|(weight, finding)| (*weight, std::cmp::Reverse(finding.bytes)));
    found.truncate(SHOWN);
    found.into_iter().map(|(_, finding)| finding).collect()
}

fn failure(report: &Report) -> Option<(Weight, Finding)> {
    // A request beyond everything that could ever be there says nothing about the memory.
    let sane = |size: u64, live: u64, free: Option<u64>, reserved: u64| {
        size <= live.saturating_add(free.unwrap_or(0)).max(reserved).max(1)
    };
    let failed = report
        .failures
        .iter()
        .find(|f| sane(f.size, f.live, f.device_free, f.reserved));
    if let Some(failed) = failed {
        let held = failed.reserved.saturating_sub(failed.live);
        let device = failed.device_free.map_or_else(String::new, |free| {
            format!(" and {} were free on the device", ByteSize(free))
        });
        let what = format!(
            "Out of memory with memory free: a request of {} failed while {} were live; {} that the \
             recording allocator held were free{device}",
            ByteSize(failed.size),
            ByteSize(failed.live),
            ByteSize(held),
        );
        let advice = if held >= failed.size {
            "The free memory lay in pieces. A pool that maps free handles where a request fits puts \
             it together: compare the runs below."
        } else {
            "Less has to be live at that moment: see what the peak is made of."
        };
        return Some((Weight::Wrong, finding(what, advice, failed.size)));
    }
    let run = report.runs.iter().find(|run| run.failed_allocations > 0)?;
    let room = report.limit.map_or_else(
        || "a device of 141 GB".to_owned(),
        |limit| format!("{}", ByteSize(limit)),
    );
    let what = format!(
        "Out of memory: {} allocations fail in {room} with {}; if none failed, {} would be live at most",
        run.failed_allocations,
        run.policy,
        ByteSize(report.peak_live),
    );
    let completes = completed(report).min_by_key(|run| run.peak_reserved);
    let advice = completes.map_or_else(
        || "Less has to be live at one time: see what the peak is made of.".to_owned(),
        |run| {
            let reserved = ByteSize(run.peak_reserved);
            format!(
                "The free memory lay in pieces. With {} nothing fails, in {reserved}.",
                run.policy
            )
        },
    );
    Some((Weight::Wrong, finding(what, &advice, report.peak_live)))
}

/// Runs that can be compared: one in which allocations fail needs less because of it.
fn completed(report: &Report) -> impl Iterator<Item = &Run> {
    let runs = report.runs.iter();
    runs.filter(|run| run.failed_allocations == 0)
}

fn leak(report: &Report, growing: &Growing) -> (Weight, Finding) {
    let rate = if growing.over_ns >= PACE {
        let an_hour = growing.bytes as f64 * 3.6e12 / growing.over_ns as f64;
        format!(", {} an hour at this pace", ByteSize(an_hour as u64))
    } else {
        String::new()
    };
    let what = format!(
        "Suspected leak: {} grow and do not come back, by {}{rate}; {} of them ({}) were never freed",
        growing.what,
        ByteSize(growing.bytes),
        growing.kept_blocks,
        ByteSize(growing.kept_bytes),
    );
    let advice = if report.layers.iter().any(|layers| layers.is_of_call_sites()) {
        "Look at what keeps the results of this call site: a list that is only added to, a graph \
         of gradients that is kept."
    } else {
        "Record with call stacks, and look at what allocates this size: a list that is only added \
         to, a graph of gradients that is kept."
    };
    (Weight::Wrong, finding(what, advice, growing.bytes))
}

fn hold(report: &Report, row: &StreamRow) -> Option<(Weight, Finding)> {
    if row.peak_held == 0 || row.peak_held < report.peak_live / 20 {
        return None;
    }
    let what = format!(
        "Stream {} holds up to {} of other streams' blocks after those are done with them ({:.2} \
         times what is live at most), for up to {:.1} ms",
        row.name,
        ByteSize(row.peak_held),
        row.peak_held as f64 / report.peak_live.max(1) as f64,
        row.longest_hold_ns as f64 / 1e6,
    );
    let advice = "End each use where its last work on that stream is queued (`use_ended`, or an \
                  event), not at the free; or let the stream have blocks of its own.";
    Some((Weight::Costly, finding(what, advice, row.peak_held)))
}

fn recorded(report: &Report) -> Option<(Weight, Finding)> {
    let recorded = report.recorded.as_ref()?;
    let best = completed(report).min_by_key(|run| run.peak_reserved)?;
    let saved = recorded.peak_reserved.checked_sub(best.peak_reserved)?;
    if saved == 0 || saved < recorded.peak_reserved / 10 {
        return None;
    }
    let what = format!(
        "Fragmentation: the recording allocator reserved {} for {} of live memory ({:.2} times); \
         {} needs {}",
        ByteSize(recorded.peak_reserved),
        ByteSize(report.peak_live),
        recorded.peak_reserved as f64 / report.peak_live.max(1) as f64,
        best.policy,
        ByteSize(best.peak_reserved),
    );
    let advice = "The difference is free memory in pieces that no request fits into: use an \
                  allocator that maps it together.";
    Some((Weight::Costly, finding(what, advice, saved)))
}

fn policy(report: &Report) -> Option<(Weight, Finding)> {
    let least = completed(report).min_by_key(|run| run.peak_reserved)?;
    let most = completed(report).max_by_key(|run| run.peak_reserved)?;
    let saved = most.peak_reserved - least.peak_reserved;
    if saved == 0 || saved < most.peak_reserved / 20 {
        return None;
    }
    let what = format!(
        "Fragmentation: with {} the job reserves {}, with {} {}, and {} are live at most",
        most.policy,
        ByteSize(most.peak_reserved),
        least.policy,
        ByteSize(least.peak_reserved),
        ByteSize(report.peak_live),
    );
    let advice = format!("Use {}: it needs {} less.", least.policy, ByteSize(saved));
    Some((Weight::Costly, finding(what, &advice, saved)))
}

fn spike(report: &Report) -> Option<(Weight, Finding)> {
    let peak = &report.peak;
    let above = peak.live.saturating_sub(peak.usual);
    if above == 0 || above < peak.live / 10 {
        return None;
    }
    let what = format!(
        "The peak is a spike: {} are live at it, {} or less at 95 of 100 moments",
        ByteSize(peak.live),
        ByteSize(peak.usual),
    );
    let first = peak.rows.first();
    let made_of = first.map_or_else(String::new, |row| {
        format!("; the largest part of it is {}", row.describe())
    });
    let advice = format!(
        "The largest step decides how much memory the job needs: split it, or order it so that less \
         is live at once. {} of the peak were allocated just before it{made_of}.",
        ByteSize(peak.new)
    );
    Some((Weight::Costly, finding(what, &advice, above)))
}

fn pending(report: &Report) -> Option<(Weight, Finding)> {
    if report.peak_pending <= report.peak_live / 2 {
        return None;
    }
    let what = format!(
        "The host runs ahead of the device: up to {} were freed and not yet complete, where {} were \
         live",
        ByteSize(report.peak_pending),
        ByteSize(report.peak_live),
    );
    let advice = "In stream order this memory serves at once; an allocator that waits for completion \
                  would need it twice. Let the host wait now and then if memory has to be given back.";
    Some((Weight::Known, finding(what, advice, report.peak_pending)))
}

fn late_calls(report: &Report) -> Option<(Weight, Finding)> {
    let run = report.runs.first()?;
    if run.late_calls == 0 {
        return None;
    }
    let what = format!(
        "{} of {} driver calls ({:.1} of {:.1} ms) come in the second half of the job, when it has \
         set itself up",
        run.late_calls, run.driver_calls, run.late_ms, run.driver_ms
    );
    let advice = "Sizes that never come again cost calls: round them (pad batches to a few shapes), \
                  or take the setting `plentiful`.";
    Some((Weight::Known, finding(what, advice, 0)))
}

fn biggest(report: &Report) -> Option<(Weight, Finding)> {
    let row = report.peak.rows.first()?;
    let what = format!(
        "At the peak, {} {} {}; {} are live through nearly all of the job",
        row.describe(),
        row.takes(),
        share(row.bytes, report.peak.live),
        share(report.peak.always, report.peak.live),
    );
    let advice = "This is where less memory would show first.";
    Some((Weight::Known, finding(what, advice, row.bytes)))
}

fn finding(what: String, advice: &str, bytes: u64) -> Finding {
    let advice = advice.to_owned();
    Finding {
        what,
        advice,
        bytes,
    }
}
