//! Defects that can be planted, in the program under test or around it, and the desk that they are planted in. The oracle has
//! to find each one.

use outlast_core::{
    call::{
        Desk, connection,
        desk::{At, Deed, Event},
        rates::Rates,
        taken::Marks,
    },
    engine::Received,
};

/// Defect to plant. An oracle that misses one is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The end of an answer is shown once its settlement is submitted, before it is durable.
    ShownBeforeDurable,
    /// Requests are matched without their scope.
    ScopeIgnored,
    /// A call is sent again once the new try is submitted, before it is durable.
    TriedBeforeDurable,
    /// All admissions of one group are decided on the budgets as they were before the group's first admission.
    StaleAdmission,
    /// The answer of a client that left stays taken until its driver notices that the client is gone.
    LeftUnnoticed,
    /// A server tells no other who receives an answer.
    TakerUntold,
    /// An answer that a server was sending is free for others once the server goes on as another instance.
    Disinherited,
    /// A server does not tell that a client has left without its answer.
    GiveBackUntold,
    /// The desk does not know that a delivery mark is being written.
    MarkForgotten,
    /// The desk knows of the mark, but decides identical requests all the same.
    MarkIgnored,
    /// The void of a call that was never sent is submitted only once, even if the store fails.
    VoidTriedOnce,
    /// Requests to an upstream within the last minute are not counted.
    RateForgotten,
    /// A group whose second write failed leaves its first write in the store.
    GroupHalfApplied,
    /// Commits are acknowledged as synced although they were not synced.
    UnsyncedTold,
    /// The expected version of a change is ignored.
    SwapIgnored,
    /// Beginning a try raises the number of tries twice.
    TryCountedTwice,
    /// A step that may happen at most once is begun like any other.
    OnceForgotten,
    /// An observer counts the time in which it could not reach the store as the silence of others.
    SilenceThroughOutage,
    /// A clock that once jumped ahead is believed from then on.
    ClockJumpSticks,
    /// A budget forgets all of its windows but the newest.
    WindowsForgotten,
    /// The part of a lost call's estimate for which the limits left no room is recorded as less than it is.
    DoubtTooSmall,
    /// Tokens billed beyond what was reserved for a call are recorded nowhere.
    TokensBeyondUntold,
    /// The reservation of a call that was never sent is given back twice.
    RefundTwice,
    /// An operation whose outcome was returned before its commit (`Store::ahead`) is dropped when its group fails.
    AheadLost,
    /// A closing finds its entry by number, even if another operation opened it.
    NumberReused,
    /// The queue stays busy after a group of several operations failed.
    QueueBusy,
    /// Waiting calls are not told that a limit was raised, or that a dead process was swept.
    WakeLost,
    /// An instance that a commit in doubt ended is not declared left.
    FarewellForgotten,
    /// Every tool is taken for one that may be called again: what was cut off is sent again.
    ToolSentAgain,
    /// A tool call that was opened without the mark leaves without it.
    ToolUnmarked,
    /// A tool call is known by an id of its process, so that no later life finds its answer.
    ToolIdOfTheLife,
    /// A tool's idempotency key is another one in each life.
    ToolKeyOfTheLife,
    /// A plan is written over what another server wrote since it was read.
    PlanWrittenBlind,
    /// A plan decides without the calls that are under way.
    PlanCallsForgotten,
    /// The end of a call that the store did not take is not noted again.
    EndUnnoted,
    /// The end of a call is noted without what the head of its answer told, which may be noted later.
    EndWithoutItsHead,
    /// A run that has ended is forgotten, whatever is in flight.
    ForgottenInFlight,
    /// A result in parts is recorded although a part was not stored.
    PartMissing,
    /// A dead server's calls stay in flight in the plan.
    DeadNotBuried,
    /// A hold does not look at what its call waits for.
    HoldBlind,
    /// A request whose client asks again is held again.
    HeldAgain,
    /// A server takes its part of a limit, whatever the other servers hold.
    SharesOfOthersIgnored,
    /// A server gives its share up while its calls are at the provider.
    ShareLoweredEarly,
    /// The share of a dead server is free at once.
    DeadShareFreed,
    /// A ping counts as a part of the answer.
    PingsCount,
    /// The place of the probe is lent for ever.
    ProbeKept,
}

/// Desk of a process, with the planted defect.
pub struct Planted {
    desk: Desk,
    bug: Option<Bug>,
}

impl Planted {
    pub fn new(bug: Option<Bug>) -> Planted {
        Planted { desk: Desk::new(1 << 20, 20_000), bug }
    }

    pub fn is_empty(&self) -> bool {
        self.desk.is_empty()
    }

    pub fn received(&self) -> Vec<Received> {
        self.desk.received()
    }

    pub fn on(&mut self, event: Event, at: At) -> Vec<Deed> {
        let is_delivery = matches!(event, Event::Client(_, connection::Event::Delivered));
        let concerns_marks = is_delivery || matches!(event, Event::Marked(_));
        let mut set_aside = Marks::default();
        self.desk.tamper(|shared| match self.bug {
            Some(Bug::MarkIgnored) if !concerns_marks => set_aside = std::mem::take(&mut shared.marks),
            Some(Bug::RateForgotten) => shared.rates = Rates::default(),
            Some(Bug::ProbeKept) => shared.outages.lent_ms = u64::MAX,
            _ => {}
        });
        let deeds = self.desk.on(event, at);
        self.desk.tamper(|shared| match self.bug {
            Some(Bug::MarkIgnored) if !concerns_marks => shared.marks = set_aside,
            Some(Bug::MarkForgotten) if is_delivery => shared.marks = Marks::default(),
            _ => {}
        });
        deeds
    }
}
