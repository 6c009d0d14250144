//! Stories of a place that machines share: what one has taken comes back on another.

use std::{collections::HashSet, sync::Mutex};

use outlast_core::{
    store::{self, SharedObjects, objects::Object},
    words::Micros,
};

use super::*;

/// A shared place in memory, with a clock of its own, which can go away after some calls.
#[derive(Default)]
struct Shelf(Mutex<Shelved>);

#[derive(Default)]
struct Shelved {
    rows: BTreeMap<Id, (i64, Object)>,
    now: i64,
    /// Calls until it goes away; `None`: it stays.
    left: Option<usize>,
    /// Objects that were added and read.
    added: usize,
    read: usize,
}

impl Shelf {
    fn call<T>(&self, deed: impl FnOnce(&mut Shelved) -> T) -> Result<T, store::Error> {
        let mut shelved = self.0.lock().unwrap();
        match &mut shelved.left {
            Some(0) => return Err(store::Error::Unavailable { why: "gone by a test".into() }),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(deed(&mut shelved))
    }

    fn with<T>(&self, deed: impl FnOnce(&mut Shelved) -> T) -> T {
        deed(&mut self.0.lock().unwrap())
    }

    /// Lets time pass, and returns what it is then.
    fn later(&self, us: i64) -> Micros {
        self.with(|shelved| {
            shelved.now += us;
            Micros(shelved.now)
        })
    }
}

impl SharedObjects for Shelf {
    fn mark(&self, names: &[Id]) -> Result<Vec<Id>, store::Error> {
        self.call(|shelved| {
            let now = shelved.now;
            let mark = |name: &&Id| shelved.rows.get_mut(*name).map(|row| row.0 = now).is_some();
            names.iter().filter(mark).copied().collect()
        })
    }

    fn add(&self, objects: Vec<Object>) -> Result<(), store::Error> {
        self.call(|shelved| {
            shelved.added += objects.len();
            let now = shelved.now;
            shelved.rows.extend(objects.into_iter().map(|object| (object.name, (now, object))));
        })
    }

    fn read(&self, names: &[Id]) -> Result<Vec<Object>, store::Error> {
        self.call(|shelved| {
            let rows = names.iter().filter_map(|name| shelved.rows.get(name));
            let some: Vec<Object> = rows.take(2).map(|(_, object)| object.clone()).collect();
            shelved.read += some.len();
            some
        })
    }

    fn list(&self, after: &Id, limit: usize) -> Result<Vec<Id>, store::Error> {
        self.call(|shelved| shelved.rows.keys().filter(|name| *name > after).take(limit).copied().collect())
    }

    fn size(&self) -> Result<u64, store::Error> {
        self.call(|shelved| shelved.rows.values().map(|(_, object)| object.bytes.len() as u64).sum())
    }

    fn remove(&self, names: &[Id], since: Micros) -> Result<(), store::Error> {
        self.call(|shelved| {
            shelved.rows.retain(|name, (used_at, _)| !names.contains(name) || *used_at >= since.0);
        })
    }
}

impl Place {
    fn publish(&mut self, shelf: &Shelf, snapshot: Id) {
        self.objects.publish(shelf, &snapshot, &mut HashSet::new()).unwrap();
    }
}

#[test]
fn a_tree_of_one_machine_comes_back_to_the_byte_on_another() {
    for seed in 0..5 {
        let mut random = Random(seed);
        let (mut here, mut there, shelf) = (Place::new(), Place::new(), Shelf::default());
        let mut published = HashSet::new();
        for _ in 0..4 {
            (0..random.below(12)).for_each(|_| edit(&mut random, &here.root));
            let taken = here.take();
            here.objects.publish(&shelf, &taken.id, &mut published).unwrap();
            there.objects.bring(&shelf, &[taken.id]).unwrap();
            there.restore(taken.id);
            assert_eq!(model(&there.root), model(&here.root), "seed {seed}");
        }
        there.reopen();
        assert_eq!(there.objects.verify(&[]).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn what_the_shared_place_or_the_machine_has_is_not_sent_again() {
    let (mut here, mut there, shelf) = (Place::new(), Place::new(), Shelf::default());
    (0..20).for_each(|n| here.write(&format!("d{n}/file"), format!("content {n}")));
    let first = here.take().id;
    here.publish(&shelf, first);
    // The files, their directories, the root and the snapshot.
    assert_eq!(shelf.with(|shelved| shelved.added), 42);
    here.publish(&shelf, first);
    there.objects.bring(&shelf, &[first]).unwrap();
    there.objects.bring(&shelf, &[first]).unwrap();
    assert_eq!(shelf.with(|shelved| (shelved.added, shelved.read)), (42, 42));
    here.write("d7/file", "another");
    let second = here.take().id;
    here.publish(&shelf, second);
    there.objects.bring(&shelf, &[first, second]).unwrap();
    assert_eq!(shelf.with(|shelved| (shelved.added, shelved.read)), (46, 46));
    // Another machine has the same files.
    (0..20).for_each(|n| there.write(&format!("d{n}/file"), format!("content {n}")));
    let third = there.take().id;
    there.publish(&shelf, third);
    assert_eq!(shelf.with(|shelved| shelved.added), 47, "its snapshot alone");
}

#[test]
fn a_publication_that_is_cut_off_anywhere_hurts_no_snapshot_and_is_made_good() {
    let mut calls = 0;
    loop {
        let (mut place, shelf) = (Place::new(), Shelf::default());
        place.write("a", "one");
        let first = place.take().id;
        place.publish(&shelf, first);
        place.write("b/c", "two");
        let second = place.take().id;
        shelf.with(|shelved| shelved.left = Some(calls));
        let cut = place.objects.publish(&shelf, &second, &mut HashSet::new()).is_err();
        shelf.with(|shelved| shelved.left = None);
        assert_eq!(place.objects.verify_shared(&shelf, &[first]).unwrap(), Vec::<String>::new());
        place.publish(&shelf, second);
        assert_eq!(place.objects.verify_shared(&shelf, &[first, second]).unwrap(), Vec::<String>::new());
        if !cut {
            break;
        }
        calls += 1;
    }
    assert_eq!(calls, 3, "what is there, the size, the objects");
}

#[test]
fn a_sweep_removes_what_nothing_needs_and_spares_what_was_marked() {
    let (mut place, shelf) = (Place::new(), Shelf::default());
    let mut ids = Vec::new();
    for content in ["dead", "live", "in flight"] {
        place.write("file", content);
        ids.push(place.take().id);
        place.publish(&shelf, *ids.last().unwrap());
    }
    let count = |shelf: &Shelf| shelf.with(|shelved| shelved.rows.len());
    assert_eq!(count(&shelf), 9);
    // Others have done no sweep in the meantime, or one just now.
    let now = shelf.later(SPARED_US);
    place.objects.sweep(&shelf, &ids[1..2], now).unwrap();
    assert_eq!(count(&shelf), 9, "nothing is older than what is spared");
    let now = shelf.later(1);
    place.publish(&shelf, ids[2]);
    // The sweep's machine has nothing of all this.
    Place::new().objects.sweep(&shelf, &ids[1..2], now).unwrap();
    assert_eq!(count(&shelf), 6);
    assert_eq!(place.objects.verify_shared(&shelf, &ids[1..]).unwrap(), Vec::<String>::new());
    let wrong = place.objects.verify_shared(&shelf, &ids[..1]).unwrap();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("is not in the store of files"), "{wrong:?}");
}

#[test]
fn a_shared_place_beyond_its_limit_gets_nothing_more() {
    let (mut place, shelf) = (Place::new(), Shelf::default());
    place.write("a", "x");
    let taken = place.take().id;
    place.objects = Objects::open(place.objects.directory(), false, 10).unwrap();
    let refused = place.objects.publish(&shelf, &taken, &mut HashSet::new()).unwrap_err();
    assert!(matches!(refused, Error::OverLimit { max: 10, .. }), "{refused}");
    assert_eq!(shelf.with(|shelved| shelved.added), 0);
}

#[test]
fn a_damaged_object_of_the_shared_place_is_named_and_comes_nowhere() {
    let (mut here, mut there, shelf) = (Place::new(), Place::new(), Shelf::default());
    here.write("a", "content");
    let taken = here.take().id;
    here.publish(&shelf, taken);
    let name = Id::of(b"content");
    shelf.with(|shelved| shelved.rows.get_mut(&name).unwrap().1.bytes[0] ^= 1);
    let wrong = here.objects.verify_shared(&shelf, &[taken]).unwrap();
    assert_eq!(wrong, [format!("object {name} in the store is damaged")]);
    let refused = there.objects.bring(&shelf, &[taken]).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    there.reopen();
    assert!(!there.objects.contains(&taken), "nothing of it was brought");
}
