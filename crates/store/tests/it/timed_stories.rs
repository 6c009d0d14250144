//! Stories that let time pass, by noun.

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
                a_clock_that_is_set_while_its_process_lives_takes_no_wall_time,
                an_outage_of_the_store_is_no_step_of_its_clock,
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
