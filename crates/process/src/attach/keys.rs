//! Keys on their way to an agent. All go to the agent except `Ctrl-\ d`, which detaches.

/// Ctrl-\.
const PREFIX: u8 = 0x1c;

/// Result of reading typed bytes: the keys to pass to the agent, and whether the person detaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meant {
    pub keys: Vec<u8>,
    pub detach: bool,
}

/// State of the key reader, which remembers a `Ctrl-\` until the next key.
#[derive(Debug, Default)]
pub struct Keys {
    prefixed: bool,
}

impl Keys {
    /// Returns what the typed bytes mean. Keys after a detach are dropped.
    ///
    /// `Ctrl-\` typed twice is sent once; before any other key but `d` it is sent as it is.
    pub fn take(&mut self, typed: &[u8]) -> Meant {
        let mut meant = Meant::default();
        for &key in typed {
            match (std::mem::replace(&mut self.prefixed, false), key) {
                (true, b'd' | b'D') => {
                    meant.detach = true;
                    return meant;
                }
                (true, PREFIX) => meant.keys.push(PREFIX),
                (true, _) => meant.keys.extend([PREFIX, key]),
                (false, PREFIX) => self.prefixed = true,
                (false, _) => meant.keys.push(key),
            }
        }
        meant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_the_agents_but_for_the_one_that_detaches() {
        for (typed, keys, detach) in [
            (&["hello\x03\x1a"][..], "hello\x03\x1a", false),
            (&["x\x1cdy"], "x", true),
            (&["\x1c", "d"], "", true),
            (&["\x1c\x1c", "d"], "\x1cd", false),
            (&["\x1c", "x\x1c\x03"], "\x1cx\x1c\x03", false),
            (&["dD"], "dD", false),
        ] {
            let mut state = Keys::default();
            let mut all = Meant::default();
            for part in typed {
                let meant = state.take(part.as_bytes());
                all.keys.extend(meant.keys);
                all.detach |= meant.detach;
            }
            assert_eq!(all, Meant { keys: keys.into(), detach }, "{typed:?}");
        }
    }
}
