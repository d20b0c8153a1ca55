//! The scenario of NVIDIA's memMapIPC with checks that fail: handles go to other processes as
//! descriptors over Unix sockets; every process imports all of them into one range, and they take
//! turns with the buffers, each checking what the one before left there.
//!
//! The first process creates, exports and keeps the beat; it starts the others as this program
//! with an argument.

mod support;

use std::env;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use millpond::device::{
    AccessGrant, Accessor, CudaDevice, Device, HandleId, HandleProperties, Protection, ShareKind,
    Shareable, StreamId,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use support::{Gpu, Note, Outcome, ensure, skipped};

const PROCESSES: u32 = 3;
const ROUNDS: u32 = 4 * PROCESSES;
const BUFFER: u64 = 4 << 20;

fn main() -> Outcome {
    match env::args().nth(1) {
        None => parent(),
        Some(number) => child(number.parse()?),
    }
}

/// What a buffer holds after a round.
fn content(buffer: u32, round: u32) -> u32 {
    (buffer + 1) << 24 | round << 16
}

/// The buffers, one after the other.
struct Buffers {
    base: u64,
    handles: Vec<HandleId>,
}

impl Buffers {
    fn map(device: &CudaDevice, handles: Vec<HandleId>) -> Outcome<Buffers> {
        let size = BUFFER * u64::from(PROCESSES);
        let base = device.reserve(size, 0)?;
        for (&handle, number) in handles.iter().zip(0..) {
            device.map(base + number * BUFFER, BUFFER, handle)?;
        }
        let grant = AccessGrant {
            accessor: Accessor::Device(device.capabilities().ordinal),
            protection: Protection::ReadWrite,
        };
        device.set_access(base, size, &[grant])?;
        Ok(Buffers { base, handles })
    }

    fn address(&self, buffer: u32) -> u64 {
        self.base + u64::from(buffer) * BUFFER
    }

    fn take_down(self, device: &CudaDevice) -> Outcome {
        let size = BUFFER * u64::from(PROCESSES);
        device.unmap(self.base, size)?;
        device.free_reservation(self.base, size)?;
        for handle in self.handles {
            device.release(handle)?;
        }
        Ok(())
    }
}

fn parent() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let device = &*gpu.device;
    if !device.capabilities().share_posix_fd {
        skipped("handles cannot be exported as descriptors");
        return Ok(());
    }
    let properties = HandleProperties {
        share: Some(ShareKind::PosixFd),
        ..HandleProperties::default()
    };
    let handles: Result<Vec<HandleId>, _> = (0..PROCESSES)
        .map(|_| device.create(BUFFER, properties))
        .collect();
    let buffers = Buffers::map(device, handles?)?;
    let stream = gpu.stream()?;
    for buffer in 0..PROCESSES {
        gpu.write(stream, buffers.address(buffer), BUFFER, content(buffer, 0))?;
    }
    gpu.synchronize(stream)?;

    let mut children = Vec::new();
    for number in 0..PROCESSES {
        let mut child = Process::start(number)?;
        for &handle in &buffers.handles {
            match device.export(handle, ShareKind::PosixFd)? {
                Shareable::PosixFd(descriptor) => send(&child.socket, &descriptor)?,
                Shareable::Fabric(_) => return Err("a descriptor was asked for".into()),
            }
        }
        child.socket.write_all(b"g")?;
        children.push(child);
    }
    // The beat: all have done a round before any begins the next.
    let beaten = (1..=ROUNDS).try_for_each(|_| -> Outcome {
        for child in &mut children {
            child.socket.read_exact(&mut [0])?;
        }
        for child in &mut children {
            child.socket.write_all(b"g")?;
        }
        Ok(())
    });
    for mut child in children {
        drop(child.socket);
        let status = child.process.wait()?;
        ensure(status.success(), || {
            format!("process {}: {status}", child.number)
        })?;
    }
    beaten?;

    let note = Note::new()?;
    for buffer in 0..PROCESSES {
        let value = content(buffer, ROUNDS);
        gpu.check(stream, buffers.address(buffer), BUFFER, value, &note)?;
    }
    gpu.synchronize(stream)?;
    note.clean("what the other processes left")?;
    buffers.take_down(device)?;
    println!("{PROCESSES} processes, {ROUNDS} rounds: every word as it was written");
    Ok(())
}

struct Process {
    number: u32,
    process: Child,
    socket: UnixStream,
}

impl Process {
    fn start(number: u32) -> Outcome<Process> {
        let (socket, theirs) = UnixStream::pair()?;
        let process = Command::new(env::current_exe()?)
            .arg(number.to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        Ok(Process {
            number,
            process,
            socket,
        })
    }
}

fn child(number: u32) -> Outcome {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(gpu) = Gpu::open(0)? else {
        return Err("the first process had a GPU".into());
    };
    let device = &*gpu.device;
    let mut handles = Vec::new();
    for _ in 0..PROCESSES {
        // The descriptor is closed by the import; the memory does not need it.
        handles.push(device.import(Shareable::PosixFd(receive(&socket)?), BUFFER)?);
    }
    let buffers = Buffers::map(device, handles)?;
    let (stream, note) = (gpu.stream()?, Note::new()?);
    socket.read_exact(&mut [0])?;
    for round in 1..=ROUNDS {
        take_turn(
            &gpu,
            stream,
            &buffers,
            (number + round) % PROCESSES,
            round,
            &note,
        )?;
        note.clean(format!("process {number}, round {round}"))?;
        socket.write_all(b"d")?;
        socket.read_exact(&mut [0])?;
    }
    buffers.take_down(device)
}

/// Checks what the process before left in a buffer, and leaves something else.
fn take_turn(
    gpu: &Gpu,
    stream: StreamId,
    buffers: &Buffers,
    buffer: u32,
    round: u32,
    note: &Note,
) -> Outcome {
    let address = buffers.address(buffer);
    gpu.check(stream, address, BUFFER, content(buffer, round - 1), note)?;
    gpu.write(stream, address, BUFFER, content(buffer, round))?;
    gpu.synchronize(stream)
}

fn send(socket: &UnixStream, descriptor: &OwnedFd) -> Outcome {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    ensure(fits, || "a descriptor fits in the message".into())?;
    let data = [IoSlice::new(b"m")];
    rustix::net::sendmsg(socket, &data, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(socket: &UnixStream) -> Outcome<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| "the message brought no descriptor".into())
}
