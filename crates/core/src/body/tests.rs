use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::words::SeededEntropy;

/// A run as the store sees it: the BLOBs of its bodies, and the bases in memory.
#[derive(Default)]
struct Run {
    stored: BTreeMap<Seq, Bytes>,
    bases: BodyBases,
}

impl Run {
    fn store(&mut self, body: &[u8]) -> Seq {
        let seq = Seq(self.stored.len() as i64 + 1);
        let record = diff(body, self.bases.as_slice());
        self.bases.push(Base::new(seq, &record, Bytes::copy_from_slice(body)));
        self.stored.insert(seq, record.to_bytes().into());
        seq
    }

    fn load(&self, seq: Seq) -> BodyRecord {
        BodyRecord::from_bytes(self.stored[&seq].clone()).unwrap()
    }

    /// Restores from the stored records alone, and counts the records read.
    fn restore(&self, seq: Seq) -> (Vec<u8>, usize) {
        let mut restoring = Restoring::new(&self.load(seq)).unwrap();
        let mut reads = 1;
        while let Some(base) = restoring.wants() {
            restoring.give(&self.load(base)).unwrap();
            reads += 1;
        }
        (restoring.finish().unwrap(), reads)
    }

    fn stored_len(&self) -> usize {
        self.stored.values().map(Bytes::len).sum()
    }
}

/// Letters that zstd cannot make much of: 6 random bits in each byte.
fn prose(entropy: &SeededEntropy, len: usize) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";
    (0..len).map(|_| char::from(letters[(entropy.next_u64() % 64) as usize])).collect()
}

fn conversation(messages: &[String]) -> Vec<u8> {
    let list: Vec<String> =
        messages.iter().map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#)).collect();
    format!(r#"{{"model":"m","messages":[{}],"max_tokens":1024,"stream":true}}"#, list.join(",")).into_bytes()
}

// The bound promised in `Why chains may be long`. Seed: 7.
#[test]
fn two_hundred_turns_are_stored_in_little_more_than_their_unique_bytes() {
    let entropy = SeededEntropy::new(7);
    let mut run = Run::default();
    let mut messages = Vec::new();
    let mut bodies = Vec::new();
    for _turn in 0..200 {
        messages.push(prose(&entropy, 1024 + (entropy.next_u64() % 3072) as usize));
        let body = conversation(&messages);
        bodies.push((run.store(&body), body));
    }
    let unique = bodies[199].1.len();
    let stored = run.stored_len();
    assert!(stored * 2 <= unique * 3, "stored {stored} bytes for {unique} unique ones");
    for (seq, body) in &bodies {
        let (restored, reads) = run.restore(*seq);
        assert_eq!(&restored, body);
        assert!(reads <= 200);
    }
}

#[test]
fn agents_that_take_turns_in_one_run_keep_their_own_bases() {
    let entropy = SeededEntropy::new(11);
    let mut run = Run::default();
    let mut agents: Vec<Vec<String>> = vec![Vec::new(); 6];
    let mut unique = 0;
    for turn in 0..120 {
        let messages = &mut agents[turn % 6];
        messages.push(prose(&entropy, 2000));
        let body = conversation(messages);
        let seq = run.store(&body);
        assert_eq!(run.restore(seq).0, body);
        unique += 2000;
    }
    assert!(run.stored_len() * 2 <= unique * 3, "{} for {unique}", run.stored_len());
}

#[test]
fn a_compacted_conversation_leaves_its_long_past_behind() {
    let entropy = SeededEntropy::new(13);
    let mut run = Run::default();
    let mut messages = vec![prose(&entropy, 4000)];
    for _turn in 0..100 {
        messages.push(prose(&entropy, 4000));
        run.store(&conversation(&messages));
    }
    messages.truncate(1);
    messages.push("summary".to_owned());
    let body = conversation(&messages);
    let seq = run.store(&body);
    assert_eq!(run.restore(seq), (body, 1));
}

// Many calls from one template with a long variable part: the case that could read a lot.
#[test]
fn restoring_reads_at_most_four_times_the_body_and_some() {
    let entropy = SeededEntropy::new(17);
    let mut run = Run::default();
    let mut messages: Vec<String> = (0..4).map(|_| prose(&entropy, 4000)).collect();
    for turn in 0..300 {
        messages[turn % 4] = prose(&entropy, 4000);
        let body = conversation(&messages);
        let seq = run.store(&body);
        let mut read = 0;
        let mut restoring = Restoring::new(&run.load(seq)).unwrap();
        while let Some(base) = restoring.wants() {
            let record = run.load(base);
            read += record.middle.len;
            restoring.give(&record).unwrap();
        }
        assert_eq!(restoring.finish().unwrap(), body);
        assert!(read <= 4 * body.len() as u64 + (64 << 10), "{read} for {}", body.len());
    }
}

fn long_pair() -> (Vec<u8>, Vec<u8>) {
    let entropy = SeededEntropy::new(3);
    let (a, b) = (prose(&entropy, 1000), prose(&entropy, 100));
    let messages = [a, b];
    (conversation(&messages[..1]), conversation(&messages))
}

#[test]
fn a_body_at_hand_ends_the_chain() {
    let (base, body) = long_pair();
    let record = diff(&body, &[Base::new(Seq(1), &BodyRecord::whole(&base), base.clone().into())]);
    assert_eq!(restore(&record, Some(&base)), Ok(body.clone()));
    assert_eq!(restore(&record, None), Err(BodyError::BaseMissing { base: Seq(1) }));
    assert_eq!(restore(&BodyRecord::whole(&body), Some(&base)), Ok(body));
}

#[test]
fn what_is_not_the_base_is_refused() {
    let (base, body) = long_pair();
    let below = BodyRecord::whole(&base);
    let record = diff(&body, &[Base::new(Seq(4), &below, base.clone().into())]);
    let give = |other: &BodyRecord| {
        let mut restoring = Restoring::new(&record).unwrap();
        restoring.give(other)?;
        restoring.finish()
    };
    let check = |result: Result<Vec<u8>, BodyError>, wanted: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    };
    assert_eq!(give(&below), Ok(body.clone()));
    check(give(&BodyRecord::whole(&body)), "entry 4 is not this request body's base: wanted length");
    check(
        give(&BodyRecord { depth: 2, base: Some(Seq(1)), base_len: 9, ..below.clone() }),
        "wanted depth 0, had 2",
    );
    check(restore(&record, Some(&base[1..])), "wanted length");
    let mut altered = base.clone();
    altered[40] ^= 1;
    check(give(&BodyRecord::whole(&altered)), "corrupt: wanted sha-256");
    check(restore(&record, Some(&altered)), "corrupt: wanted sha-256");
    let mut complete = Restoring::new(&below).unwrap();
    assert_eq!(complete.give(&below), Err(BodyError::NotWanted));
    assert_eq!(complete.give_body(&base), Err(BodyError::NotWanted));
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let (base, body) = long_pair();
    let good = diff(&body, &[Base::new(Seq(4), &BodyRecord::whole(&base), base.clone().into())]);
    let check = |record: BodyRecord, wanted: &str| {
        let written = BodyRecord::from_bytes(record.to_bytes().into()).unwrap_err();
        let restored = restore(&record, Some(&base)).unwrap_err();
        assert_eq!(written, restored);
        assert!(restored.to_string().contains(wanted), "{restored}");
    };
    check(BodyRecord { len: u64::MAX, ..good.clone() }, "over 1 GiB");
    check(BodyRecord { base_len: u64::MAX, ..good.clone() }, "over 1 GiB");
    check(BodyRecord { depth: 0, ..good.clone() }, "a base and a depth of 0");
    check(BodyRecord { base: None, ..good.clone() }, "a base and a depth of 0");
    check(BodyRecord { base: None, depth: 0, ..good.clone() }, "no base, but a length of it");
    check(BodyRecord { depth: MAX_DEPTH + 1, ..good.clone() }, "chain is too long");
    check(BodyRecord { suffix: u64::MAX, ..good.clone() }, "longer than the base");
    check(BodyRecord { base_len: good.prefix, ..good.clone() }, "longer than the base");
    check(BodyRecord { prefix: good.prefix - 1, ..good.clone() }, "do not make its length");
    check(BodyRecord { chain_len: 1, ..good.clone() }, "shorter than itself");
    check(BodyRecord { chain_len: 1 << 20, ..BodyRecord::whole(&body) }, "shorter than itself");
}

#[test]
fn blobs_of_other_versions_or_cut_short_are_refused() {
    let blob = BodyRecord::whole(b"hello").to_bytes();
    let cut = |len: usize| BodyRecord::from_bytes(blob[..len].to_vec().into());
    assert_eq!(cut(0), Err(BodyError::Truncated { had: 0 }));
    assert_eq!(cut(93), Err(BodyError::Truncated { had: 93 }));
    assert_eq!(cut(94), Err(BodyError::Middle(PayloadError::Truncated { had: 0 })));
    let short = cut(blob.len() - 1).unwrap();
    let error = PayloadError::WrongLength { wanted: 5, had: 4 };
    assert_eq!(restore(&short, None), Err(BodyError::Middle(error)));
    let newer = BodyRecord::from_bytes(Bytes::from_static(&[2]));
    assert_eq!(newer, Err(BodyError::UnknownVersion { had: 2 }));
}

/// Edits as agents make them: something goes at a place, something else comes there.
fn edit() -> impl Strategy<Value = (prop::sample::Index, usize, Vec<u8>)> {
    (any::<prop::sample::Index>(), 0..300usize, prop::collection::vec(0..3u8, 0..300))
}

proptest! {
    #[test]
    fn any_chain_of_edits_is_restored(
        first in prop::collection::vec(any::<u8>(), 0..1500),
        edits in prop::collection::vec(edit(), 0..20),
    ) {
        let mut run = Run::default();
        let mut body = first;
        let mut bodies = vec![(run.store(&body), body.clone())];
        for (place, gone, come) in edits {
            let start = place.index(body.len() + 1);
            let end = body.len().min(start + gone);
            body.splice(start..end, come);
            bodies.push((run.store(&body), body.clone()));
        }
        for (seq, body) in &bodies {
            prop_assert_eq!(&run.restore(*seq).0, body);
            let record = run.load(*seq);
            let base = record.base.map(|base| run.restore(base).0);
            prop_assert_eq!(&restore(&record, base.as_deref()).unwrap(), body);
        }
    }

    // A few bits of a zstd frame mean nothing, as with payloads.
    #[test]
    fn a_flipped_bit_is_found_or_changes_nothing(at: prop::sample::Index, against_base: bool) {
        let (base, body) = long_pair();
        let bases = [Base::new(Seq(1), &BodyRecord::whole(&base), base.clone().into())];
        let mut blob = diff(&body, if against_base { &bases } else { &[] }).to_bytes();
        let bit = at.index(blob.len() * 8);
        blob[bit / 8] ^= 1 << (bit % 8);
        let read = BodyRecord::from_bytes(blob.into());
        prop_assert!(read.is_err() || bit / 8 >= HEADER_LEN);
        if let Ok(restored) = read.and_then(|record| restore(&record, Some(&base))) {
            prop_assert!(bit / 8 >= HEADER_LEN + crate::journal::payload::HEADER_LEN);
            prop_assert_eq!(restored, body);
        }
    }

    #[test]
    fn a_flipped_bit_of_the_base_is_found(at: prop::sample::Index) {
        let (base, body) = long_pair();
        let record = diff(&body, &[Base::new(Seq(1), &BodyRecord::whole(&base), base.clone().into())]);
        let mut altered = base.clone();
        let bit = at.index(base.len() * 8);
        altered[bit / 8] ^= 1 << (bit % 8);
        // Only the bytes that the body shares with its base are looked at; here that is all of them.
        let found = matches!(restore(&record, Some(&altered)), Err(BodyError::WrongHash { .. }));
        prop_assert!(found);
    }
}
