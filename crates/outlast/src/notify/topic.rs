//! Topics: kinds of news that a person may want to be told, by the events that they come from.

use outlast_core::{
    events::{Event, Kind},
    named,
};

named! {
    /// Topic: a kind of news that a person may want to be told.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Topic {
        Halted "halted",
        Failed "failed",
        Completed "completed",
        Cancelled "cancelled",
        Interrupted "interrupted",
        Waiting "waiting",
        UsageLimit "usage_limit",
        Approval "approval",
        Budget50 "budget_50",
        Budget80 "budget_80",
        Budget100 "budget_100",
        Overrun "overrun",
        Doubt "doubt",
        Outage "outage",
        OutageEnded "outage_ended",
        Death "death",
        Diverged "diverged",
        /// Digest of what happened since the last one. No event has this topic: the time of day does.
        Digest "digest",
    }
}

impl Topic {
    /// Returns whether an endpoint that names no topic is told of this one, and the topic in words. A death is not usual,
    /// because a restart or a failure follows it.
    fn row(self) -> (bool, &'static str) {
        match self {
            Topic::Halted => (true, "halted at a limit"),
            Topic::Failed => (true, "failed"),
            Topic::Completed => (true, "completed"),
            Topic::Cancelled => (false, "cancelled"),
            Topic::Interrupted => (true, "interrupted: nobody drives it"),
            Topic::Waiting => (false, "waits for a budget"),
            Topic::UsageLimit => (true, "sleeps until its usage limit is over"),
            Topic::Approval => (true, "asks for an approval"),
            Topic::Budget50 => (false, "half of a limit is spent"),
            Topic::Budget80 => (true, "80 % of a limit is spent"),
            Topic::Budget100 => (true, "a limit is spent"),
            Topic::Overrun => (true, "more was billed than a call held"),
            Topic::Doubt => (true, "a call is in doubt"),
            Topic::Outage => (true, "its provider is out"),
            Topic::OutageEnded => (true, "its provider answers again"),
            Topic::Death => (false, "its agent died"),
            Topic::Diverged => (false, "the restarted agent asked something new"),
            Topic::Digest => (true, "what happened"),
        }
    }

    /// Returns the topics of an endpoint that names none.
    pub fn usual() -> Vec<Topic> {
        Topic::ALL.into_iter().filter(|topic| topic.row().0).collect()
    }

    pub fn words(self) -> &'static str {
        self.row().1
    }

    /// Returns the topic of an event; `None` for an event that no person needs to be told.
    pub fn of(event: &Event) -> Option<Topic> {
        let about = &event.about;
        Some(match event.kind {
            Kind::Status => match about["to"].as_str()? {
                "halted" => Topic::Halted,
                "failed" => Topic::Failed,
                "completed" => Topic::Completed,
                "cancelled" => Topic::Cancelled,
                // Who stops a run knows of it.
                "interrupted" if about["by_person"] == true => return None,
                "interrupted" => Topic::Interrupted,
                "sleeping" => Topic::UsageLimit,
                // An approval and an outage have events of their own.
                "waiting" if about["code"].as_str().is_some_and(|code| code.ends_with("_exceeded")) => {
                    Topic::Waiting
                }
                _ => return None,
            },
            Kind::ApprovalAsked => Topic::Approval,
            Kind::Budget => match about["percent"].as_i64()? {
                100.. => Topic::Budget100,
                80.. => Topic::Budget80,
                _ => Topic::Budget50,
            },
            Kind::Overrun => Topic::Overrun,
            Kind::Doubt => Topic::Doubt,
            Kind::OutageBegan => Topic::Outage,
            Kind::OutageEnded => Topic::OutageEnded,
            Kind::AttemptEnded if about["died"] == true => Topic::Death,
            Kind::Diverged => Topic::Diverged,
            Kind::AttemptEnded
            | Kind::AttemptBegan
            | Kind::RunCreated
            | Kind::RunRemoved
            | Kind::ApprovalDecided => return None,
        })
    }
}

/// Parses a topic's name. Errors: the message names all topics.
pub fn parse(name: &str) -> Result<Topic, String> {
    Topic::parse(name)
        .ok_or_else(|| format!("events: {name:?} is none of {}", Topic::ALL.map(Topic::name).join(", ")))
}
