//! Planted defects: each is found within a few thousand seeds, and as what it is.

use outlast_sim::{Bug, many};

/// Plays at most `budget` seeds from `first` on. `first` stands shortly before a seed that was enough when it was written
/// down, so that a rare defect takes seconds; when the worlds have changed, it is found later in the budget.
fn finds(bug: Bug, first: u64, budget: u64, what: &str) {
    let found = many::find(bug, first..first + budget);
    let (seed, found) = found.unwrap_or_else(|| panic!("{budget} seeds, and nobody noticed {bug:?}"));
    println!("{bug:?}: seed {seed}: {found}");
    assert!(found.contains(what), "{bug:?} was found as: {found}");
}

macro_rules! planted {
    ($(fn $name:ident: $bug:ident $(from $first:literal)? within $budget:literal, $what:literal;)*) => {
        $(#[test]
        fn $name() {
            finds(Bug::$bug, [$($first,)? 0][0], $budget, $what);
        })*
    };
}

planted! {
    fn an_end_shown_before_it_is_durable_is_found: ShownBeforeDurable within 400, "2: the end of entry";
    fn a_call_sent_again_before_that_is_durable_is_found: TriedBeforeDurable within 400, "1: entry";
    fn a_replay_across_scopes_is_found: ScopeIgnored within 400, "4: entry";
    fn an_admission_decided_outside_its_transaction_is_found: StaleAdmission within 400, "its entries add up to";
    fn an_answer_that_a_client_keeps_after_it_left_is_found: LeftUnnoticed within 400, "4: entry";
    fn a_taker_that_no_other_server_is_told_of_is_found: TakerUntold within 400, "got one answer";
    fn an_answer_lost_by_a_server_that_goes_on_as_another_instance_is_found: Disinherited within 5000, "got one answer";
    fn an_answer_given_back_that_no_other_server_is_told_of_is_found: GiveBackUntold within 400, "4: entry";
    fn a_delivery_mark_that_is_forgotten_is_found: MarkForgotten within 400, "4: entry";
    fn a_request_decided_before_the_mark_of_its_twin_is_found: MarkIgnored within 400, "4: entry";
    fn a_void_that_is_tried_once_is_found: VoidTriedOnce within 400, "nobody carries it";
    fn an_upstream_asked_faster_than_its_rate_is_found: RateForgotten within 400, "its upstream takes";
    fn a_group_half_applied_is_found: GroupHalfApplied within 400, "a part of it is there";
    fn a_commit_told_as_synced_that_is_not_is_found: UnsyncedTold within 400, "1: ";
    fn a_swap_that_looks_at_no_version_is_found: SwapIgnored within 400, "a swap of";
    fn a_try_counted_twice_is_found: TryCountedTwice within 400, "went from try";
    fn a_step_that_happens_more_than_once_is_found: OnceForgotten within 400, "ran again unasked";
    fn silence_counted_through_the_observers_own_outage_is_found: SilenceThroughOutage within 400, "6: process";
    fn a_clock_jump_that_sticks_is_found: ClockJumpSticks within 400, "is charged to";
    fn a_budget_that_forgets_its_windows_is_found: WindowsForgotten within 5000, "is charged to";
    fn doubt_shown_too_small_is_found: DoubtTooSmall within 400, "5: the provider billed";
    fn a_reservation_given_back_twice_is_found: RefundTwice within 400, "its entries add up to";
    fn an_opening_answered_ahead_and_lost_is_found: AheadLost within 400, "without a fault";
    fn a_number_given_out_again_is_found: NumberReused from 100 within 2000, "and its result is";
    fn a_queue_that_stays_busy_is_found: QueueBusy within 400, "6: process";
    fn tokens_billed_beyond_a_hold_and_told_nowhere_are_found: TokensBeyondUntold within 5000, "tokens spent and reserved";
    fn a_waiter_that_nobody_wakes_is_found: WakeLost from 2_130 within 5000, "was not woken";
    fn an_abandoned_instance_that_stays_is_found: FarewellForgotten within 5000, "9: ";
    fn a_tool_in_doubt_that_is_sent_again_is_found: ToolSentAgain within 400, "and its program has it";
    fn a_tool_that_leaves_without_its_mark_is_found: ToolUnmarked within 400, "on disk does not say so";
    fn a_tools_answer_that_is_not_given_again_is_found: ToolIdOfTheLife within 400, "was made";
    fn a_tools_key_that_changes_is_found: ToolKeyOfTheLife within 400, "had the key";
    fn a_run_forgotten_with_a_call_in_flight_is_found: ForgottenInFlight within 400, "its entries add up to";
    fn a_result_without_one_of_its_parts_is_found: PartMissing within 2000, "cannot be read";
    fn a_plan_written_over_what_another_server_wrote_is_found: PlanWrittenBlind within 400, "P4: a call of run";
    fn a_plan_that_forgets_the_calls_under_way_is_found: PlanCallsForgotten within 400, "P1: the window";
    fn a_calls_end_that_is_noted_once_is_found: EndUnnoted within 400, "P4: a call of run";
    fn a_calls_end_without_its_head_is_found: EndWithoutItsHead from 220 within 2000, "P5: a call of run";
    fn a_dead_servers_call_that_stays_in_flight_is_found: DeadNotBuried within 400, "P4: a call of run";
    fn a_hold_that_looks_at_nothing_is_found: HoldBlind within 400, "after what it waits for has moved";
    fn a_share_taken_over_the_heads_of_others_is_found: SharesOfOthersIgnored within 400, "S1: the provider has";
    fn a_share_given_up_before_it_is_true_is_found: ShareLoweredEarly within 400, "S1: the provider has";
    fn a_dead_servers_share_that_is_free_at_once_is_found: DeadShareFreed within 400, "S1: the provider has";
    fn a_ping_taken_for_a_part_of_an_answer_is_found: PingsCount within 400, "never came to rest";
    fn a_probe_that_keeps_its_place_is_found: ProbeKept within 5000, "waits for a probe that hangs";
    fn a_request_that_is_held_again_is_found: HeldAgain within 400, "is held for ever";
}
