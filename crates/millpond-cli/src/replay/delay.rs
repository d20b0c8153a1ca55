//! What the waits that the pool inserts cost the job: how much later its device is done.
//!
//! Beside the recording's own timeline runs a second one, with the inserted waits. Both are on the
//! recording's clock and know nothing of what the pool's calls cost the host, so that they differ
//! by the inserted waits alone. The second one is what the sim's streams are to follow.
//!
//! # How a delay spreads
//!
//! - Work lasts as long as it did. It begins as much later as its stream is late, and not before
//!   the waits that were inserted into its stream since, nor before the host launches it. Time in
//!   which the stream had nothing to do makes up for nothing: the recording does not say whether
//!   the host had nothing for it, or waited for it.
//! - A wait of the job's own ends when the event is reached on the late timeline.
//! - Where the recording shows the device *drained* (it has come to every mark so far), the host
//!   is taken to have waited for all of it: from there on it is as late as the device. A stream
//!   that had nothing to do up to there had it for that reason, and what it does next begins when
//!   the late host launches it.
//! - A wait that ends before the (late) host inserts it holds up nothing.
//!
//! # Invariants
//!
//! - No time of the late timeline is before the recording's.
//! - Without an inserted wait, both are the same.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::device::{CallRecord, EventId, Observer, Outcome, StreamId};
use millpond_trace::{Op, Step};

use super::timeline::{Work, mark_of};

/// A moment of the job, in nanoseconds on the recording's clock.
#[derive(Clone, Copy, Default, Debug)]
struct Moment {
    /// In the recording.
    recorded: u64,
    /// With the inserted waits.
    late: u64,
}

impl Moment {
    fn later(self, other: Moment) -> Moment {
        Moment {
            recorded: self.recorded.max(other.recorded),
            late: self.late.max(other.late),
        }
    }

    fn lateness(self) -> u64 {
        self.late - self.recorded
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Up to where what is queued brings it.
    reached: Moment,
    /// Until when inserted waits hold up what is queued next, on the late timeline.
    held_until: u64,
}

#[derive(Default, Debug)]
struct Timelines {
    /// As the workload numbers them.
    streams: Vec<Stream>,
    index: HashMap<StreamId, usize>,
    /// The job's own, as the workload numbers them.
    events: Vec<Moment>,
    jobs_own: HashSet<EventId>,
    /// When the pool's own events are reached, on the late timeline.
    pools_own: HashMap<EventId, u64>,
    /// The latest mark of the steps so far, in the recording.
    last_mark: u64,
    /// When the device was last seen drained, in the recording.
    drained: Option<u64>,
    /// How much later the host is.
    host_lateness: u64,
    /// The host's time at the current step.
    host: Moment,
}

impl Timelines {
    fn device(&self) -> Moment {
        let reached = self.streams.iter().map(|stream| stream.reached);
        reached.fold(Moment::default(), Moment::later)
    }
}

/// Watches the pool's records and waits, and computes what they come to.
#[derive(Default, Debug)]
pub(super) struct Delays(Mutex<Timelines>);

impl Delays {
    /// A job begins: its streams and events, in the workload's order. Work of an earlier one is
    /// over.
    pub(super) fn begin(&self, streams: &[StreamId], events: &[EventId]) {
        *self.lock() = Timelines {
            streams: vec![Stream::default(); streams.len()],
            index: streams.iter().copied().zip(0..).collect(),
            events: vec![Moment::default(); events.len()],
            jobs_own: events.iter().copied().collect(),
            ..Timelines::default()
        };
    }

    /// Work is queued; gives when it is over, on the late timeline.
    pub(super) fn queue(&self, work: &Work) -> u64 {
        let mut timelines = self.lock();
        let launched = work.launched + timelines.host_lateness;
        let drained = timelines.drained;
        let stream = &mut timelines.streams[work.stream as usize];
        let waited_with_the_host =
            work.began == work.launched && drained >= Some(stream.reached.recorded);
        let by_itself = if waited_with_the_host {
            stream.reached.late
        } else {
            work.began + stream.reached.lateness()
        };
        let began = by_itself.max(stream.held_until).max(launched);
        stream.reached = Moment {
            recorded: work.ended,
            late: began + work.duration(),
        };
        stream.reached.late
    }

    /// The host comes to a step; gives when, on the late timeline. What was queued before it is
    /// known.
    pub(super) fn come_to(&self, step: &Step) -> u64 {
        let mut timelines = self.lock();
        let timelines = &mut *timelines;
        if timelines.last_mark <= step.host_ns {
            timelines.drained = Some(step.host_ns);
            let device = timelines.device().lateness();
            timelines.host_lateness = timelines.host_lateness.max(device);
        }
        timelines.host = Moment {
            recorded: step.host_ns,
            late: step.host_ns + timelines.host_lateness,
        };
        timelines.last_mark = timelines.last_mark.max(mark_of(step.op).unwrap_or(0));
        match step.op {
            Op::Record { event, stream, .. } => {
                let stream = timelines.streams[stream as usize];
                let mut reached = stream.reached.later(timelines.host);
                reached.late = reached.late.max(stream.held_until);
                timelines.events[event as usize] = reached;
            }
            Op::Wait { event, stream } => {
                let event = timelines.events[event as usize];
                let reached = &mut timelines.streams[stream as usize].reached;
                *reached = reached.later(event);
            }
            _ => {}
        }
        timelines.host.late
    }

    /// How much later all that was queued is over, in nanoseconds.
    pub(super) fn of_the_device(&self) -> u64 {
        self.lock().device().lateness()
    }

    fn lock(&self) -> MutexGuard<'_, Timelines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Delays {
    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _started: u64, _ended: u64) {
        let (CallRecord::RecordEvent { event, stream } | CallRecord::WaitEvent { event, stream }) =
            call
        else {
            return;
        };
        let mut timelines = self.lock();
        let timelines = &mut *timelines;
        let Some(&index) = timelines.index.get(stream) else {
            return;
        };
        if matches!(outcome, Outcome::Failed(_)) || timelines.jobs_own.contains(event) {
            return;
        }
        let stream = &mut timelines.streams[index];
        if let CallRecord::RecordEvent { .. } = call {
            let reached = stream.reached.late.max(stream.held_until);
            timelines.pools_own.insert(*event, reached);
        } else if let Some(&reached) = timelines.pools_own.get(event)
            && reached > timelines.host.late
        {
            stream.held_until = stream.held_until.max(reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::device::{Device, Observed, SimDevice, StreamOrder};
    use millpond_trace::{Limits, read_bytes};

    use super::*;
    use crate::replay::timeline::work_between_marks;
    use crate::replay::workload::Workload;

    /// Plays a recording without a pool; after the steps whose number is given, in place of a pool,
    /// records an event on the first stream and lets the second one wait for it. Gives by how many
    /// microseconds the device is late, and the host at the last step.
    fn lateness(lines: &str, record_after: usize, wait_after: usize) -> (u64, u64) {
        let text = format!("op,block,size,stream,event,host_us,device_us\n{lines}");
        let trace = read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap();
        let workload = Workload::new(trace, 1.0);
        let delays = Arc::new(Delays::default());
        let device = Observed::new(Arc::new(SimDevice::new()), vec![Arc::clone(&delays) as _]);
        let streams: Vec<_> = (0..workload.streams)
            .map(|_| device.create_stream(StreamOrder::Independent).unwrap())
            .collect();
        let events: Vec<_> = (0..workload.events)
            .map(|_| device.create_event().unwrap())
            .collect();
        let pools_own = device.create_event().unwrap();
        delays.begin(&streams, &events);
        let work = work_between_marks(&workload);
        let mut next = work.iter().peekable();
        let mut host = 0;
        for (index, step) in workload.steps.iter().enumerate() {
            while let Some(work) = next.next_if(|work| work.before_step as usize <= index) {
                delays.queue(work);
            }
            host = delays.come_to(step) - step.host_ns;
            if index == record_after {
                device.record_event(pools_own, streams[0]).unwrap();
            }
            if index == wait_after {
                device.wait_event(streams[1], pools_own).unwrap();
            }
        }
        (delays.of_the_device() / 1000, host / 1000)
    }

    /// Two streams; the first is busy until 50, the second from 10 to 30.
    const TWO: &str = "alloc,0,1,0,,0,\nfree,0,1,0,,1,50\nalloc,1,1,1,,10,\nfree,1,1,1,,11,30\n";

    #[test]
    fn an_inserted_wait_holds_up_what_its_stream_does_next() {
        // Without a wait, nothing is late.
        assert_eq!(lateness(TWO, 1, usize::MAX), (0, 0));
        // The second stream does its 20 after 50: at 70 in place of the device's end at 50.
        assert_eq!(lateness(TWO, 1, 2), (20, 0));
        // After the last work, a wait holds up nothing.
        assert_eq!(lateness(TWO, 1, 3), (0, 0));
    }

    #[test]
    fn a_stream_that_had_nothing_to_do_does_not_make_up_for_a_delay() {
        // The second stream is done at 30 and goes on from 45 to 55, 40 late; the first is busy
        // until 50, so that nobody can tell what the host waited for.
        let lines = format!("{TWO}alloc,2,1,1,,45,\nfree,2,1,1,,46,55\n");
        assert_eq!(lateness(&lines, 1, 2), (40, 0));
        // A wait that is inserted at 45 holds it up from there, until 50, and not from 30 on.
        assert_eq!(lateness(&lines, 1, 4), (5, 0));
    }

    #[test]
    fn a_stream_that_had_nothing_to_do_while_the_device_drained_follows_the_host() {
        // At 100 all is done, and 20 late; the second stream, which was 40 late, begins at 120.
        let lines = format!("{TWO}alloc,2,1,1,,100,\nfree,2,1,1,,102,110\n");
        assert_eq!(lateness(&lines, 1, 2), (20, 20));
        // A wait that is inserted then is for what is over.
        assert_eq!(lateness(&lines, 1, 4), (0, 0));
    }

    #[test]
    fn the_jobs_own_waits_carry_a_delay_to_other_streams() {
        // The first stream waits for the second one's 30, from 50 on that takes no time; then it
        // works until 90. The second one is at 70.
        let lines = format!(
            "{TWO}record,,,1,0,12,30\nwait,,,0,0,13,\nalloc,2,1,0,,14,\nfree,2,1,0,,15,90\n"
        );
        assert_eq!(lateness(&lines, 1, 2), (20, 0));
    }

    #[test]
    fn the_host_is_late_where_it_had_waited_for_the_device() {
        // At 55 all is done, in the recording; the device is then 20 late.
        let done = format!("{TWO}alloc,2,1,0,,55,\n");
        assert_eq!(lateness(&done, 1, 2), (20, 20));
        // At 45 the first stream is not.
        let busy = format!("{TWO}alloc,2,1,0,,45,\n");
        assert_eq!(lateness(&busy, 1, 2), (20, 0));
        // What the host launches then is as late on all streams.
        let further = format!("{done}free,2,1,0,,56,60\n");
        assert_eq!(lateness(&further, 1, 2), (20, 20));
    }
}
