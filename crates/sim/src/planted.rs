//! Desk with a planted defect: the real one, whose shared state is tampered with around each event.

use outlast_core::{
    call::{
        Desk, connection,
        desk::{At, Deed, Event},
        marks::Marks,
        rates::Rates,
    },
    engine::Received,
};

use crate::bug::Bug;

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
