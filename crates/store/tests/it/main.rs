//! What a store does, told once and played on every store.
//!
//! A story is a function over a `Stage`; each noun has its file. `stories!` plays all of them on a
//! bed; `timed_stories!` those that move time, on beds whose clock is injected. A story that no
//! list names is dead code, and the compiler says so.
#![allow(clippy::unwrap_used)]

mod agent;
mod bed;
mod beds;
mod child;
mod own_server;
mod private_postgres;
mod relay;
mod stage;

mod ahead;
mod damaged;
mod encrypted;
mod full_disk;
mod hints;
mod killed;
mod log_damage;
mod log_mark;
mod lost_commits;
mod migration;
mod panics;
mod postgres_database;
mod processes;
mod round_trips;
mod shared;
mod sqlite_file;
mod sqlite_log;
mod vanished;

mod approvals;
mod budgets;
mod calls;
mod checkpoints;
mod concurrency;
mod doubt;
mod events;
mod forget;
mod forks;
mod history;
mod items;
mod jobs;
mod leases;
mod limits;
mod loops;
mod parents;
mod pinned_schema;
mod reads;
mod replay;
mod retention;
mod retries;
mod runs;
mod sleep;
mod state;
mod steps;
mod sweeps;
mod tokens;
mod tool_calls;
mod tools;
mod turns;
mod within;

/// One test for each story, grouped by noun.
macro_rules! tests {
    ($bed:expr; $($noun:ident: $($story:ident),+ $(,)?;)+) => {
        $(mod $noun {
            $(#[test]
            fn $story() {
                crate::stage::Stage::play($bed, crate::$noun::$story);
            })+
        })+
    };
}

/// Plays every story that leaves time alone.
macro_rules! stories {
    ($bed:expr) => {
        tests! { $bed;
            runs:
                a_run_is_created_once_and_keeps_its_first_limits,
                a_run_with_a_negative_limit_or_an_unknown_parent_is_not_created,
                a_created_run_is_interrupted_until_an_attempt_begins,
                an_ended_attempt_leaves_its_run_as_its_driver_says,
                ending_an_attempt_twice_changes_nothing,
                a_completed_run_takes_no_new_attempt_and_a_failed_one_does,
                a_halted_run_keeps_its_first_reason_and_takes_no_attempt,
                raising_the_tripped_limit_lets_the_run_go_on,
                raising_after_the_attempt_ended_leaves_the_run_interrupted,
                raising_another_limit_leaves_the_run_halted,
                a_limit_can_be_set_and_lifted,
                a_bad_raise_changes_no_limit,
                a_cancelled_run_takes_no_calls_and_says_why,
                cancelling_a_halted_run_leaves_it_halted,
                completing_a_halted_run_clears_its_reason,
                a_run_without_a_driver_is_stopped_at_once,
                a_driven_run_is_asked_to_stop_and_its_driver_hears_it,
                a_run_remembers_that_a_person_stopped_it,
                a_stop_by_a_person_is_heard_by_the_other_workers,
                a_stop_asked_for_before_its_drivers_death_is_remembered,
                a_stop_asked_for_before_a_restart_is_heard_after_it,
                a_stop_asked_for_between_two_attempts_is_heard,
                a_person_completes_a_run,
            ;
            leases:
                a_live_lease_is_held_against_another_process,
                a_lease_is_held_between_two_attempts,
                a_header_caller_stays_out_between_two_attempts,
                a_run_at_rest_can_be_taken_up_by_another_process,
                a_run_of_a_dead_process_can_be_claimed_under_a_higher_fence,
                a_process_that_left_holds_nothing,
                a_new_attempt_ends_the_one_before_it_in_its_slot,
                slots_are_held_one_by_one,
                a_stale_attempt_opens_nothing,
                a_dead_process_opens_nothing,
                a_stale_attempt_closes_what_it_opened,
                only_its_own_process_closes_a_call,
                only_its_own_process_ends_an_attempt,
                another_process_may_adopt_an_attempt,
                one_living_process_at_a_time_adopts_an_attempt,
                an_attempt_that_is_over_or_has_no_driver_is_not_adopted,
                a_label_names_one_attempt_for_ever,
                a_label_is_unique_over_claims_and_header_callers,
                header_callers_without_a_label_share_one_attempt,
                a_claim_ends_the_attempt_of_header_callers,
                a_run_is_interrupted_when_its_last_attempt_is_gone,
                an_interrupted_run_takes_no_calls_of_a_live_attempt,
                a_claim_says_how_many_answers_wait_for_it,
            ;
            calls:
                a_call_reserves_its_bound_before_it_leaves,
                a_settled_call_is_charged_what_it_cost,
                each_close_charges_its_own_way,
                a_call_without_usage_is_marked_estimated,
                an_overrun_is_recorded_in_full_and_shown,
                a_settled_call_is_settled_once,
                an_entry_that_is_not_there_cannot_be_settled,
                only_a_call_can_be_settled,
                a_call_keeps_what_people_ask_for,
                an_answer_and_its_request_are_kept_as_they_were,
                a_failed_answer_is_not_kept,
                a_model_without_a_price_is_refused_under_a_dollar_limit_only,
                what_was_admitted_survives_the_process,
            ;
            retries:
                a_call_holds_its_reservation_between_its_tries_and_is_charged_once,
                a_call_that_is_given_up_tells_its_earlier_tries,
                a_death_between_two_tries_leaves_nothing_in_doubt,
                a_death_behind_a_try_that_left_leaves_it_unknown,
                a_retry_of_a_lost_call_that_dies_between_its_tries_gives_back_what_it_took,
                a_call_in_a_step_that_dies_between_its_tries_charges_the_step_nothing,
                no_try_leaves_in_a_run_that_is_over,
                only_its_own_process_tries_a_call_again,
            ;
            replay:
                a_paid_answer_is_replayed_to_a_restarted_agent_at_no_cost,
                an_answer_that_never_reached_its_client_is_replayed_to_the_same_attempt,
                a_delivered_answer_is_taken,
                five_identical_parallel_requests_are_five_calls_before_and_after_a_restart,
                a_repeated_request_after_a_disconnect_is_one_call,
                a_call_in_flight_is_joined_by_the_next_attempt,
                a_call_in_flight_under_another_process_is_joined,
                answers_of_a_live_sibling_are_not_replayed,
                nothing_is_replayed_across_scopes,
                nothing_is_replayed_across_iterations,
                nothing_is_replayed_across_credentials_or_runs,
                what_failed_was_lost_or_never_left_is_not_replayed,
                a_marked_retry_of_a_failed_call_is_its_retry,
                a_marked_retry_stands_for_a_failure_once,
                a_marked_retry_of_an_unknown_call_is_its_retry,
                a_marked_retry_after_an_error_of_ours_takes_what_is_untaken,
                a_marked_retry_takes_the_lowest_answer_not_taken,
                a_marked_retry_gets_again_what_a_lower_count_was_given,
                the_same_idempotency_key_marks_a_retry,
                a_failure_under_another_key_is_not_retried_by_this_one,
                a_delivery_is_marked_for_the_attempt_that_got_it,
                a_late_mark_of_an_ended_attempt_gives_no_answer_back,
                replays_are_served_where_new_calls_are_refused,
                a_new_call_before_the_recorded_answers_are_taken_is_divergence_once,
                an_agent_that_asks_the_same_again_does_not_diverge,
                a_run_that_halts_on_divergence_is_halted_by_it,
                the_retry_of_a_lost_call_is_no_divergence,
                answers_of_other_scopes_are_not_counted_as_taken,
                a_delivery_mark_of_nothing_changes_nothing,
            ;
            doubt:
                a_lost_call_stays_charged_at_its_reservation,
                a_retry_that_fits_holds_its_own,
                a_retry_that_does_not_fit_inherits_and_posts_both_tries,
                a_lost_try_is_posted_at_the_headroom_when_its_retry_cost_more,
                a_retry_that_costs_nothing_gives_its_inheritance_back,
                a_retry_that_failed_at_a_cost_settles_the_lost_try,
                a_chain_inherits_twice_and_is_then_refused,
                a_chain_of_lost_tries_is_told_in_full,
                a_try_that_fits_does_not_reset_the_count_of_inheritances,
                an_inheriting_retry_is_clamped_to_what_it_inherits_and_what_is_free,
                a_smaller_retry_inherits_what_it_needs,
                a_late_failure_gives_back_only_what_it_still_holds,
                a_late_failure_behind_a_settled_retry_still_settles_the_first_try,
                doubt_is_kept_where_the_run_says_so,
                doubt_is_refunded_where_the_run_says_so,
                late_truth_replaces_the_estimate_once,
                late_truth_is_an_appended_correction,
                a_lost_call_cannot_be_lost_again,
                truth_that_comes_after_the_retry_settled_is_too_late,
                truth_whose_reservation_was_inherited_is_recorded_in_full,
                a_late_answer_is_replayed,
                a_late_answer_does_not_stand_before_the_one_that_was_delivered,
                each_lost_try_has_a_retry_of_its_own,
                a_marked_retry_repeats_the_lost_call_it_stands_for,
                a_lost_try_in_another_scope_has_no_retry_here,
                a_chain_inherits_in_its_ancestors_too,
                twenty_calls_of_budget_deliver_nine_answers_though_each_is_lost_once,
            ;
            limits:
                the_last_nano_dollar_and_the_last_token_can_be_used,
                a_call_whose_floor_does_not_fit_is_refused_and_halts_the_run,
                a_call_is_clamped_to_what_fits,
                a_call_of_a_job_is_never_clamped,
                a_small_request_is_never_clamped_below_its_own_cap,
                the_tightest_limit_decides_the_clamp,
                the_call_limit_counts_tries_and_not_what_never_left,
                the_loop_limit_counts_new_calls_of_a_run_without_loops,
                the_restart_limit_refuses_the_next_restart,
                a_call_waits_for_what_calls_in_flight_may_give_back,
                a_call_that_would_not_fit_after_them_does_not_wait,
                nobody_waits_for_what_is_in_doubt,
                a_call_is_clamped_beside_what_is_in_doubt,
                a_call_waits_rather_than_be_clamped_beside_a_live_one,
                a_call_waits_in_the_call_limit_for_one_that_may_never_leave,
                a_new_call_queues_behind_one_that_waits,
                a_call_behind_one_that_waits_does_not_halt_the_run,
                a_retry_inherits_rather_than_wait,
                observed_calls_are_admitted_until_the_limit_is_spent,
                a_limit_of_zero_admits_nothing,
                renewals_post_active_time_and_halt_at_its_limit,
                active_time_not_yet_posted_counts_at_admission,
                an_attempts_last_active_time_is_posted_at_its_end,
                header_attempts_are_active_while_a_call_is_in_flight,
            ;
            parents:
                a_childs_cost_tokens_and_calls_are_its_ancestors_too,
                loops_restarts_and_time_are_the_childs_own,
                a_refusal_by_a_parent_makes_the_child_wait,
                a_childs_own_limit_halts_it_whatever_its_parent_says,
                a_call_is_clamped_to_what_its_parent_has_left,
                a_child_waits_for_its_siblings_calls_in_flight,
                a_parents_own_calls_count_beside_its_childrens,
                the_tightest_of_all_ancestors_decides,
                a_childs_lost_call_is_charged_in_its_parent,
                a_childs_overrun_is_recorded_in_its_parent,
                an_observed_child_waits_when_its_parents_limit_is_spent,
                a_replay_is_served_while_the_run_waits,
                a_waiting_run_whose_driver_dies_is_interrupted,
            ;
            budgets:
                runs_of_a_tag_share_its_budget_and_no_other_run_does,
                a_budget_without_a_tag_is_everybodys,
                a_refusal_by_a_named_budget_makes_runs_wait_and_a_raise_lets_them_go_on,
                who_waits_and_asks_again_writes_nothing,
                a_runs_own_limit_halts_it_whatever_a_named_budget_says,
                a_call_is_clamped_to_what_a_named_budget_has_left,
                a_call_waits_for_other_runs_calls_in_flight_under_a_named_budget,
                a_model_without_a_price_is_refused_under_a_named_limit_in_usd,
                a_child_is_charged_to_the_named_budgets_above_it,
                what_closes_a_call_closes_it_in_its_window,
                a_retry_inherits_in_its_window,
                a_new_budget_counts_for_the_runs_that_are_there,
                a_budget_that_is_removed_holds_nobody,
                other_limits_count_at_once_and_keep_what_is_spent,
                another_tag_makes_another_budget,
                a_file_that_says_the_same_again_changes_nothing,
                a_budget_that_cannot_be_is_refused,
                a_budget_outlives_the_process,
                starting_a_run_again_charges_it_to_nothing_new,
            ;
            events:
                what_happens_to_a_run_is_an_event_of_its_commit_and_ordinary_work_is_none,
                a_budget_tells_each_share_of_its_limit_once,
                a_lost_call_and_a_bill_beyond_its_hold_are_told,
                an_approval_is_told_when_it_is_asked_for_and_when_it_is_decided,
                what_a_refusal_leaves_unwritten_is_no_event,
                a_removed_run_leaves_one_event_and_no_number_is_given_out_twice,
                one_of_two_deliverers_writes_and_the_other_learns_it,
            ;
            approvals:
                a_run_waits_until_a_person_decides_and_the_decision_is_durable,
                a_run_waits_for_the_last_of_its_approvals_whatever_it_calls_meanwhile,
                a_restarted_agent_finds_what_it_asked_for_pending_or_decided,
                a_decision_is_bound_to_the_arguments_it_was_given_for,
                an_approval_is_decided_once,
                a_run_that_is_over_or_halted_is_asked_and_decided_nothing_new,
                a_stale_attempt_asks_nothing,
                what_is_approved_in_one_iteration_is_asked_again_in_the_next,
                a_policy_says_which_tools_there_are_and_which_are_asked_for,
                a_call_without_a_side_effect_waits_for_nobody_unless_a_rule_names_its_tool,
                bad_requests_for_an_approval_write_nothing,
                approvals_are_listed_newest_first_by_run_and_by_status,
                a_fork_shares_what_was_approved_and_asks_for_the_rest,
            ;
            tools:
                a_tool_call_is_on_disk_before_it_begins,
                a_tool_call_that_was_cut_off_is_the_next_attempts_to_close,
                a_stale_attempt_begins_no_tool_call,
            ;
            tool_calls:
                a_tool_call_is_reserved_on_disk_and_its_answer_replayed,
                a_call_that_was_never_sent_is_simply_sent,
                a_call_that_was_sent_and_cut_off_is_in_doubt_until_somebody_says,
                a_call_that_may_be_repeated_is_sent_again,
                the_nth_equal_call_is_the_nth_of_the_life_before,
                an_answer_that_reached_nobody_is_found_in_the_same_attempt_too,
                a_call_under_a_new_id_repeats_only_what_reached_nobody,
                a_call_of_a_live_process_is_joined_by_its_id_and_left_alone_without,
                a_read_is_made_anew_where_recorded_answers_are_passed_over,
                what_is_given_up_is_void_or_unknown,
                a_person_says_what_came_of_a_tool_call,
                a_stale_attempt_sends_no_tool_call,
                a_halted_run_sends_no_tool_call_and_replays_its_answers,
                tool_calls_of_other_arguments_servers_and_scopes_are_others,
                a_fork_shares_answers_of_tools_in_their_order,
            ;
            steps:
                a_finished_step_is_not_run_again,
                a_step_that_was_cut_off_is_begun_again_as_the_same_entry,
                a_long_result_is_kept_in_parts_before_it_is_recorded,
                parts_that_a_dead_process_left_are_no_part_of_a_result,
                a_step_is_recorded_once,
                a_step_of_a_dead_agent_is_recorded_by_its_own_process,
                a_failed_step_runs_again_as_a_new_entry,
                tries_are_counted_over_deaths_until_the_step_is_given_up,
                a_person_says_what_came_of_a_step_in_doubt,
                steps_are_found_by_scope_and_key,
                only_an_open_step_can_be_recorded,
                a_finished_step_is_found_at_a_limit_and_a_new_one_is_refused,
                a_step_that_was_cut_off_is_not_begun_in_a_halted_run,
                a_result_and_the_state_it_changed_commit_together,
                a_result_whose_state_conflicts_is_not_recorded,
                five_mebibytes_are_kept_as_they_were,
                steps_count_as_progress_when_they_are_done,
                a_step_of_an_unknown_run_is_refused,
            ;
            items:
                a_finished_item_is_not_run_again,
                an_item_that_runs_is_held_against_every_other_worker,
                an_item_whose_process_died_goes_on_with_its_try,
                an_item_of_a_process_that_left_counts_no_death,
                an_item_of_an_ended_attempt_moves_without_a_death,
                an_item_that_was_open_at_three_deaths_is_dead,
                an_item_given_back_goes_on_with_its_try,
                a_failed_item_runs_again_at_the_next_start_and_is_dead_after_three,
                an_item_that_a_live_sibling_failed_is_not_run_again,
                a_skipped_item_is_a_tombstone,
                an_item_with_other_content_runs_again_and_its_old_result_is_history,
                changed_content_and_code_are_judged_apart,
                an_item_that_was_cut_off_with_other_content_is_run_anew,
                a_dead_item_with_other_content_runs_again,
                each_try_that_raised_is_a_scope_of_its_own,
                steps_serve_the_later_tries_of_their_item_and_not_another_content,
                a_person_resets_items,
                a_reset_item_replays_its_paid_answers_if_asked,
                an_item_that_runs_is_not_reset,
                only_its_own_process_ends_an_item,
                an_item_is_claimed_in_a_job_that_runs_only,
                items_are_read_by_page_each_once,
                a_result_and_the_state_it_changed_are_recorded_together,
                a_stale_workers_result_that_changes_the_state_is_refused_whole,
            ;
            jobs:
                items_count_as_progress_and_their_counts_are_kept,
                jobs_are_listed_without_other_runs,
                workers_take_the_lowest_free_slots,
                a_job_goes_on_while_one_of_its_workers_does,
                a_completed_job_takes_more_items,
                sixty_four_threads_run_each_item_once,
                sixty_four_workers_lose_their_process_and_no_item_is_lost_or_run_twice,
            ;
            forks:
                a_forks_state_begins_with_what_its_origin_knew_then,
                a_fork_goes_on_from_where_its_origin_was,
                what_a_fork_shares_is_read_as_its_own,
                what_was_open_or_came_later_is_not_shared,
                answers_are_replayed_to_a_fork_and_not_paid_again,
                five_identical_answers_are_five_to_a_fork_too,
                a_fork_is_charged_to_its_origin,
                a_forks_items_are_those_of_the_snapshot,
                a_shared_item_that_runs_anew_is_the_forks_own,
                a_fork_of_a_fork_counts_an_item_that_ran_anew_once,
                a_fork_of_a_fork_shares_both,
                a_fork_is_made_once,
                points_are_found_by_name_place_and_attempt,
            ;
            sleep:
                a_run_sleeps_until_its_time_and_then_begins_without_a_restart,
                a_sleeping_run_has_one_process_that_wakes_it,
                a_sleeping_run_of_a_dead_process_sleeps_on_for_the_next,
                a_person_wakes_a_run,
                a_person_stops_a_run_that_sleeps,
                a_halted_run_does_not_sleep,
                an_unknown_price_halts_what_is_supervised_until_it_is_given,
            ;
            turns:
                an_iteration_keeps_what_it_began_with_over_a_crash,
                a_finished_iteration_is_judged_once_also_over_a_death,
                a_loop_that_stands_still_fails_and_may_be_taken_up_again,
                a_loop_is_completed_by_its_command_or_its_count,
            ;
            forget:
                a_run_that_ended_is_forgotten_with_all_that_was_kept_of_it,
                what_can_go_on_is_not_forgotten,
                a_child_stays_while_one_above_it_can_go_on,
                what_a_forgotten_run_left_in_doubt_stays_charged_to_its_named_budget,
                a_run_is_not_forgotten_when_others_have_begun_that_may_be_its_forks,
                a_jobs_counts_are_set_while_nobody_works_on_it,
            ;
            within:
                a_call_is_charged_to_its_item_and_its_step,
                a_lost_call_is_charged_to_its_item_as_it_is_posted,
                a_call_in_an_item_that_is_over_is_refused,
                a_call_in_anothers_item_is_refused,
                a_call_of_a_try_that_raised_is_refused,
                answers_of_a_try_that_was_cut_off_are_replayed,
                answers_of_a_finished_step_are_not_missed,
                answers_of_a_step_that_was_begun_again_are_not_missed_once_it_is_done,
                answers_of_a_failed_step_are_not_missed_once_it_is_done,
                answers_of_an_unfinished_step_are_missed,
                each_try_of_a_step_with_retries_is_a_scope_of_its_own,
                a_try_of_a_step_that_was_cut_off_goes_on,
                a_step_without_retries_has_one_try,
                a_step_of_an_unknown_outcome_is_in_doubt,
                a_step_in_a_step_is_found_in_it_only,
                a_step_in_an_item_that_is_over_is_refused,
                steps_are_read_by_page_with_their_results,
                large_results_are_left_out_of_a_page_of_steps,
            ;
            state:
                a_key_grows_by_one_version_per_change,
                a_delete_is_a_version_too,
                a_transaction_has_one_commit_number,
                a_transaction_over_namespaces_takes_their_highest_commit_plus_one,
                a_conflict_names_both_versions_and_writes_nothing,
                the_expected_version_is_that_before_the_transaction,
                two_writers_that_read_the_same_version_do_not_both_win,
                an_empty_transaction_is_nothing,
                keys_are_kept_apart_by_namespace_and_agent,
                keys_and_values_are_any_text_and_bytes,
                keys_are_never_joined_to_one_text,
                large_values_are_kept_as_they_were,
                a_runs_state_carries_who_wrote_it,
                a_runs_namespace_is_written_by_that_run_only,
                a_stale_attempt_writes_no_state,
                a_stale_attempts_result_that_changes_the_state_is_refused_whole,
                a_dead_processs_result_changes_no_state,
                a_transaction_is_committed_once_under_its_id,
                a_refused_transaction_leaves_no_outcome,
                the_first_to_commit_wins_where_that_is_asked_for,
                versions_and_history_go_on_after_a_restart_between_any_two_commits,
            ;
            tokens:
                a_bearer_of_a_run_token_changes_the_runs_own_state,
                a_bearer_of_a_stale_token_changes_nothing,
                a_bearers_transaction_is_committed_once,
                progress_that_a_bearer_tells_is_counted,
                a_completed_run_that_is_reopened_can_be_claimed,
            ;
            history:
                a_key_is_read_as_it_was_at_a_version,
                a_key_is_read_as_it_was_after_a_commit,
                a_history_is_read_by_page_and_with_its_tombstones,
                live_keys_are_listed_by_their_bytes_and_by_page,
                a_scan_gives_values_as_they_stood,
                an_agents_events_are_its_own_in_order_and_by_page,
                an_event_names_its_transaction,
                namespaces_and_agents_are_listed,
                a_loop_goes_on_behind_its_last_done_step,
                steps_with_leading_zeros_are_steps,
                a_step_that_changes_or_goes_moves_the_resume_point_back,
                a_prefix_may_be_empty_or_end_in_a_digit,
            ;
            retention:
                everything_is_kept_unless_it_is_said_otherwise,
                compaction_leaves_the_last_versions_and_says_what_is_gone,
                what_was_replaced_before_a_commit_can_be_removed,
                a_compaction_goes_on_in_bounded_pieces,
                fewer_than_one_version_cannot_be_kept,
                an_unknown_namespace_can_be_told_what_to_keep,
                a_change_removes_what_its_namespace_does_not_keep,
                a_run_says_what_is_kept_of_its_own_namespace_only,
            ;
            checkpoints:
                the_newest_checkpoint_of_a_name_counts,
                a_checkpoint_outlives_iterations,
                checkpoints_of_other_runs_are_not_found,
                a_halted_run_still_saves,
                a_step_or_a_loop_of_the_same_name_is_no_checkpoint,
                the_newest_checkpoint_of_any_name_is_found_behind_what_is_kept_automatically,
                a_checkpoint_says_what_the_run_had_used_by_then,
            ;
            loops:
                a_key_is_counted_once_over_an_iterations_attempts,
                a_fresh_iteration_counts_its_keys_anew,
                a_turn_without_a_key_always_counts,
                the_turn_beyond_the_limit_halts_the_run,
                calls_are_no_loops_once_a_run_has_its_own,
                only_new_calls_are_implicit_loops,
                a_call_that_never_left_is_no_loop,
                the_retry_of_a_call_that_never_left_is_a_loop,
            ;
            sweeps:
                a_dead_drivers_calls_are_unknown_and_its_run_is_interrupted,
                a_verdict_is_given_once,
                a_verdict_on_a_heartbeat_that_moved_writes_nothing,
                a_verdict_on_nobody_is_nothing,
                a_process_that_says_goodbye_is_not_dead_but_left,
                header_attempts_survive_a_servers_death,
                other_processes_keep_what_is_theirs,
                a_run_with_another_open_attempt_goes_on,
                a_death_between_two_attempts_interrupts_the_run,
                a_halted_or_ended_run_stays_so,
                the_late_answer_of_a_process_declared_dead_is_recorded,
                a_swept_call_under_refund_holds_nothing,
                an_open_step_stays_open,
                a_childs_sweep_marks_the_doubt_in_its_parent,
                many_runs_of_one_process_are_swept_together,
                renewals_move_the_heartbeat,
                of_two_clones_of_a_process_the_later_one_is_fenced,
                a_renewal_goes_on_from_any_heartbeat_that_its_process_wrote,
            ;
            reads:
                what_is_not_there_is_none,
                runs_are_listed_newest_first_and_by_page,
                runs_are_found_by_status_and_by_command,
                what_was_said_of_a_run_is_kept,
                a_journal_is_read_in_order_and_by_page,
                attempts_are_read_oldest_first,
                the_newest_done_entry_of_a_key_is_found_in_any_scope,
                the_newest_request_is_the_newest_that_was_kept,
                the_ledger_sums_calls_by_run_model_and_day,
                the_ledger_adds_up_to_what_budgets_say,
                a_report_beyond_reason_breaks_no_sum,
                instances_are_read_as_they_registered,
                token_keys_outlive_the_process,
            ;
            concurrency:
                sixty_four_threads_never_pass_a_runs_limit,
                sixty_four_runs_never_pass_their_parents_limit,
                sixty_four_runs_never_pass_a_named_budget,
                one_of_sixty_four_processes_gets_a_run,
                registering_at_once_gives_everyone_a_number,
                one_run_is_created_by_many_at_once,
                no_increment_is_lost,
                no_increment_of_overlapping_transactions_is_lost,
                no_reader_sees_part_of_a_transaction,
                a_call_is_settled_by_one_of_many,
            ;
        }
    };
}

/// Plays the stories that let time pass: the bed has a clock.
macro_rules! timed_stories {
    ($bed:expr) => {
        tests! { $bed;
            approvals:
                an_approval_that_expires_is_a_no_and_lets_its_run_go_on,
                an_approval_asked_for_by_a_clock_that_was_ahead_expires_in_time,
                the_wall_clock_stands_still_while_a_run_waits_where_its_policy_says_so,
            ;
            limits:
                after_the_wall_time_nothing_is_admitted_and_downtime_counts,
                a_clock_that_jumped_ahead_ends_no_run_for_good,
                after_the_wall_time_no_attempt_and_no_loop_begins,
                a_heartbeat_halts_a_run_whose_wall_time_is_over,
                a_clock_set_back_gives_no_wall_time_again,
                raising_the_wall_time_lets_the_run_go_on,
            ;
            budgets:
                the_next_window_has_room_again,
                a_call_is_charged_to_the_window_it_was_admitted_under,
                a_clock_that_goes_back_opens_no_window_again,
                a_clock_that_jumped_ahead_leaves_no_budget_in_next_years_window,
                a_retry_in_the_next_window_takes_nothing_over,
                a_raise_is_the_windows_and_a_set_is_for_good,
            ;
            retries:
                no_try_leaves_after_the_wall_time,
            ;
            history:
                a_key_is_read_as_it_was_at_a_time,
                a_namespaces_time_does_not_go_back_with_the_clock,
            ;
            retention:
                ids_of_transactions_are_forgotten_when_they_are_old_a_few_at_a_time,
            ;
            sweeps:
                an_attempt_ends_at_its_last_heartbeat,
            ;
            reads:
                the_ledger_is_cut_by_time,
            ;
        }
    };
}

mod memory {
    stories!(crate::bed::Memory::new());

    mod timed {
        timed_stories!(crate::bed::Memory::new());
    }
}

mod sqlite {
    stories!(crate::bed::Sqlite::new());

    mod timed {
        timed_stories!(crate::bed::Sqlite::new());
    }
}

mod postgres {
    stories!(crate::beds::Postgres::new());

    mod timed {
        timed_stories!(crate::beds::Postgres::under_a_clock());
    }
}
