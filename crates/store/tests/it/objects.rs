//! Objects that machines share through PostgreSQL.

use outlast_core::{
    store::objects::Object,
    words::{Digest, Micros},
};

use crate::{beds::open_at, private_postgres::Database};

fn object(n: u8, size: usize) -> Object {
    Object { name: Digest([n; 32]), length: 2 * size as u32, bytes: vec![n; size] }
}

fn names(of: impl IntoIterator<Item = u8>) -> Vec<Digest> {
    of.into_iter().map(|n| Digest([n; 32])).collect()
}

#[test]
fn objects_are_added_once_read_by_parts_and_listed_in_order() {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let place = store.objects().unwrap();
    assert_eq!((place.size().unwrap(), place.list(&Digest([0; 32]), 10).unwrap()), (0, vec![]));
    assert_eq!(place.read(&names([1])).unwrap(), []);
    place.add((1..=5).rev().map(|n| object(n, 3 << 20)).collect()).unwrap();
    place.add(vec![object(5, 3 << 20), object(6, 1)]).unwrap();
    assert_eq!(place.size().unwrap(), (15 << 20) + 1);
    assert_eq!(place.list(&Digest([2; 32]), 3).unwrap(), names(3..=5));
    assert_eq!(place.list(&Digest([6; 32]), 3).unwrap(), names([]));
    let mut lacking = names((1..=6).chain([9]));
    let mut reads = 0;
    loop {
        let read = place.read(&lacking).unwrap();
        if read.is_empty() {
            break;
        }
        reads += 1;
        for found in read {
            assert_eq!(found, object(found.name.0[0], if found.name.0[0] == 6 { 1 } else { 3 << 20 }));
            lacking.retain(|name| *name != found.name);
        }
    }
    assert_eq!(lacking, names([9]), "it is not there");
    assert!((2..=5).contains(&reads), "{reads}: no answer has all of it");
}

#[test]
fn a_mark_keeps_what_is_there_from_a_removal() {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let place = store.objects().unwrap();
    place.add((1..=4).map(|n| object(n, 10)).collect()).unwrap();
    // The server's clock cannot be set: what was added is made older.
    let aged = || database.execute("UPDATE outlast.objects SET used_at = used_at - 3600000000");
    aged();
    let mut there = place.mark(&names([1, 2, 9])).unwrap();
    there.sort_unstable();
    assert_eq!(there, names([1, 2]));
    place.add(vec![object(3, 10)]).unwrap();
    let since = Micros(store.now().unwrap().0 - 1_800_000_000);
    place.remove(&names([2, 3, 4, 9]), since).unwrap();
    assert_eq!(place.list(&Digest([0; 32]), 10).unwrap(), names([1, 2, 3]), "4 alone was old");
    aged();
    place.remove(&names([2, 3]), since).unwrap();
    assert_eq!(place.list(&Digest([0; 32]), 10).unwrap(), names([1]));
}

/// Two machines mark the same objects, each in an order of its own.
#[test]
fn machines_that_mark_the_same_objects_wait_for_each_other_and_never_in_a_circle() {
    let database = Database::new();
    let [one, other] = [(); 2].map(|()| open_at(&database.url(), true).unwrap());
    one.objects().unwrap().add((1..=200).map(|n| object(n, 1)).collect()).unwrap();
    std::thread::scope(|scope| {
        for (store, backwards) in [(&one, false), (&other, true)] {
            scope.spawn(move || {
                let mut all = names(1..=200);
                if backwards {
                    all.reverse();
                }
                for _ in 0..20 {
                    let place = store.objects().unwrap();
                    assert_eq!(place.mark(&all).unwrap().len(), 200);
                    let again = all[..50].iter().map(|name| object(name.0[0], 1)).collect();
                    place.add(again).unwrap();
                }
            });
        }
    });
}
