//! What the device does between two points of a recording, so that a sim is as far behind its
//! host as the device was.
//!
//! A recording says when a stream came to its *marks*: frees, ends of uses, records of events.
//! Between two marks of a stream lies work. It began when the stream had come to the earlier
//! mark and to the events that it waited for since, but not before the host's last call on that
//! stream (for a stream's first mark: the recording's last call on any), for before that the host
//! had not launched it. It is queued right after that call, and thus before the call that the mark
//! belongs to. Replayed without inserted waits, each mark comes at its recorded time.

use std::num::NonZeroU64;

use millpond_trace::Op;

use super::workload::{Workload, stream_of};

/// Work to queue on a stream. Times are nanoseconds on the recording's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Work {
    /// To be queued before this step, and before the host's clock moves on to it.
    pub(super) before_step: u32,
    /// The stream, as the recording numbers it.
    pub(super) stream: u32,
    /// When the host had launched it: its last call on the stream before the mark.
    pub(super) launched: u64,
    /// When it began: once launched, and once the stream had come so far.
    pub(super) began: u64,
    /// When it ended: the mark.
    pub(super) ended: u64,
}

impl Work {
    /// How long it lasts, in nanoseconds.
    pub(super) fn duration(&self) -> u64 {
        self.ended - self.began
    }
}

/// A stream, on the recording's clock, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Up to where its marks and the awaited events have brought it.
    reached: u64,
    /// The last call of the host: the step after it, and when it was.
    called: Option<(u32, u64)>,
}

/// All work of a recording, in the order in which it is queued.
pub(super) fn work_between_marks(workload: &Workload) -> Vec<Work> {
    let mut streams = vec![Progress::default(); workload.streams];
    let mut events = vec![0_u64; workload.events];
    let mut work = Vec::new();
    let mut previous = 0;
    for (index, step) in workload.steps.iter().enumerate() {
        let index = index as u32;
        let stream = stream_of(step.op);
        let progress = &mut streams[stream as usize];
        if let Some(mark) = mark_of(step.op) {
            let (before_step, launched) = progress.called.unwrap_or((index, previous));
            let began = progress.reached.max(launched);
            if mark > began {
                work.push(Work {
                    before_step,
                    stream,
                    launched,
                    began,
                    ended: mark,
                });
            }
            progress.reached = progress.reached.max(mark);
        }
        match step.op {
            Op::Record { event, .. } => {
                events[event as usize] = progress.reached.max(step.host_ns);
            }
            Op::Wait { event, .. } => {
                progress.reached = progress.reached.max(events[event as usize]);
            }
            _ => {}
        }
        progress.called = Some((index + 1, step.host_ns));
        previous = step.host_ns;
    }
    work.sort_by_key(|work| work.before_step);
    work
}

/// How long the device surely had something to do, in nanoseconds: the union, over all marks, of
/// the time from the host's call to the device's coming to it.
pub(super) fn device_active_ns(workload: &Workload) -> u64 {
    let (mut active, mut until) = (0, 0);
    // The calls come in the host's order, so each interval begins after those before it.
    for step in &workload.steps {
        if let Some(mark) = mark_of(step.op) {
            active += mark.saturating_sub(until.max(step.host_ns));
            until = until.max(mark);
        }
    }
    active
}

/// When the device came to a mark, if the step is one.
pub(super) fn mark_of(op: Op) -> Option<u64> {
    let (Op::Free { device_ns, .. } | Op::UseEnd { device_ns, .. } | Op::Record { device_ns, .. }) =
        op
    else {
        return None;
    };
    device_ns.map(NonZeroU64::get)
}

#[cfg(test)]
mod tests {
    use millpond::device::{Device, SimDevice, StreamOrder};
    use millpond_trace::{Limits, read_bytes};

    use super::*;

    /// The sim's host takes time for records and waits; the recordings here are in milliseconds.
    const COST_OF_CALLS: u64 = 2_000;

    /// Replays without a pool, on a sim; checks that every mark is reached when it was.
    fn assert_marks_are_reached_on_time(lines: &str) {
        let text = format!("op,block,size,stream,event,host_us,device_us\n{lines}");
        let trace = read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap();
        let workload = Workload::new(trace, 1.0);
        let device = SimDevice::new();
        let streams: Vec<_> = (0..workload.streams)
            .map(|_| device.create_stream(StreamOrder::Independent).unwrap())
            .collect();
        let events: Vec<_> = (0..workload.events)
            .map(|_| device.create_event().unwrap())
            .collect();
        let work = work_between_marks(&workload);
        let mut next = work.iter().peekable();
        let mut marks = 0;
        for (index, step) in workload.steps.iter().enumerate() {
            while let Some(work) = next.next_if(|work| work.before_step == index as u32) {
                let stream = streams[work.stream as usize];
                device.enqueue_work(stream, work.duration()).unwrap();
            }
            device.advance_host_to(step.host_ns);
            match step.op {
                Op::Record { event, stream, .. } => device
                    .record_event(events[event as usize], streams[stream as usize])
                    .unwrap(),
                Op::Wait { event, stream } => device
                    .wait_event(streams[stream as usize], events[event as usize])
                    .unwrap(),
                _ => {}
            }
            if let Some(mark) = mark_of(step.op) {
                let stream = streams[stream_of(step.op) as usize];
                let off = device.stream_ready_at(stream).unwrap().abs_diff(mark);
                assert!(off <= COST_OF_CALLS, "step {index}: {off} ns off: {step:?}");
                marks += 1;
            }
        }
        assert!(next.next().is_none());
        assert!(marks > 0);
    }

    #[test]
    fn a_stream_behind_its_host_reaches_its_marks_on_time() {
        assert_marks_are_reached_on_time(
            "alloc,0,1,0,,0,\nalloc,1,1,0,,5000,\nfree,0,1,0,,6000,30000\n\
             alloc,2,1,0,,7000,\nfree,1,1,0,,8000,50000\nfree,2,1,0,,60000,70000\n",
        );
    }

    #[test]
    fn a_stream_that_keeps_up_reaches_its_marks_on_time() {
        assert_marks_are_reached_on_time(
            "alloc,0,1,0,,0,\nalloc,1,1,0,,5000,\nfree,0,1,0,,9000,9500\n\
             alloc,2,1,0,,20000,\nfree,1,1,0,,30000,31000\n",
        );
    }

    #[test]
    fn a_stream_that_waits_for_another_begins_when_that_is_there() {
        assert_marks_are_reached_on_time(
            "alloc,0,1,0,,0,\nalloc,2,1,0,,1000,\nrecord,,,0,0,2000,40000\n\
             wait,,,1,0,3000,\nalloc,1,1,1,,4000,\nuse,0,1,1,,4000,\n\
             use_end,0,1,1,,5000,55000\nfree,0,1,0,,5000,45000\nfree,1,1,1,,9000,56000\n",
        );
    }

    #[test]
    fn a_mark_that_was_passed_before_needs_no_work() {
        let text = "op,block,size,stream,event,host_us,device_us\nalloc,0,1,0,,0,\n\
                    alloc,1,1,0,,0,\nfree,0,1,0,,9,20\nfree,1,1,0,,10,15\n";
        let trace = read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap();
        let work = work_between_marks(&Workload::new(trace, 1.0));
        assert_eq!(
            work,
            [Work {
                before_step: 2,
                stream: 0,
                launched: 0,
                began: 0,
                ended: 20_000
            }]
        );
    }
    #[test]
    fn the_device_is_active_while_a_call_of_the_host_is_ahead_of_it() {
        let active = |lines: &str| {
            let text = format!("op,block,size,stream,event,host_us,device_us\n{lines}");
            let trace = read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap();
            device_active_ns(&Workload::new(trace, 1.0))
        };
        // 5 to 20 on one stream and 10 to 30 on the other; nothing until 40, when 3 were over long
        // ago; then 50 to 51.
        assert_eq!(
            active(
                "alloc,0,1,0,,0,\nalloc,1,1,1,,0,\nalloc,2,1,0,,0,\nfree,0,1,0,,5,20\n\
                 free,1,1,1,,10,30\nrecord,,,0,0,40,3\nfree,2,1,0,,50,51\n"
            ),
            26_000
        );
        assert_eq!(active("alloc,0,1,0,,0,\n"), 0);
    }
}
