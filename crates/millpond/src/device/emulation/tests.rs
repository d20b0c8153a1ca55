//! Each rule of the contract, by what it refuses and by what it lets through.

use super::*;
use crate::device::{AccessGrant, Accessor, DeviceKind};

const PAGE: u64 = 2 << 20;
const BASE: u64 = 64 * PAGE;

fn rules(pages: u64) -> MemoryRules {
    let mut rules = MemoryRules::new(&Capabilities {
        kind: DeviceKind::Sim,
        name: "test".to_owned(),
        ordinal: 0,
        total_memory: pages * PAGE,
        granularity: PAGE,
        mapping: true,
        share_posix_fd: true,
        share_fabric: false,
        rdma: false,
        host: false,
        host_numa: false,
        stream_values_recur: false,
    });
    rules.check_reserve(16 * PAGE, 0).unwrap();
    rules.add_reservation(BASE, 16 * PAGE);
    rules
}

fn create(rules: &mut MemoryRules, handle: u64, pages: u64) {
    let properties = HandleProperties::default();
    rules.check_create(pages * PAGE, properties).unwrap();
    rules.add_handle(HandleId(handle), pages * PAGE, properties);
}

fn map(rules: &mut MemoryRules, page: u64, pages: u64, handle: u64) {
    let planned = rules
        .check_map(BASE + page * PAGE, pages * PAGE, HandleId(handle))
        .unwrap();
    rules.add_mapping(planned);
}

fn allow(rules: &mut MemoryRules, page: u64, pages: u64) -> Granted {
    let (address, size) = (BASE + page * PAGE, pages * PAGE);
    let own = rules.check_set_access(address, size, &[own_grant()]);
    assert_eq!(own, Ok(Some(Protection::ReadWrite)));
    rules.grant_access(address, size, Protection::ReadWrite)
}

fn own_grant() -> AccessGrant {
    AccessGrant {
        accessor: Accessor::Device(0),
        protection: Protection::ReadWrite,
    }
}

fn unmap(rules: &mut MemoryRules, page: u64, pages: u64) -> Vec<Removed> {
    let (address, size) = (BASE + page * PAGE, pages * PAGE);
    rules.check_unmap(address, size).unwrap();
    rules.remove_mappings(address, size).to_vec()
}

fn status<T>(result: Result<T, DeviceError>) -> Option<Status> {
    result.err().map(|error| error.status)
}

fn touch(rules: &MemoryRules, address: u64, size: u64) -> Option<Status> {
    status(rules.translate(Call::Fill, address, size, Protection::ReadWrite))
}

#[test]
fn rule_1_sizes_and_addresses_are_multiples_of_the_granularity() {
    let mut rules = rules(8);
    let invalid = Some(Status::INVALID_VALUE);
    for size in [0, 1, PAGE - 1, PAGE + 4096, u64::MAX] {
        assert_eq!(status(rules.check_reserve(size, 0)), invalid);
        assert_eq!(
            status(rules.check_create(size, HandleProperties::default())),
            invalid
        );
        assert_eq!(
            status(rules.check_import(ShareKind::PosixFd, size)),
            invalid
        );
        assert_eq!(status(rules.check_unmap(BASE, size)), invalid);
        assert_eq!(
            status(rules.check_set_access(BASE, size, &[own_grant()])),
            invalid
        );
    }
    create(&mut rules, 1, 1);
    assert_eq!(
        status(rules.check_map(BASE + 4096, PAGE, HandleId(1))),
        invalid
    );
    assert_eq!(status(rules.check_map(BASE, 4096, HandleId(1))), invalid);
    assert_eq!(status(rules.check_reserve(PAGE, 3)), invalid);
    assert_eq!(rules.check_reserve(PAGE, 1 << 30), Ok(()));
}

#[test]
fn the_address_space_ends() {
    let rules = rules(1);
    assert_eq!(rules.check_reserve(1 << 46, 0), Ok(()));
    let full = Some(Status::OUT_OF_MEMORY);
    assert_eq!(status(rules.check_reserve(1 << 47, 0)), full);
    assert_eq!(status(rules.check_reserve(PAGE, 1 << 63)), full);
    let far = u64::MAX - PAGE + 1;
    let invalid = Some(Status::INVALID_VALUE);
    assert_eq!(status(rules.check_unmap(far, PAGE)), invalid);
    assert_eq!(touch(&rules, u64::MAX, 2), Some(Status::ILLEGAL_ADDRESS));
}

#[test]
fn memory_ends_with_the_device() {
    let mut rules = rules(4);
    create(&mut rules, 1, 3);
    let asked = HandleProperties::default();
    let full = Some(Status::OUT_OF_MEMORY);
    assert_eq!(status(rules.check_create(2 * PAGE, asked)), full);
    assert_eq!(status(rules.check_allocate(PAGE + 1)), full);
    rules.check_allocate(PAGE).unwrap();
    rules.add_allocation(PAGE, PAGE);
    assert_eq!(rules.memory_info().free, 0);
    rules.check_free(PAGE).unwrap();
    rules.remove_allocation(PAGE);
    rules.release_handle(HandleId(1)).unwrap();
    assert_eq!(rules.memory_info().free, 4 * PAGE);
}

#[test]
fn what_the_device_cannot_do_is_not_supported() {
    let rules = rules(4);
    let refuse = |properties| status(rules.check_create(PAGE, properties));
    let plain = HandleProperties::default();
    let unsupported = Some(Status::NOT_SUPPORTED);
    assert_eq!(
        refuse(HandleProperties {
            rdma: true,
            ..plain
        }),
        unsupported
    );
    let share = Some(ShareKind::Fabric);
    assert_eq!(refuse(HandleProperties { share, ..plain }), unsupported);
    let location = Location::HostNuma(0);
    assert_eq!(refuse(HandleProperties { location, ..plain }), unsupported);
    let share = Some(ShareKind::PosixFd);
    assert_eq!(refuse(HandleProperties { share, ..plain }), None);
}

#[test]
fn rule_2_a_handle_is_mapped_whole() {
    let mut rules = rules(8);
    create(&mut rules, 1, 2);
    let part = rules.check_map(BASE, PAGE, HandleId(1));
    assert_eq!(status(part), Some(Status::NOT_SUPPORTED));
    let beyond = rules.check_map(BASE, 3 * PAGE, HandleId(1));
    assert_eq!(status(beyond), Some(Status::NOT_SUPPORTED));
    let unknown = rules.check_map(BASE, PAGE, HandleId(9));
    assert_eq!(status(unknown), Some(Status::INVALID_VALUE));
    map(&mut rules, 0, 2, 1);
}

#[test]
fn rule_3_a_mapping_lies_in_one_reservation_and_over_no_other() {
    let mut rules = rules(16);
    // A second reservation that touches the first does not make one of the two.
    rules.add_reservation(BASE + 16 * PAGE, 4 * PAGE);
    create(&mut rules, 1, 2);
    let invalid = Some(Status::INVALID_VALUE);
    for page in [15, 19, 20] {
        let at = BASE + page * PAGE;
        assert_eq!(status(rules.check_map(at, 2 * PAGE, HandleId(1))), invalid);
    }
    assert_eq!(
        status(rules.check_map(BASE - PAGE, 2 * PAGE, HandleId(1))),
        invalid
    );
    map(&mut rules, 4, 2, 1);
    for page in [3, 4, 5] {
        let at = BASE + page * PAGE;
        assert_eq!(status(rules.check_map(at, 2 * PAGE, HandleId(1))), invalid);
    }
    create(&mut rules, 2, 4);
    assert_eq!(
        status(rules.check_map(BASE + 3 * PAGE, 4 * PAGE, HandleId(2))),
        invalid
    );
    map(&mut rules, 2, 2, 1);
    map(&mut rules, 6, 2, 1);
}

#[test]
fn rule_4_access_is_needed_before_use_and_again_after_a_new_mapping() {
    let mut rules = rules(8);
    let illegal = Some(Status::ILLEGAL_ADDRESS);
    create(&mut rules, 1, 1);
    create(&mut rules, 2, 1);
    assert_eq!(touch(&rules, BASE, 1), illegal);
    map(&mut rules, 0, 1, 1);
    assert_eq!(touch(&rules, BASE, 1), illegal);
    allow(&mut rules, 0, 1);
    assert_eq!(touch(&rules, BASE, PAGE), None);
    assert_eq!(touch(&rules, BASE, PAGE + 1), illegal);
    unmap(&mut rules, 0, 1);
    map(&mut rules, 0, 1, 2);
    assert_eq!(touch(&rules, BASE, 1), illegal);

    // Reading needs less than writing.
    rules.grant_access(BASE, PAGE, Protection::Read);
    assert_eq!(touch(&rules, BASE, 1), illegal);
    let read = rules.translate(Call::Verify, BASE, PAGE, Protection::Read);
    assert!(read.is_ok());
}

#[test]
fn rule_4_access_covers_whole_mappings_without_holes() {
    let mut rules = rules(8);
    create(&mut rules, 1, 2);
    create(&mut rules, 2, 1);
    map(&mut rules, 0, 2, 1);
    map(&mut rules, 2, 1, 2);
    map(&mut rules, 4, 1, 2);
    let invalid = Some(Status::INVALID_VALUE);
    for (page, pages) in [(0, 1), (1, 1), (1, 2), (0, 4), (0, 5), (3, 1), (3, 2)] {
        let range = (BASE + page * PAGE, pages * PAGE);
        assert_eq!(
            status(rules.check_set_access(range.0, range.1, &[own_grant()])),
            invalid,
            "{pages} pages at page {page}"
        );
        assert_eq!(status(rules.check_unmap(range.0, range.1)), invalid);
    }
    allow(&mut rules, 0, 3);
    assert_eq!(touch(&rules, BASE, 3 * PAGE), None);
    assert_eq!(touch(&rules, BASE, 5 * PAGE), Some(Status::ILLEGAL_ADDRESS));
}

#[test]
fn rule_4_only_known_accessors_get_access() {
    let mut rules = rules(8);
    create(&mut rules, 1, 1);
    map(&mut rules, 0, 1, 1);
    let grant = |accessor| {
        let protection = Protection::ReadWrite;
        status(rules.check_set_access(
            BASE,
            PAGE,
            &[AccessGrant {
                accessor,
                protection,
            }],
        ))
    };
    assert_eq!(grant(Accessor::Device(1)), Some(Status::INVALID_DEVICE));
    assert_eq!(grant(Accessor::HostNuma(0)), Some(Status::NOT_SUPPORTED));
    let nobody = status(rules.check_set_access(BASE, PAGE, &[]));
    assert_eq!(nobody, Some(Status::INVALID_VALUE));
}

#[test]
fn rule_5_unmapping_takes_whole_adjacent_mappings() {
    let mut rules = rules(8);
    for handle in 1..=3 {
        create(&mut rules, handle, handle);
    }
    map(&mut rules, 0, 1, 1);
    map(&mut rules, 1, 2, 2);
    map(&mut rules, 3, 3, 3);
    let removed = unmap(&mut rules, 1, 5);
    let places: Vec<_> = removed.iter().map(|r| (r.address, r.size)).collect();
    assert_eq!(
        places,
        [(BASE + PAGE, 2 * PAGE), (BASE + 3 * PAGE, 3 * PAGE)]
    );
    let again = rules.check_unmap(BASE + PAGE, 5 * PAGE);
    assert_eq!(status(again), Some(Status::INVALID_VALUE));
    rules.check_unmap(BASE, PAGE).unwrap();
}

#[test]
fn rule_6_a_handle_stands_under_several_addresses() {
    let mut rules = rules(1);
    create(&mut rules, 1, 1);
    map(&mut rules, 0, 1, 1);
    map(&mut rules, 5, 1, 1);
    let first = Granted {
        first: 1,
        further: 0,
    };
    let further = Granted {
        first: 0,
        further: 1,
    };
    assert_eq!(allow(&mut rules, 0, 1), first);
    assert_eq!(allow(&mut rules, 5, 1), further);
    // The memory counts once, and both addresses lead to it.
    assert_eq!(rules.memory_info().free, 0);
    for page in [0, 5] {
        let at = BASE + page * PAGE + 7;
        let pieces = rules.translate(Call::Fill, at, 9, Protection::ReadWrite);
        let piece = Piece {
            base: BASE + page * PAGE,
            backing: Backing::Memory(MemoryId(1)),
            offset: 7,
            size: 9,
        };
        assert_eq!(pieces.unwrap().as_slice(), [piece]);
    }
    assert!(unmap(&mut rules, 0, 1)[0].one_of_several);
    assert!(!unmap(&mut rules, 5, 1)[0].one_of_several);
}

#[test]
fn rule_7_released_memory_lives_while_it_is_mapped() {
    let mut rules = rules(2);
    create(&mut rules, 1, 2);
    map(&mut rules, 0, 2, 1);
    map(&mut rules, 2, 2, 1);
    allow(&mut rules, 0, 4);
    assert_eq!(rules.release_handle(HandleId(1)), Ok(None));
    assert_eq!(touch(&rules, BASE, 4 * PAGE), None);
    // The handle itself is no longer one.
    let invalid = Some(Status::INVALID_VALUE);
    assert_eq!(status(rules.release_handle(HandleId(1))), invalid);
    let map_again = rules.check_map(BASE + 4 * PAGE, 2 * PAGE, HandleId(1));
    assert_eq!(status(map_again), invalid);

    assert_eq!(unmap(&mut rules, 2, 2)[0].gone, None);
    assert_eq!(rules.memory_info().free, 0);
    let gone = Gone {
        memory: MemoryId(1),
        size: 2 * PAGE,
    };
    assert_eq!(unmap(&mut rules, 0, 2)[0].gone, Some(gone));
    assert_eq!(rules.memory_info().free, 2 * PAGE);
}

#[test]
fn rule_7_imports_keep_memory_too() {
    let mut rules = rules(4);
    let shared = HandleProperties {
        share: Some(ShareKind::PosixFd),
        ..HandleProperties::default()
    };
    rules.add_handle(HandleId(1), PAGE, shared);
    create(&mut rules, 2, 1);
    let unshared = rules.check_export(HandleId(2), ShareKind::PosixFd);
    assert_eq!(status(unshared), Some(Status::NOT_SUPPORTED));
    let memory = rules.check_export(HandleId(1), ShareKind::PosixFd).unwrap();

    // Back into the same device: the same memory under a second handle.
    rules.add_import(HandleId(3), Some(memory), PAGE, shared);
    assert_eq!(rules.memory_info().free, 2 * PAGE);
    assert_eq!(rules.release_handle(HandleId(1)), Ok(None));
    let gone = Gone { memory, size: PAGE };
    assert_eq!(rules.release_handle(HandleId(3)), Ok(Some(gone)));

    // From elsewhere: memory of its own.
    rules.add_import(HandleId(4), None, PAGE, shared);
    assert_eq!(rules.memory_info().free, 2 * PAGE);
    assert!(rules.release_handle(HandleId(4)).unwrap().is_some());
}

#[test]
fn rule_8_a_reservation_is_freed_as_it_was_made_and_empty() {
    let mut rules = rules(4);
    let invalid = Some(Status::INVALID_VALUE);
    create(&mut rules, 1, 1);
    map(&mut rules, 15, 1, 1);
    assert_eq!(
        status(rules.check_free_reservation(BASE, 16 * PAGE)),
        invalid
    );
    unmap(&mut rules, 15, 1);
    for (base, size) in [
        (BASE, 8 * PAGE),
        (BASE, 17 * PAGE),
        (BASE + PAGE, 15 * PAGE),
        (0, 16 * PAGE),
    ] {
        assert_eq!(status(rules.check_free_reservation(base, size)), invalid);
    }
    rules.check_free_reservation(BASE, 16 * PAGE).unwrap();
    rules.remove_reservation(BASE);
    assert_eq!(
        status(rules.check_free_reservation(BASE, 16 * PAGE)),
        invalid
    );
    assert_eq!(status(rules.check_map(BASE, PAGE, HandleId(1))), invalid);
}

#[test]
fn a_range_is_the_pieces_of_what_lies_under_it() {
    let mut rules = rules(8);
    create(&mut rules, 1, 1);
    create(&mut rules, 2, 2);
    map(&mut rules, 0, 2, 2);
    map(&mut rules, 2, 1, 1);
    allow(&mut rules, 0, 3);
    let pieces = rules
        .translate(Call::Fill, BASE + 5, 3 * PAGE - 6, Protection::ReadWrite)
        .unwrap();
    let shape: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.backing, piece.offset, piece.size))
        .collect();
    assert_eq!(
        shape,
        [
            (Backing::Memory(MemoryId(2)), 5, 2 * PAGE - 5),
            (Backing::Memory(MemoryId(1)), 0, PAGE - 1),
        ]
    );
    for nowhere in [0, BASE + 5, BASE + 3 * PAGE, u64::MAX] {
        assert_eq!(touch(&rules, nowhere, 0), None);
    }
    rules.add_allocation(4096, 100);
    let read = rules.translate(Call::Fill, 4100, 96, Protection::ReadWrite);
    assert_eq!(read.unwrap()[0].backing, Backing::Allocation);
    assert_eq!(touch(&rules, 4100, 97), Some(Status::ILLEGAL_ADDRESS));
    assert_eq!(status(rules.check_free(4100)), Some(Status::INVALID_VALUE));
}
