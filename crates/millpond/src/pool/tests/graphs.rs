//! Memory of captured graphs.

use super::*;
use crate::device::{EventId, Status};
use crate::{Capture, CaptureError, GraphMemory};

const LONG: u64 = 1_000_000_000;

/// Calls that touch no stream: all that may be made on behalf of a captured one.
fn touches_a_stream(call: &CallRecord) -> bool {
    !matches!(
        call,
        CallRecord::Reserve { .. }
            | CallRecord::FreeReservation { .. }
            | CallRecord::Create { .. }
            | CallRecord::Release { .. }
            | CallRecord::Map { .. }
            | CallRecord::SetAccess { .. }
            | CallRecord::Unmap { .. }
            | CallRecord::MemoryInfo
    )
}

/// The first call after so many that touched a stream.
pub(super) fn touching(bench: &Bench, seen: usize) -> Option<CallRecord> {
    let calls = bench.log.calls.lock().unwrap();
    calls[seen..].iter().find(|c| touches_a_stream(c)).cloned()
}

pub(super) fn begin(memory: &GraphMemory, stream: StreamId) -> Capture {
    memory.begin_capture(stream).unwrap()
}

fn event(bench: &Bench) -> EventId {
    bench.sim.create_event().unwrap()
}

fn graph_bytes(bench: &Bench) -> u64 {
    bench.pool.statistics().graph_reserved_bytes
}

#[test]
fn a_captured_streams_memory_is_the_graphs() {
    let bench = Bench::new(64 * MIB);
    let (stream, other) = (bench.stream(), bench.stream());
    drop(bench.allocate(8 * MIB, stream));
    bench.pool.synchronize().unwrap();
    let before = bench.pool.statistics();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, stream);
    let inside = bench.allocate(4 * MIB, stream);
    let outside = bench.allocate(4 * MIB, other);
    let statistics = bench.pool.statistics();
    assert_eq!(statistics.graph_reserved_bytes, 4 * MIB);
    assert_eq!(memory.reserved_bytes(), 4 * MIB);
    assert_eq!(
        (statistics.graph_live_blocks, statistics.graph_live_bytes),
        (1, 4 * MIB)
    );
    assert_eq!(statistics.live_bytes, 4 * MIB);
    assert_eq!(
        statistics.reserved_bytes,
        before.reserved_bytes + 4 * MIB,
        "the other stream takes what is there"
    );
    assert_eq!(statistics.handles, before.handles + 1);
    assert_eq!(statistics.in_transit_bytes, 0);
    bench.check();
    capture.end();
    drop((inside, outside));
    drop(memory);
    assert_eq!(
        bench.pool.statistics().reserved_bytes,
        before.reserved_bytes
    );
    bench.check();
}

#[test]
fn what_is_freed_in_a_capture_serves_again_on_its_stream() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, stream);
    let [first, second] = [(); 2].map(|()| bench.allocate(3 * MIB, stream));
    let address = first.address();
    drop(first);
    let again = bench.allocate(MIB, stream);
    assert_eq!(again.address(), address);
    drop((again, second));
    // Neighbours, and what was never used, are one memory.
    let all = bench.allocate(6 * MIB, stream);
    assert_eq!(all.address(), address);
    drop(all);
    assert_eq!(graph_bytes(&bench), 6 * MIB);
    // Only what is missing is added.
    let more = bench.allocate(10 * MIB, stream);
    assert_eq!(more.address(), address);
    assert_eq!(graph_bytes(&bench), 10 * MIB);
    drop((more, capture));
    bench.check();
}

#[test]
fn other_streams_of_the_capture_come_after_it_or_do_without() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    // b joins.
    let fork = event(&bench);
    bench.pool.record_event(fork, a).unwrap();
    bench.pool.wait_event(b, fork).unwrap();
    let block = bench.allocate(4 * MIB, a);
    let address = block.address();
    drop(block);
    let unordered = bench.allocate(4 * MIB, b);
    assert_ne!(unordered.address(), address);
    assert_eq!(graph_bytes(&bench), 8 * MIB, "b is in the capture");
    // b used it last; a is not ordered after that.
    let order = event(&bench);
    bench.pool.record_event(order, a).unwrap();
    bench.pool.wait_event(b, order).unwrap();
    let ordered = bench.allocate(4 * MIB, b);
    assert_eq!(ordered.address(), address);
    drop(ordered);
    let apart = bench.allocate(4 * MIB, a);
    assert_eq!(graph_bytes(&bench), 12 * MIB);
    let joined = event(&bench);
    bench.pool.record_event(joined, b).unwrap();
    bench.pool.wait_event(a, joined).unwrap();
    assert_eq!(bench.allocate(4 * MIB, a).address(), address);
    drop((apart, unordered, capture));
    bench.check();
}

#[test]
fn a_block_used_on_two_streams_of_a_capture_waits_for_both() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    capture.join(b).unwrap();
    capture.join(b).unwrap();
    for ended in [false, true] {
        let block = bench.allocate(4 * MIB, a);
        let address = block.address();
        block.use_on(b).unwrap();
        let after = event(&bench);
        bench.pool.record_event(after, b).unwrap();
        bench.pool.wait_event(a, after).unwrap();
        if ended {
            block.use_ends_at(b, after).unwrap();
        }
        drop(block);
        let next = bench.allocate(4 * MIB, a);
        assert_eq!(next.address() == address, ended);
        drop(next);
        let joined = event(&bench);
        bench.pool.record_event(joined, b).unwrap();
        bench.pool.wait_event(a, joined).unwrap();
    }
    // Handed over: a's end is b's past.
    let block = bench.allocate(4 * MIB, a);
    let address = block.address();
    let order = event(&bench);
    bench.pool.record_event(order, a).unwrap();
    block.use_ends_at(a, order).unwrap();
    bench.pool.wait_event(b, order).unwrap();
    block.hand_over(b).unwrap();
    drop(block);
    assert_eq!(bench.allocate(4 * MIB, b).address(), address);
    bench.check();
}

#[test]
fn nothing_touches_a_stream_for_a_captured_one() {
    let bench = Bench::new(48 * MIB);
    let [a, b, eager] = [(); 3].map(|()| bench.stream());
    // Memory of the captured stream from before, pending.
    let before: Vec<Block> = (0..4).map(|_| bench.allocate(4 * MIB, a)).collect();
    bench.sim.enqueue_work(eager, LONG).unwrap();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    capture.join(b).unwrap();
    let seen = bench.log.total();
    drop(before);
    let mut blocks = Vec::new();
    let mut refused = 0;
    for round in 0..200_u64 {
        let stream = if round % 3 == 0 { b } else { a };
        match bench.pool.allocate(round % 7 * MIB, stream) {
            Ok(block) => blocks.push(block),
            Err(_) => refused += 1,
        }
        if round % 2 == 0 && !blocks.is_empty() {
            let block = blocks.swap_remove(round as usize % blocks.len());
            block.use_on(if round % 5 == 0 { a } else { b }).unwrap();
            drop(block);
        }
    }
    assert!(refused > 0, "the end of what there is was reached");
    assert_eq!(touching(&bench, seen), None);
    drop((blocks, capture));
    bench.check();
    drop(memory);
    bench.pool.synchronize().unwrap();
    bench.pool.trim(0).unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 0);
}

#[test]
fn other_streams_go_on_as_ever_beside_a_capture() {
    let bench = Bench::new(16 * MIB);
    let [a, b, c] = [(); 3].map(|()| bench.stream());
    let block = bench.allocate(8 * MIB, b);
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    bench.sim.enqueue_work(b, LONG).unwrap();
    drop(block);
    drop([bench.allocate(8 * MIB, c), bench.allocate(8 * MIB, c)]);
    assert!(bench.pool.statistics().waits_inserted > 0, "c waits for b");
    assert!(bench.sim.now() < LONG);
    drop(capture);
    bench.check();
}

#[test]
fn nothing_is_recorded_on_a_captured_stream_nor_waited_for() {
    let bench = Bench::new(8 * MIB);
    let [a, other] = [(); 2].map(|()| bench.stream());
    let block = bench.allocate(8 * MIB, a);
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    drop(block);
    let recorded = bench.log.count(Call::RecordEvent);
    // All there is was last used on the captured stream.
    assert!(bench.pool.allocate(8 * MIB, other).is_err());
    assert_eq!(bench.log.count(Call::RecordEvent), recorded);
    assert_eq!(bench.log.count(Call::Synchronize), 0);
    let refused = Status::CAPTURE_UNSUPPORTED;
    assert_eq!(bench.pool.synchronize().unwrap_err().status, refused);
    let error = bench.pool.synchronize_stream(a).unwrap_err();
    assert_eq!(error.status, refused);
    bench.pool.synchronize_stream(other).unwrap();
    capture.end();
    assert!(bench.pool.allocate(8 * MIB, other).is_ok());
    bench.check();
}

#[test]
fn what_is_freed_after_the_capture_serves_the_next_capture_and_nobody_else() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let temporary = bench.allocate(4 * MIB, a);
    let output = bench.allocate(8 * MIB, a);
    let addresses = [temporary.address(), output.address()];
    drop(temporary);
    capture.end();
    // The output is read outside of the graph.
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(output);
    for stream in [a, b] {
        let outside = bench.allocate(4 * MIB, stream);
        assert!(outside.address() >= addresses[1] + 8 * MIB || outside.address() < addresses[0]);
    }
    bench.pool.trim(0).unwrap();
    assert_eq!(graph_bytes(&bench), 12 * MIB);
    // On another stream: what a did there is over when the capture begins.
    let capture = begin(&memory, b);
    assert!(bench.sim.now() >= LONG);
    let [first, second] = [4, 8].map(|size| bench.allocate(size * MIB, b));
    assert_eq!([first.address(), second.address()], addresses);
    assert_eq!(graph_bytes(&bench), 12 * MIB);
    drop((first, second, capture));
    bench.check();
}

#[test]
fn an_ordinary_use_holds_the_memory_until_it_is_over() {
    let bench = Bench::new(64 * MIB);
    let [a, reader] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let block = bench.allocate(4 * MIB, a);
    let address = block.address();
    block.use_on(reader).unwrap();
    bench.sim.enqueue_work(reader, LONG).unwrap();
    drop(block);
    // Not even on its own stream: a replay comes after nothing that the reader does.
    let next = bench.allocate(4 * MIB, a);
    assert_ne!(next.address(), address);
    bench.pool.synchronize_stream(reader).unwrap();
    assert_eq!(bench.allocate(4 * MIB, a).address(), address);
    drop((next, capture));
    bench.check();
}

#[test]
fn a_live_block_keeps_the_memory() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    let clone = memory.clone();
    let capture = begin(&memory, stream);
    let blocks = [(); 2].map(|()| bench.allocate(4 * MIB, stream));
    let raw = bench.allocate(4 * MIB, stream).into_raw();
    capture.end();
    drop(memory);
    drop(clone);
    bench.pool.synchronize().unwrap();
    assert_eq!(graph_bytes(&bench), 12 * MIB);
    drop(blocks);
    bench.pool.synchronize().unwrap();
    assert_eq!(graph_bytes(&bench), 12 * MIB);
    let synchronised = bench.log.count(Call::Synchronize);
    bench.pool.free(raw).unwrap();
    assert_eq!(
        bench.log.count(Call::Synchronize),
        synchronised,
        "a free waits for nothing"
    );
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 0);
    bench.check();
}

#[test]
fn dropped_memory_that_waits_for_the_device_is_found_when_there_is_no_other() {
    let bench = Bench::new(8 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, stream);
    let block = bench.allocate(8 * MIB, stream);
    capture.end();
    drop(memory);
    drop(block);
    assert_eq!(graph_bytes(&bench), 8 * MIB);
    drop(bench.allocate(8 * MIB, stream));
    assert_eq!(graph_bytes(&bench), 0);
    bench.check();
}

#[test]
fn memory_that_is_dropped_during_another_capture_goes_later() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let first = bench.pool.graph_memory();
    let capture = begin(&first, a);
    drop(bench.allocate(4 * MIB, a));
    capture.end();
    let second = bench.pool.graph_memory();
    let capture = begin(&second, b);
    drop(first);
    assert_eq!(bench.log.count(Call::Synchronize), 0);
    assert_eq!(graph_bytes(&bench), 4 * MIB);
    capture.end();
    drop(second);
    assert_eq!(graph_bytes(&bench), 0);
    bench.check();
}

#[test]
fn a_hundred_captures_leave_nothing_behind() {
    let bench = Bench::new(256 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    drop(bench.allocate(8 * MIB, a));
    let before = bench.pool.statistics();
    let device = bench.sim.memory_info().unwrap();
    for round in 0..100_u64 {
        let memory = bench.pool.graph_memory();
        for graph in 0..3 {
            let capture = begin(&memory, if graph == 1 { b } else { a });
            let fork = event(&bench);
            bench.pool.record_event(fork, a).unwrap();
            if graph != 1 {
                bench.pool.wait_event(b, fork).unwrap();
            }
            let sizes = [1000, 3 * MIB, round * 100_000 + 1];
            let blocks = sizes.map(|size| bench.allocate(size, b));
            drop(blocks);
            let output = bench.allocate(MIB, b);
            capture.end();
            drop(output);
            bench.pool.forget_event(fork);
            bench.sim.destroy_event(fork).unwrap();
        }
        drop(memory);
    }
    let after = bench.pool.statistics();
    assert_eq!(
        (
            after.reserved_bytes,
            after.handles,
            after.address_space_bytes
        ),
        (
            before.reserved_bytes,
            before.handles,
            before.address_space_bytes
        )
    );
    assert_eq!(bench.sim.memory_info().unwrap(), device);
    assert_eq!(bench.log.count(Call::Reserve), 100 + 1);
    assert_eq!(bench.log.count(Call::FreeReservation), 100);
    bench.check();
}

#[test]
fn graphs_that_share_memory_need_as_much_as_the_largest() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    for graph in 1..=10 {
        let capture = begin(&memory.clone(), stream);
        for _ in 0..5 {
            drop(bench.allocate(graph * 2 * MIB, stream));
        }
        capture.end();
    }
    assert_eq!(graph_bytes(&bench), 20 * MIB);
    let apart = bench.pool.graph_memory();
    let capture = begin(&apart, stream);
    drop(bench.allocate(2 * MIB, stream));
    capture.end();
    assert_eq!(graph_bytes(&bench), 22 * MIB);
    bench.check();
}

#[test]
fn two_captures_at_a_time_into_one_memory_share_nothing_that_is_not_over() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let (one, two) = (begin(&memory, a), begin(&memory, b));
    let block = bench.allocate(4 * MIB, a);
    let address = block.address();
    drop(block);
    let other = bench.allocate(4 * MIB, b);
    assert_ne!(other.address(), address);
    one.end();
    assert_eq!(bench.allocate(4 * MIB, b).address(), address);
    drop((other, two));
    bench.check();
}

#[test]
fn a_stream_belongs_to_one_capture() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memories = [(); 2].map(|()| bench.pool.graph_memory());
    let (one, two) = (begin(&memories[0], a), begin(&memories[1], b));
    let already = |stream| Err(CaptureError::AlreadyCaptured { stream });
    assert_eq!(memories[1].begin_capture(a).map(drop), already(a));
    assert_eq!(one.join(b), already(b));
    drop(two);
    one.join(b).unwrap();
    drop(one);
    drop(begin(&memories[1], a));
    bench.check();
}

#[test]
fn an_event_stands_for_the_last_record_alone() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let again = event(&bench);
    bench.pool.record_event(again, a).unwrap();
    let other = bench.stream();
    bench.pool.record_event(again, other).unwrap();
    bench.pool.wait_event(b, again).unwrap();
    drop(bench.allocate(4 * MIB, b));
    assert_eq!(
        graph_bytes(&bench),
        0,
        "b waits for no event of the capture"
    );
    capture.end();
    // What was recorded in a capture stands for nothing after it.
    let capture = begin(&memory, a);
    bench.pool.record_event(again, a).unwrap();
    capture.end();
    let capture = begin(&memory, a);
    bench.pool.wait_event(b, again).unwrap();
    drop(bench.allocate(4 * MIB, b));
    assert_eq!(graph_bytes(&bench), 0);
    drop(capture);
    bench.check();
}

#[test]
fn graphs_work_where_nothing_can_be_mapped() {
    let sim = SimDevice::builder().total_memory(64 * MIB).mapping(false);
    let sim = Arc::new(sim.build());
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let stream = sim.create_stream(crate::device::StreamOrder::Independent);
    let stream = stream.unwrap();
    let memory = pool.graph_memory();
    let capture = begin(&memory, stream);
    let block = pool.allocate(4 * MIB, stream).unwrap();
    let address = block.address();
    drop(block);
    assert_eq!(pool.allocate(3 * MIB, stream).unwrap().address(), address);
    drop(capture);
    pool.validate().unwrap();
    drop(memory);
    assert_eq!(pool.statistics().reserved_bytes, 0);
    let info = sim.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn a_pool_takes_its_graphs_memory_along() {
    let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let stream = sim.create_stream(crate::device::StreamOrder::Independent);
    let stream = stream.unwrap();
    let memory = pool.graph_memory();
    let capture = begin(&memory, stream);
    let _raw = pool.allocate(4 * MIB, stream).unwrap().into_raw();
    drop(capture);
    drop(memory);
    let device = Arc::clone(pool.device());
    drop(pool);
    // A replay may use it still, which nobody sees.
    assert_eq!(crate::pool::reap(&device), 1);
    assert_eq!(crate::pool::reap_waiting(&device), Ok(0));
    let info = sim.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}
