//! Transactions that are open: held in a process, without I/O, until they commit, abort or expire.
