//! The suite over the device contract: rules 1 to 11 of [`millpond::device`], and what its methods
//! promise besides.

mod faults;
mod mapping;
mod memory;
mod sharing;
mod streams;
mod work;

use std::fmt::Debug;

use millpond::device::{DeviceError, Pattern, Status};

use super::{Case, Process, case};

const MIB: u64 = 1 << 20;
const PATTERN: Pattern = Pattern(0x8877_6655_4433_2211);
const OTHER: Pattern = Pattern(0x0123_4567_89ab_cdef);

/// The cases.
pub fn all() -> &'static [Case] {
    &CASES
}

static CASES: [Case; 48] = [
    case!(
        mapping::sizes_and_places_are_multiples_of_the_granularity,
        "rule 1 (DRV cuMemCreate, cuMemMap)"
    ),
    case!(
        mapping::a_handle_is_mapped_whole,
        "rule 2 (DRV cuMemMap; MEASURED 801)"
    ),
    case!(
        mapping::a_mapping_lies_inside_one_reservation,
        "rule 3 (DRV cuMemMap)"
    ),
    case!(
        mapping::a_mapping_lies_over_no_other,
        "rule 3 (DRV cuMemMap)"
    ),
    case!(
        mapping::access_covers_whole_mappings_without_holes,
        "rule 4 (DRV cuMemSetAccess)"
    ),
    case!(
        mapping::unmapping_takes_whole_mappings,
        "rule 5 (DRV cuMemUnmap; MEASURED 1)"
    ),
    case!(mapping::unmapping_does_not_wait, "rule 5 (MEASURED)"),
    case!(
        mapping::addresses_of_one_handle_are_one_memory,
        "rule 6 (GUIDE, virtual aliasing)"
    ),
    case!(
        mapping::one_handle_stands_twice_in_one_reservation,
        "rule 6 (GUIDE, virtual aliasing)"
    ),
    case!(
        mapping::many_addresses_of_one_handle_come_and_go,
        "rule 6 (MEASURED)"
    ),
    case!(
        mapping::a_released_handle_lives_on_while_mapped,
        "rule 7 (DRV cuMemRelease)"
    ),
    case!(
        mapping::a_reservation_is_freed_as_it_was_made,
        "rule 8 (DRV cuMemAddressFree)"
    ),
    case!(
        mapping::reservations_are_aligned_as_asked,
        "Device::reserve (DRV cuMemAddressReserve)"
    ),
    case!(
        mapping::a_stitched_range_is_one_range,
        "rule 4 (DRV cuMemSetAccess), rule 6"
    ),
    case!(
        mapping::bytes_follow_their_handles,
        "rule 6 (GUIDE, virtual aliasing)"
    ),
    case!(
        mapping::without_mapping_each_call_says_so,
        "Capabilities::mapping (DRV: not supported, 801)"
    ),
    case!(
        faults::access_is_needed,
        "rules 4 and 10 (DRV cuMemMap, cuEventQuery)"
    )
    .process(Process::OwnOnCuda),
    case!(
        faults::access_is_needed_again_after_a_new_mapping,
        "rule 4 (DRV cuMemUnmap)"
    )
    .process(Process::OwnOnCuda),
    case!(
        faults::what_may_only_be_read_is_not_written,
        "rule 4 (DRV CUmemAccess_flags)"
    )
    .process(Process::OwnOnCuda),
    case!(
        faults::a_fault_loses_the_device,
        "rule 4 (DRV CUDA_ERROR_ILLEGAL_ADDRESS)"
    )
    .process(Process::OwnOnCuda),
    case!(
        memory::more_than_there_is_is_out_of_memory_and_harms_nothing,
        "Device::create (DRV out of memory, 2)"
    ),
    case!(
        memory::memory_counts_while_a_handle_or_mapping_lives,
        "rule 7 (DRV cuMemGetInfo)"
    ),
    case!(
        memory::plain_allocations_are_aligned_and_freed_once,
        "Device::allocate (DRV cuMemAlloc, cuMemFree)"
    ),
    case!(
        memory::plain_allocations_hold_their_bytes,
        "Device::allocate (DRV cuMemAlloc)"
    ),
    case!(
        memory::capabilities_are_plausible,
        "Capabilities (DRV cuDeviceGetAttribute)"
    ),
    case!(
        work::every_alignment_and_length_is_filled_and_verified,
        "Device::fill, Device::verify"
    ),
    case!(
        work::large_ranges_are_covered_to_the_last_byte,
        "Device::fill, Device::verify"
    ),
    case!(
        work::copies_move_bytes_across_handles,
        "Device::copy (DRV cuMemcpyDtoDAsync)"
    ),
    case!(
        work::many_verifications_report_each_their_own,
        "Device::verify"
    ),
    case!(
        work::ranges_beyond_the_address_space_are_invalid,
        "Device::fill, Device::verify"
    ),
    case!(work::no_bytes_are_no_access, "Device::fill, Device::verify"),
    case!(streams::a_stream_runs_in_order, "rule 9 (GUIDE, streams)"),
    case!(
        streams::an_event_stands_for_the_work_before_its_last_record,
        "rule 9 (DRV cuEventQuery, cuEventRecord)"
    ),
    case!(
        streams::a_wait_orders_two_streams,
        "rule 9 (DRV cuStreamWaitEvent)"
    ),
    case!(
        streams::a_wait_binds_to_the_record_made_last_before_it,
        "rule 9 (DRV cuStreamWaitEvent)"
    ),
    case!(
        streams::a_wait_for_an_event_never_recorded_is_none,
        "rule 9 (DRV cuStreamWaitEvent)"
    ),
    case!(
        streams::waits_carry_through_streams_without_work,
        "rule 9 (DRV cuEventRecord)"
    ),
    case!(
        streams::destroying_does_not_wait,
        "rule 11 (DRV cuStreamDestroy, cuEventDestroy)"
    ),
    case!(
        streams::the_legacy_stream_is_ordered_with_those_that_are_with_it,
        "StreamOrder (DRV stream synchronization behavior)"
    ),
    case!(
        streams::the_legacy_stream_comes_after_destroyed_streams_too,
        "StreamOrder, rule 11"
    ),
    case!(
        streams::per_thread_streams_are_one_a_thread,
        "StreamId::PER_THREAD (DRV stream synchronization behavior)"
    ),
    case!(
        streams::identities_tell_streams_apart_for_ever,
        "Device::stream_identity (DRV cuStreamGetId)"
    ),
    case!(streams::any_thread_may_call, "the contract's last sentence"),
    case!(
        streams::a_host_function_comes_after_earlier_and_before_later_work,
        "Device::host_function (DRV cuLaunchHostFunc)"
    ),
    case!(
        streams::synchronizing_waits_for_every_stream,
        "Device::synchronize (DRV cuCtxSynchronize)"
    ),
    case!(
        sharing::only_memory_made_for_it_is_exported,
        "Device::export (DRV cuMemExportToShareableHandle)"
    ),
    case!(
        sharing::an_import_is_the_same_memory,
        "Device::import, rule 7 (DRV cuMemRelease)"
    ),
    case!(
        sharing::another_process_sees_and_changes_the_same_bytes,
        "Device::import (DRV cuMemImportFromShareableHandle)"
    )
    .partner(sharing::partner),
];

/// The driver's code of a call that was to fail.
#[track_caller]
fn refused<T: Debug>(result: Result<T, DeviceError>) -> Status {
    match result {
        Ok(value) => panic!("the call was to fail, and gave {value:?}"),
        Err(error) => error.status,
    }
}
