//! Random jobs on small devices, judged by the checker: it knows from the device calls alone who
//! has which byte, and what is ordered before what.

use std::sync::Arc;

use millpond::device::{
    Device, HostDevice, Observed, Observer, Pattern, SimDevice, StreamId, StreamOrder,
};
use millpond_check::Checker;
use millpond_policies::{Allocator, PolicyError, PolicyName, Reserved};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// What a job does next. Numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        size: u64,
        stream: usize,
    },
    Use {
        block: usize,
        stream: usize,
    },
    Free {
        block: usize,
    },
    /// The stream is busy for as many nanoseconds.
    Work {
        stream: usize,
        duration: u64,
    },
    /// The host does something else for as many nanoseconds.
    Pass {
        duration: u64,
    },
}

const STREAMS: usize = 3;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..4096_u64,
        3 => 4096..2 * MIB,
        3 => 2 * MIB..40 * MIB,
        1 => prop::sample::select(vec![0, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 64 * MIB, 65 * MIB]),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (sizes(), 0..STREAMS).prop_map(|(size, stream)| Op::Allocate { size, stream }),
        4 => any::<usize>().prop_map(|block| Op::Free { block }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(block, stream)| Op::Use { block, stream }),
        2 => (0..STREAMS, 0..1_000_000_u64).prop_map(|(stream, duration)| Op::Work { stream, duration }),
        1 => (0..1_000_000_u64).prop_map(|duration| Op::Pass { duration }),
    ];
    prop::collection::vec(op, 1..200)
}

/// A job under way.
struct Job {
    device: Arc<SimDevice>,
    checker: Arc<Checker>,
    reserved: Arc<Reserved>,
    allocator: Allocator,
    streams: Vec<StreamId>,
    /// Address, size and stream.
    live: Vec<(u64, u64, usize)>,
}

impl Job {
    fn new(policy: PolicyName, memory: u64, limit: Option<u64>) -> Job {
        let device = Arc::new(SimDevice::builder().total_memory(memory).build());
        let checker = Arc::new(Checker::new(device.capabilities()));
        let reserved = Arc::new(Reserved::new(limit));
        let observers: Vec<Arc<dyn Observer>> =
            vec![Arc::clone(&checker) as _, Arc::clone(&reserved) as _];
        let observed: Arc<dyn Device> =
            Arc::new(Observed::new(Arc::clone(&device) as _, observers));
        let streams = (0..STREAMS)
            .map(|_| observed.create_stream(StreamOrder::Independent).unwrap())
            .collect();
        Job {
            device,
            checker,
            reserved,
            allocator: Allocator::new(policy, observed),
            streams,
            live: Vec::new(),
        }
    }

    fn allocate(&mut self, size: u64, stream: usize) -> Result<(), PolicyError> {
        let address = self.allocator.allocate(size, self.streams[stream])?;
        if size > 0 {
            assert_eq!(address % 256, 0);
            let broken = self
                .checker
                .allocated(address, size, 256, self.streams[stream]);
            assert_eq!(broken, []);
            self.live.push((address, size, stream));
        }
        Ok(())
    }

    fn free(&mut self, block: usize) {
        let (address, ..) = self.live.swap_remove(block);
        assert!(self.checker.freeing(address).is_some());
        self.allocator.free(address).unwrap();
    }

    /// Gives whether the device had room.
    fn run(&mut self, op: Op) -> bool {
        let count = self.live.len();
        match op {
            Op::Allocate { size, stream } => match self.allocate(size, stream) {
                Ok(()) => {}
                Err(error) if error.is_out_of_memory() => return false,
                Err(error) => panic!("{error}"),
            },
            Op::Free { block } if count > 0 => self.free(block % count),
            Op::Use { block, stream } if count > 0 => {
                let (address, ..) = self.live[block % count];
                let user = self.streams[stream];
                self.allocator.use_on(address, user).unwrap();
                assert!(self.checker.used(address, user));
            }
            Op::Work { stream, duration } => {
                let stream = self.streams[stream];
                self.device.enqueue_work(stream, duration).unwrap();
            }
            Op::Pass { duration } => self.device.advance_host_by(duration),
            Op::Free { .. } | Op::Use { .. } => {}
        }
        let live: u64 = self.live.iter().map(|(_, size, _)| size).sum();
        assert_eq!(self.allocator.live_bytes(), live);
        assert!(self.reserved.bytes() >= live);
        true
    }

    fn end(self) {
        for &(address, ..) in &self.live {
            self.checker.freeing(address);
        }
        self.allocator.close().unwrap();
        assert_eq!(self.checker.finish(), []);
        assert_eq!(self.reserved.bytes(), 0);
        let memory = self.device.memory_info().unwrap();
        assert_eq!(memory.free, memory.total);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_byte_is_shared_and_everything_comes_back(
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        ops in ops(),
        memory in prop::sample::select(vec![64 * MIB, 300 * MIB, 4096 * MIB]),
    ) {
        let mut job = Job::new(policy, memory, None);
        for op in ops {
            job.run(op);
        }
        job.end();
    }

    #[test]
    fn when_all_is_free_the_largest_request_is_served_from_what_there_is(
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        ops in ops(),
    ) {
        let mut job = Job::new(policy, 16 << 30, None);
        let mut largest = (0, 0);
        for op in ops {
            prop_assert!(job.run(op));
            if let Op::Allocate { size, stream } = op {
                largest = largest.max((size, stream));
            }
        }
        while !job.live.is_empty() {
            job.free(0);
        }
        // Blocks used on several streams come back when the host looks.
        job.device.synchronize().unwrap();
        job.allocate(1, 0).unwrap();
        job.free(0);
        let before = job.reserved.bytes();
        job.allocate(largest.0, largest.1).unwrap();
        if policy == PolicyName::CudaMalloc {
            prop_assert_eq!(before, 0);
        } else {
            prop_assert_eq!(job.reserved.bytes(), before);
        }
        job.end();
    }

    #[test]
    fn a_limit_is_kept(
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        ops in ops(),
    ) {
        let mut job = Job::new(policy, 16 << 30, Some(100 * MIB));
        for op in ops {
            job.run(op);
        }
        prop_assert!(job.reserved.peak_bytes() <= 100 * MIB);
        job.end();
    }
}

#[test]
fn a_block_used_on_a_second_stream_waits_for_it_and_the_first_stream_does_not() {
    for policy in PolicyName::ALL {
        if policy == PolicyName::CudaMalloc {
            continue;
        }
        let mut job = Job::new(policy, 4096 * MIB, None);
        let size = 30 * MIB;
        job.allocate(size, 0).unwrap();
        let address = job.live[0].0;
        // Busy on its own stream: that is in order.
        for stream in [0, 1] {
            job.device
                .enqueue_work(job.streams[stream], 1_000_000)
                .unwrap();
        }
        job.free(0);
        job.allocate(size, 0).unwrap();
        assert_eq!(job.live[0].0, address, "{policy}");
        job.run(Op::Use {
            block: 0,
            stream: 1,
        });
        job.free(0);
        job.allocate(size, 0).unwrap();
        assert_ne!(job.live[0].0, address, "{policy}");
        job.device.advance_host_by(2_000_000);
        // The host looks before it allocates.
        job.allocate(size, 0).unwrap();
        // In an arena, the block in between keeps the chunk from beginning again.
        let reused = policy != PolicyName::Bump;
        assert_eq!(job.live[1].0 == address, reused, "{policy}");
        job.end();
    }
}

#[test]
fn when_memory_runs_out_what_is_held_and_cached_is_given_up_first() {
    for policy in PolicyName::ALL {
        let mut job = Job::new(policy, 130 * MIB, None);
        job.allocate(60 * MIB, 0).unwrap();
        job.run(Op::Use {
            block: 0,
            stream: 1,
        });
        job.device
            .enqueue_work(job.streams[1], 1_000_000_000)
            .unwrap();
        job.free(0);
        job.allocate(60 * MIB, 2).unwrap();
        job.allocate(60 * MIB, 1).unwrap();
        assert!(job.device.now() >= 1_000_000_000, "{policy}");
        let error = job.allocate(60 * MIB, 0).unwrap_err();
        assert!(error.is_out_of_memory(), "{policy}: {error}");
        job.free(0);
        job.allocate(60 * MIB, 0).unwrap();
        job.end();
    }
}

#[test]
fn what_is_not_live_is_refused_and_nothing_happens() {
    for policy in PolicyName::ALL {
        let mut job = Job::new(policy, 1024 * MIB, None);
        job.allocate(MIB, 0).unwrap();
        let (address, ..) = job.live[0];
        let user = job.streams[1];
        assert_eq!(
            job.allocator.free(address + 256),
            Err(PolicyError::NotLive(address + 256))
        );
        job.free(0);
        assert_eq!(
            job.allocator.free(address),
            Err(PolicyError::NotLive(address))
        );
        assert_eq!(
            job.allocator.use_on(address, user),
            Err(PolicyError::NotLive(address))
        );
        let error = job.allocate(u64::MAX, 0).unwrap_err();
        assert!(
            error.is_out_of_memory() || matches!(error, PolicyError::TooLarge(_)),
            "{error}"
        );
        job.end();
    }
}

#[test]
fn blocks_can_be_written_and_keep_their_bytes_on_a_device_that_has_some() {
    for policy in PolicyName::ALL {
        let device = Arc::new(
            HostDevice::builder()
                .total_memory(512 * MIB)
                .build()
                .unwrap(),
        );
        let stream = device.create_stream(StreamOrder::Independent).unwrap();
        let mut allocator = Allocator::new(policy, Arc::clone(&device) as _);
        let findings = millpond::device::Findings::new();
        let mut live = Vec::new();
        for number in 0..40_u64 {
            let size = (number % 7 + 1) * 300_000;
            let address = allocator.allocate(size, stream).unwrap();
            device.fill(stream, address, size, Pattern(number)).unwrap();
            live.push((address, size, Pattern(number)));
            if number % 3 == 2 {
                let (address, size, pattern) = live.remove(live.len() / 2);
                device
                    .verify(stream, address, size, pattern, &findings)
                    .unwrap();
                allocator.free(address).unwrap();
            }
        }
        for (address, size, pattern) in live {
            device
                .verify(stream, address, size, pattern, &findings)
                .unwrap();
        }
        device.synchronize().unwrap();
        assert_eq!(findings.wrong_bytes(), 0, "{policy}");
        allocator.close().unwrap();
        let memory = device.memory_info().unwrap();
        assert_eq!(memory.free, memory.total, "{policy}");
        device.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_segment_that_never_got_memory_goes_too() {
    let mut job = Job::new(PolicyName::Expandable, 64 * MIB, None);
    job.allocate(30 * MIB, 2).unwrap();
    assert!(job.allocate(30 * MIB, 0).unwrap_err().is_out_of_memory());
    job.end();
}
