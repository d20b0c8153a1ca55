//! Memory that goes from hand to hand, in one process and between two.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use millpond::device::{HandleId, HandleProperties, ShareKind, Shareable, Status, StreamId};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::{OTHER, PATTERN, refused};
use crate::conformance::{Fixture, Outcome, Skipped};

const FD: ShareKind = ShareKind::PosixFd;

fn needs_sharing(fixture: &Fixture) -> Result<u64, Skipped> {
    match fixture.device().capabilities().share_posix_fd {
        true => fixture.needs_mapping(),
        false => Err(Skipped("handles cannot be exported as descriptors".into())),
    }
}

fn shareable(fixture: &Fixture, size: u64) -> HandleId {
    let properties = HandleProperties {
        share: Some(FD),
        ..HandleProperties::default()
    };
    fixture.device().create(size, properties).unwrap()
}

fn exported(fixture: &Fixture, handle: HandleId) -> OwnedFd {
    match fixture.device().export(handle, FD).unwrap() {
        Shareable::PosixFd(descriptor) => descriptor,
        other => panic!("{other:?} was not asked for"),
    }
}

fn imported(fixture: &Fixture, descriptor: OwnedFd, size: u64) -> HandleId {
    let shareable = Shareable::PosixFd(descriptor);
    fixture.device().import(shareable, size).unwrap()
}

/// DRV `cuMemExportToShareableHandle`: the handle must have been created for this type.
pub(super) fn only_memory_made_for_it_is_exported(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let plain = fixture.handle(unit);
    assert_eq!(refused(device.export(plain, FD)), Status::NOT_SUPPORTED);
    device.release(plain).unwrap();
    if !device.capabilities().share_posix_fd {
        let properties = HandleProperties {
            share: Some(FD),
            ..HandleProperties::default()
        };
        assert_eq!(
            refused(device.create(unit, properties)),
            Status::NOT_SUPPORTED
        );
    }
    Ok(())
}

/// Rule 7. DRV `cuMemRelease`: memory lives while it is shared; an import stands for the same
/// memory, and the descriptor is no longer needed.
pub(super) fn an_import_is_the_same_memory(fixture: &Fixture) -> Outcome {
    let unit = needs_sharing(fixture)?;
    let device = fixture.device();
    let stream = fixture.stream();
    let handle = shareable(fixture, unit);
    let first = fixture.mapped_of(vec![(handle, unit)]);
    device.fill(stream, first.base, unit, PATTERN).unwrap();
    device.synchronize_stream(stream).unwrap();
    // Twice: each import is a handle of its own.
    let [one, two] = [(); 2].map(|()| imported(fixture, exported(fixture, handle), unit));
    let second = fixture.mapped_of(vec![(one, unit), (two, unit)]);
    assert_eq!(fixture.wrong(stream, second.base, 2 * unit, PATTERN), 0);
    first.take_down();
    assert_eq!(fixture.wrong(stream, second.base, 2 * unit, PATTERN), 0);
    device.fill(stream, second.base, unit, OTHER).unwrap();
    assert_eq!(fixture.wrong(stream, second.base, 2 * unit, OTHER), 0);
    second.take_down();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// DRV `cuMemImportFromShareableHandle`: a descriptor that went through a Unix socket opens the
/// same memory in another process, which may change it.
pub(super) fn another_process_sees_and_changes_the_same_bytes(fixture: &Fixture) -> Outcome {
    let unit = needs_sharing(fixture)?;
    let device = fixture.device();
    let (mut socket, mut partner) = fixture.start_partner();
    let handle = shareable(fixture, unit);
    let range = fixture.mapped_of(vec![(handle, unit)]);
    let stream = StreamId::DEFAULT;
    device.fill(stream, range.base, unit, PATTERN).unwrap();
    device.synchronize().unwrap();
    send(&socket, &exported(fixture, handle));
    let mut answer = [0];
    let answered = socket.read_exact(&mut answer);
    assert!(
        partner.wait().unwrap().success(),
        "the other process failed"
    );
    answered.unwrap();
    assert_eq!(answer, *b"y");
    assert_eq!(fixture.wrong(stream, range.base, unit, OTHER), 0);
    range.take_down();
    Ok(())
}

/// The other process.
pub(super) fn partner(fixture: &Fixture, mut socket: UnixStream) -> Outcome {
    let unit = needs_sharing(fixture)?;
    let device = fixture.device();
    let import = imported(fixture, receive(&socket), unit);
    let range = fixture.mapped_of(vec![(import, unit)]);
    let stream = StreamId::DEFAULT;
    assert_eq!(fixture.wrong(stream, range.base, unit, PATTERN), 0);
    device.fill(stream, range.base, unit, OTHER).unwrap();
    device.synchronize().unwrap();
    range.take_down();
    socket.write_all(b"y").unwrap();
    Ok(())
}

fn send(socket: &UnixStream, descriptor: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let data = [IoSlice::new(b"m")];
    rustix::net::sendmsg(socket, &data, &mut ancillary, SendFlags::empty()).unwrap();
}

fn receive(socket: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    descriptors.next().and_then(|mut them| them.next()).unwrap()
}
