//! The suite over the pool: RMM's generic suite, the field's own corruption cases, and the
//! surroundings. Every case runs behind the checker, and every block is filled and verified.

mod bench;
mod generic;
mod graphs;
mod growth;
mod leak;
mod order;
mod pools;
mod streams;

use super::{Case, Process, case};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The cases.
pub fn all() -> &'static [Case] {
    &CASES
}

static CASES: [Case; 57] = [
    case!(generic::live_blocks_differ, "RMM generic suite 1 (rmm#861)"),
    case!(
        generic::sizes_from_nothing_to_a_gibibyte,
        "RMM generic suite 2"
    ),
    case!(
        generic::too_much_is_an_error_that_explains_itself,
        "RMM generic suite 2"
    ),
    case!(generic::random_allocations, "RMM generic suite 3"),
    case!(generic::mixed_random_allocations, "RMM generic suite 4"),
    case!(generic::threads_on_the_legacy_stream, "RMM generic suite 5"),
    case!(generic::threads_on_one_shared_stream, "RMM generic suite 5"),
    case!(
        generic::threads_on_their_own_default_streams,
        "RMM generic suite 5"
    ),
    case!(
        generic::threads_on_streams_of_their_own,
        "RMM generic suite 5"
    ),
    case!(
        generic::freed_by_another_thread_on_the_legacy_stream,
        "RMM generic suite 6"
    ),
    case!(
        generic::freed_by_another_thread_on_default_streams,
        "RMM generic suite 6"
    ),
    case!(
        generic::freed_by_another_thread_on_the_same_stream,
        "RMM generic suite 6"
    ),
    case!(
        generic::freed_by_another_thread_on_another_stream,
        "RMM generic suite 6"
    ),
    case!(
        generic::clones_are_one_pool_and_pools_are_separate,
        "RMM generic suite 7, pool suite"
    ),
    case!(generic::alignments_are_kept, "rule 2 of the design"),
    case!(
        generic::wrong_frees_are_errors_and_change_nothing,
        "RMM tracking suite"
    ),
    case!(
        growth::a_limit_is_kept_and_can_be_changed,
        "RMM pool suite: forced growth"
    ),
    case!(growth::free_pieces_make_one_block, "rmm#1957, #1664, #496"),
    case!(
        growth::out_of_memory_is_recovered_from,
        "rule 5 of the design"
    ),
    case!(
        growth::a_pool_as_large_as_asked_holds_it_all,
        "RMM pool suite: two allocations of half a pool"
    ),
    case!(
        growth::trim_gives_memory_back,
        "cuda-samples streamOrderedAllocation, threshold 0"
    ),
    case!(
        growth::rounds_do_not_grow,
        "cuda-samples streamOrderedAllocation, part b"
    ),
    case!(growth::the_books_agree, "Statistics"),
    case!(
        growth::dropping_gives_everything_back,
        "rule 5 of the design"
    ),
    case!(order::three_streams_merging, "rmm#2489"),
    case!(order::three_streams_merging_halves, "rmm#2489"),
    case!(
        order::two_streams_reuse_while_work_runs,
        "rule 3 of the design"
    ),
    case!(
        order::freed_and_reused_under_running_work,
        "rule 3 of the design"
    ),
    case!(
        order::another_stream_does_not_get_memory_in_use,
        "rule 3 of the design"
    ),
    case!(
        order::a_block_used_on_two_streams_waits_for_both,
        "rule 3 of the design"
    ),
    case!(
        order::the_callers_own_order_is_enough,
        "rule 3 of the design"
    ),
    case!(
        order::a_use_is_not_waited_for_beyond_its_end,
        "Block::use_ends_at"
    ),
    case!(
        order::a_stream_that_must_not_wait_does_not,
        "Pool::never_wait"
    ),
    case!(
        streams::default_streams_of_threads_are_many,
        "StreamId::PER_THREAD"
    ),
    case!(streams::the_legacy_stream_has_two_names, "StreamId::LEGACY"),
    case!(
        streams::the_legacy_streams_order_is_no_licence,
        "DRV stream synchronization behavior"
    ),
    case!(
        streams::memory_of_a_destroyed_stream_serves_again,
        "RMM pool suite: deleted stream"
    ),
    case!(
        streams::a_handle_value_that_comes_again_is_another_stream,
        "DRV cuStreamGetId"
    ),
    case!(
        streams::streams_of_others_are_served,
        "StreamId: any stream of the program"
    ),
    case!(graphs::memory_of_a_graph_stays_where_it_is, "GraphMemory"),
    case!(graphs::captures_leave_nothing_behind, "GraphMemory"),
    case!(
        pools::dropping_waits_for_nothing_and_takes_nothing_from_work,
        "rule 4 of the design; DRV cuMemPoolDestroy"
    ),
    case!(
        pools::a_destroyed_pool_serves_its_blocks_and_no_requests,
        "DRV cuMemPoolDestroy"
    ),
    case!(
        pools::a_default_pool_cannot_be_destroyed,
        "DRV cuMemPoolDestroy"
    ),
    case!(
        pools::the_next_call_of_another_pool_reaps,
        "Pool::destroy: who reaps"
    ),
    case!(
        pools::a_thread_reaps_where_one_is_wanted,
        "Reaper: who reaps"
    ),
    case!(
        pools::default_and_current_pools,
        "GUIDE 4.3, memory pools; RMM generic suite 7"
    ),
    case!(
        pools::addresses_lead_to_their_blocks,
        "GUIDE 4.3.5, cudaPointerGetAttributes"
    ),
    case!(
        pools::after_a_free_an_address_is_nobodys,
        "GUIDE 4.3.2, cudaFreeAsync"
    ),
    case!(
        pools::attributes_round_trip_and_refuse,
        "CCCL memory pool suite"
    ),
    case!(pools::trims_account_for_the_rest, "CCCL trim suite"),
    case!(
        pools::the_threshold_gives_memory_back_at_synchronisations,
        "GUIDE 4.3.4, physical page caching; streamOrderedAllocation part b"
    ),
    case!(
        pools::a_synchronisation_is_told_to_all_pools,
        "GUIDE 4.3.4.5, synchronization API actions"
    ),
    case!(
        pools::pools_under_one_budget_share_it,
        "Budget: tenants and models"
    ),
    case!(
        pools::a_largest_size_is_kept_and_the_result_untouched,
        "CCCL memory pool suite: max 1 MiB"
    ),
    case!(
        pools::exportable_pools_give_memory_back,
        "GUIDE 4.3.3.4: the driver's never do"
    ),
    case!(leak::a_thousand_pools_leave_nothing, "rule 5 of the design").process(Process::Own),
];
