//! A device opened for a case, and what cases do with it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use millpond::device::{
    AccessGrant, Accessor, CudaDevice, Device, DeviceError, EventId, Findings, HandleId,
    HandleProperties, HostDevice, Pattern, Protection, SimDevice, Status, StreamId, StreamOrder,
    cuda,
};

use super::{Skipped, processes};

const MIB: u64 = 1 << 20;
/// Nanoseconds of virtual time; longer than all calls of a case together.
const LONG: u64 = 1_000_000_000_000;

/// The devices that the suites run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Real bytes in this machine's memory.
    Host,
    /// No bytes, virtual time.
    Sim,
    /// The sim of a device that cannot map.
    Unmapped,
    /// Device 0 of this machine's GPUs.
    Cuda,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Host, Kind::Sim, Kind::Unmapped, Kind::Cuda];

    /// The name in the names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Sim => "sim",
            Kind::Unmapped => "unmapped",
            Kind::Cuda => "cuda",
        }
    }
}

/// One opened device. The emulations are as harsh as the driver may be: the handle values of
/// destroyed streams come again.
#[derive(Debug)]
pub struct Fixture {
    kind: Kind,
    test: String,
    device: Arc<dyn Device>,
    sim: Option<Arc<SimDevice>>,
    cuda: Option<Arc<CudaDevice>>,
}

impl Fixture {
    /// Opens a device for the test of this full name. Says so if this machine has none.
    ///
    /// # Panics
    ///
    /// If there is one, and it cannot be opened.
    pub fn open(kind: Kind, test: &str) -> Result<Fixture, Skipped> {
        let test = test.to_owned();
        let with_sim = |sim: SimDevice| {
            let sim = Arc::new(sim);
            (Arc::clone(&sim) as Arc<dyn Device>, Some(sim))
        };
        let builder = SimDevice::builder()
            .total_memory(4096 * MIB)
            .stream_values_recur(true);
        let mut cuda = None;
        let (device, sim) = match kind {
            Kind::Host => {
                let builder = HostDevice::builder().total_memory(4096 * MIB);
                let host = builder.stream_values_recur(true).build();
                (Arc::new(host.expect("a host device")) as _, None)
            }
            Kind::Sim => with_sim(builder.build()),
            Kind::Unmapped => with_sim(builder.mapping(false).build()),
            Kind::Cuda => {
                let device = open_cuda()?;
                cuda = Some(Arc::clone(&device));
                (device as _, None)
            }
        };
        Ok(Fixture {
            kind,
            test,
            device,
            sim,
            cuda,
        })
    }

    /// What was opened.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether the device has bytes that can be looked at.
    pub fn has_bytes(&self) -> bool {
        self.sim.is_none()
    }

    /// Skips a case that is about contents where there are none.
    pub fn needs_bytes(&self) -> Result<(), Skipped> {
        match self.has_bytes() {
            true => Ok(()),
            false => Err(Skipped("the device has no bytes".into())),
        }
    }

    /// The granularity, unless the device cannot map.
    pub fn needs_mapping(&self) -> Result<u64, Skipped> {
        let capabilities = self.device.capabilities();
        match capabilities.mapping {
            true => Ok(capabilities.granularity),
            false => Err(Skipped("the device cannot map".into())),
        }
    }

    /// A stream without implicit order.
    pub fn stream(&self) -> StreamId {
        self.device
            .create_stream(StreamOrder::Independent)
            .expect("a stream")
    }

    /// A new event, recorded on a stream.
    pub fn recorded(&self, stream: StreamId) -> EventId {
        let event = self.device.create_event().expect("an event");
        self.device.record_event(event, stream).expect("to record");
        event
    }

    /// A call that breaks a rule, which the emulations refuse with a code. The driver may be less
    /// strict than its documentation: where it is, says so, and gives whether the call was made.
    pub fn strict(&self, what: &str, call: Result<(), DeviceError>, code: Status) -> bool {
        match call {
            Ok(()) if self.kind == Kind::Cuda => {
                println!("the driver accepts {what}");
                true
            }
            Ok(()) => panic!("{what} was to be refused"),
            Err(error) => {
                assert_eq!(error.status, code, "{what}: {error}");
                false
            }
        }
    }

    /// Keeps a stream from going on until what is given is dropped.
    pub fn hold(&self, stream: StreamId) -> Hold {
        // A GPU has one thread for all host functions; one that waits there would hold up those of
        // other streams too.
        if let Some(cuda) = &self.cuda {
            return Hold(Held::Waiting(cuda.hold(stream).expect("to hold a stream")));
        }
        match &self.sim {
            Some(sim) => Hold(Held::Until(
                Arc::clone(sim),
                sim.enqueue_work(stream, LONG).expect("to queue work"),
            )),
            None => {
                let (sender, receiver) = channel::<()>();
                let wait = move || {
                    let _ = receiver.recv();
                };
                self.device
                    .host_function(stream, Box::new(wait))
                    .expect("to queue a host function");
                Hold(Held::Gate(sender))
            }
        }
    }

    /// Gives the device full access to what is mapped in a range.
    pub fn grant(
        &self,
        address: u64,
        size: u64,
        protection: Protection,
    ) -> Result<(), DeviceError> {
        let grant = AccessGrant {
            accessor: Accessor::Device(self.device.capabilities().ordinal),
            protection,
        };
        self.device.set_access(address, size, &[grant])
    }

    /// A handle of this size, that is no good for anything special.
    pub fn handle(&self, size: u64) -> HandleId {
        self.device
            .create(size, HandleProperties::default())
            .expect("a handle")
    }

    /// New handles of these sizes, one after the other in a reservation of their own.
    pub fn mapped(&self, sizes: &[u64]) -> Mapped<'_> {
        let handles = sizes.iter().map(|&size| (self.handle(size), size));
        self.mapped_of(handles.collect())
    }

    /// These handles, one after the other in a reservation of their own.
    pub fn mapped_of(&self, handles: Vec<(HandleId, u64)>) -> Mapped<'_> {
        let size = handles.iter().map(|(_, size)| size).sum();
        let base = self.device.reserve(size, 0).expect("a reservation");
        let mut address = base;
        for &(handle, size) in &handles {
            self.device.map(address, size, handle).expect("to map");
            address += size;
        }
        self.grant(base, size, Protection::ReadWrite)
            .expect("to give access");
        Mapped {
            fixture: self,
            base,
            size,
            handles,
        }
    }

    /// Bytes of a range that are not the pattern's, once the stream has come there. None where
    /// there are no bytes.
    pub fn wrong(&self, stream: StreamId, address: u64, size: u64, pattern: Pattern) -> u64 {
        let findings = Findings::new();
        self.device
            .verify(stream, address, size, pattern, &findings)
            .expect("to verify");
        self.device
            .synchronize_stream(stream)
            .expect("to synchronise");
        findings.wrong_bytes()
    }

    /// Starts this program again as the case's second process, which gets the other end of the
    /// socket.
    pub fn start_partner(&self) -> (UnixStream, Child) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let partner = Command::new(std::env::current_exe().expect("this program"))
            .env(processes::PARTNER, &self.test)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .expect("to start this program again");
        (ours, partner)
    }
}

/// The GPU: one device object for the process, with its kernels loaded. Loading may wait for work
/// that a case holds.
fn open_cuda() -> Result<Arc<CudaDevice>, Skipped> {
    static DEVICE: OnceLock<Arc<CudaDevice>> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(Arc::clone(device));
    }
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error)
            if [Status::NOT_FOUND, Status::STUB_LIBRARY, Status::NO_DEVICE]
                .contains(&error.status) =>
        {
            return Err(Skipped(error.to_string()));
        }
        Err(error) => panic!("{error}"),
    };
    let ready = || -> Result<(), DeviceError> {
        let (stream, pattern) = (StreamId::DEFAULT, Pattern(1));
        let address = device.allocate(64)?;
        device.fill(stream, address, 64, pattern)?;
        device.verify(stream, address, 64, pattern, &Findings::new())?;
        device.synchronize()?;
        device.free(address)
    };
    ready().expect("a device that works");
    Ok(Arc::clone(DEVICE.get_or_init(|| Arc::new(device))))
}

/// Work that a stream cannot get past until this is dropped.
#[derive(Debug)]
#[must_use = "the stream goes on as soon as this is dropped"]
pub struct Hold(Held);

#[derive(Debug)]
enum Held {
    /// The stream waits for a word in memory.
    Waiting(#[expect(dead_code, reason = "its drop is what counts")] cuda::Hold),
    /// A host function waits for the other end to go.
    Gate(#[expect(dead_code, reason = "its drop is what counts")] Sender<()>),
    /// The stream is busy until this time of the sim's clock.
    Until(Arc<SimDevice>, u64),
}

impl Drop for Hold {
    fn drop(&mut self) {
        match &self.0 {
            Held::Gate(_) | Held::Waiting(_) => {}
            Held::Until(sim, time) => sim.advance_host_to(*time),
        }
    }
}

/// A reservation that is full of handles, with access.
#[derive(Debug)]
pub struct Mapped<'a> {
    fixture: &'a Fixture,
    /// Where it begins.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// The handles, in order, with their sizes.
    pub handles: Vec<(HandleId, u64)>,
}

impl Mapped<'_> {
    /// Releases the handles; their memory lives on under the range (rule 7).
    pub fn release_handles(&mut self) {
        for (handle, _) in self.handles.drain(..) {
            self.fixture.device.release(handle).expect("to release");
        }
    }

    /// Takes the mappings away and frees the reservation. Gives the handles that are left.
    pub fn unmap(self) -> Vec<(HandleId, u64)> {
        let device = &self.fixture.device;
        device.unmap(self.base, self.size).expect("to unmap");
        device
            .free_reservation(self.base, self.size)
            .expect("to free a reservation");
        self.handles
    }

    /// Gives everything back.
    pub fn take_down(self) {
        let device = Arc::clone(&self.fixture.device);
        for (handle, _) in self.unmap() {
            device.release(handle).expect("to release");
        }
    }
}
