use proptest::prelude::*;

use super::*;

const ME: InstanceNo = InstanceNo(1);
const HOUR: i64 = 3_600_000_000;
const FIVE_HOURS: Length = Length(300);

fn ceilings(text: &str) -> Ceilings {
    text.parse().unwrap()
}

fn points(points: f64) -> Share {
    Share::of_percent(points).unwrap()
}

fn told(used: f64, resets_at: i64) -> WindowUse {
    WindowUse { window: FIVE_HOURS, used: points(used), resets_at: Some(Micros(resets_at)) }
}

fn heard<const N: usize>(windows: [WindowUse; N], is_answer: bool) -> Heard {
    Heard { windows: windows.into(), is_answer }
}

/// A plan as the call `id` tells it, which has ended.
fn one_call(plan: &mut Plan, id: u64, used: f64, at: i64) {
    let under = ceilings("5h=100%");
    assert_eq!(plan.admit(CallId(id), ME, &under, Micros(at)), Verdict::Go);
    plan.told(Some(CallId(id)), &heard([told(used, 5 * HOUR)], true), Micros(at + 1));
    plan.ended(CallId(id), None, Micros(at + 2));
}

#[test]
fn the_first_call_asks_and_the_others_wait_for_its_answer() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    assert_eq!(plan.admit(CallId(1), ME, &under, Micros(0)), Verdict::Go);
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(1)), Verdict::Wait);
    plan.told(Some(CallId(1)), &heard([told(20.0, 5 * HOUR)], true), Micros(2));
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(3)), Verdict::Go);
    // Without ceilings nothing waits.
    assert_eq!(Plan::default().admit(CallId(1), ME, &Ceilings::default(), Micros(0)), Verdict::Go);
}

#[test]
fn a_call_that_would_pass_a_ceiling_rests_until_the_window_turns_and_then_asks_again() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%,week=90%"));
    one_call(&mut plan, 1, 40.0, 0);
    let reached = Reached {
        window: FIVE_HOURS,
        used: points(40.0),
        ceiling: points(40.0),
        per_call: Share::POINT,
        until: Micros(5 * HOUR),
    };
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(HOUR)), Verdict::Rest(reached));
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(5 * HOUR)), Verdict::Go);
    assert_eq!(plan.admit(CallId(3), ME, &under, Micros(5 * HOUR + 1)), Verdict::Wait);
    plan.told(Some(CallId(2)), &heard([told(1.0, 10 * HOUR)], true), Micros(5 * HOUR + 2));
    assert_eq!(plan.admit(CallId(3), ME, &under, Micros(5 * HOUR + 3)), Verdict::Go);
}

#[test]
fn calls_in_flight_are_counted_at_what_calls_have_cost_lately() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    // Each takes 0.5 points, told in tenths.
    (0..10).for_each(|n| one_call(&mut plan, n, 30.1 + 0.5 * n as f64, 10 * n as i64));
    let each = plan.windows[0].per_call().unwrap();
    assert!(each >= points(0.5) && each < points(0.6), "{each}");
    // 34.6 told, and 9.9 calls fit; one that has ended is not counted yet.
    let gone = (100..120).filter(|n| plan.admit(CallId(*n), ME, &under, Micros(200)) == Verdict::Go);
    assert_eq!(gone.count(), 9);
    assert_eq!(
        plan.admit(CallId(130), ME, &under, Micros(200)),
        Verdict::Wait,
        "the others may tell of room"
    );
}

#[test]
fn a_call_alone_may_find_out_what_the_calls_before_it_took() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    (0..10).for_each(|n| one_call(&mut plan, n, 30.1 + 0.5 * n as f64, 10 * n as i64));
    for n in 100..109 {
        assert_eq!(plan.admit(CallId(n), ME, &under, Micros(200)), Verdict::Go);
    }
    (100..109).for_each(|n| plan.ended(CallId(n), None, Micros(300)));
    assert_eq!(plan.admit(CallId(200), ME, &under, Micros(301)), Verdict::Go);
    assert_eq!(plan.admit(CallId(201), ME, &under, Micros(301)), Verdict::Wait);
    plan.told(Some(CallId(200)), &heard([told(39.6, 5 * HOUR)], true), Micros(302));
    plan.ended(CallId(200), None, Micros(303));
    assert!(matches!(plan.admit(CallId(201), ME, &under, Micros(304)), Verdict::Rest(_)));
}

#[test]
fn the_use_of_other_devices_counts_against_the_ceiling() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    one_call(&mut plan, 1, 10.0, 0);
    // Told to a run without ceilings.
    plan.told(None, &heard([told(45.0, 5 * HOUR)], true), Micros(100));
    assert!(matches!(plan.admit(CallId(2), ME, &under, Micros(101)), Verdict::Rest(_)));
}

#[test]
fn what_no_window_is_told_of_holds_no_ceiling() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    plan.told(None, &heard([], false), Micros(0));
    assert_eq!(plan.admit(CallId(1), ME, &under, Micros(1)), Verdict::Go, "an error tells nothing");
    plan.told(Some(CallId(1)), &heard([], true), Micros(2));
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(3)), Verdict::Untold);
    // A window that the plan does not have binds nobody, while another one is told.
    let week = WindowUse { window: Length::WEEK, ..told(1.0, 5 * HOUR) };
    plan.told(None, &heard([week], true), Micros(4));
    assert_eq!(plan.admit(CallId(2), ME, &ceilings("5h=40%,week=50%"), Micros(5)), Verdict::Go);
}

/// Bug: a second call went out on a login whose provider tells no use of a plan, instead of halting its run.
/// Consequence: a ceiling that nobody can keep was passed over in silence.
/// Cause: the end of the first call was noted before the report of its head, as if nothing had been answered.
#[test]
fn a_call_whose_end_is_noted_before_its_head_has_told_all_the_same() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    assert_eq!(plan.admit(CallId(1), ME, &under, Micros(0)), Verdict::Go);
    let late = heard([], true);
    plan.ended(CallId(1), Some(&late), Micros(1));
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(2)), Verdict::Untold);
    // The report itself takes nothing back when it comes.
    plan.told(None, &heard([told(10.0, 5 * HOUR)], true), Micros(3));
    let before = plan.clone();
    plan.told(Some(CallId(1)), &late, Micros(4));
    assert_eq!(plan, before);
}

#[test]
fn a_dead_process_holds_no_room_for_ever() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=40%"));
    assert_eq!(plan.admit(CallId(1), InstanceNo(7), &under, Micros(0)), Verdict::Go);
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(1)), Verdict::Wait);
    assert_eq!(plan.in_flight().collect::<Vec<_>>(), [InstanceNo(7)]);
    plan.bury(|instance| instance == ME, Micros(2));
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(3)), Verdict::Go);
    // A call that never left holds nothing either.
    plan.never_left(CallId(2));
    assert_eq!(plan.in_flight().count(), 0);
}

#[test]
fn a_late_answer_takes_nothing_back() {
    let (mut plan, under) = (Plan::default(), ceilings("5h=90%"));
    one_call(&mut plan, 1, 10.0, 0);
    assert_eq!(plan.admit(CallId(2), ME, &under, Micros(10)), Verdict::Go);
    assert_eq!(plan.admit(CallId(3), ME, &under, Micros(20)), Verdict::Go);
    plan.told(Some(CallId(3)), &heard([told(30.0, 5 * HOUR)], true), Micros(30));
    plan.told(Some(CallId(2)), &heard([told(20.0, 5 * HOUR)], true), Micros(40));
    assert_eq!(plan.windows[0].used, points(30.0));
}

#[test]
fn a_pace_tells_when_a_share_is_used_up() {
    let mut plan = Plan::default();
    plan.told(None, &heard([told(10.0, 5 * HOUR)], true), Micros(HOUR));
    let window = &plan.windows[0];
    assert_eq!(window.used_up_at(points(30.0)), Some(Micros(3 * HOUR)));
    assert_eq!(window.used_up_at(Share::WHOLE), None, "it turns before");
    plan.told(None, &heard([told(0.0, 10 * HOUR)], true), Micros(6 * HOUR));
    assert_eq!(plan.windows[0].used_up_at(points(30.0)), None, "nothing used, no pace");
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let mut plan = Plan::default();
    one_call(&mut plan, 1, 10.0, 0);
    let _ = plan.admit(CallId(2), ME, &ceilings("5h=40%"), Micros(9));
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

/// Run of the simulated world: one call at a time.
#[derive(Clone, Copy, PartialEq)]
enum Run {
    Idle,
    Sent(u64),
    Begun(u64),
    Rests,
}

proptest! {
    /// Eight runs and another device on one plan, whatever comes when.
    #[test]
    fn no_window_is_passed_by_more_than_a_point_beyond_what_others_took(
        ceiling in 5_i64..95,
        start in 0_i64..50,
        whole_points in any::<bool>(),
        each in 1_000_i64..1_500,
        steps in proptest::collection::vec((0_usize..10, 0_i64..1_000), 200..1500),
    ) {
        let under = ceilings(&format!("5h={ceiling}%"));
        let (mut plan, mut runs, mut next) = (Plan::default(), [Run::Idle; 8], 0);
        // The true use; what others took of it; what they had taken when the last told value was told.
        let (mut used, mut others, mut others_told) = (start * 10_000, 0, 0);
        let mut others_at_go = 0;
        for (at, (who, much)) in steps.into_iter().enumerate() {
            let now = Micros(at as i64 + 1);
            let Some(run) = runs.get_mut(who) else {
                (used, others) = (used + much, others + much);
                continue;
            };
            *run = match *run {
                Run::Idle | Run::Rests => {
                    next += 1;
                    match plan.admit(CallId(next), ME, &under, now) {
                        Verdict::Go => {
                            others_at_go = others_told;
                            Run::Sent(next)
                        }
                        Verdict::Wait => Run::Idle,
                        Verdict::Rest(reached) => {
                            let lacking = used + 2 * Share::POINT.0;
                            prop_assert!(lacking >= ceiling * 10_000, "rested too early: {reached}, in truth {used}");
                            Run::Rests
                        }
                        Verdict::Untold => unreachable!("each answer tells"),
                    }
                }
                Run::Sent(id) => {
                    let step = if whole_points { Share::POINT.0 } else { 100 };
                    let told = WindowUse { window: FIVE_HOURS, used: Share(used / step * step), resets_at: Some(Micros(5 * HOUR)) };
                    plan.told(Some(CallId(id)), &heard([told], true), now);
                    others_told = others;
                    Run::Begun(id)
                }
                Run::Begun(id) => {
                    // Half of what calls usually cost, to one and a half.
                    used += each / 2 + each * much / 1_000;
                    plan.ended(CallId(id), None, now);
                    let ours = used - (others - others_at_go);
                    let most = (ceiling.max(start) + 1) * 10_000;
                    prop_assert!(ours <= most, "{ours} of {most}");
                    Run::Idle
                }
            };
        }
    }
}
